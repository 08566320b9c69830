"""Every array that an engine keeps on its devices, and the only calls that change them.

A launch is the name of an executable and arrays of the host. Nothing else decides what the devices compute. So whoever
is told the launches of an engine can repeat them, and that is how the processes of several hosts keep in step.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Sharding

from jaxengine.executor.compiler import Compiler
from jaxengine.executor.executables import Executables
from jaxengine.executor.small_room import small_room
from jaxengine.model.adapters import one_slot
from jaxengine.model.feature_decoder import Features
from jaxengine.model.vision.packing import EncodeShape
from jaxengine.step.buffer import StepShape
from jaxengine.step.functions import Adapters
from jaxengine.step.sampler_slot import SamplerSlot

Arrays = tuple[np.ndarray, ...]
LEFT_OUT = np.empty(0, np.int8)  # in place of an adapter's array that is zeros


class DeviceState:
    """The caches, the slots' state, the sampler's, the stacks of adapters, and the pool of images; and what the last
    step has left.

    Args:
        told: is called with each launch, its number first, before it happens.
    """

    def __init__(
        self, compiler: Compiler, executables: Executables, told: Callable[[int, Hashable, Arrays], None] | None = None
    ) -> None:
        self.model = compiler.model
        self.replicated = compiler.replicated
        self.on_host = compiler.device.on_host
        self._devices_are_ours = self.replicated.is_fully_addressable
        self.executables = executables
        self.told = told
        self.launches = 0
        self.broken = False  # a launch has failed: nobody knows how far the devices came
        self.layers: Any = None  # the target's caches, and the features that EAGLE reads
        self.slot_state: Any = None
        self.sampler_state: Any = None
        self.adapters: Adapters = {}
        self.draft_layers: Any = None
        self.pool: Any = None  # of a model that sees, see `step/see.py`
        self.packed_samples: Any = None  # i32 [fields, padded N], of the last step
        self.hidden: Any = None  # [padded N, h], of its samples
        self.all_hidden: Any = None  # [T, h], of all its tokens if it is ragged
        self._keeps_features = bool(compiler.features())
        self._slots = [shape for name in sorted(self.model.adapters) for shape in one_slot(self.model.adapters[name])]
        self._zeros: dict[Any, Array] = {}  # by abstract shape
        self.room: list[Array] = []  # see `small_room`

    def launch(self, name: Hashable, *arrays: Any) -> Any:
        """Run executable `name` on the state and on `arrays`, of NumPy, which nobody writes to any more: devices may
        read them later, and a CPU does so in place. Returns as soon as the devices have their orders. What it returns
        is the state's own until the next launch; a later launch may take it over.
        """
        self.launches += 1
        if self.told is not None:
            self.told(self.launches, name, arrays)
        try:
            return LAUNCHES[kind_of(name)](self, name, *arrays)
        except Exception:
            self.broken = True
            raise

    def _put(self, values: Any) -> Any:
        """`values`, of NumPy, as an executable takes them. It places them itself where all devices are this process's:
        a call is 17 us with that, and 78 behind a `device_put` of its own; on two devices 245 and 370 (JAX 0.10.2).
        """
        return values if self._devices_are_ours else put(values, self.replicated)

    # --- by kind of executable ----------------------------------------------------------------------------------

    def _allocate(self, name: Hashable) -> None:
        give_back(self.layers, self.slot_state, self.sampler_state)
        self.layers, self.slot_state, self.sampler_state = self.executables[name]()
        if not (self.on_host or self.room):
            self.room = small_room(self.replicated.addressable_devices)

    def _allocate_adapters(self, name: Hashable) -> None:
        give_back(self.adapters)
        self.adapters = self.executables[name]()

    def _allocate_draft(self, name: Hashable) -> None:
        give_back(self.draft_layers)
        self.draft_layers = self.executables[name]()

    def _allocate_images(self, name: Hashable) -> None:
        give_back(self.pool)
        self.pool = self.executables[name]()

    def _see(self, name: tuple[str, EncodeShape], *arrays: np.ndarray) -> None:
        """`arrays` are patches, fields and rows, see `step/see.py`."""
        self.pool = self.executables[name](self.model.tower_leaves, self.pool, *map(self._put, arrays))

    def _encode(self, name: tuple[str, StepShape], buffer: np.ndarray) -> None:
        leaves, adapters = self.model.encoder_leaves, self._adapters_of(name[1])
        self.layers, self.slot_state = self.executables[name](
            leaves, adapters, self.layers, self.slot_state, self._put(buffer)
        )

    def _backbone(self, name: tuple[str, StepShape], buffer: np.ndarray) -> tuple[Array, Array, Array | None]:
        """The packed samples, their hidden states, and those of all tokens, see `functions.Backbone`."""
        leaves, adapters = self.model.leaves[name[1].adapters], self._adapters_of(name[1])
        seen = [self.pool] if name[1].sight.pool else []
        self.packed_samples = self.hidden = self.all_hidden = None  # as above
        self.layers, self.slot_state, *outputs = self.executables[name](
            leaves, adapters, self.layers, self.slot_state, self._put(buffer), *seen
        )
        self.packed_samples, self.hidden, self.all_hidden = outputs
        return self.packed_samples, self.hidden, self.all_hidden

    def _adapters_of(self, shape: StepShape) -> Adapters:
        return self.adapters if shape.adapters else {}

    def _sample(self, name: tuple[str, int, bool]) -> Array:
        """The samples of the last step, as `functions.pack_sampled` packs them. They are on their way to the host."""
        executable, head, latest = self.executables[name], self.model.head.arrays, self.slot_state.latest
        if name[2]:
            latest, sampled = executable(head, latest, self.packed_samples, self.hidden)
        else:
            state = self.sampler_state
            latest, self.sampler_state, sampled = executable(head, latest, state, self.packed_samples, self.hidden)
        self.slot_state = self.slot_state._replace(latest=latest)
        sampled.copy_to_host_async()
        return sampled  # type: ignore[no-any-return]

    def _score(self, name: Hashable, target: np.ndarray) -> Array:
        head = self.model.head.arrays
        return self.executables[name](head, self.all_hidden, self._put(target))  # type: ignore[no-any-return]

    def _sum_hidden(self, name: Hashable, of_tokens: np.ndarray) -> Array:
        return self.executables[name](self.all_hidden, self._put(of_tokens))  # type: ignore[no-any-return]

    def _logits(self, name: Hashable, hidden: np.ndarray) -> Array:
        return self.executables[name](self.model.head.arrays, self._put(hidden))  # type: ignore[no-any-return]

    def _write_page_table(self, name: Hashable, entries: np.ndarray) -> None:
        table = self.executables[name](self.slot_state.table, self._put(entries))
        self.slot_state = self.slot_state._replace(table=table)

    def _copy_places(self, name: Hashable, sources: np.ndarray, targets: np.ndarray) -> None:
        self.layers = self.executables[name](self.layers, self._put(sources), self._put(targets))

    def _write_masks(self, name: Hashable, slots: np.ndarray, masks: np.ndarray) -> None:
        mask = self.executables[name](self.sampler_state.mask, self._put(slots), self._put(masks))
        self.sampler_state = self.sampler_state._replace(mask=mask)

    def _fill_slot(self, name: Hashable, *values: np.ndarray) -> None:
        self.sampler_state = self.executables[name](self.sampler_state, self._put(SamplerSlot._make(values)))

    def _place_adapter(self, name: Hashable, slot: np.ndarray, *arrays: np.ndarray) -> None:
        """`arrays` are a and b of each stack, by name; LEFT_OUT are those that are zeros."""
        pairs = zip(arrays, self._slots, strict=True)
        placed = [self._zeros_of(shape) if each.size == 0 else put(each, shape.sharding) for each, shape in pairs]
        names = sorted(self.model.adapters)
        new = dict(zip(names, zip(placed[::2], placed[1::2], strict=True), strict=True))
        self.adapters = self.executables[name](self.adapters, self._put(slot), new)

    def _zeros_of(self, shape: Any) -> Array:
        if shape not in self._zeros:
            self._zeros[shape] = put(np.zeros(shape.shape, shape.dtype), shape.sharding)
        return self._zeros[shape]

    def _propose(self, name: Hashable, asked: np.ndarray) -> Array:
        """Of heads, `asked` are slots; of what has caches of its own, a packed buffer."""
        propose, asked = self.executables[name], self._put(asked)
        if self.model.draft is None:
            assert self.model.drafter is not None
            return propose(self.model.drafter.arrays, self.slot_state.latest, asked)  # type: ignore[no-any-return]
        self.draft_layers, proposed = propose(self.model.draft_leaves, self.draft_layers, self._features(), asked)
        return proposed  # type: ignore[no-any-return]

    def _read(self, name: Hashable, buffer: np.ndarray) -> None:
        read, leaves = self.executables[name], self.model.draft_leaves
        self.draft_layers = read(leaves, self.draft_layers, self._features(), self._put(buffer))

    def _features(self) -> Features:
        """What steps have kept of all tokens beside keys and values."""
        return self.layers[-1:] if self._keeps_features else ()  # type: ignore[no-any-return]


LAUNCHES: Mapping[str, Callable[..., Any]] = {
    "allocate": DeviceState._allocate,
    "allocate_adapters": DeviceState._allocate_adapters,
    "allocate_draft": DeviceState._allocate_draft,
    "allocate_images": DeviceState._allocate_images,
    "encode": DeviceState._encode,
    "see": DeviceState._see,
    "backbone": DeviceState._backbone,
    "sample": DeviceState._sample,
    "score": DeviceState._score,
    "sum_hidden": DeviceState._sum_hidden,
    "logits": DeviceState._logits,
    "write_page_table": DeviceState._write_page_table,
    "copy_pages": DeviceState._copy_places,
    "copy_slots": DeviceState._copy_places,
    "write_masks": DeviceState._write_masks,
    "fill_slot": DeviceState._fill_slot,
    "place_adapter": DeviceState._place_adapter,
    "propose": DeviceState._propose,
    "read": DeviceState._read,
}


def kind_of(name: Hashable) -> str:
    """What an executable does, of whatever size it is."""
    return name[0] if isinstance(name, tuple) else str(name)


def give_back(*trees: Any) -> None:
    """Free the memory of arrays before that of new ones is asked for, whoever still refers to them: the traceback of a
    failed launch does, to the caches that it was given.
    """
    for array in jax.tree.leaves(trees):
        array.delete()


def put(values: Any, sharding: Sharding) -> Any:
    """A tree of NumPy arrays on the devices. Where these are of several processes, each has its part of the same
    arrays: JAX's own `device_put` compares them, which takes 5.8 ms and waits for everyone (JAX 0.10.2).
    """
    if sharding.is_fully_addressable:
        return jax.device_put(values, sharding)
    return jax.tree.map(lambda each: _share(np.asarray(each), sharding), values)


def _share(values: np.ndarray, sharding: Sharding) -> Array:
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])
