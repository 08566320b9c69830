"""Is the device's arithmetic right? Kernels against NumPy, and whole engines against the same engine on a CPU."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from tests.gpu import kernels
from tests.gpu.answers import NEW, PROMPTS
from tests.gpu.record import Record, Row
from tests.gpu.scale import Scale

# ‖ours - exact‖ / ‖exact‖ of centred log-probabilities. The reference's bf16 is 0.04 away.
LIMITS = {"float32": 2e-3, "bfloat16": 0.08}

# The same 8 bits on both sides, but for values at a tie, which one of them may round the other way.
FEW_BITS = (("quantize=int8", "kv_cache_dtype=fp8_e4m3fn"), ("quantize=fp8", "kv_cache_dtype=fp8_e5m2"))
FEW_BITS_LIMIT = 2e-2

NEAR_TIE = 0.01  # nats

Answers = dict[str, np.ndarray]


def run(record: Record, scale: Scale) -> None:
    full = scale.name == "full"
    with record.part("attention against NumPy"):
        for row in kernels.measure(kernels.CASES if full else kernels.CASES[:1]):
            record.add("correctness", **row, ok=row["error"] <= row["limit"])
    with record.part("engines against a CPU"):
        for row in engines(LIMITS if full else {"float32": LIMITS["float32"]}):
            record.add("correctness", **row)
    with record.part("8 bits against a CPU"):
        for row in few_bits(FEW_BITS if full else FEW_BITS[:1]):
            record.add("correctness", **row)


def few_bits(formats: Sequence[tuple[str, ...]]) -> Iterator[Row]:
    """Rows for every way to store weights and cache in 8 bits, on the default device and on a CPU."""
    backend = kernels.backends()[-1]
    for stored in formats:
        exact = answered("reference", "float32", {"JAX_PLATFORMS": "cpu"}, stored)
        ours = answered(backend, "float32", {}, stored)
        error = max(distance(ours, exact, number) for number in range(len(PROMPTS)))
        name = "engine: " + ", ".join(stored)
        row = {"check": name, "backend": backend, "dtype": "float32", "error": error, "limit": FEW_BITS_LIMIT}
        yield {**row, "ok": error <= FEW_BITS_LIMIT}


def engines(limits: Mapping[str, float]) -> Iterator[Row]:
    """Rows for every back end and dtype: the engine on the default device against f32 on a CPU."""
    exact = answered("reference", "float32", {"JAX_PLATFORMS": "cpu"})
    for backend in kernels.backends():
        for dtype, limit in limits.items():
            ours = answered(backend, dtype)
            row = {"backend": backend, "dtype": dtype}
            error = max(distance(ours, exact, number) for number in range(len(PROMPTS)))
            yield {**row, "check": "engine: log-probabilities", "error": error, "limit": limit, "ok": error <= limit}
            if dtype == "float32":
                wrong = wrong_tokens(ours, exact)
                yield {
                    **row,
                    "check": "engine: prompts with a wrong greedy token",
                    "error": wrong,
                    "limit": 0,
                    "ok": not wrong,
                }


def answered(
    backend: str, dtype: str, environment: Mapping[str, str] | None = None, stored: Sequence[str] = ()
) -> Answers:
    """`tests.gpu.answers` in a process of its own, which takes no more memory than it needs."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "answers.npz"
        subprocess.run(
            [sys.executable, "-m", "tests.gpu.answers", str(file), backend, dtype, *stored],
            env={**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **(environment or {})},
            check=True,
            timeout=300,
        )
        with np.load(file) as saved:
            return dict(saved)


def distance(ours: Answers, exact: Answers, number: int) -> float:
    """Relative error of prompt `number`, as far as both saw the same context; NaN if anything is."""
    same = int(np.argmin(np.append(ours[f"ids_{number}"] == exact[f"ids_{number}"], False)))
    seen = PROMPTS[number] - 1 + min(same + 1, NEW)  # the first token that differs was drawn from the same context
    a, b = (centred(answers[f"logprobs_{number}"][:seen]) for answers in (ours, exact))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def centred(logprobs: np.ndarray) -> np.ndarray:
    centre: np.ndarray = logprobs.mean(-1, keepdims=True)
    return logprobs - centre


def wrong_tokens(ours: Answers, exact: Answers) -> int:
    """Prompts whose answer leaves the exact one elsewhere than at a near tie, after which they cannot be compared."""
    wrong = 0
    for number in range(len(PROMPTS)):
        for mine, theirs, logprobs in zip(
            ours[f"ids_{number}"], exact[f"ids_{number}"], exact[f"logprobs_{number}"][-NEW:], strict=True
        ):
            if mine != theirs:
                wrong += bool(logprobs[theirs] - logprobs[mine] > NEAR_TIE)
                break
    return wrong
