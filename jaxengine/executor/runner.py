"""From a plan to launches: packs what the devices lack, launches the step, and reads its tokens when they are wanted.

The runner knows what the devices know. It touches them through `DeviceState` alone, plans nothing and decides nothing
about requests. A step that raises leaves the donated caches destroyed; `reset` makes fresh ones.
"""

from collections.abc import Container, Hashable
from collections.abc import Sequence as Items
from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from jaxengine.architecture.adaptation import LoadedAdapter
from jaxengine.cache.page_pool import SINK
from jaxengine.cache.page_tables import Fork
from jaxengine.executor.bucket_chooser import BucketChooser
from jaxengine.executor.compiler import COPIES, TABLE_WRITES, Compiler
from jaxengine.executor.device_state import LEFT_OUT, DeviceState
from jaxengine.executor.draft_runner import DraftRunner
from jaxengine.executor.executables import Progress
from jaxengine.executor.followers import Everywhere, Followers
from jaxengine.executor.mask_mirror import MaskMirror
from jaxengine.executor.page_table_mirror import Entry, PageTableMirror
from jaxengine.executor.shapes import AnyShape
from jaxengine.model.vision.packing import EncodeShape, needed
from jaxengine.request.plan import Plan, Row
from jaxengine.request.sequence import Sequence
from jaxengine.speculation.drafter import Proposal
from jaxengine.step.buffer import StepShape
from jaxengine.step.functions import LOGITS_BLOCK
from jaxengine.step.pooled import PooledHidden, pooled_rows, row_of_tokens
from jaxengine.step.prompt_logits import PromptLogits
from jaxengine.step.results import InFlight, Results
from jaxengine.step.sampler_slot import SamplerSlot, counts_tokens, needs_sampler_state
from jaxengine.step.samples import NO_SAMPLES, Samples
from jaxengine.step.see import Encode, seeing
from jaxengine.step.sight import SequenceSight
from jaxengine.step.upload import SlotFields, Upload


class BackboneLaunch(NamedTuple):
    """A step whose backbone is launched and whose samples are not."""

    plan: Plan
    shape: StepShape
    samples: Samples
    greedy: bool  # all samples want the model's own argmax
    packed_samples: Array  # i32 [fields, padded N]
    hidden: Array  # [padded N, h], of the samples
    all_hidden: Array | None  # [T, h], of all tokens of a ragged step


