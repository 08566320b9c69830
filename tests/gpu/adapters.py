"""What adapters cost a decode step: none of its rows, all with one, or each with one of all slots, in turns; whether
what they add is right.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxengine.architecture.adaptation import Adaptable
from jaxengine.ops.adapters import AdapterStack, AdapterTokens, change
from tests.gpu.decode import fill, timed
from tests.gpu.engines import Client, measured_client
from tests.gpu.record import Record
from tests.gpu.scale import Scale
from tests.random_adapters import RandomReader

SLOTS, RANK = 8, 16
ROWS = (1, 32, 128)
TOKENS = (1, 8, 9, 128)  # gathered up to the slots, beyond that by all of them
LIMITS = {"float32": 2e-3, "bfloat16": 2e-2}  # TF32 has 11 bits


def run(record: Record, scale: Scale) -> None:
    with record.part("adapters against NumPy"):
        for tokens in TOKENS if scale.name == "full" else TOKENS[::3]:
            for dtype in LIMITS:
                check(record, tokens, dtype)
    short = scale.brief(*ROWS)
    options = {"enable_lora": True, "max_loras": SLOTS, "max_lora_rank": RANK}
    with record.part("adapters"), measured_client(short, adapters=RandomReader(scale.spec, RANK), **options) as client:
        for seed in range(SLOTS):
            client.engine.load_adapter(str(seed), str(seed))
        for rows in short.decode_rows:
            for adapters in sorted({0, 1, min(rows, SLOTS)}):
                measure(client, record, short, rows, adapters)


def measure(client: Client, record: Record, scale: Scale, rows: int, adapters: int) -> None:
    """A row of "adapters": steps of `rows`, which have so many different ones."""
    [context] = scale.contexts
    crowd: list[int] = []
    for number in range(max(1, adapters)):
        share = len(range(number, rows, max(1, adapters)))
        crowd += client.submit(share, context, scale.growth, adapter=str(number) if adapters else "")
    fill(client, crowd)
    record.add("adapters", rows=rows, adapters=adapters, tokens=rows, **timed(client, scale.decode_steps))
    client.cancel(crowd)


def check(record: Record, tokens: int, dtype: str) -> None:
    """A row of "correctness": 3 units of 2 modules, and tokens without an adapter among the others."""
    chance = np.random.default_rng(tokens)

    def drawn(*shape: int) -> np.ndarray:
        return chance.standard_normal(shape, np.float32)

    x, a, b = drawn(tokens, 256), drawn(SLOTS, 2 * RANK, 256) / 16, drawn(3, SLOTS, RANK, 128) / 4
    slot = chance.integers(0, SLOTS + 1, tokens).astype(np.int32)
    held = [jnp.asarray(each, dtype) for each in (x, a, b)]
    stack = AdapterStack(held[1], held[2], "", Adaptable((0, 0, 1), 0), on_host=False)
    of_tokens = AdapterTokens.of(jnp.asarray(slot), SLOTS)
    ours = np.asarray(jax.jit(change, static_argnums=3)(held[0], stack, of_tokens, jnp.dtype(dtype)), np.float32)
    exact = expected(*(np.asarray(each, np.float32) for each in held), slot, (0, 0, 1))
    error = float(np.linalg.norm(ours - exact) / max(1.0, float(np.linalg.norm(exact))))
    check = {"check": f"adapters of {tokens} tokens", "backend": "xla", "dtype": dtype}
    record.add("correctness", **check, error=error, limit=LIMITS[dtype], ok=error <= LIMITS[dtype])


def expected(x: np.ndarray, a: np.ndarray, b: np.ndarray, slot: np.ndarray, parts: Sequence[int]) -> np.ndarray:
    """[T, U, out]."""
    made = np.zeros((len(x), *b.shape[:1], b.shape[-1]), np.float32)
    for token, number in enumerate(slot):
        if number < len(a):
            inner = (a[number] @ x[token]).reshape(max(parts) + 1, -1)
            made[token] = np.stack([inner[part] @ b[unit, number] for unit, part in enumerate(parts)])
    return made
