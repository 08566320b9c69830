"""Which formats a model writes, told from its chat template and its vocabulary.

Rules are tried in order, the specific before the generic; the first that holds decides. Where none does, calls and
reasoning are not looked for: the text is content.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.parsing.reasoning_format import ReasoningFormat
from gateway.parsing.reasoning_formats import reasoning_format
from gateway.parsing.tool_format import ToolFormat
from gateway.parsing.tool_formats import tool_format


@dataclass(frozen=True, slots=True)
class _Rule:
    """texts: all of them are in the template; tokens: all of them are in the vocabulary; without: none is in it."""

    format: str
    texts: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def holds(self, template: str, known_token: Callable[[str], bool]) -> bool:
        return (
            all(text in template for text in self.texts)
            and not any(text in template for text in self.without)
            and all(map(known_token, self.tokens))
        )


_TOOLS = (
    _Rule("kimi_k3", texts=("<|open|>", "tools")),
    _Rule("deepseek_v41", texts=("｜DSML｜ calls",)),
    _Rule("deepseek_v4", texts=("｜DSML｜", "tool_calls>")),
    _Rule("deepseek_v32", texts=("｜DSML｜",)),
    _Rule("deepseek_v3", texts=("<｜tool▁calls▁begin｜>", "```json")),
    _Rule("deepseek_v31", texts=("<｜tool▁calls▁begin｜>",)),
    _Rule("kimi_k2", texts=("<|tool_calls_section_begin|>",)),
    _Rule("kimi_k2", tokens=("<|tool_calls_section_begin|>",)),
    _Rule("openai", texts=("<|channel|>", "<|message|>")),
    _Rule("gemma4", texts=("<|tool_call>",)),
    _Rule("functiongemma", texts=("<start_function_call>",)),
    _Rule("minimax_m2", texts=("<minimax:tool_call>",)),
    _Rule("seed_oss", texts=("<seed:tool_call>",)),
    _Rule("qwen3_coder", texts=("<function=", "<parameter=")),
    _Rule("glm47", texts=("<arg_key>",), without=("\n<arg_key>", r"\n<arg_key>")),
    _Rule("glm45", texts=("<arg_key>",)),
    _Rule("cohere_command3", texts=("<|START_ACTION|>",)),
    _Rule("phi4_mini_json", texts=("<|tool_call|>", "<|/tool_call|>")),
    _Rule("phi4_mini_json", texts=("functools[",)),
    _Rule("granite", texts=("<|tool_call|>",)),
    _Rule("mistral", texts=("[TOOL_CALLS]", "[ARGS]")),
    _Rule("mistral_v3", texts=("[TOOL_CALLS]",)),
    _Rule("internlm", texts=("<|action_start|>",)),
    _Rule("nemotron_json", texts=("<TOOLCALL>",)),
    _Rule("hunyuan_a13b", texts=("<tool_calls>", "<answer>")),
    _Rule("jamba", texts=("<tool_calls>",)),
    _Rule("olmo3", texts=("<function_calls>",)),
    _Rule("granite-20b-fc", texts=("<function_call>",)),
    _Rule("hermes", texts=("<tool_call>", "</tool_call>"), without=("<mm:think>",)),
    _Rule("lfm2", texts=("<|tool_call_start|>",)),
    _Rule("lfm2", tokens=("<|tool_call_start|>",)),
    _Rule("llama4_pythonic", texts=("[func_name1(",), tokens=("<|python_start|>",)),
    _Rule("pythonic", texts=("[func_name1(",)),
    _Rule("llama3_json", texts=("<|python_tag|>",), without=("<function=",)),
    _Rule("llama3_json", texts=('{"name": ', '"parameters"', "ipython")),
)
_REASONING = (
    _Rule("kimi_k3", texts=("<|open|>", "think")),
    _Rule("openai_gptoss", texts=("<|channel|>", "<|message|>")),
    _Rule("gemma4", texts=("<|channel>",)),
    _Rule("minimax_m3", texts=("<mm:think>",)),
    _Rule("seed_oss", texts=("<seed:think>",)),
    _Rule("mistral", texts=("[THINK]",)),
    _Rule("cohere_command3", texts=("<|START_THINKING|>",)),
    _Rule("granite", texts=("Here is my thought process",)),
    _Rule("granite33", texts=("<think>", "<response>", "<|start_of_role|>")),
    _Rule("hunyuan_a13b", texts=("<think>", "<answer>")),
    _Rule("kimi", texts=("◁think▷",)),
    _Rule("kimi", texts=("</think>", "<|tool_calls_section_begin|>")),
    _Rule("deepseek_v3", texts=("｜DSML｜", "</think>")),
    _Rule("deepseek_v3", texts=("<｜Assistant｜>", "</think>", "thinking")),
    _Rule("deepseek_r1", texts=("<｜Assistant｜>", "</think>")),
    _Rule("glm45", texts=("</think>", "<arg_key>")),
    _Rule("minimax_m2", texts=("</think>", "<minimax:tool_call>")),
    _Rule("qwen3", texts=("</think>",)),
)


def detect(
    template: str | None, known_token: Callable[[str], bool]
) -> tuple[ToolFormat | None, ReasoningFormat | None]:
    """The formats of a model.

    Args:
        template: its chat template.
        known_token: whether a text is one token of its vocabulary.
    """
    template = template or ""
    tools = next((rule.format for rule in _TOOLS if rule.holds(template, known_token)), None)
    reasoning = next((rule.format for rule in _REASONING if rule.holds(template, known_token)), None)
    return (tool_format(tools) if tools else None, reasoning_format(reasoning) if reasoning else None)
