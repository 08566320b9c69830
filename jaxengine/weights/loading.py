"""Parameters from a source onto the devices: each device's slice is read, cast and laid out on its own.

Nothing is ever assembled on the host: peak host memory is what the devices hold and a few slices, one for each reading
thread. `tests/bench/loading.py` measures the memory and the speed. Loading is fast when it touches no memory that is
not kept: the kernel handed out fresh pages at 0.4 GB/s and read cached files at 5 GB/s (CPU, JAX 0.10.2).
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from jaxengine.architecture.drafter import DrafterSource, DrafterSpec
from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import Parameter, ParameterSource, empty, parameter_table
from jaxengine.architecture.weight_format import Component, StoredWeight, WeightFormat
from jaxengine.device import DeviceTraits
from jaxengine.model.linear import weight_layout
from jaxengine.ops.packing import WORDS, codes_in_word
from jaxengine.ops.weight import Weight, WeightLayout
from jaxengine.sharding import partition
from jaxengine.weights.conversion import quantized
from jaxengine.weights.quantization import shared_sizes, weight_formats

READERS = 4  # threads; slices come from mapped files, so reading one overlaps casting another
TRANSPOSED = 128  # columns of a transposed matrix that are written at once
NO_FORMATS: Mapping[str, WeightFormat] = {}


def _laid_out(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`values` as `dtype`, contiguous; the same array if it is so already.

    A transposed array, as of GPT-2's matrices, is copied in blocks that are cast before they are transposed. 5632 x
    2048 from bf16 to f32 took 23 ms so, 36 ms transposed first, and 300 ms in one block (NumPy 2.4).
    """
    if values.flags.c_contiguous and values.dtype == dtype:
        return values
    out = empty(values.shape, dtype)
    if values.flags.c_contiguous:
        out[...] = values
        return out
    for start in range(0, values.shape[-1], TRANSPOSED):
        cut = (..., slice(start, start + TRANSPOSED))
        out[cut] = values[cut].astype(dtype, copy=False)
    return out


def abstract_parameters(
    spec: ModelSpec, mesh: Mesh, dtype: str, device: DeviceTraits, formats: Mapping[str, WeightFormat] = NO_FORMATS
) -> dict[str, Any]:
    """Every parameter as the devices will hold it, without data: a matrix is a `Weight` of shapes, a vector one shape.

    Shapes have dtypes and shardings. A tied "head" is the embedding.

    Args:
        dtype: of floats.
        formats: of the matrices that are quantised.
    """
    table = parameter_table(spec)
    made = {name: _abstract(parameter, mesh, dtype, device, formats.get(name)) for name, parameter in table.items()}
    made.setdefault("head", made["embedding"])
    return made


def _abstract(parameter: Parameter, mesh: Mesh, dtype: str, device: DeviceTraits, format: WeightFormat | None) -> Any:
    if not parameter.inputs:
        return _shape(parameter, mesh, parameter.dtype or dtype)
    share = shared_sizes(parameter, mesh.size)
    layout = weight_layout(parameter, device, format, share)
    if layout.grouped and format is not None:
        return _abstract_grouped(parameter, mesh, layout, format)
    values = _shape(parameter, mesh, format.values if format else dtype)
    if format is None:
        return Weight(values, layout)
    return Weight(values, replace(layout, floats=dtype), **_scaling(parameter, mesh, format))


def _scaling(parameter: Parameter, mesh: Mesh, format: WeightFormat) -> dict[str, Any]:
    """Scales, and zeros and an order where there are any, in the parameter table's layout."""
    return {
        name: _shape(parameter.component(name, format), mesh, dtype)
        for name, dtype in format.dtypes.items()
        if name != "values"
    }


