"""What to compile, ahead of time: every function a runner calls, for every shape the buckets allow.

Shapes come from the buckets alone, so the list is closed: m backbones by tokens, n samplers by samples, and a few small
helpers; where there is an encoder, k of it by tokens, and where there is a tower, k of it by patches. After the engine
has its executables, a compile is a defect that is counted.
"""

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxengine.architecture.layer_groups import LayerGroups
from jaxengine.device import DeviceTraits
from jaxengine.executor.compile_cache import COMPILES
from jaxengine.executor.compiler_options import COMPILER_OPTIONS
from jaxengine.executor.executable_store import ExecutableStore
from jaxengine.executor.executables import Executables, Progress
from jaxengine.executor.shapes import Shapes
from jaxengine.executor.step_model import StepModel
from jaxengine.model.adapters import one_slot
from jaxengine.model.cache import cache_arrays, layers_of_array, slot_arrays
from jaxengine.model.feature_decoder import Features
from jaxengine.model.vision.packing import EncodeShape
from jaxengine.ops.cache import storage_dtype
from jaxengine.sharding import partition, replicated
from jaxengine.step import functions
from jaxengine.step.buffer import SampleFields, StepShape
from jaxengine.step.draft_functions import DraftShape
from jaxengine.step.sampler_slot import SamplerSlot, fill_slot
from jaxengine.step.sampler_state import SamplerState
from jaxengine.step.see import seeing

TABLE_WRITES = 1024  # page-table entries one `write_page_table` call writes
COPIES = 8  # pages that one `copy_pages` call copies, or slots that `copy_slots` does


