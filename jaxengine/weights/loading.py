"""Parameters from a source onto the devices: each device's slice is read, cast and laid out on its own.

Nothing is ever assembled on the host: peak host memory is a few slices (one a reading thread) beyond what the devices
hold. `tests/bench/loading.py` measures both that and the speed. What there is to gain is in not touching memory that
is not kept: the kernel gave out fresh pages at 0.4 GB/s, and read files that it had cached at 5 (CPU, JAX 0.10.2).
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from jaxengine.device import DeviceTraits
from jaxengine.model.linear import device_layout
from jaxengine.sharding import partition
from jaxengine.spec.model import ModelSpec
from jaxengine.spec.parameters import Parameter, ParameterSource, empty, parameter_table
from jaxengine.weights.quantization import FORMATS, is_quantized, quantized, scale_of

READERS = 4  # threads; slices are read from mapped files, so disk and cast overlap
TRANSPOSED = 128  # columns of a transposed matrix that are written at once


def _laid_out(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`values` as `dtype`, contiguous; itself if it is both.

    Transposed ones, as CPUs have them, go by blocks, each cast before it is turned: 5632 x 2048 from bf16 to f32 took
    23 ms that way, 36 the other way about, and 300 at once (NumPy 2.4).
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
    spec: ModelSpec, mesh: Mesh, dtype: str, device: DeviceTraits, quantize: str | None = None
) -> dict[str, jax.ShapeDtypeStruct]:
    """Shape, dtype and sharding of every array on the device, without data. A tied "head" is the embedding."""
    arrays = {}
    for name, parameter in parameter_table(spec).items():
        if quantize and is_quantized(name, quantize):
            arrays[name] = _abstract(parameter, mesh, FORMATS[quantize].dtype, device)
            arrays[f"{name}_scale"] = _abstract(scale_of(parameter), mesh, "float32", device)
        else:
            arrays[name] = _abstract(parameter, mesh, dtype, device)
    arrays.setdefault("head", arrays["embedding"])
    return arrays


def _abstract(parameter: Parameter, mesh: Mesh, dtype: str, device: DeviceTraits) -> jax.ShapeDtypeStruct:
    order = device_layout(parameter, device, dtype)
    shape = tuple(parameter.shape[axis] for axis in order)
    sharding = partition(mesh, shape, [parameter.axes[axis] for axis in order])
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=sharding)


def held_bytes(arrays: Mapping[str, jax.ShapeDtypeStruct]) -> int:
    """What `arrays` take on each device."""
    once = [array for name, array in arrays.items() if name != "head" or array is not arrays["embedding"]]
    return sum(math.prod(a.sharding.shard_shape(a.shape)) * a.dtype.itemsize for a in once)


def as_stored(
    name: str,
    parameter: Parameter,
    array: Array,
    device: DeviceTraits,
    quantize: str | None,
    targets: Mapping[str, jax.ShapeDtypeStruct],
) -> dict[str, Array]:
    """Parameter `name`, laid out as `targets`, which are `abstract_parameters`, have it, as the arrays they are."""
    if not quantize or not is_quantized(name, quantize):
        return {name: array}
    order, rank = device_layout(parameter, device, FORMATS[quantize].dtype), len(parameter.shape)
    inputs = tuple(order.index(axis) for axis in range(rank - parameter.inputs, rank))
    return quantized(name, array, inputs, quantize, targets)


def load_parameters(
    source: ParameterSource,
    mesh: Mesh,
    dtype: str,
    device: DeviceTraits,
    progress: Callable[[int, int], None],
    quantize: str | None = None,
) -> dict[str, Array]:
    """Every array of `abstract_parameters`, filled from `source`. `progress(done, total)` counts arrays."""
    table = parameter_table(source.spec)
    stored = abstract_parameters(source.spec, mesh, dtype, device, quantize)

    def load(name: str) -> Array:
        target = stored[name]
        order = device_layout(table[name], device, target.dtype.name)

        def read(index: tuple[slice, ...] | None) -> np.ndarray:
            wanted = [slice(None)] * len(order)
            for axis, part in zip(order, index or (slice(None),) * len(order), strict=True):
                wanted[axis] = part
            return _laid_out(source.read(name, tuple(wanted)).transpose(order), jnp.dtype(dtype))

        return jax.make_array_from_callback(target.shape, target.sharding, read)

    parameters: dict[str, Array] = {}
    for done, (name, array) in enumerate(zip(table, _ahead(load, table), strict=True), start=1):
        parameters |= jax.block_until_ready(as_stored(name, table[name], array, device, quantize, stored))
        progress(done, len(table))
    parameters.setdefault("head", parameters["embedding"])
    return parameters


def _ahead(load: Callable[[str], Array], names: Iterable[str]) -> Iterator[Array]:
    """`load` of each name in order, read by threads that are a few arrays ahead and no more: a model that fits
    quantised need not fit otherwise.
    """
    waiting: deque[Future[Array]] = deque()
    with ThreadPoolExecutor(READERS) as pool:
        for name in names:
            waiting.append(pool.submit(load, name))
            if len(waiting) == READERS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
