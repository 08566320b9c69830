"""Attention within segments of a tower's tokens: a batch of the decoder's kind, and the scratch pages that it uses.

Every token of a segment sees all of it, and nothing else. Keys and values need room only while the layer runs, so the
pages are values inside the executable. A segment begins on a page of its own; page 0 takes the padding.

Legend: T tokens, S segments.
"""

import math
from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array

from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.vision import Vision
from jaxengine.device import DeviceTraits
from jaxengine.model.cache import cache_arrays
from jaxengine.model.vision.packing import EncodeShape
from jaxengine.ops import StepBatch
from jaxengine.ops.cache import storage_dtype

PAGE = 64  # tokens


def segment_batch(lengths: Array, tokens: int, most: int) -> StepBatch:
    """The batch of `tokens` T, of which the first lie in segments of `lengths` i32 [S], none longer than `most`."""
    segments = len(lengths)
    ends = jnp.cumsum(lengths)
    pages = -(-lengths // PAGE)
    first_page = 1 + jnp.cumsum(pages) - pages  # [S]
    token = jnp.arange(tokens, dtype=jnp.int32)
    row = (ends[None, :] <= token[:, None]).sum(1, dtype=jnp.int32)  # [T], S for padding
    real = row < segments
    own = jnp.minimum(row, segments - 1)
    position = jnp.where(real, token - (ends - lengths)[own], 0)
    length = jnp.where(real, lengths[own], 0)
    return StepBatch(
        position=position,
        rope_length=length,
        row=row,
        page=jnp.where(real, first_page[own] + position // PAGE, 0),
        offset=position % PAGE,
        tables=first_page[:, None] + jnp.arange(-(-most // PAGE), dtype=jnp.int32),
        tokens=ends[-1],
        ragged=True,
        noncausal_length=length,
    )


def longest_segment(vision: Vision, shape: EncodeShape) -> int:
    """The most tokens that a segment can have in a call of `shape`."""
    tokens = math.prod(vision.tile) if vision.tile else shape.patches
    return tokens + vision.tower.class_token


def scratch_pages(tokens: int, segments: int) -> int:
    """Pages that hold `tokens` in so many segments, whatever their lengths."""
    return 1 + tokens // PAGE + segments


def scratch(
    spec: ModelSpec, batches: Sequence[StepBatch], dtype: jnp.dtype, device: DeviceTraits
) -> tuple[Array, Array]:
    """Keys and values of one layer, as pages for any one of `batches`; `spec` is the tower's."""
    tokens, segments = len(batches[0].position), max(len(batch.tables) for batch in batches)
    held = storage_dtype(jnp.dtype(dtype).name) if device.cache_as_bits else jnp.dtype(dtype).name
    arrays = cache_arrays(spec, 1, scratch_pages(tokens, segments), PAGE, held)
    keys, values = (jnp.zeros(each.shape, each.dtype) for each in arrays)
    return keys, values
