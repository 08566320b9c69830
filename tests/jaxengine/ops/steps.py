"""Random steps for attention: sequences of many lengths in scattered pages, and NaN wherever no query may look.

NaN fills the sink page, the pages of nobody and, in a sequence's own pages, everything after its last token and
everything before its window. A back end that lets any of it through, even with weight zero, answers NaN.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxengine.ops import AttentionBatch, AttentionSpec, HeadTerms


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
    batch: AttentionBatch
    q: np.ndarray  # [T, K, G, D]
    keys: np.ndarray  # [pages, page_size, K, D]
    values: np.ndarray

    @property
    def tokens(self) -> int:
        return sum(self.counts)

    def arrays(self, dtype: str, cache: str | None = None) -> tuple[Array, Array, Array, AttentionBatch]:
        """What a back end takes: q, keys, values and the batch, the cache in a type of its own if told."""
        keys, values = (jnp.asarray(x, cache or dtype) for x in (self.keys, self.values))
        return jnp.asarray(self.q, dtype), keys, values, self.batch


def random_step(
    seed: int, shape: Shape, *, rows: int, tokens: int, ragged: bool, window: int = 0, absent_rows: int = 1
) -> Step:
    """A step for `rows` rows and `tokens` tokens, some of both unused.

    A ragged step has a row of one query, one whose queries are its whole sequence, and one without queries.
    """
    random = np.random.default_rng(seed)
    used = rows - absent_rows
    lengths = random.integers(1, shape.longest + 1, used).tolist()
    counts = [1] * used
    if ragged:
        counts = [int(random.integers(1, min(length, tokens // used) + 1)) for length in lengths]
        lengths[0], counts[0], counts[1], lengths[2] = shape.longest, 1, 0, counts[2]
    return build_step(random, shape, lengths, counts, rows=rows, tokens=tokens, ragged=ragged, window=window)


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
) -> Step:
    pages = 2 + rows * shape.width
    tables = random.permutation(np.arange(1, pages - 1)).reshape(rows, shape.width).astype(np.int32)
    keys = np.full((pages, shape.page_size, shape.kv_heads, shape.dim), np.nan, np.float32)
    values = keys.copy()
    for table, length, count in zip(tables, lengths, counts, strict=False):
        first = max(0, length - count - window + 1) if window else 0
        seen = np.arange(first, length)
        place = table[seen // shape.page_size], seen % shape.page_size
        keys[place] = random.normal(size=(len(seen), shape.kv_heads, shape.dim))
        values[place] = random.normal(size=(len(seen), shape.kv_heads, shape.dim))
    padding = tokens - sum(counts)
    row = np.repeat([*range(len(counts)), rows], [*counts, padding])
    position = np.concatenate([np.arange(n - c, n) for n, c in zip(lengths, counts, strict=True)] + [np.zeros(padding)])
    batch = AttentionBatch(
        position=jnp.asarray(position, jnp.int32),
        prompt_length=jnp.zeros(tokens, jnp.int32),
        row=jnp.asarray(row, jnp.int32),
        page=jnp.zeros(tokens, jnp.int32),
        offset=jnp.zeros(tokens, jnp.int32),
        tables=jnp.asarray(tables),
        tokens=jnp.int32(sum(counts)),
        ragged=ragged,
    )
    q = random.normal(size=(tokens, shape.kv_heads, shape.group, shape.dim)).astype(np.float32)
    return Step(shape, lengths, counts, batch, q, keys, values)


def random_terms(seed: int, shape: Shape) -> HeadTerms:
    random = np.random.default_rng(seed)
    heads = shape.kv_heads, shape.group
    slopes, sinks = 2.0 ** -random.uniform(1, 8, heads), random.normal(size=heads)
    return HeadTerms(jnp.asarray(slopes, jnp.float32), jnp.asarray(sinks, jnp.float32))


def dense_attention(step: Step, spec: AttentionSpec, heads: HeadTerms) -> np.ndarray:
    """Every real token's attention, [tokens, K, G, D], in f64 and one query at a time: the definition itself."""
    out, token = [], 0
    tables, page_size = np.asarray(step.batch.tables), step.shape.page_size
    for r, (length, count) in enumerate(zip(step.lengths, step.counts, strict=True)):
        for i in range(length - count, length):
            j = np.arange(max(0, i - spec.window + 1) if spec.window else 0, i + 1)
            place = tables[r, j // page_size], j % page_size
            out.append(_one_query(step.q[token], step.keys[place], step.values[place], i - j, spec, heads))
            token += 1
    return np.stack(out)


def _one_query(
    q: np.ndarray, keys: np.ndarray, values: np.ndarray, distance: np.ndarray, spec: AttentionSpec, heads: HeadTerms
) -> np.ndarray:
    """q [K, G, D], keys and values [n, K, D] → [K, G, D]."""
    scores = np.einsum("kgd,nkd->kgn", q.astype(np.float64), keys) * spec.scale_for(q.shape[-1])
    if spec.softcap:
        scores = spec.softcap * np.tanh(scores / spec.softcap)
    if heads.slopes is not None:
        scores -= np.asarray(heads.slopes)[..., None] * distance
    sinks = np.full(scores.shape[:-1], -np.inf) if heads.sinks is None else np.asarray(heads.sinks)
    top = np.maximum(scores.max(-1), sinks)
    weights = np.exp(scores - top[..., None])
    total = weights.sum(-1) + np.exp(sinks - top)
    return np.einsum("kgn,nkd->kgd", weights / total[..., None], values.astype(np.float64))
