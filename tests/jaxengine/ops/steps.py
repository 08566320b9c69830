"""Random steps for attention: sequences of many lengths in scattered pages, and NaN wherever no query may look.

NaN fills the caches' other layers, the sink page, the pages of nobody and, in a sequence's own pages, everything after
its last cached token and everything before its window. A back end that lets any of it through, even with weight zero,
answers NaN. So it does if it reads the place of the step's own keys before it has written them.
"""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import Array

from jaxengine.ops import AttentionBias, AttentionSpec, RopeTables, StepBatch

LAYERS, LAYER = 3, 1  # in the caches, and which of them the step is for


@dataclass(frozen=True)
class Shape:
    """kv_heads, group (query heads of each), dim; width and page_size of the page tables."""

    kv_heads: int = 2
    group: int = 2
    dim: int = 64
    width: int = 24
    page_size: int = 16

    @property
    def longest(self) -> int:
        return self.width * self.page_size


@dataclass(frozen=True)
class Step:
    """A step's arrays in f32, and for each of its rows how many tokens its sequence has and how many are queries."""

    shape: Shape
    lengths: list[int]
    counts: list[int]
    batch: StepBatch
    qkv: np.ndarray  # [T, K, G+2, D]
    rope_tables: RopeTables | None
    keys: np.ndarray  # [pages, page_size, K, D], the layer's before the step
    values: np.ndarray

    @property
    def tokens(self) -> int:
        return sum(self.counts)

    def arrays(self, dtype: str, cache: str | None = None) -> tuple[Array, RopeTables | None, Array, Array, StepBatch]:
        """What a back end takes, the cache in a type of its own if told."""
        keys, values = (among_layers(x, cache or dtype) for x in (self.keys, self.values))
        return jnp.asarray(self.qkv, dtype), self.rope_tables, keys, values, self.batch


def among_layers(of_layer: np.ndarray, dtype: str) -> Array:
    """The cache [LAYERS, …] whose other layers are NaN."""
    return jnp.full((LAYERS, *of_layer.shape), jnp.nan, dtype).at[LAYER].set(jnp.asarray(of_layer, dtype))


