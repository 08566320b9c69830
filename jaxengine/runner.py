"""The device's side of a step: uploads it, launches it, and reads its tokens when they are wanted.

The runner owns every device array and calls only executables that `compiler` made. It plans nothing and decides nothing
about requests. A step that raises leaves the donated caches destroyed; `reset` makes fresh ones.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from jaxengine.compiler import PLACES, Compiler, names
from jaxengine.executables import Progress
from jaxengine.params import MAX_LOGIT_BIAS
from jaxengine.sampling import BANS
from jaxengine.scheduler import Plan, Row
from jaxengine.sequence import Sequence, Token
from jaxengine.upload import Layout, SlotFields, Upload, needs_seat, plain_greedy


class Drawn(NamedTuple):
    """What a row drew. `finite` is False where the model's logits were not: the token means nothing then."""

    token: Token
    finite: bool


@dataclass
class InFlight:
    """A dispatched step: its plan, and the arrays that will hold its results."""

    plan: Plan
    done: Array  # an output of the step that no later step takes over
    drawn: Array | None = None
    scored: Array | None = None
    prompts: list[tuple[Row, int]] = field(default_factory=list)  # rows whose prompt is scored, and their first index


@dataclass
class Results:
    """Of one step: what each sampling row drew, and the logprobs of prompt tokens, by row index in the plan."""

    drawn: dict[int, Drawn]
    prompts: list[tuple[Row, list[Token]]]


