"""The formats of reasoning, a row each, under the names of vLLM's reasoning parsers."""

from gateway.parsing.harmony import MARKS
from gateway.parsing.reasoning_format import ReasoningFormat

_THINK, _END = ("<think>",), ("</think>",)
_KIMI_K3 = ("<|open|>", "<|close|>", "<|sep|>")

_ROWS = (
    ReasoningFormat("deepseek_r1", _THINK, _END, implicit=True),
    ReasoningFormat("deepseek_v3", _THINK, _END),
    ReasoningFormat("qwen3", _THINK, _END, ended_by_call=True),
    ReasoningFormat("glm45", _THINK, _END),
    ReasoningFormat("minimax_m2", _THINK, _END, implicit=True),
    ReasoningFormat("minimax_m3", ("<mm:think>",), ("</mm:think>",)),
    ReasoningFormat("seed_oss", ("<seed:think>",), ("</seed:think>",)),
    ReasoningFormat("mistral", ("[THINK]", "<think>"), ("[/THINK]", "</think>")),
    ReasoningFormat("kimi", ("<think>", "◁think▷"), ("</think>", "◁/think▷"), ended_by_call=True),
    ReasoningFormat(
        "kimi_k3",
        ("<|open|>think<|sep|>",),
        ("<|close|>think<|sep|>", "<|open|>response<|sep|>"),
        noise=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        inner=_KIMI_K3,
    ),
    ReasoningFormat(
        "granite",
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
    ),
    ReasoningFormat("granite33", _THINK, _END, noise=("<response>", "</response>")),
    ReasoningFormat("hunyuan_a13b", _THINK, _END, noise=("<answer>", "</answer>")),
    ReasoningFormat("ernie45", _THINK, _END, noise=("<response>", "</response>"), implicit=True),
    ReasoningFormat(
        "cohere_command3",
        ("<|START_THINKING|>",),
        ("<|END_THINKING|>",),
        noise=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    ReasoningFormat("gemma4", ("<|channel>thought\n",), ("<channel|>",), inner=("<|channel>",)),
    ReasoningFormat("openai_gptoss", (), (), inner=MARKS, harmony=True),
)
_ALIASES = {
    **dict.fromkeys(("exaone4", "smollm3", "nemotron_v3", "olmo3", "granite4"), "qwen3"),
    **dict.fromkeys(("holo2", "deepseek_v4"), "deepseek_v3"),
    **dict.fromkeys(("qwq", "step3"), "deepseek_r1"),
    **dict.fromkeys(("hunyuan",), "hunyuan_a13b"),
    **dict.fromkeys(("kimi_k2",), "kimi"),
}

_FORMATS = {row.name: row for row in _ROWS}
REASONING_FORMATS = tuple(sorted([*_FORMATS, *_ALIASES]))


def reasoning_format(name: str) -> ReasoningFormat:
    """Raises KeyError for a name that is not in REASONING_FORMATS."""
    return _FORMATS[_ALIASES.get(name, name)]
