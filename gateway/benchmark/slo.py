"""A service level objective: the times that an answer must keep to count as good."""

import re
from dataclasses import dataclass

from gateway.benchmark.answer import Answer
from gateway.benchmark.distribution import percentile

NAMES = ("ttft", "itl", "tpot", "e2e")
UNITS = {"ms": 1e-3, "s": 1.0}
ITL_SHARE = 95.0  # percent of an answer's gaps that must keep `itl`: a single late chunk is no bad answer


@dataclass(frozen=True)
class Slo:
    """Limits in seconds, by the names of `NAMES`; what is not named is not limited.

    An answer is good if it is complete and keeps all of them. Of its gaps between chunks the 95th percentile counts.
    """

    limits: tuple[tuple[str, float], ...]

    @classmethod
    def parse(cls, text: str) -> "Slo":
        """Raises ValueError saying what would be right."""
        limits: dict[str, float] = {}
        for part in text.split(","):
            found = re.fullmatch(r"\s*(\w+)=(\d+(?:\.\d+)?)(ms|s)\s*", part)
            if found is None or found[1] not in NAMES or found[1] in limits or not float(found[2]):
                raise ValueError(f"must be like ttft=500ms,itl=50ms, of {', '.join(NAMES)}, each once, in ms or s")
            limits[found[1]] = float(found[2]) * UNITS[found[3]]
        return cls(tuple(limits.items()))

    def __str__(self) -> str:
        return ",".join(f"{name}={seconds * 1e3:g}ms" for name, seconds in self.limits)

    def met(self, answer: Answer) -> bool:
        return answer.complete and all(_of(answer, name) <= seconds for name, seconds in self.limits)


def _of(answer: Answer, name: str) -> float:
    if name == "itl":
        return percentile(sorted(answer.gaps), ITL_SHARE) if answer.gaps else 0.0
    if name == "tpot":
        return answer.tpot or 0.0
    return answer.ttft if name == "ttft" else answer.e2e
