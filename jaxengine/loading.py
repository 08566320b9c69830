"""Parameters from a source onto the devices: each device's slice is read, cast and laid out on its own.

Nothing is ever assembled on the host: peak host memory is a few slices (one a reading thread) beyond what the devices
hold.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from jaxengine.model.linear import device_layout
from jaxengine.model.spec import ModelSpec, ParameterSource, parameter_table
from jaxengine.sharding import partition

READERS = 4  # threads; slices are read from mapped files, so disk and cast overlap


def abstract_parameters(spec: ModelSpec, mesh: Mesh, dtype: str, platform: str) -> dict[str, jax.ShapeDtypeStruct]:
    """Shape, dtype and sharding of every array on the device, without data. A tied "head" is the embedding."""
    arrays = {}
    for name, parameter in parameter_table(spec).items():
        order = device_layout(parameter, platform)
        shape = tuple(parameter.shape[axis] for axis in order)
        sharding = partition(mesh, shape, [parameter.axes[axis] for axis in order])
        arrays[name] = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=sharding)
    arrays.setdefault("head", arrays["embedding"])
    return arrays


def load_parameters(
    source: ParameterSource, mesh: Mesh, dtype: str, platform: str, progress: Callable[[int, int], None]
) -> dict[str, Array]:
    """Every array of `abstract_parameters`, filled from `source`. `progress(done, total)` counts arrays."""
    table = parameter_table(source.spec)
    abstract = abstract_parameters(source.spec, mesh, dtype, platform)

    def load(name: str) -> Array:
        order = device_layout(table[name], platform)
        target = abstract[name]

        def read(index: tuple[slice, ...] | None) -> np.ndarray:
            wanted = [slice(None)] * len(order)
            for axis, part in zip(order, index or (slice(None),) * len(order), strict=True):
                wanted[axis] = part
            piece = source.read(name, tuple(wanted)).transpose(order)
            return np.ascontiguousarray(piece.astype(target.dtype, copy=False))

        return jax.make_array_from_callback(target.shape, target.sharding, read)

    parameters = {}
    with ThreadPoolExecutor(READERS) as pool:
        for done, (name, array) in enumerate(zip(table, pool.map(load, table), strict=True), start=1):
            parameters[name] = array
            progress(done, len(table))
    parameters.setdefault("head", parameters["embedding"])
    return parameters
