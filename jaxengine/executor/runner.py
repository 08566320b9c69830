"""The device's side of a step: uploads it, launches it, and reads its tokens when they are wanted.

The runner owns every device array and calls only executables that `compiler` made. It plans nothing and decides nothing
about requests. A step that raises leaves the donated caches destroyed; `reset` makes fresh ones.

On a GPU an executable's first run loads its code and records its graph. So requests get the smallest step that has run
before, on padding: `warm_next` sees to that between requests.
"""

import time
from collections.abc import Sequence as Items
from typing import Any

import jax
import numpy as np
from jax import Array

from jaxengine.executor.compiler import PLACES, Compiler, names
from jaxengine.executor.executables import Progress
from jaxengine.request.plan import Plan, Row
from jaxengine.request.sequence import Sequence
from jaxengine.rpc.limits import MAX_LOGIT_BIAS
from jaxengine.step.results import InFlight, Results
from jaxengine.step.sampler_state import BANS, padded_words
from jaxengine.step.upload import CHOOSES, SAMPLES, SlotFields, StepShape, Upload, needs_seat

WARM_SECONDS = 10.0  # under requests without a pause: at most one first run in so many seconds stops them


class Runner:
    """Executables, parameters and device state of one engine."""

    def __init__(self, compiler: Compiler, eos_token_ids: Items[int], progress: Progress) -> None:
        self.shapes = compiler.shapes
        self.everywhere = compiler.everywhere
        self.leaves, self.head = compiler.leaves, compiler.head
        self.encoder_leaves = compiler.encoder_leaves
        self.eos_token_ids = tuple(eos_token_ids)
        self.executables = compiler.executables(progress)
        self.fields = SlotFields(self.shapes.slots)
        self.placed = [0] * self.shapes.slots  # entries of each slot's page tables that the device has
        self.encodes = self.shapes.encodes()
        self.cold = [*self.shapes.layouts(), *self.encodes]  # steps that no one has tried to run yet
        self.warm: set[StepShape] = set()  # steps that have run
        self.warmed = 0.0  # when the last of them did so first
        self.first_runs_cost = compiler.platform != "cpu"
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

    def warm_next(self) -> bool:
        """Run a step for the first time, on padding, if one was compiled since; False if there is none.

        Raises what the device raised: that step is never tried again, and `reset` is needed.
        """
        layout = next(filter(self._compiled, self.cold), None) if self.first_runs_cost else None
        if layout is not None:
            self._warm(layout)
        return layout is not None

    def _warm_up(self) -> None:
        """First runs of all that serving waits for, where they cost."""
        while self.warm_next():
            pass
        self._place([(0, self.shapes.table_width, 0)])
        jax.block_until_ready(self.rooms)

    def _warm(self, layout: StepShape) -> None:
        self.cold.remove(layout)
        upload = Upload(layout, self.shapes.slots, self.shapes.table_width)
        results: list[Array] = []
        if layout in self.encodes:
            self._encode(layout, upload)
        else:
            packed_rows, hidden, every = self._backbone(layout, upload)
            results += [self._draw(packed_rows, hidden, greedy) for greedy in (True, False)]
            if every is not None:
                results.append(self._score(every, np.zeros(layout.tokens, np.int32)))
        jax.block_until_ready((self.layers, self.rooms, self.seats, results))
        self.warm.add(layout)
        self.warmed = time.monotonic()

    # --- a step -------------------------------------------------------------------------------------------------

    def dispatch(self, plan: Plan) -> InFlight:
        """Launch `plan`; returns as soon as the device has its orders."""
        for sequence in plan.admitted:
            self._seat(sequence)
        if plan.sources:
            layout = self._encode_layout(plan)
            self._encode(layout, self._upload(layout, plan.sources))
        layout = self._layout(plan)
        upload = self._upload(layout, plan.rows)
        packed_rows, hidden, every = self._backbone(layout, upload)
        flight = InFlight(plan, packed_rows)
        if upload.flagged(SAMPLES):
            flight.drawn = self._draw(packed_rows, hidden, greedy=not upload.flagged(CHOOSES))
        self._score_prompts(flight, every)
        return flight

    def fetch(self, flight: InFlight) -> Results:
        """Wait for a step and read what it produced. Raises what the device raised."""
        return flight.read(self.shapes.top, self.shapes.scored)

    def _layout(self, plan: Plan) -> StepShape:
        """The smallest step that holds `plan`."""
        limits, rows = self.shapes.limits, len(plan.rows)
        if plan.decode_only:
            layouts = [self.shapes.decode(size) for size in limits.decode_buckets if size >= rows]
        else:
            layouts = [self.shapes.mixed(size) for size in limits.mixed_buckets if size >= plan.tokens]
        return self._ready([layout for layout in layouts if layout.rows >= rows])

    def _encode_layout(self, plan: Plan) -> StepShape:
        return self._ready([layout for layout in self.encodes if layout.tokens >= plan.source_tokens])

    def _ready(self, layouts: list[StepShape]) -> StepShape:
        """The first of `layouts` that is compiled and warm; the last one always is.

        An engine that never rests would keep to that: there a first run may stop the requests, now and then.
        """
        first = next(filter(self._compiled, layouts))
        if not self.first_runs_cost:
            return first
        if first in self.cold and time.monotonic() - self.warmed >= WARM_SECONDS:
            self._warm(first)
        return next(layout for layout in layouts if layout in self.warm)

    def _compiled(self, layout: StepShape) -> bool:
        wanted = [("encode", layout)] if layout in self.encodes else names(layout)
        return all(name in self.executables for name in wanted)

    def _upload(self, layout: StepShape, rows: list[Row]) -> Upload:
        """`rows` packed for a step of `layout`, with the page-table entries that it needs first."""
        upload = Upload(layout, self.shapes.slots, self.shapes.table_width)
        upload.add_rows(rows, self.fields)
        updates = self._new_pages(rows)
        self._place(updates[layout.updates :])
        upload.add_updates(updates[: layout.updates])
        return upload

    def _encode(self, layout: StepShape, upload: Upload) -> None:
        packed = jax.device_put(upload.buffer, self.everywhere)
        self.layers, self.rooms = self.executables["encode", layout](
            self.encoder_leaves, self.layers, self.rooms, packed
        )

    def _backbone(self, layout: StepShape, upload: Upload) -> tuple[Array, Array, Array | None]:
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
                padded_words(params.bad_words, vocab),
                np.float32(-np.inf if params.only_biased else 0),
            ),
        )

    def _new_pages(self, rows: list[Row]) -> list[tuple[int, int, int]]:
        """(row of the tables, index, page) of every page-table entry the device lacks."""
        updates = []
        for row in rows:
            slot, tables = row.sequence.slot, row.sequence.tables
            assert slot is not None
            first, end = self.placed[slot], len(tables[0].pages)
            if first < end:
                for place, table in enumerate(tables):
                    mine = place * (self.shapes.slots + 1) + slot
                    updates += [(mine, i, table.pages[i]) for i in range(first, end)]
            self.placed[slot] = end
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

    def _score_prompts(self, flight: InFlight, every: Array | None) -> None:
        if every is None:
            return
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


def _padded(values: Items[float], size: int, fill: int, dtype: type = np.int32) -> np.ndarray:
    padded: np.ndarray = np.full(size, fill, dtype)
    padded[: len(values)] = values
    return padded