class Compiler:
    """Lowers the step functions for a mesh and compiles them, or finds them in `store`."""

    def __init__(
        self,
        shapes: Shapes,
        model: StepModel,
        mesh: Mesh,
        device: DeviceTraits,
        store: ExecutableStore | None = None,
    ) -> None:
        self.shapes = shapes
        self.model = model
        self.mesh = mesh
        self.device = device
        self.store = store
        self.replicated = replicated(mesh)

    # --- abstract arguments -------------------------------------------------------------------------------------

    def array(self, shape: tuple[int, ...], dtype: Any = jnp.int32, axes: tuple[str | None, ...] | None = None) -> Any:
        sharding = partition(self.mesh, shape, axes) if axes else self.replicated
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    def caches(self) -> tuple[Any, ...]:
        shapes, layers = self.shapes, LayerGroups.of(self.shapes.spec).arrays
        sizes = shapes.pages, shapes.page_size, shapes.cache_dtype
        most = layers_of_array(shapes.spec, layers, *sizes, self.mesh.size)
        counts = [min(most, layers - first) for first in range(0, layers, most)]
        arrays = [array for count in counts for array in cache_arrays(shapes.spec, count, *sizes)]
        return (*(self.array(*array) for array in arrays), *self.slot_caches(), *self.features())

    def slot_caches(self) -> tuple[Any, ...]:
        """Of layers that keep states."""
        shapes = self.shapes
        return tuple(self.array(*array) for array in slot_arrays(shapes.spec, shapes.limits.state_slots, shapes.dtype))

    def features(self) -> Features:
        """What a step keeps of each token beside keys and values."""
        shapes = self.shapes
        if not shapes.feature_size:
            return ()
        return (self.array((1, shapes.pages, shapes.page_size, shapes.feature_size), self._draft_dtype()),)

    def draft_caches(self) -> tuple[Any, ...]:
        """Of a draft model; none of its layers shares another's place."""
        shapes = self.shapes
        assert shapes.draft_model is not None
        spec = shapes.draft_model.spec
        arrays = cache_arrays(spec, spec.num_layers, shapes.pages, shapes.page_size, self._draft_dtype())
        return tuple(self.array(*array) for array in arrays)

    def _draft_dtype(self) -> str:
        """In which a draft model's caches are stored."""
        return storage_dtype(self.shapes.dtype) if self.device.cache_as_bits else self.shapes.dtype

    def slot_state(self) -> functions.SlotState:
        slots = self.shapes.slots + 1
        heads = self.shapes.drafter is not None and self.shapes.draft_model is None
        hidden = (self.hidden(slots),) if heads else ()
        latest = functions.Latest(self.array((slots,)), hidden)
        return functions.SlotState(self.array((self.shapes.tables * slots, self.shapes.table_width)), latest)

    def sampler_state(self) -> SamplerState:
        empty = jax.eval_shape(lambda: self._empty_sampler_state())
        return SamplerState(*(self.array(each.shape, each.dtype) for each in empty))

    def _empty_sampler_state(self) -> SamplerState:
        return SamplerState.empty(
            self.shapes.slots, self.shapes.spec.vocab_size, self.shapes.limits.max_total_tokens, self.shapes.guess_masks
        )

    def pool(self) -> Any:
        """What has been seen. Every device has all of it, except of the keys and values that layers attend to."""
        spec, tiles = self.shapes.spec, self.shapes.limits.image_rows
        if spec.vision is not None and spec.vision.cross:
            held = storage_dtype(self.shapes.dtype) if self.device.cache_as_bits else self.shapes.dtype
            arrays = cache_arrays(spec, len(spec.cross_layers), tiles * spec.vision.places, 1, held)
            return tuple(self.array(*array) for array in arrays)
        shape = self.shapes.limits.image_rows, self.shapes.pool_width
        return self.array(shape, jnp.dtype(self.shapes.dtype))

    def hidden(self, tokens: int) -> Any:
        return self.array((tokens, self.shapes.spec.hidden_size), jnp.dtype(self.shapes.dtype))

    # --- functions ----------------------------------------------------------------------------------------------

    def lower_backbone(self, shape: StepShape) -> Any:
        arguments = self._of_step(shape, self.model.leaves[shape.adapters])
        returns = (*arguments[2:4], None, None, None)
        function = partial(self.model.backbones[shape.adapters], shape, self.shapes.guesses > 0)
        return self._lower(function, arguments, donate=(2, 3), returns=returns)

    def lower_encode(self, shape: StepShape) -> Any:
        arguments = self._of_step(shape, self.model.encoder_leaves)
        assert self.model.encode is not None
        return self._lower(partial(self.model.encode, shape), arguments, donate=(2, 3), returns=arguments[2:4])

    def _of_step(self, shape: StepShape, leaves: Any) -> tuple[Any, ...]:
        adapters = self.model.adapters if shape.adapters else {}
        pool = [self.pool()] if shape.sight.pool else []
        return (_abstract(leaves), adapters, self.caches(), self.slot_state(), self.array((shape.size,)), *pool)

    def lower_see(self, shape: EncodeShape) -> Any:
        shapes, pool = self.shapes, self.pool()
        assert self.model.see is not None and shapes.spec.vision is not None
        arrays = seeing(shapes.spec.vision, shape, shapes.dtype, shapes.limits.image_rows, [])
        arguments = (_abstract(self.model.tower_leaves), pool, *(self.array(a.shape, a.dtype) for a in arrays))
        return self._lower(partial(self.model.see, shape), arguments, donate=(1,), returns=pool)

    def lower_place_adapter(self) -> Any:
        stacks = self.model.adapters
        new = {name: one_slot(stack) for name, stack in stacks.items()}
        return self._lower(functions.place_adapter, (stacks, self.array(()), new), donate=(0,), returns=stacks)

    def lower_sample(self, samples: int, greedy: bool) -> Any:
        leaves, latest, sampler_state = self.model.head, self.slot_state().latest, self.sampler_state()
        head = _abstract(leaves.arrays)
        packed, hidden = self.array((len(SampleFields._fields), samples)), self.hidden(samples)
        top, guesses = self.shapes.top, self.shapes.guesses
        if greedy:
            arguments: tuple[Any, ...] = (head, latest, packed, hidden)
            sample_greedy = leaves.given_to(functions.sample_greedy, top, guesses)
            return self._lower(sample_greedy, arguments, donate=(1,), returns=(latest, None))
        arguments = (head, latest, sampler_state, packed, hidden)
        sample = leaves.given_to(functions.sample, top, guesses)
        return self._lower(sample, arguments, donate=(1, 2), returns=(latest, sampler_state, None))

    def lower_propose(self, rows: int) -> Any:
        if self.model.draft is not None:
            return self._lower_draft(self.model.draft.guess, self.shapes.draft_guessing(rows), None)
        drafter = self.model.drafter
        assert drafter is not None
        arguments = (_abstract(drafter.arrays), self.slot_state().latest, self.array((rows,)))
        return self._lower(drafter.given_to(functions.propose), arguments, donate=(), returns=None)

    def lower_read(self, tokens: int) -> Any:
        assert self.model.draft is not None
        return self._lower_draft(self.model.draft.read, self.shapes.draft_reading(tokens))

    def _lower_draft(self, function: Callable[..., Any], shape: DraftShape, *others: None) -> Any:
        """A function that returns the draft model's caches, and `others`."""
        caches = self.draft_caches()
        arguments = (_abstract(self.model.draft_leaves), caches, self.features(), self.array((shape.size,)))
        returns = (caches, *others) if others else caches
        return self._lower(partial(function, shape), arguments, donate=(1,), returns=returns)

    def lower_score(self, tokens: int) -> Any:
        head = self.model.head
        arguments = (_abstract(head.arrays), self.hidden(tokens), self.array((tokens,)))
        return self._lower(head.given_to(functions.score, self.shapes.scored), arguments, donate=(), returns=None)

    def lower_logits(self) -> Any:
        head = self.model.head
        arguments = (_abstract(head.arrays), self.hidden(functions.LOGITS_BLOCK))
        return self._lower(head.given_to(functions.logits, self.shapes.spec.tokens), arguments, donate=(), returns=None)

    def lower_sum_hidden(self, tokens: int) -> Any:
        function = partial(functions.sum_hidden, self.shapes.limits.rows_of(tokens))
        return self._lower(function, (self.hidden(tokens), self.array((tokens,))), donate=(), returns=None)

    def lower_write_page_table(self) -> Any:
        table = self.slot_state().table
        return self._lower(
            functions.write_page_table, (table, self.array((3, TABLE_WRITES))), donate=(0,), returns=table
        )

    def lower_copy_pages(self) -> Any:
        pages = {*range(len(self.caches()))} - {*self._slotted()}
        return self._lower_copy(tuple(sorted(pages)))

    def lower_copy_slots(self) -> Any:
        return self._lower_copy(self._slotted())

    def _slotted(self) -> tuple[int, ...]:
        """The numbers of the caches that have slots, not pages."""
        behind = len(self.caches()) - len(self.features())
        return tuple(range(behind - len(self.slot_caches()), behind))

    def _lower_copy(self, numbers: tuple[int, ...]) -> Any:
        """Of what the caches `numbers` hold."""
        caches, places = self.caches(), self.array((COPIES,))
        return self._lower(
            partial(functions.copy_places, numbers), (caches, places, places), donate=(0,), returns=caches
        )

    def lower_write_masks(self, slots: int) -> Any:
        mask = self.sampler_state().mask
        arguments = (mask, self.array((slots,)), self.array((slots, mask.shape[1])))
        return self._lower(functions.write_masks, arguments, donate=(0,), returns=mask)

    def lower_fill_slot(self) -> Any:
        state = self.sampler_state()
        new = SamplerSlot.abstract(self.shapes.limits.max_total_tokens, self.shapes.spec.vocab_size, self.replicated)
        return self._lower(fill_slot, (state, new), donate=(0,), returns=state)

    def lower_allocate(self) -> Any:
        def allocate() -> Any:
            zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), (self.caches(), self.slot_state()))
            return (*zeros, self._empty_sampler_state())

        return self._lower(allocate, (), donate=(), returns=(self.caches(), self.slot_state(), self.sampler_state()))

    def lower_allocate_adapters(self) -> Any:
        return self._lower_zeros(self.model.adapters)

    def lower_allocate_images(self) -> Any:
        return self._lower_zeros(self.pool())

    def lower_allocate_draft(self) -> Any:
        return self._lower_zeros(self.draft_caches())

    def _lower_zeros(self, arrays: Any) -> Any:
        def allocate() -> Any:
            return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), arrays)

        return self._lower(allocate, (), donate=(), returns=arrays)

    def _lower(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], donate: tuple[int, ...], returns: Any
    ) -> Any:
        shardings = jax.tree.map(lambda a: self.replicated if a is None else a.sharding, returns, is_leaf=_is_none)
        with jax.set_mesh(self.mesh):
            return jax.jit(function, donate_argnums=donate, out_shardings=shardings).lower(*arguments)

    # --- compiling ----------------------------------------------------------------------------------------------

    def compile(self, lowered: Any) -> Any:
        return lowered.compile(compiler_options=COMPILER_OPTIONS.get(self.device.platform))

    def executables(self, progress: Progress, on_built: Callable[[Hashable], None] = lambda _: None) -> Executables:
        """Build what serving waits for: the helpers, the essential steps, the shortest and the longest prompt's
        encoder, likewise of pictures the tower. `on_built` as `Executables` has it.
        """
        encode_shapes, see_shapes = self.shapes.encode_shapes(), self.shapes.see_shapes()
        essential: list[Hashable] = ["allocate", "write_page_table", "fill_slot", "copy_pages"]
        essential += ["copy_slots"] if self.shapes.spec.recurrent_layers else []
        essential += ["logits"] if self.shapes.spec.predicts_prompt else []
        essential += ["allocate_adapters", "place_adapter"] if self.shapes.adapters else []
        essential += ["allocate_draft"] if self.shapes.draft_model else []
        essential += ["allocate_images"] if self.shapes.sees else []
        essential += [("write_masks", slots) for slots in self.shapes.mask_writes]
        essential += [name for shape in self.shapes.essential_steps() for name in self.shapes.names(shape)]
        essential += [("encode", shape) for shape in (*encode_shapes[-1:], *encode_shapes[:1])]
        essential += [("see", shape) for shape in (*see_shapes[-1:], *see_shapes[:1])]
        return Executables(self.jobs(), list(dict.fromkeys(essential)), progress, on_built)

    def jobs(self) -> dict[Hashable, Callable[[], Any]]:
        """What builds each executable: ("backbone", shape), ("sample", samples, greedy), ("score", tokens),
        ("write_masks", slots), "write_page_table", "fill_slot", "copy_pages" and "allocate"; "logits", where prompts
        have any; "copy_slots", where layers keep states; ("encode", shape), where there is an encoder; ("see", shape)
        and "allocate_images", where it sees; ("propose", rows), where something learnt drafts; ("read", tokens) and
        "allocate_draft", where that is a model; ("sum_hidden", tokens), where embeddings are means; and
        "allocate_adapters" and "place_adapter", where there may be adapters.
        """
        shapes = self.shapes
        lower: dict[Hashable, Callable[[], Any]] = {
            "allocate": self.lower_allocate,
            "write_page_table": self.lower_write_page_table,
            "fill_slot": self.lower_fill_slot,
            "copy_pages": self.lower_copy_pages,
        }
        if shapes.spec.recurrent_layers:
            lower["copy_slots"] = self.lower_copy_slots
        if shapes.spec.predicts_prompt:
            lower["logits"] = self.lower_logits
        if shapes.adapters:
            lower |= {"allocate_adapters": self.lower_allocate_adapters, "place_adapter": self.lower_place_adapter}
        if shapes.draft_model:
            lower["allocate_draft"] = self.lower_allocate_draft
        if shapes.sees:
            lower["allocate_images"] = self.lower_allocate_images
        lower |= {("write_masks", slots): partial(self.lower_write_masks, slots) for slots in shapes.mask_writes}
        lower |= {("encode", shape): partial(self.lower_encode, shape) for shape in shapes.encode_shapes()}
        lower |= {("see", shape): partial(self.lower_see, shape) for shape in shapes.see_shapes()}
        for shape in shapes.step_shapes():
            lower["backbone", shape] = partial(self.lower_backbone, shape)
            lower["sample", shape.samples, True] = partial(self.lower_sample, shape.samples, True)
            lower["sample", shape.samples, False] = partial(self.lower_sample, shape.samples, False)
            if shape.ragged:
                lower["score", shape.tokens] = partial(self.lower_score, shape.tokens)
                if shapes.sums_hidden:
                    lower["sum_hidden", shape.tokens] = partial(self.lower_sum_hidden, shape.tokens)
                if ("read", shape.tokens) in shapes.names(shape):
                    lower["read", shape.tokens] = partial(self.lower_read, shape.tokens)
            elif shapes.proposes(shape.rows):
                lower["propose", shape.rows] = partial(self.lower_propose, shape.rows)
        return {name: partial(self._build, name, function) for name, function in lower.items()}

    def _build(self, name: Hashable, lower: Callable[[], Any]) -> Any:
        if self.store is None:
            return self.compile(lower())
        if (stored := self.store.load(name)) is not None:
            COMPILES.found()
            return stored
        executable = self.compile(lower())
        if COMPILES.new:
            self.store.save(name, executable)
        return executable


def _abstract(tree: Any) -> Any:
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), tree)


def _is_none(node: Any) -> bool:
    return node is None
