"""Every attention back end against plain NumPy in float64: the same random step, pages scattered, strangers' pages NaN.

What a layer's kernel must get right shows here: the causal mask behind a cached prefix, windows, soft caps, padding,
images that see themselves, a tower's segments, and that nothing of a page leaks which the row does not own.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxengine.ops import BACKENDS, AttentionBias, AttentionSpec, Ops, RopeTables, StepBatch
from jaxengine.sharding import make_mesh
from tests.gpu.record import Record

PAGE_SIZE = 16
PLAIN = AttentionSpec()
# Relative error of the whole result. bf16 rounds what it stores to 8 bits, 1.5e-3 by the
# reference; a tf32 product keeps 11.
LIMITS = {"float32": 2e-3, "bfloat16": 6e-3}


@dataclass(frozen=True)
class Case:
    """A step: `chunks` are (tokens cached before, new tokens) of each row; one new token each is a decode step."""

    name: str
    chunks: tuple[tuple[int, int], ...]
    spec: AttentionSpec = PLAIN
    kv_heads: int = 8
    group: int = 4
    head_dim: int = 128
    padding: int = 0
    turned: int = 0  # dimensions of each head that rotate
    biased: bool = False  # ALiBi and sinks
    image: int = 0  # a row's new tokens come in images of so many, which see themselves to their end
    tower: bool = False  # a row's tokens all see each other

    @property
    def ragged(self) -> bool:
        return any(new > 1 for _, new in self.chunks)


TOWER = ((0, 64), (0, 1), (0, 300), (0, 17))
DECODE = ((0, 1), (15, 1), (16, 1), (700, 1), (1999, 1))
MIXED = ((300, 1), (0, 33), (64, 100), (517, 7), (0, 1))
CASES = (
    Case("decode", DECODE, padding=3, turned=128),
    Case("decode, head 64, one query head", DECODE, group=1, head_dim=64, turned=16),
    Case("decode, window 100, soft cap 5", DECODE, AttentionSpec(window=100, softcap=5.0)),
    Case("decode, head 256, two query heads", DECODE, group=2, head_dim=256, turned=256),
    Case("decode, head 80, ALiBi and sinks", DECODE, head_dim=80, biased=True),
    Case("mixed", MIXED, padding=18, turned=128),
    Case("mixed, head 64, seven query heads", MIXED, kv_heads=2, group=7, head_dim=64, padding=18),
    Case("mixed, window 100, soft cap 5", MIXED, AttentionSpec(window=100, softcap=5.0), padding=18),
    Case("mixed, head 256, two query heads", MIXED, group=2, head_dim=256, padding=18, turned=256),
    Case("mixed, images of 40", MIXED, padding=18, image=40),
    Case("mixed, images of 40, window 30, head 256", MIXED, AttentionSpec(window=30), 8, 2, 256, padding=18, image=40),
    Case("tower, head 80", TOWER, kv_heads=16, group=1, head_dim=80, padding=18, turned=80, tower=True),
    Case("mixed, head 80, ALiBi and sinks", MIXED, head_dim=80, padding=18, biased=True),
)


def backends() -> list[str]:
    """Those that must run on the first device: all of them on a GPU, where a refusal is an error."""
    return list(BACKENDS) if jax.devices()[0].platform == "gpu" else ["reference"]


def error(backend: str, case: Case, dtype: str) -> float:
    """‖attended - exact‖ / ‖exact‖ over the real tokens; NaN if anything is."""
    step = Step(case, np.random.default_rng(0))
    attend = jax.jit(partial(Ops(backend, make_mesh(1)).attend, spec=case.spec))
    cast = [jnp.asarray(array, dtype) for array in (step.q, step.k, step.v, step.keys, step.values)]
    qkv = jnp.concatenate([cast[0], *(array[:, :, None] for array in cast[1:3])], axis=2)
    caches = (cache[None] for cache in cast[3:])
    attended, _, _ = attend(qkv, step.rope_tables(), *caches, step.batch(), step.bias())
    exact = step.exact(*(np.asarray(array, np.float64) for array in cast))
    real = np.asarray(attended, np.float64)[: len(exact)]
    return float(np.linalg.norm(real - exact) / np.linalg.norm(exact))


class Step:
    """Random arrays for a case. Legend as in `jaxengine/ops`: T tokens, R rows, K heads, G group, D dimension."""

    def __init__(self, case: Case, random: np.random.Generator) -> None:
        self.case = case
        new = [count for _, count in case.chunks]
        self.count = sum(new)
        tokens, heads, dim = self.count + case.padding, case.kv_heads, case.head_dim
        self.row = np.repeat(np.arange(len(new)), new)
        self.position = np.concatenate([np.arange(cached, cached + count) for cached, count in case.chunks])
        self.seen = np.concatenate([self._seen(*chunk) for chunk in case.chunks])
        self.tables = self._tables(random)
        self.q = random.normal(size=(tokens, heads, case.group, dim))
        self.k, self.v = (random.normal(size=(tokens, heads, dim)) for _ in range(2))
        self.slopes, self.sinks = random.uniform(0, 0.1, (2, heads, case.group))
        self.angle = random.uniform(0, 2 * np.pi, (tokens, case.turned // 2))
        pages = int(self.tables.max()) + 8
        self.keys, self.values = (np.full((pages, PAGE_SIZE, heads, dim), np.nan) for _ in range(2))
        for row, (cached, _) in enumerate(case.chunks):
            at = self._places(row, cached)
            self.keys[at], self.values[at] = random.normal(size=(2, cached, heads, dim))

    def _tables(self, random: np.random.Generator) -> np.ndarray:
        """i32 [R, W]: a row's pages lie anywhere; entries it does not need name the sink."""
        lengths = [-(-sum(chunk) // PAGE_SIZE) for chunk in self.case.chunks]
        free = iter(1 + random.permutation(sum(lengths) + 8))
        tables = np.zeros((len(lengths), 128), np.int32)  # the width of a 2048-token limit
        for row, length in enumerate(lengths):
            tables[row, :length] = [next(free) for _ in range(length)]
        return tables

    def _places(self, row: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(pages, offsets) of the first `count` tokens of a row."""
        position = np.arange(count)
        return self.tables[row, position // PAGE_SIZE], position % PAGE_SIZE

    def batch(self) -> StepBatch:
        def padded(values: np.ndarray, fill: int) -> Array:
            return jnp.asarray(np.append(values, [fill] * self.case.padding), jnp.int32)

        rows = len(self.case.chunks)
        tables = self.tables
        if not self.case.ragged:  # without it token t is row t, padding included
            rows += self.case.padding
            tables = np.pad(tables, ((0, self.case.padding), (0, 0)))
        return StepBatch(
            position=padded(self.position, 0),
            rope_length=padded(self.position + 1, 0),
            row=padded(self.row, rows),
            page=padded(self.tables[self.row, self.position // PAGE_SIZE], 0),
            offset=padded(self.position % PAGE_SIZE, 0),
            tables=jnp.asarray(tables),
            tokens=jnp.int32(self.count),
            ragged=self.case.ragged,
            noncausal_length=padded(self.seen, 0) if self.case.tower else None,
            horizon=padded(self.seen, 0) if self.case.image else None,
        )

    def _seen(self, cached: int, count: int) -> np.ndarray:
        """i64 [count]: how many keys each new token of a row sees, windows aside."""
        new = np.arange(1, count + 1)
        if self.case.image:
            new = np.minimum(-(-new // self.case.image) * self.case.image, count)
        return cached + (np.full(count, count) if self.case.tower else new)

    def rope_tables(self) -> RopeTables | None:
        angle = jnp.asarray(self.angle, jnp.float32)
        return RopeTables(jnp.cos(angle), jnp.sin(angle)) if self.case.turned else None

    def bias(self) -> AttentionBias:
        return AttentionBias(jnp.float32(self.slopes), jnp.float32(self.sinks)) if self.case.biased else AttentionBias()

    def rotated(self, x: np.ndarray) -> np.ndarray:
        """`x` [T, …, D], the pairs of its first dimensions turned as complex numbers."""
        half = self.case.turned // 2
        turn = np.exp(1j * self.angle).reshape(len(x), *(1,) * (x.ndim - 2), half)
        pairs = (x[..., :half] + 1j * x[..., half : 2 * half]) * turn
        return np.concatenate([pairs.real, pairs.imag, x[..., 2 * half :]], axis=-1)

    def exact(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        """f64 [real tokens, K, G, D], one query at a time."""
        q, k = self.rotated(q), self.rotated(k)
        at = (self.tables[self.row, self.position // PAGE_SIZE], self.position % PAGE_SIZE)
        keys[at], values[at] = k[: self.count], v[: self.count]
        return np.stack([self._attend(t, q[t], keys, values) for t in range(self.count)])

    def _attend(self, token: int, q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        spec, position = self.case.spec, int(self.position[token])
        first = max(0, position + 1 - spec.window) if spec.window else 0
        seen = int(self.seen[token])
        at = tuple(part[first:] for part in self._places(int(self.row[token]), seen))
        scores = np.einsum("kgd,skd->kgs", q, keys[at]) * spec.scale_for(self.case.head_dim)
        if spec.softcap:
            scores = spec.softcap * np.tanh(scores / spec.softcap)
        if self.case.biased:
            scores = scores - self.slopes[..., None] * (position - np.arange(first, seen))
        weights = np.exp(scores)  # of scores of a few units
        total = weights.sum(-1, keepdims=True) + (np.exp(self.sinks[..., None]) if self.case.biased else 0)
        attended: np.ndarray = np.einsum("kgs,skd->kgd", weights / total, values[at])
        return attended


def measure(record: Record, cases: Sequence[Case] = CASES) -> None:
    """Rows of "correctness" for every back end, case and dtype; they compile side by side."""
    with ThreadPoolExecutor() as pool:
        futures = {
            (backend, case, dtype): pool.submit(error, backend, case, dtype)
            for backend in reversed(backends())
            for case in cases
            for dtype in LIMITS
        }
        for (backend, case, dtype), future in futures.items():
            check, limit = f"attention: {case.name}", LIMITS[dtype]
            with record.attempt(f"{check}, {backend}, {dtype}"):
                found = future.result()
                row = {"check": check, "backend": backend, "dtype": dtype, "error": found, "limit": limit}
                record.add("correctness", **row, ok=found <= limit)