def random_step(
    seed: int,
    shape: Shape,
    *,
    rows: int,
    tokens: int,
    ragged: bool,
    window: int = 0,
    absent_rows: int = 1,
    turned: int = 0,
) -> Step:
    """A step for `rows` rows and `tokens` tokens, some of both unused.

    Of each head's dimensions `turned` rotate.
    A ragged step has a row of one query, one whose queries are its whole sequence, and one without queries.
    """
    random = np.random.default_rng(seed)
    used = rows - absent_rows
    lengths = random.integers(1, shape.longest + 1, used).tolist()
    counts = [1] * used
    if ragged:
        counts = [int(random.integers(1, min(length, tokens // used) + 1)) for length in lengths]
        lengths[0], counts[0], counts[1], lengths[2] = shape.longest, 1, 0, counts[2]
    return build_step(
        random, shape, lengths, counts, rows=rows, tokens=tokens, ragged=ragged, window=window, turned=turned
    )


def build_step(
    random: np.random.Generator,
    shape: Shape,
    lengths: list[int],
    counts: list[int],
    *,
    rows: int,
    tokens: int,
    ragged: bool,
    window: int = 0,
    turned: int = 0,
) -> Step:
    pages = 2 + rows * shape.width
    tables = random.permutation(np.arange(1, pages - 1)).reshape(rows, shape.width).astype(np.int32)
    keys = np.full((pages, shape.page_size, shape.kv_heads, shape.dim), np.nan, np.float32)
    values = keys.copy()
    for table, length, count in zip(tables, lengths, counts, strict=False):
        first = max(0, length - count - window + 1) if window else 0
        seen = np.arange(first, length - count)
        place = table[seen // shape.page_size], seen % shape.page_size
        keys[place] = random.normal(size=(len(seen), shape.kv_heads, shape.dim))
        values[place] = random.normal(size=(len(seen), shape.kv_heads, shape.dim))
    padding = tokens - sum(counts)
    row = np.repeat([*range(len(counts)), rows], [*counts, padding])
    position = np.concatenate([np.arange(n - c, n) for n, c in zip(lengths, counts, strict=True)] + [np.zeros(padding)])
    position, real = position.astype(np.int32), np.arange(tokens) < tokens - padding
    page = np.where(real, tables[np.minimum(row, rows - 1), position // shape.page_size], 0)
    batch = StepBatch(
        position=jnp.asarray(position),
        rope_length=jnp.zeros(tokens, jnp.int32),
        row=jnp.asarray(row, jnp.int32),
        page=jnp.asarray(page),
        offset=jnp.asarray(position % shape.page_size),
        tables=jnp.asarray(tables),
        tokens=jnp.int32(sum(counts)),
        ragged=ragged,
        layer=jnp.int32(LAYER),
    )
    qkv = random.normal(size=(tokens, shape.kv_heads, shape.group + 2, shape.dim)).astype(np.float32)
    return Step(shape, lengths, counts, batch, qkv, random_angles(random, tokens, turned), keys, values)


def random_angles(random: np.random.Generator, tokens: int, turned: int) -> RopeTables | None:
    if not turned:
        return None
    angle = jnp.asarray(random.uniform(0, 6.28, size=(tokens, turned // 2)), jnp.float32)
    return RopeTables(jnp.cos(angle), jnp.sin(angle))


def random_bias(seed: int, shape: Shape) -> AttentionBias:
    random = np.random.default_rng(seed)
    heads = shape.kv_heads, shape.group
    slopes, sinks = 2.0 ** -random.uniform(1, 8, heads), random.normal(size=heads)
    return AttentionBias(jnp.asarray(slopes, jnp.float32), jnp.asarray(sinks, jnp.float32))


def relative_bias(seed: int, shape: Shape, furthest: int = 20) -> AttentionBias:
    by_distance = np.random.default_rng(seed).normal(size=(shape.kv_heads, shape.group, 2 * furthest + 1))
    return AttentionBias(relative=jnp.asarray(by_distance, jnp.float32))


def seeing_all(step: Step) -> Step:
    """`step`, but its queries see all of their sequence, as an encoder's do."""
    lengths = jnp.asarray([*step.lengths, *[0] * (step.batch.tables.shape[0] + 1 - len(step.lengths))], jnp.int32)
    return replace(step, batch=replace(step.batch, noncausal_length=lengths[step.batch.row]))


def seeing_images(seed: int, step: Step, *, past_window: bool = False) -> Step:
    """`step`, but every row's queries have images, whose tokens see it to its end. With `past_window` there is one, in
    front of all, as a prompt.
    """
    random, horizon = np.random.default_rng(seed), np.zeros(len(step.qkv), np.int32)
    token = 0
    for length, count in zip(step.lengths, step.counts, strict=True):
        at = 0
        while at < count:
            size = int(random.integers(1, count - at + 1))
            if past_window or random.random() < 0.7:
                horizon[token + at : token + at + size] = length - count + at + size
            at = count if past_window else at + size
        token += count
    return replace(step, batch=replace(step.batch, horizon=jnp.asarray(horizon), past_window=past_window))


def dense_attention(step: Step, spec: AttentionSpec, bias: AttentionBias) -> np.ndarray:
    """Every real token's attention, [tokens, K, G, D], in f64 and one query at a time: the definition itself."""
    q, keys, values = _written(step)
    out, token = [], 0
    tables, page_size = np.asarray(step.batch.tables), step.shape.page_size
    horizon = np.zeros(step.tokens) if step.batch.horizon is None else np.asarray(step.batch.horizon)
    for r, (length, count) in enumerate(zip(step.lengths, step.counts, strict=True)):
        for i in range(length - count, length):
            end = i + 1 if step.batch.noncausal_length is None else length
            end = max(end, horizon[token])
            hidden = spec.window and not (step.batch.past_window and horizon[token])
            j = np.arange(max(0, i - spec.window + 1) if hidden else 0, end)
            place = tables[r, j // page_size], j % page_size
            out.append(_one_query(q[token], keys[place], values[place], i - j, spec, bias))
            token += 1
    return np.stack(out)


def _written(step: Step) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The queries, rotated as complex numbers, and the caches behind the step."""
    qkv = step.qkv.astype(np.float64)
    if step.rope_tables is not None:
        cos, sin = (np.asarray(x, np.float64)[:, None, None, :] for x in step.rope_tables)
        half = cos.shape[-1]
        turned = (qkv[:, :, :-1, :half] + 1j * qkv[:, :, :-1, half : 2 * half]) * (cos + 1j * sin)
        qkv[:, :, :-1, :half], qkv[:, :, :-1, half : 2 * half] = turned.real, turned.imag
    keys, values = step.keys.astype(np.float64), step.values.astype(np.float64)
    real = slice(step.tokens)
    at = np.asarray(step.batch.page)[real], np.asarray(step.batch.offset)[real]
    keys[at], values[at] = qkv[real, :, -2], qkv[real, :, -1]
    return qkv[:, :, :-2], keys, values


def _alibi(slopes: np.ndarray, distance: np.ndarray, scale: float) -> np.ndarray:
    """Of the keys up to the query's own; what is rounded is the product with the key's position."""
    if not scale:
        return -slopes * distance  # type: ignore[no-any-return]
    position = distance.max() - distance
    product = slopes * position.astype(ml_dtypes.bfloat16).astype(np.float32)
    return product.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64) * scale  # type: ignore[no-any-return]


def _one_query(
    q: np.ndarray, keys: np.ndarray, values: np.ndarray, distance: np.ndarray, spec: AttentionSpec, bias: AttentionBias
) -> np.ndarray:
    """q [K, G, D], keys and values [n, K, D] → [K, G, D]."""
    scores = np.einsum("kgd,nkd->kgn", q, keys) * spec.scale_for(q.shape[-1])
    if spec.softcap:
        scores = spec.softcap * np.tanh(scores / spec.softcap)
    if bias.slopes is not None:
        scores += _alibi(np.asarray(bias.slopes)[..., None], distance, spec.alibi_scale)
    if bias.relative is not None:
        furthest = bias.relative.shape[-1] // 2
        scores += np.asarray(bias.relative)[..., np.clip(distance, -furthest, furthest) + furthest]
    sinks = np.full(scores.shape[:-1], -np.inf) if bias.sinks is None else np.asarray(bias.sinks)
    top = np.maximum(scores.max(-1), sinks)
    weights = np.exp(scores - top[..., None])
    total = weights.sum(-1) + np.exp(sinks - top)
    return np.einsum("kgn,nkd->kgd", weights / total[..., None], values)
