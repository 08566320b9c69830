"""Does a kernel's result ever depend on who finishes first? Bit for bit, over a thousand runs.

Programs that share a row of a decode step count up atomically, and the last one merges what the others left. A merge
that began too early would read what the step before had left there: so steps of different lengths take turns, and each
must repeat its own first result. They run as the engine's do, several layers in one CUDA graph. Then a whole engine
answers the same load again and again, on other pages each time.
"""

from collections import defaultdict

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxengine.engine.engine import Engine
from jaxengine.executor.compiler_options import COMPILER_OPTIONS
from jaxengine.ops import Ops, StepBatch
from jaxengine.request.event import Token
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.request.sequence import Request
from jaxengine.sharding import make_mesh
from tests.gpu import kernels
from tests.gpu.engines import Client, small_engine
from tests.gpu.models import LLAMA
from tests.gpu.record import Record
from tests.gpu.scale import Scale

KV_HEADS, GROUP, DIM, PAGE_SIZE = 8, 4, 128, 16
LAYERS = 4  # share the counters
STEPS = 8  # of different lengths, which take turns
ROWS = (1, 7, 32, 128)
LONGEST = 4096
PAGES = 16384
DTYPES = {"gpu": "bfloat16", "cpu": "float32"}


def run(record: Record, scale: Scale) -> None:
    full = scale.name == "full"
    for rows in ROWS if full else ROWS[:1]:
        with record.part(f"{rows} rows again and again"):
            runs = 1000 // len(ROWS) if full else STEPS
            differ(record, f"decode of {rows} rows", hammered(rows, LONGEST if full else 256, runs), runs)
    with record.part("an engine again and again"):
        runs = 20 if full else 1
        differ(record, "engine", other_answers(runs), runs)


def differ(record: Record, what: str, count: int, runs: int) -> None:
    check = f"{what}, {runs} runs: how many differ from the first"
    record.add("correctness", check=check, backend=kernels.backends()[-1], error=count, limit=0, ok=not count)


# --- the kernel -----------------------------------------------------------------------------------------------------


def hammered(rows: int, longest: int, runs: int) -> int:
    """How many of `runs` steps differ from the first of the same lengths."""
    random = np.random.default_rng(rows)
    pages = PAGES if longest == LONGEST else rows * longest // PAGE_SIZE + 1
    cache = jax.random.normal(jax.random.key(0), (2, 1, pages, PAGE_SIZE, KV_HEADS, DIM), jnp.bfloat16)
    step = compiled(cache, drawn(random, rows, longest, pages))
    batches = [drawn(random, rows, longest, pages) for _ in range(STEPS)]
    first = [step(cache, batch) for batch in batches]
    differs = jax.jit(lambda a, b: (bits(a) != bits(b)).any().astype(jnp.int32))
    order = random.integers(0, STEPS, runs).tolist()
    return int(sum(np.asarray(differs(step(cache, batches[i]), first[i])) for i in order))


def compiled(cache: Array, batch: StepBatch) -> jax.stages.Compiled:
    """(cache, batch) → what `LAYERS` layers attend to, each layer's queries being what the one before attended to."""
    ops, platform = Ops(kernels.backends()[-1], make_mesh(1)), jax.devices()[0].platform

    def step(cache: Array, batch: StepBatch) -> Array:
        keys, values = cache
        own = [each[0, batch.page, batch.offset][:, :, None] for each in (keys, values)]  # writing it changes nothing
        q = jnp.broadcast_to(own[0], (*own[0].shape[:2], GROUP, DIM))
        for _ in range(LAYERS):
            q, keys, values = ops.attend(jnp.concatenate([q, *own], axis=2), None, keys, values, batch)
        return q

    lowered = jax.jit(step).lower(cache, batch)
    return lowered.compile(compiler_options=COMPILER_OPTIONS.get(platform))


def drawn(random: np.random.Generator, rows: int, longest: int, pages: int) -> StepBatch:
    """A decode step of random lengths, short ones among them, whose pages lie anywhere and may be shared."""
    position = (longest * random.uniform(size=rows) ** 3).astype(np.int32)
    tables = random.integers(1, pages, (rows, longest // PAGE_SIZE)).astype(np.int32)
    at = np.arange(rows), position // PAGE_SIZE
    return StepBatch(
        position=jnp.asarray(position),
        rope_length=jnp.asarray(position + 1),
        row=jnp.arange(rows, dtype=jnp.int32),
        page=jnp.asarray(tables[at]),
        offset=jnp.asarray(position % PAGE_SIZE),
        tables=jnp.asarray(tables),
        tokens=jnp.int32(rows),
        ragged=False,
    )


def bits(array: Array) -> Array:
    return jax.lax.bitcast_convert_type(array, jnp.int16)


# --- the engine -----------------------------------------------------------------------------------------------------


def other_answers(runs: int) -> int:
    """How many of `runs` runs of one load are answered otherwise than the first: a token or a log-probability."""
    engine = small_engine(
        LLAMA, dtype=DTYPES[jax.devices()[0].platform], max_batch_size=16, max_batch_prefill_tokens=64
    )
    first = answers(engine, b"first")
    return sum(answers(engine, bytes([number])) != first for number in range(runs))


def answers(engine: Engine, salt: bytes) -> dict[int, list[Token]]:
    """What a load of prompts of many lengths gets; nothing cached under another `salt` is used."""
    params = SamplingParams(temperature=0, seed=0, max_tokens=24, ignore_eos=True)
    random = np.random.default_rng(0)
    for number, length in enumerate(random.integers(1, 300, 12).tolist()):
        prompt = random.integers(0, LLAMA.vocab_size, length).tolist()
        engine.submit(Request(number, prompt, params, salt=salt))
    told: dict[int, list[Token]] = defaultdict(list)
    client = Client(engine)
    while not engine.idle:
        for event in client.step():
            told[event.request_id] += event.tokens
    return told
