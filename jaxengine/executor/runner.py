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

from jaxengine.executor.compiler import TABLE_WRITES, Compiler
from jaxengine.executor.executables import Progress
from jaxengine.executor.shapes import names
from jaxengine.request.plan import Plan, Row
from jaxengine.request.sequence import Sequence
from jaxengine.step.results import InFlight, Results
from jaxengine.step.sampler_slot import SamplerSlot, needs_sampler_state
from jaxengine.step.upload import FULL_SAMPLER, SAMPLES, SlotFields, StepShape, Upload

WARM_SECONDS = 10.0  # under requests without a pause: at most one first run in so many seconds stops them


class Runner:
    """Executables, parameters and device state of one engine."""

    def __init__(self, compiler: Compiler, eos_token_ids: Items[int], progress: Progress) -> None:
        self.shapes = compiler.shapes
        self.replicated = compiler.replicated
        self.leaves, self.head = compiler.leaves, compiler.head
        self.encoder_leaves = compiler.encoder_leaves
        self.eos_token_ids = tuple(eos_token_ids)
        self.executables = compiler.executables(progress)
        self.fields = SlotFields(self.shapes.slots)
        self.placed = [0] * self.shapes.slots  # entries of each slot's page tables that the device has
        self.encode_shapes = self.shapes.encode_shapes()
        self.cold = [*self.shapes.step_shapes(), *self.encode_shapes]  # steps that no one has tried to run yet
        self.warm: set[StepShape] = set()  # steps that have run
        self.warmed = 0.0  # when the last of them did so first
        self.device = compiler.device
        self.reset()
        self._warm_up()
        self.executables.build_rest()

    def reset(self) -> None:
        """Fresh, empty device state."""
        self.layers: Any = None  # the old pool's memory goes before the new one is asked for
        self.slot_state: Any = None
        self.sampler_state: Any = None
        self.layers, self.slot_state, self.sampler_state = self.executables["allocate"]()
        self.placed = [0] * self.shapes.slots

    def warm_next(self) -> bool:
        """Run a step for the first time, on padding, if one was compiled since; False if there is none.

        Raises what the device raised: that step is never tried again, and `reset` is needed.
        """
        shape = next(filter(self._compiled, self.cold), None) if self.device.costly_first_run else None
        if shape is not None:
            self._warm(shape)
        return shape is not None

    def _warm_up(self) -> None:
        """First runs of all that serving waits for, where they cost."""
        while self.warm_next():
            pass
        self._write_page_table([(0, self.shapes.table_width, 0)])
        jax.block_until_ready(self.slot_state)

    def _warm(self, shape: StepShape) -> None:
        self.cold.remove(shape)
        upload = Upload(shape, self.shapes.slots, self.shapes.table_width)
        results: list[Array] = []
        if shape in self.encode_shapes:
            self._encode(shape, upload)
        else:
            packed_rows, hidden, all_hidden = self._backbone(shape, upload)
            results += [self._sample(packed_rows, hidden, greedy) for greedy in (True, False)]
            if all_hidden is not None:
                results.append(self._score(all_hidden, np.zeros(shape.tokens, np.int32)))
        jax.block_until_ready((self.layers, self.slot_state, self.sampler_state, results))
        self.warm.add(shape)
        self.warmed = time.monotonic()

    # --- a step -------------------------------------------------------------------------------------------------

    def dispatch(self, plan: Plan) -> InFlight:
        """Launch `plan`; returns as soon as the device has its orders."""
        for sequence in plan.admitted:
            self._fill_slot(sequence)
        if plan.encoder_rows:
            shape = self._encode_shape(plan)
            self._encode(shape, self._upload(shape, plan.encoder_rows))
        shape = self._step_shape(plan)
        upload = self._upload(shape, plan.rows)
        packed_rows, hidden, all_hidden = self._backbone(shape, upload)
        flight = InFlight(plan, packed_rows)
        if upload.flagged(SAMPLES):
            flight.sampled = self._sample(packed_rows, hidden, greedy=not upload.flagged(FULL_SAMPLER))
        self._score_prompts(flight, all_hidden)
        return flight

    def fetch(self, flight: InFlight) -> Results:
        """Wait for a step and read what it produced. Raises what the device raised."""
        return flight.read(self.shapes.top, self.shapes.scored)

    def _step_shape(self, plan: Plan) -> StepShape:
        """The smallest step that holds `plan`."""
        limits, rows = self.shapes.limits, len(plan.rows)
        if plan.decode_only:
            step_shapes = [self.shapes.decode(size) for size in limits.decode_buckets if size >= rows]
        else:
            step_shapes = [self.shapes.mixed(size) for size in limits.mixed_buckets if size >= plan.tokens]
        return self._ready([shape for shape in step_shapes if shape.rows >= rows])

    def _encode_shape(self, plan: Plan) -> StepShape:
        return self._ready([shape for shape in self.encode_shapes if shape.tokens >= plan.encoder_tokens])

    def _ready(self, step_shapes: list[StepShape]) -> StepShape:
        """The first of `step_shapes` that is compiled and warm; the last one always is.

        An engine that never rests would keep to that: there a first run may stop the requests, now and then.
        """
        first = next(filter(self._compiled, step_shapes))
        if not self.device.costly_first_run:
            return first
        if first in self.cold and time.monotonic() - self.warmed >= WARM_SECONDS:
            self._warm(first)
        return next(shape for shape in step_shapes if shape in self.warm)

    def _compiled(self, shape: StepShape) -> bool:
        wanted = [("encode", shape)] if shape in self.encode_shapes else names(shape)
        return all(name in self.executables for name in wanted)

    def _upload(self, shape: StepShape, rows: list[Row]) -> Upload:
        """`rows` packed for a step of `shape`, with the page-table entries that it needs first."""
        upload = Upload(shape, self.shapes.slots, self.shapes.table_width)
        upload.add_rows(rows, self.fields)
        updates = self._new_pages(rows)
        self._write_page_table(updates[shape.updates :])
        upload.add_updates(updates[: shape.updates])
        return upload

    def _encode(self, shape: StepShape, upload: Upload) -> None:
        packed = jax.device_put(upload.buffer, self.replicated)
        self.layers, self.slot_state = self.executables["encode", shape](
            self.encoder_leaves, self.layers, self.slot_state, packed
        )

    def _backbone(self, shape: StepShape, upload: Upload) -> tuple[Array, Array, Array | None]:
        packed = jax.device_put(upload.buffer, self.replicated)
        self.layers, self.slot_state, packed_rows, hidden, all_hidden = self.executables["backbone", shape](
            self.leaves, self.layers, self.slot_state, packed
        )
        return packed_rows, hidden, all_hidden

    def _sample(self, packed_rows: Array, hidden: Array, greedy: bool) -> Array:
        executable = self.executables["sample", hidden.shape[0], greedy]
        if greedy:
            last, sampled = executable(self.head, self.slot_state.last, packed_rows, hidden)
        else:
            last, self.sampler_state, sampled = executable(
                self.head, self.slot_state.last, self.sampler_state, packed_rows, hidden
            )
        self.slot_state = self.slot_state._replace(last=last)
        sampled.copy_to_host_async()
        return sampled  # type: ignore[no-any-return]

    # --- slots --------------------------------------------------------------------------------------------------

    def _fill_slot(self, sequence: Sequence) -> None:
        """A sequence took a slot: its page-table row starts anew, and so does what the sampler remembers."""
        assert sequence.slot is not None
        self.placed[sequence.slot] = 0
        self.fields.fill(sequence)
        if not needs_sampler_state(sequence):
            return
        shapes = self.shapes
        new = SamplerSlot.of(sequence, self.eos_token_ids, shapes.limits.max_total_tokens, shapes.spec.vocab_size)
        self.sampler_state = self.executables["fill_slot"](self.sampler_state, self._put(new))

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

    def _write_page_table(self, updates: list[tuple[int, int, int]]) -> None:
        """Page-table entries that a step's own upload has no room for: long prompts, long cached prefixes."""
        for first in range(0, len(updates), TABLE_WRITES):
            batch = updates[first : first + TABLE_WRITES]
            block = np.full((3, TABLE_WRITES), self.shapes.table_width, np.int32)
            block[:, : len(batch)] = np.array(batch, np.int32).T
            table = self.executables["write_page_table"](self.slot_state.table, self._put(block))
            self.slot_state = self.slot_state._replace(table=table)

    def _put(self, values: Any) -> Any:
        return jax.device_put(values, self.replicated)

    # --- prompt logprobs ----------------------------------------------------------------------------------------

    def _score_prompts(self, flight: InFlight, all_hidden: Array | None) -> None:
        if all_hidden is None:
            return
        target, first = np.zeros(all_hidden.shape[0], np.int32), 0
        for row in flight.plan.rows:
            sequence = row.sequence
            end = min(row.start + row.count, sequence.prompt_length - 1)  # the last prompt token predicts no other
            if sequence.params.prompt_logprobs and end > row.start:
                target[first : first + end - row.start] = sequence.tokens[row.start + 1 : end + 1]
                flight.prompts.append((row, first))
            first += row.count
        if flight.prompts:
            flight.scored = self._score(all_hidden, target)

    def _score(self, all_hidden: Array, target: np.ndarray) -> Array:
        return self.executables["score", len(target)](self.head, all_hidden, self._put(target))  # type: ignore[no-any-return]