class Runner:
    """Executables, parameters and device state of one engine."""

    def __init__(self, compiler: Compiler, eos_token_ids: Items[int], progress: Progress) -> None:
        self.shapes = compiler.shapes
        self.everywhere = compiler.everywhere
        self.leaves, self.head = compiler.leaves, compiler.head
        self.eos_token_ids = tuple(eos_token_ids)
        self.executables = compiler.executables(progress)
        self.fields = SlotFields(self.shapes.slots)
        self.placed = [0] * self.shapes.slots  # entries of each slot's page-table row that the device has
        self.reset()
        self._warm_up()
        self.executables.build_rest()

    def reset(self) -> None:
        """Fresh, empty device state."""
        self.layers: Any = None  # the old pool's memory goes before the new one is asked for
        self.rooms: Any = None
        self.seats: Any = None
        self.layers, self.rooms, self.seats = self.executables["allocate"]()
        self.placed = [0] * self.shapes.slots

    def _warm_up(self) -> None:
        """Run what is there once on padding: first runs pay for allocation and, on a GPU, for recording the graph."""
        for layout in filter(self._compiled, self.shapes.layouts()):
            upload = Upload(layout, self.shapes.slots, self.shapes.table_width)
            packed_rows, hidden, every = self._backbone(layout, upload)
            for greedy in (True, False):
                self._draw(packed_rows, hidden, greedy)
            if layout.ragged:
                self._score(every, np.zeros(layout.tokens, np.int32))
        self._place([(self.shapes.slots, self.shapes.table_width, 0)])
        jax.block_until_ready((self.layers, self.rooms, self.seats))

    # --- a step -------------------------------------------------------------------------------------------------

    def dispatch(self, plan: Plan) -> InFlight:
        """Launch `plan`; returns as soon as the device has its orders."""
        for sequence in plan.admitted:
            self._seat(sequence)
        layout = self._layout(plan)
        upload = Upload(layout, self.shapes.slots, self.shapes.table_width)
        upload.add_rows(plan.rows, self.fields)
        updates = self._new_pages(plan)
        self._place(updates[layout.updates :])
        upload.add_updates(updates[: layout.updates])
        packed_rows, hidden, every = self._backbone(layout, upload)
        flight = InFlight(plan, packed_rows)
        sampling = [row.sequence for row in plan.rows if row.samples]
        if sampling:
            flight.drawn = self._draw(packed_rows, hidden, all(map(plain_greedy, sampling)))
        self._score_prompts(flight, every)
        return flight

    def fetch(self, flight: InFlight) -> Results:
        """Wait for a step and read what it produced. Raises what the device raised."""
        drawn: dict[int, Drawn] = {}
        if flight.drawn is not None:
            table = _Fetched(flight.drawn, self.shapes.top)
            for i, row in enumerate(flight.plan.rows):
                if row.samples:
                    drawn[i] = Drawn(table.token(i, row.sequence.params.logprobs), table.finite[i])
        else:
            jax.block_until_ready(flight.done)
        return Results(drawn, self._read_prompts(flight))

    def _layout(self, plan: Plan) -> Layout:
        """The smallest compiled step that holds `plan`."""
        limits, rows = self.shapes.limits, len(plan.rows)
        if plan.decode_only:
            layouts = [self.shapes.decode(size) for size in limits.decode_buckets if size >= rows]
        else:
            layouts = [self.shapes.mixed(size) for size in limits.mixed_buckets if size >= plan.tokens]
        return next(layout for layout in layouts if layout.rows >= rows and self._compiled(layout))

    def _compiled(self, layout: Layout) -> bool:
        return all(name in self.executables for name in names(layout))

    def _backbone(self, layout: Layout, upload: Upload) -> tuple[Array, Array, Array]:
        packed = jax.device_put(upload.buffer, self.everywhere)
        self.layers, self.rooms, packed_rows, hidden, every = self.executables["backbone", layout](
            self.leaves, self.layers, self.rooms, packed
        )
        return packed_rows, hidden, every

    def _draw(self, packed_rows: Array, hidden: Array, greedy: bool) -> Array:
        executable = self.executables["draw", hidden.shape[0], greedy]
        if greedy:
            last, drawn = executable(self.head, self.rooms.last, packed_rows, hidden)
        else:
            last, self.seats, drawn = executable(self.head, self.rooms.last, self.seats, packed_rows, hidden)
        self.rooms = self.rooms._replace(last=last)
        drawn.copy_to_host_async()
        return drawn  # type: ignore[no-any-return]

    # --- slots --------------------------------------------------------------------------------------------------

    def _seat(self, sequence: Sequence) -> None:
        """A sequence took a slot: its page-table row starts anew, and so does what the sampler remembers."""
        assert sequence.slot is not None
        self.placed[sequence.slot] = 0
        self.fields.take(sequence)
        if not needs_seat(sequence):
            return
        vocab, params = self.shapes.spec.vocab_size, sequence.params
        stops = () if params.ignore_eos else self.eos_token_ids
        self.seats = self.executables["take_seat"](
            self.seats,
            *self._put(
                np.int32(sequence.slot),
                _padded(sequence.tokens, self.shapes.limits.max_total_tokens, vocab),
                np.int32(sequence.prompt_length),
                np.int32(len(sequence.tokens)),
                (
                    _padded(list(params.logit_bias), MAX_LOGIT_BIAS, vocab),
                    _padded(list(params.logit_bias.values()), MAX_LOGIT_BIAS, 0, np.float32),
                ),
                _padded([*stops, *params.stop_token_ids], BANS, vocab),
                np.float32(-np.inf if params.only_biased else 0),
            ),
        )

    def _new_pages(self, plan: Plan) -> list[tuple[int, int, int]]:
        """(slot, index, page) of every page-table entry the device lacks."""
        updates = []
        for row in plan.rows:
            slot, pages = row.sequence.slot, row.sequence.pages
            assert slot is not None
            updates += [(slot, i, pages[i]) for i in range(self.placed[slot], len(pages))]
            self.placed[slot] = len(pages)
        return updates

    def _place(self, updates: list[tuple[int, int, int]]) -> None:
        """Page-table entries that a step's own upload has no room for: long prompts, long cached prefixes."""
        for first in range(0, len(updates), PLACES):
            batch = updates[first : first + PLACES]
            block = np.full((3, PLACES), self.shapes.table_width, np.int32)
            block[:, : len(batch)] = np.array(batch, np.int32).T
            table = self.executables["place"](self.rooms.table, *self._put(block))
            self.rooms = self.rooms._replace(table=table)

    def _put(self, *values: Any) -> Any:
        return jax.device_put(values, self.everywhere)

    # --- prompt logprobs ----------------------------------------------------------------------------------------

    def _score_prompts(self, flight: InFlight, every: Array) -> None:
        target, first = np.zeros(every.shape[0], np.int32), 0
        for row in flight.plan.rows:
            sequence = row.sequence
            end = min(row.start + row.count, sequence.prompt_length - 1)  # the last prompt token predicts no other
            if sequence.params.prompt_logprobs and end > row.start:
                target[first : first + end - row.start] = sequence.tokens[row.start + 1 : end + 1]
                flight.prompts.append((row, first))
            first += row.count
        if flight.prompts:
            flight.scored = self._score(every, target)

    def _score(self, every: Array, target: np.ndarray) -> Array:
        return self.executables["score", len(target)](self.head, every, *self._put(target))  # type: ignore[no-any-return]

    def _read_prompts(self, flight: InFlight) -> list[tuple[Row, list[Token]]]:
        """For each scored row, the tokens at positions start+1 …, as likely as the model found them."""
        if flight.scored is None:
            return []
        table = _Fetched(flight.scored, self.shapes.top)
        prompts = []
        for row, first in flight.prompts:
            count = min(row.start + row.count, row.sequence.prompt_length - 1) - row.start
            top = row.sequence.params.logprobs
            prompts.append((row, [table.token(first + i, top) for i in range(count)]))
        return prompts


class _Fetched:
    """A packed result (`steps.pack_sampled`) on the host."""

    def __init__(self, packed: Array, top: int) -> None:
        table = np.asarray(packed)  # [R, 3 + 2N]
        self.ids = table[:, 0].tolist()
        self.logprobs = table[:, 1].view(np.float32).tolist()
        self.finite = (table[:, 2] != 0).tolist()
        self.top_ids = table[:, 3 : 3 + top]
        self.top_logprobs = table[:, 3 + top :].view(np.float32)

    def token(self, row: int, top: int) -> Token:
        if not top:
            return Token(self.ids[row], self.logprobs[row])
        alternatives = zip(self.top_ids[row, :top].tolist(), self.top_logprobs[row, :top].tolist(), strict=True)
        return Token(self.ids[row], self.logprobs[row], tuple(alternatives))


def _padded(values: Items[float], size: int, fill: int, dtype: type = np.int32) -> np.ndarray:
    padded: np.ndarray = np.full(size, fill, dtype)
    padded[: len(values)] = values
    return padded
