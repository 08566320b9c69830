"""Fields of KoboldCpp that change the answer and are not served here, by the values that ask for nothing."""

from typing import Any

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": ([],),
    "negative_prompt": ("",),
    "guidance_scale": (1, "1", "1.0"),
    "grammar_retain_state": (False,),
    "adaptive_target": (-1, 0, -0.01, "-1", "-1.0"),  # -0.01 is SillyTavern's
    "reasoning_effort": ("", "high"),
    "softprompt": ("",),  # KoboldAI's
}
