"""Room for a step's small arrays, so that its temporaries lie at the same address in every step.

A CUDA graph holds addresses. XLA writes those anew that have changed since its last launch, and traces each cuBLAS call
among them again: launching a step of 128 rows took 3.7 ms in 16 bits and 3.9 in int4, one row's 1.5 (H200, 7e65e21d).
XLA's allocator gives an array the smallest free piece that holds it. Temporaries begin where the large free piece does.
But the arrays of a step that outlive its launch are cut off that piece as well, as long as there is no smaller one, and
then the temporaries begin behind them. So there are smaller ones.
"""

from collections.abc import Iterable

import jax
import numpy as np
from jax import Array

SIZES = [256 << i for i in range(10)]  # bytes, from the allocator's smallest piece to 128 KiB
EACH = 6  # pieces of a size: of two steps on their way, and of what is freed late


def small_room(devices: Iterable[jax.Device]) -> list[Array]:
    """Leaves free pieces of `SIZES` on each of `devices`. They lie between the arrays that are returned, 1.5 MiB on a
    device: as long as those stay, neighbours do not become one piece.
    """
    places = [(device, size) for device in devices for size in SIZES for _ in range(2 * EACH)]
    arrays = [jax.device_put(np.zeros(size, np.int8), device) for device, size in places]
    jax.block_until_ready(arrays)
    for array in arrays[::2]:
        array.delete()
    return arrays[1::2]