def _abstract_grouped(parameter: Parameter, mesh: Mesh, layout: WeightLayout, format: WeightFormat) -> Weight:
    outputs, inputs = parameter.shape[: -parameter.inputs], math.prod(parameter.shape[-parameter.inputs :])
    axes, first = parameter.axes[: len(outputs)], parameter.axes[len(outputs)]
    stack = parameter.stacked
    width, dtype = (inputs // codes_in_word(format.bits), "uint16") if layout.plane else (inputs, format.values)
    groups = inputs // format.group if format.group else 1

    def shape(sizes: Sequence[int], names: Sequence[str | None], dtype: str) -> Any:
        return _shape(Parameter(tuple(sizes), tuple(names)), mesh, dtype)

    of_groups = (
        (*outputs[:stack], groups, *outputs[stack:]),
        (*axes[:stack], first if groups > 1 else None, *axes[stack:]),
    )
    sizes = {"scales": of_groups, "zeros": of_groups, "order": ((inputs,), (first,))}
    shared = {name: shape(*sizes[name], dtype) for name, dtype in format.dtypes.items() if name != "values"}
    return Weight(shape((*outputs, width), (*axes, first), dtype), layout, **shared)


def _shape(parameter: Parameter, mesh: Mesh, dtype: str) -> Any:
    sharding = partition(mesh, parameter.shape, parameter.axes)
    return jax.ShapeDtypeStruct(parameter.shape, jnp.dtype(dtype), sharding=sharding)


def held_bytes(parameters: Mapping[str, Any]) -> int:
    """The bytes that `abstract_parameters` take on each device."""
    tied = parameters["head"] is parameters["embedding"]
    return array_bytes([each for name, each in parameters.items() if name != "head" or not tied])


def array_bytes(tree: Any) -> int:
    """The bytes that abstract arrays take on each device."""
    return sum(map(_device_bytes, jax.tree.leaves(tree)))


def largest_bytes(tree: Any) -> int:
    """The bytes that the largest of abstract arrays takes on each device."""
    return max(map(_device_bytes, jax.tree.leaves(tree)))


def _device_bytes(array: Any) -> int:
    return math.prod(array.sharding.shard_shape(array.shape)) * int(array.dtype.itemsize)


def whole_bytes(tree: Any) -> int:
    """The bytes that abstract arrays take on all devices, each part counted once."""
    return sum(math.prod(a.shape) * a.dtype.itemsize for a in jax.tree.leaves(tree))


def as_stored(array: Array | Weight, target: Any) -> Any:
    """What the devices hold of a parameter: `array` has it in floats, or as the checkpoint stores it."""
    if not isinstance(target, Weight):
        return array
    if isinstance(array, Weight):
        return array if array.layout == target.layout else quantized(array, target)
    return Weight(array, target.layout) if target.layout.format is None else quantized(array, target)


def load_parameters(
    source: ParameterSource,
    mesh: Mesh,
    dtype: str,
    device: DeviceTraits,
    progress: Callable[[int, int], None],
    quantize: str | None = None,
) -> dict[str, Any]:
    """Every parameter of `abstract_parameters`, filled from `source`. `progress(done, total)` counts the bytes
    that devices hold of them, each once.

    A matrix that the checkpoint holds quantised is read as it is; `quantize` is for the others.
    """
    formats = weight_formats(source, quantize, device, mesh.size)
    targets = abstract_parameters(source.spec, mesh, dtype, device, formats)
    names = parameter_table(source.spec)
    sizes = {name: whole_bytes(targets[name]) for name in names}
    parameters: dict[str, Any] = {}
    done, total = 0, sum(sizes.values())
    progress(done, total)
    loads = _ahead(partial(_load, source, mesh, dtype, targets), names)
    for name, loaded in zip(names, loads, strict=True):
        whole = as_stored(loaded, targets[name])
        parameters[name] = jax.block_until_ready(whole)
        done += sizes[name]
        progress(done, total)
    parameters.setdefault("head", parameters["embedding"])
    return parameters


def abstract_drafter(spec: DrafterSpec, mesh: Mesh, dtype: str, device: DeviceTraits) -> dict[str, Any]:
    """What `abstract_parameters` is, of a drafter. It is never quantised."""
    return {name: _abstract(each, mesh, dtype, device, None) for name, each in spec.parameters().items()}


def load_drafter(
    spec: DrafterSpec, source: DrafterSource, mesh: Mesh, dtype: str, device: DeviceTraits
) -> dict[str, Any]:
    """Every parameter of `abstract_drafter`, filled from `source`."""
    table = spec.parameters()

    def load(name: str, target: Any) -> Any:
        sizes = table[name].shape

        def read(index: tuple[slice, ...]) -> np.ndarray:
            """The source may have more guesses than `spec`, so no slice is open."""
            return source.read(name, tuple(slice(*each.indices(n)[:2]) for each, n in zip(index, sizes, strict=True)))

        return jax.tree.map(lambda shape: _fill(shape, shape.dtype, read), target)

    return {name: load(name, target) for name, target in abstract_drafter(spec, mesh, dtype, device).items()}


def _load(source: ParameterSource, mesh: Mesh, dtype: str, targets: Mapping[str, Any], name: str) -> Any:
    """Parameter `name`: a `Weight` of the components that are stored, else an array in floats of `dtype`."""
    target, stored, read = targets[name], source.stored(name), partial(source.read, name)
    if not isinstance(target, Weight):
        return _fill(target, jnp.dtype(dtype), read)
    parameter, layout = parameter_table(source.spec)[name], target.layout
    if stored is None or layout.format is None:
        values = ungrouped(parameter, mesh, layout).values if layout.grouped else target.values
        return _fill(values, jnp.dtype(dtype), read)
    if layout.grouped or layout.format != stored.format:  # which the devices make of what is stored
        target = ungrouped(parameter, mesh, replace(layout, format=stored.format))
        if stored.packed:
            target = replace(target, values=_shape(parameter.component("words", stored.format), mesh, WORDS))
    return _filled(target, stored)


def _filled(target: Weight, stored: StoredWeight) -> Weight:
    """The abstract `target`, which has the format of `stored`, with what is stored."""

    def filled(component: Component) -> Array:
        shape = getattr(target, component)
        words = component == "values" and shape.dtype == WORDS
        return _fill(shape, shape.dtype, partial(stored.read, "words" if words else component))

    arrays: dict[str, Any] = {component: filled(component) for component in stored.format.dtypes}
    return replace(target, **arrays)


def ungrouped(parameter: Parameter, mesh: Mesh, layout: WeightLayout) -> Weight:
    """The abstract weight as the parameter table has it, from which a grouped one is made."""
    assert layout.format is not None
    values, scaling = _shape(parameter, mesh, layout.format.values), _scaling(parameter, mesh, layout.format)
    return Weight(values, replace(layout, grouped=0, plane=0), **scaling)


def _fill(shape: Any, dtype: np.dtype, read: Callable[[tuple[slice, ...]], np.ndarray]) -> Array:
    """An array of the abstract `shape`, but in `dtype`; `read` gives slices of it."""

    def piece(index: tuple[slice, ...] | None) -> np.ndarray:
        return _laid_out(read(index or (slice(None),) * len(shape.shape)), dtype)

    return jax.make_array_from_callback(shape.shape, shape.sharding, piece)


def _ahead(load: Callable[[str], Any], names: Iterable[str]) -> Iterator[Any]:
    """`load(name)` of each name in order. Threads are `READERS` names ahead and no more, so that a model that fits
    quantised need not fit in floats.
    """
    waiting: deque[Future[Any]] = deque()
    with ThreadPoolExecutor(READERS) as pool:
        for name in names:
            waiting.append(pool.submit(load, name))
            if len(waiting) == READERS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
