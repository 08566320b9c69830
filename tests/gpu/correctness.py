"""Is the device's arithmetic right? Kernels against NumPy, and whole engines against the same engines on a CPU.

A CPU takes longer to compile its part than the device: `python -m tests.gpu.correctness DIRECTORY` leaves there what it
answers, on any machine, and `python -m tests.gpu.run --exact DIRECTORY` compares with that.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tests.gpu import kernels
from tests.gpu.answers import NEW, PROMPTS, Answers, Variant, answering
from tests.gpu.models import MODELS
from tests.gpu.record import Record, Row
from tests.gpu.scale import Scale
from tests.gpu.sections import KNOWN

NEAR_TIE = 0.01  # nats


@dataclass(frozen=True)
class Comparison:
    """An engine on the default device against f32 on a CPU: ‖ours - exact‖ / ‖exact‖ of centred log-probabilities."""

    ours: Variant
    limit: float

    @property
    def exact(self) -> Variant:
        return replace(self.ours, backend="reference", dtype="float32")

    def rows(self, ours: Answers, exact: Answers) -> Iterator[Row]:
        """The error; and in f32, where rounding alone may not choose another, how many prompts went on otherwise."""
        stored = f" ({', '.join(self.ours.stored)})" if self.ours.stored else ""
        row = {"backend": self.ours.backend, "dtype": self.ours.dtype}
        error = max(distance(ours, exact, number) for number in range(len(PROMPTS)))
        name = f"engine, {self.ours.model}{stored}"
        yield {**row, "check": name, "error": error, "limit": self.limit, "ok": error <= self.limit}
        if self.ours.dtype == "float32" and not self.ours.stored:
            wrong = wrong_tokens(ours, exact)
            yield {**row, "check": f"{name}: prompts with a wrong token", "error": wrong, "limit": 0, "ok": not wrong}


F32, BF16 = 2e-3, 0.12  # the reference's bf16 is up to 0.06 away
# The same 8 bits on both sides, but for values at a tie, which one of them may round the other way.
FEW_BITS = 2e-2
STORED = (("quantize=int8", "kv_cache_dtype=fp8_e4m3fn"), ("quantize=fp8", "kv_cache_dtype=fp8_e5m2"))


def llama() -> list[Comparison]:
    """The one model by every back end, and over few bits."""
    *others, best = kernels.backends()
    return [
        Comparison(Variant("llama", best, "float32"), F32),
        Comparison(Variant("llama", best, "bfloat16"), BF16),
        *(Comparison(Variant("llama", backend, "float32"), F32) for backend in others),
        *(Comparison(Variant("llama", best, "float32", stored), FEW_BITS) for stored in STORED),
    ]


def others() -> list[Comparison]:
    """Every other model; in bf16 a near tie sends tokens to other experts, which is not an error."""
    best, names = kernels.backends()[-1], [name for name in MODELS if name != "llama"]
    return [
        *(Comparison(Variant(name, best, "float32"), F32) for name in names),
        *(Comparison(Variant(name, best, "bfloat16"), BF16) for name in names if name != "experts"),
        Comparison(Variant("experts", best, "float32", ("quantize=int8",)), FEW_BITS),
    ]


def run(record: Record, scale: Scale) -> None:
    full = scale.name == "full"
    with record.part("attention against NumPy"):
        kernels.measure(record, kernels.CASES if full else kernels.CASES[:1])
    compare(record, llama() if full else llama()[-1:])


def compare(record: Record, comparisons: Sequence[Comparison]) -> None:
    """Rows of "correctness" for each, all answered by one process on the default device and one on a CPU."""
    exact = dict.fromkeys(comparison.exact for comparison in comparisons)
    ours = [comparison.ours for comparison in comparisons]
    with (
        record.part("engines against a CPU"),
        answering(exact, known=known_answers(), JAX_PLATFORMS="cpu") as cpu,
        answering(ours) as device,
    ):
        for comparison in comparisons:
            with record.attempt(str(comparison.ours)):
                for row in comparison.rows(device.of(comparison.ours), cpu.of(comparison.exact)):
                    record.add("correctness", **row)


def known_answers() -> Path | None:
    """Where a CPU's answers are that were made before."""
    return Path(os.environ[KNOWN]) if KNOWN in os.environ else None


def distance(ours: Answers, exact: Answers, number: int) -> float:
    """Relative error of prompt `number`, as far as both saw the same context; NaN if anything is."""
    same = int(np.argmin(np.append(ours[f"ids_{number}"] == exact[f"ids_{number}"], False)))
    known = len(exact[f"logprobs_{number}"]) - NEW
    seen = known + min(same + 1, NEW)  # the first token that differs was drawn from the same context
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


def main(directory: Path) -> None:
    """What a CPU answers to all that is compared, the engines that a GPU would have."""
    directory.mkdir(parents=True, exist_ok=True)
    exact = dict.fromkeys(comparison.exact for comparison in (*llama(), *others()))
    with answering(exact, JAX_PLATFORMS="cpu") as cpu:
        for variant in exact:
            np.savez(directory / f"{variant}.npz", **cpu.of(variant))  # type: ignore[arg-type]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