class Runner:
    """The host's half of one engine's steps.

    Args:
        followers: the other processes that share the model's devices, if there are any.
    """

    def __init__(
        self,
        compiler: Compiler,
        eos_token_ids: Items[int],
        progress: Progress,
        followers: Followers | None = None,
    ) -> None:
        self.shapes = compiler.shapes
        self.device = compiler.device
        self.model = compiler.model
        self.eos_token_ids = tuple(eos_token_ids)
        self.executables = compiler.executables(progress)
        self.followers = followers
        self.fields = SlotFields(self.shapes.slots, self.shapes.sight(ragged=True).run)
        self.mirror = PageTableMirror(self.shapes.slots)
        self.masks = MaskMirror(self.shapes.slots, self.shapes.spec.vocab_size, self.shapes.guess_masks)
        ready: Container[Hashable] = self.executables
        if followers:
            followers.await_built(self.executables.built)
            ready = Everywhere(self.executables, followers)
        self.state = DeviceState(compiler, self.executables, followers.tell if followers else None)
        first_run = self._first_run if self.device.costly_first_run else None
        self.buckets = BucketChooser(self.shapes, ready, first_run)
        self.draft = DraftRunner(self.shapes, self.state, self.buckets) if self.shapes.draft_model else None
        self._allocate()
        self._warm_up()

    def reset(self) -> None:
        """Fresh, empty device state.

        Raises:
            RuntimeError: devices have failed, and there are followers: nobody knows how far theirs came.
        """
        if self.followers and self.state.broken:
            raise RuntimeError("a step of several machines failed, and all of them must start anew")
        self._allocate()

    def _allocate(self) -> None:
        if self.shapes.adapters:
            self.state.launch("allocate_adapters")
        if self.draft:
            self.draft.reset()
        if self.shapes.sees:
            self.state.launch("allocate_images")
        self.state.launch("allocate")  # last: with the caches comes the room that nothing which stays should take
        self.mirror.reset()
        self.masks.reset()

    def warm_next(self) -> bool:
        """Run a step for the first time if one was compiled since the last call, see `BucketChooser.warm_next`."""
        return self.buckets.warm_next()

    def _warm_up(self) -> None:
        """First runs of all that serving waits for, where they cost."""
        while self.warm_next():
            pass
        self._write_page_table([(0, self.shapes.table_width, 0)])
        self._copy("copy_pages", [(SINK, SINK)], SINK)
        if self.shapes.spec.recurrent_layers:
            self._copy("copy_slots", [(self.shapes.slots,) * 2], self.shapes.slots)
        for slots in self.shapes.mask_writes:
            self._write_masks(*self.masks.padding(slots))
        if self.shapes.adapters:
            self._place_adapter(0, LoadedAdapter(b"", {}))  # zeros, where there are zeros
        if self.shapes.spec.predicts_prompt:
            self._logits(np.zeros((1, self.shapes.spec.hidden_size), self.shapes.dtype))
        jax.block_until_ready((self.state.slot_state, self.state.layers, self.state.adapters))

    def _first_run(self, shape: AnyShape) -> None:
        """Run every executable of `shape` on padding."""
        if isinstance(shape, EncodeShape):
            self._see(shape, [])
            jax.block_until_ready(self.state.pool)
            return
        buffer = Upload(shape, self.shapes.slots, self.shapes.table_width).buffer
        state, names, unused = self.state, self.shapes.names(shape), np.zeros(shape.tokens, np.int32)
        results: list[Array] = []
        if not shape.samples:
            state.launch(("encode", shape), buffer)
        else:
            state.launch(("backbone", shape), buffer)
            results += [state.launch(("sample", shape.samples, greedy)) for greedy in (True, False)]
            if shape.ragged:
                results.append(state.launch(("score", shape.tokens), unused))
                if self.shapes.sums_hidden:
                    results.append(state.launch(("sum_hidden", shape.tokens), unused))
            elif ("propose", shape.rows) in names and self.model.drafter:
                results.append(self._propose(np.full(shape.rows, self.shapes.slots, np.int32)))
            if self.draft:
                self.draft.first_run(shape)
        jax.block_until_ready((state.layers, state.slot_state, state.sampler_state, results))

    # --- a step -------------------------------------------------------------------------------------------------

    def launch_backbone(self, plan: Plan) -> BackboneLaunch:
        """Launch all of `plan` but its samples. Returns as soon as the device has its orders."""
        self._place_adapters(plan.placements)
        for sequence in plan.admitted:
            self._fill_slot(sequence)
        self._copy("copy_slots", plan.restores, self.shapes.slots)
        for sequence in plan.sees_others:
            self.fields.forget_seen(sequence)
        self._encode_images(plan.encodes)
        if plan.encoder_rows:
            shape = self.buckets.encode(plan)
            self.state.launch(("encode", shape), self._upload(shape, plan.encoder_rows).buffer)
        shape, samples = self.buckets.step(plan), Samples.last_of(plan.rows)
        upload = self._upload(shape, plan.rows)
        upload.add_samples(samples, self.fields)
        outputs = self.state.launch(("backbone", shape), upload.buffer)
        self._copy("copy_slots", [(_slot(each.sequence), each.snapshot) for each in plan.saves], self.shapes.slots)
        return BackboneLaunch(plan, shape, samples, upload.greedy, *outputs)

    def _encode_images(self, encodes: Items[Encode]) -> None:
        """Pictures of any requests, in one call: no step is planned with more than the largest holds. Only a run that
        layers attend to may have more pictures.
        """
        vision = self.shapes.spec.vision
        if vision is None or not encodes:
            return
        most = self.buckets.see_shapes[-1].segments if vision.cross else len(encodes)
        for first in range(0, len(encodes), most):
            call = encodes[first : first + most]
            self._see(self.buckets.see(needed(vision, [image.shape for image, _ in call])), call)

    def _see(self, shape: EncodeShape, encodes: Items[Encode]) -> None:
        vision = self.shapes.spec.vision
        assert vision is not None
        arrays = seeing(vision, shape, self.shapes.dtype, self.shapes.limits.image_rows, encodes)
        self.state.launch(("see", shape), *arrays)

    def write_masks(self, samples: Samples, rows: list[Row], masks: np.ndarray) -> None:
        """Before `launch_sample`: what may be sampled in `rows`, i32 [N, ⌈V/32⌉]. First come the masks of what each row
        samples first, in order, then those of what is sampled behind guesses. Only those that have changed are sent.
        """
        sink, mine = self.shapes.slots, {id(row) for row in rows}
        numbers = zip(samples.rows, samples.mask_numbers(sink), strict=True)
        wanted = [number for row, number in numbers if id(row) in mine]
        changed = self.masks.take_changed(sorted(wanted, key=lambda number: number > sink), masks)
        if changed:
            size = next(each for each in self.shapes.mask_writes if each >= len(changed))
            self._write_masks(*self.masks.block(changed, size))

    def launch_sample(self, launch: BackboneLaunch) -> InFlight:
        """Launch the samples of a step, and the scores of its prompts. Returns as soon as the device has its orders.

        What they need of the step before may be read from the device between the two launches.
        """
        plan, shape, samples, greedy, packed_samples, hidden, all_hidden = launch
        wants_tokens = any(row.sequence.wants_text for row in samples.rows)
        sampled = self.state.launch(("sample", shape.samples, greedy)) if wants_tokens else None
        number = self.state.launches
        prompts, scored = self._score_prompts(plan, all_hidden)
        pooled = self._pool(plan, hidden, all_hidden)
        logits = PromptLogits.of(plan.rows, hidden, all_hidden, self._logits)
        done = packed_samples if sampled is None else sampled
        return InFlight(plan, shape, done, samples, sampled, prompts, scored, pooled, logits, number)

    def fetch(self, flight: InFlight) -> Results:
        """Wait for a step and read what it produced. Raises what the device raised."""
        try:
            results = flight.read(self.shapes.top, self.shapes.scored)
        except Exception:
            self.state.broken = True
            raise
        if self.followers and flight.sampled is not None:
            self.followers.compare(flight.number, np.asarray(flight.sampled)[: len(flight.samples)])
        return results

    def can_propose(self, rows: int) -> bool:
        """Whether `propose` can run for so many sequences."""
        return self.buckets.propose_size(rows) is not None

    def catch_up(self, sequences: Items[Sequence]) -> list[Sequence]:
        """What heads read of a text is in its slot."""
        return [*sequences]

    def propose(self, sequences: Items[Sequence]) -> list[Proposal]:
        """What the heads guess behind the tokens of `sequences`, each of which has been sampled in its slot last. Waits
        for the device.
        """
        slots = np.full(self.buckets.propose_size(len(sequences)) or 0, self.shapes.slots, np.int32)
        slots[: len(sequences)] = np.array([sequence.slot for sequence in sequences], np.int32)
        ids, chances = np.split(np.asarray(self._propose(slots))[: len(sequences)], 2, axis=1)
        return list(map(Proposal, ids.tolist(), chances.view(np.float32).tolist()))

    def _propose(self, slots: np.ndarray) -> Array:
        return self.state.launch(("propose", len(slots)), slots)  # type: ignore[no-any-return]

    def _upload(self, shape: StepShape, rows: list[Row]) -> Upload:
        """`rows` packed for a step of `shape`, with the page-table entries that it needs first."""
        upload = Upload(shape, self.shapes.slots, self.shapes.table_width)
        upload.add_rows(rows, self.fields)
        updates = self.mirror.take_missing(rows)
        self._write_page_table(updates[shape.updates :])
        upload.add_updates(updates[: shape.updates])
        return upload

    def _score_prompts(self, plan: Plan, all_hidden: Array | None) -> tuple[Samples, Array | None]:
        """The tokens of prompts whose logprobs are wanted, and the launched scores of all tokens if there are any."""
        if all_hidden is None:
            return NO_SAMPLES, None
        samples = Samples.of_prompts(plan.rows)
        if not samples.rows:
            return samples, None
        target = np.zeros(all_hidden.shape[0], np.int32)
        target[samples.token] = samples.known_ids()
        return samples, self.state.launch(("score", len(target)), target)

    def _pool(self, plan: Plan, hidden: Array, all_hidden: Array | None) -> PooledHidden | None:
        """What the step adds to embeddings, if any are wanted."""
        pooled = pooled_rows(plan.rows)
        if not pooled:
            return None
        if self.shapes.sums_hidden and all_hidden is not None:
            of_tokens = row_of_tokens(plan.rows, pooled, all_hidden.shape[0])
            array, index = self.state.launch(("sum_hidden", len(of_tokens)), of_tokens), [each for each, _ in pooled]
        else:  # each is a last token, of which there is a sample
            behind = np.cumsum([row.samples for row in plan.rows]).tolist()
            array, index = hidden, [behind[number] - 1 for number, _ in pooled]
        array.copy_to_host_async()
        return PooledHidden(pooled, index, array)

    def _logits(self, hidden: np.ndarray) -> np.ndarray:
        """hidden [n, h] → f32 [n, tokens]. Waits for the device, which makes and holds a block at a time."""
        logits = np.empty((len(hidden), self.shapes.spec.tokens), np.float32)
        for first in range(0, len(hidden), LOGITS_BLOCK):
            block = np.zeros((LOGITS_BLOCK, hidden.shape[1]), hidden.dtype)
            count = min(LOGITS_BLOCK, len(hidden) - first)
            block[:count] = hidden[first : first + count]
            logits[first : first + count] = np.asarray(self.state.launch("logits", block))[:count]
        return logits

    # --- slots --------------------------------------------------------------------------------------------------

    def _place_adapters(self, placements: Items[tuple[int, LoadedAdapter]]) -> None:
        """One after the other: memory is set aside for one of a step on its way, see `held_bytes`."""
        for number, (slot, adapter) in enumerate(placements):
            if number:
                jax.block_until_ready(self.state.adapters)
            self._place_adapter(slot, adapter)

    def _place_adapter(self, slot: int, adapter: LoadedAdapter) -> None:
        """Steps that were launched before still read what was there."""
        names = sorted(self.model.adapters)
        pairs = [adapter.arrays.get(name, (LEFT_OUT, LEFT_OUT)) for name in names]
        self.state.launch("place_adapter", np.int32(slot), *(array for pair in pairs for array in pair))

    def _fill_slot(self, sequence: Sequence) -> None:
        """A sequence took a slot: its page-table row starts anew, and so does what the sampler remembers."""
        assert sequence.slot is not None
        self.mirror.clear(sequence.slot)
        self.fields.fill(sequence, SequenceSight.of(sequence, self.shapes.spec.vision, self.shapes.sight(ragged=True)))
        self._fill_sampler(sequence)

    def _fill_sampler(self, sequence: Sequence) -> None:
        if not needs_sampler_state(sequence):
            return
        shapes = self.shapes
        new = SamplerSlot.of(sequence, self.eos_token_ids, shapes.limits.max_total_tokens, shapes.spec.vocab_size)
        self.state.launch("fill_slot", *new)

    def regrow(self, beams: Items[Sequence], forks: Items[Fork]) -> None:
        """All of `beams` have grown by a token, and some as `forks` say. Nothing may be in flight."""
        slots = []
        for fork in forks:
            slots.append((_slot(fork.parent), _slot(fork.child)))
            self.mirror.rewind(_slot(fork.child), fork.kept)
        self._copy("copy_pages", [copy for fork in forks for copy in fork.copies], SINK)
        if self.shapes.spec.recurrent_layers:
            self._copy("copy_slots", slots, self.shapes.slots)
        for beam in filter(counts_tokens, beams):  # what the sampler counted was its own choice
            self._fill_sampler(beam)

    def _copy(self, name: str, copies: list[tuple[int, int]], sink: int) -> None:
        """Copy pages or slots by executable `name`, (source, target) each. No target is a source. Padding copies `sink`
        to itself.
        """
        for first in range(0, len(copies), COPIES):
            batch = copies[first : first + COPIES]
            block = np.full((2, COPIES), sink, np.int32)
            block[:, : len(batch)] = np.array(batch, np.int32).T
            self.state.launch(name, *block)

    def _write_page_table(self, updates: list[Entry]) -> None:
        """Page-table entries that a step's own upload has no room for: long prompts, long cached prefixes."""
        for first in range(0, len(updates), TABLE_WRITES):
            batch = updates[first : first + TABLE_WRITES]
            block = np.full((3, TABLE_WRITES), self.shapes.table_width, np.int32)
            block[:, : len(batch)] = np.array(batch, np.int32).T
            self.state.launch("write_page_table", block)

    def _write_masks(self, slots: np.ndarray, masks: np.ndarray) -> None:
        self.state.launch(("write_masks", len(slots)), slots, masks)


def _slot(sequence: Sequence) -> int:
    assert sequence.slot is not None
    return sequence.slot
