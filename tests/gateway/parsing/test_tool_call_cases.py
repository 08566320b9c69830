"""What models of nine families wrote, read as its collectors say it must be, wherever the text is cut.

See tests/goldens/tool_calls/NOTICE.md. To its authors a call that was cut off, or goes wrong behind its name, must not
be returned at all. Here it is returned as far as it goes: it was streamed before that could be known.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.parsing.parser import parser
from gateway.parsing.pieces import Tool
from gateway.parsing.reasoning_formats import reasoning_format
from gateway.parsing.tool_formats import tool_format
from tests.gateway.parsing.messages import ReadMessage, read

GOLDENS = Path(__file__).parents[2] / "goldens" / "tool_calls"
FORMATS = {  # of calls and of reasoning, by the beginning of a model's name
    "Qwen/Qwen3-Coder": ("qwen3_coder", None),
    "Qwen/Qwen3.": ("qwen3_coder", "qwen3"),
    "Qwen/Qwen3-4B-Instruct": ("hermes", None),
    "Qwen/Qwen3-": ("hermes", "qwen3"),
    "deepseek-ai/DeepSeek-V3-": ("deepseek_v3", None),
    "deepseek-ai/DeepSeek-V3.1": ("deepseek_v31", "deepseek_v3"),
    "deepseek-ai/DeepSeek-V3.2": ("deepseek_v32", "deepseek_v3"),
    "deepseek-ai/DeepSeek-V4-": ("deepseek_v4", "deepseek_v3"),
    "deepseek-ai/DeepSeek-V4.1": ("deepseek_v41", "deepseek_v3"),
    "google/gemma-4": ("gemma4", "gemma4"),
    "zai-org/GLM-4.5": ("glm45", "glm45"),
    "zai-org/GLM-": ("glm47", "glm45"),
    "openai/gpt-oss": ("openai", "openai_gptoss"),
    "moonshotai/Kimi-K2": ("kimi_k2", "kimi"),
    "moonshotai/Kimi-K3": ("kimi_k3", "kimi_k3"),
    "meta-llama/Llama-3": ("llama3_json", None),
    "meta-llama/Llama-4": ("llama4_pythonic", None),
    "mistralai/": ("mistral", "mistral"),
}
# A section that holds something else than a call is text; the case wants its mark dropped.
OTHERWISE = {"kimi/k2i-vllm-noise-between-markers"}


@dataclass(frozen=True)
class Case:
    record: dict[str, Any]

    @property
    def text(self) -> str:
        return self.record["text"]

    def read(self, parts: list[str]) -> ReadMessage:
        calls, reasoning = next(names for start, names in FORMATS.items() if self.record["model"].startswith(start))
        tools = [Tool(tool["name"], tool["parameters"]) for tool in self.record["tools"]]
        written = reasoning_format(reasoning) if reasoning else None
        cut = "truncated" in self.record["tags"]
        return read(parser(tool_format(calls), written, tools, prompt=self.record["prompt"]), parts, cut=cut)


CASES = {
    record["id"]: Case(record)
    for path in sorted(GOLDENS.glob("*.jsonl"))
    for record in map(json.loads, path.read_text(encoding="utf-8").splitlines())
}


@pytest.mark.parametrize("case", [pytest.param(case, id=id) for id, case in CASES.items() if id not in OTHERWISE])
def test_a_model_s_text_is_read_as_it_was_meant(case: Case) -> None:
    message, expected = case.read([case.text]), case.record["expected"]
    incomplete = message.calls and {"truncated", "malformed"} & set(case.record["tags"])
    if expected is None:
        assert not message.calls or incomplete
        return
    calls = [(call.name, call.value) for call in message.calls]
    wanted = [(call["name"], call["arguments"]) for call in expected["tool_calls"]]
    assert calls == wanted or (incomplete and calls[:-1] == wanted)
    assert message.content.strip() == (expected["content"] or "").strip()
    assert message.reasoning.strip() == (expected["reasoning_content"] or "").strip()


@pytest.mark.parametrize("family", sorted({id.split("/")[0] for id in CASES}))
def test_some_cuts_give_the_same_message(family: str) -> None:
    seed = random.Random(family)
    for case in (case for id, case in CASES.items() if id.startswith(f"{family}/")):
        whole = case.read([case.text])
        assert case.read(list(case.text)) == whole
        for _ in range(4):
            at = sorted(seed.randrange(len(case.text)) for _ in range(3))
            assert case.read([case.text[i:j] for i, j in zip([0, *at], [*at, None], strict=True)]) == whole


@pytest.mark.slow
@pytest.mark.parametrize("case", [pytest.param(case, id=id) for id, case in CASES.items()])
def test_every_cut_gives_the_same_message(case: Case) -> None:
    whole = case.read([case.text])
    for at in range(min(len(case.text), 600)):
        assert case.read([case.text[:at], case.text[at:]]) == whole, at
