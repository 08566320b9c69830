"""What a request has been answered so far, by an engine that is gone; see `Resume` in `engine.proto`.

Logprobs of the prompt were told with the first token. Those that a resumed request asks for again are the same, unless
the text has outgrown its rotary frequencies since (`Scheduler.rope_switch_length`): it is then read with others.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Resume:
    """
    surprise: mirostat's bound behind the last of `generated`, in bits; None where mirostat is off.

    Raises:
        ValueError: `generated` is empty, or `surprise` is not finite.
    """

    generated: tuple[int, ...]
    surprise: float | None = None

    def __post_init__(self) -> None:
        if not self.generated:
            raise ValueError("resume.generated has no tokens")
        if self.surprise is not None and not math.isfinite(self.surprise):
            raise ValueError(f"resume.surprise must be finite, got {self.surprise}")
