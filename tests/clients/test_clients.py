"""Client libraries as their users install them, each against the real server: what they return is the golden text."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import run_script
from tests.processes import PATIENCE, ROOT
from tests.servers import Server, serving

pytestmark = pytest.mark.slow

GOLDEN = json.loads((ROOT / "tests/goldens/smollm2_golden.json").read_text())["runs"][0]
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
TEXT = GOLDEN["text"]
KEY = "a-key"
# What LangChain's suite says of the tests that ask for what is not served here.
LEFT_OUT = {
    "Skipped: Model override not supported.",
    "Skipped: Test requires tool calling.",
    "Skipped: Test requires tool calling support.",
    "Skipped: Test requires tool choice.",
    "Skipped: Test requires structured output.",
    "Skipped: Test requires json mode support.",
    "Skipped: Model does not support PDF inputs.",
    "Skipped: Model does not support audio inputs.",
    "Skipped: Model does not support image message.",
    "Skipped: Model does not support image tool message.",
    "Skipped: Model does not support PDF tool message.",
    "Skipped: Model does not explicitly support Anthropic inputs.",
    "Skipped: VCR not set up.",  # it measures the replay of recorded answers
}

# What the `openai` SDK can send, by route: what is obeyed or a hint, and what is refused.
SAMPLING = {
    "n": 2, "temperature": 0.7, "top_p": 0.9, "frequency_penalty": 0.1, "presence_penalty": 0.1, "logit_bias": {"5": 1},
    "seed": 5, "stop": ["\n\n"], "max_tokens": 8, "user": "me",
}  # fmt: skip
HINTS = {
    "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "parallel_tool_calls": True, "verbosity": "low",
    "prediction": {"type": "content", "content": "a"}, "moderation": {}, "prompt_cache_key": "a",
    "prompt_cache_options": {}, "prompt_cache_retention": "24h", "safety_identifier": "me",
}  # fmt: skip
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": FUNCTION}]
SERVED: dict[str, dict[str, Any]] = {
    "chat": {
        **SAMPLING, **HINTS, "max_completion_tokens": 8, "logprobs": True, "top_logprobs": 2, "reasoning_effort": "low",
        "response_format": {"type": "json_object"}, "tools": TOOLS, "tool_choice": "none",
    },
    # An echo's first logprob is null, as OpenAI's was; the SDK's own type does not know that.
    "completions": {**SAMPLING, "logprobs": 2, "best_of": 2, "echo": False},
}  # fmt: skip
REFUSED: dict[str, dict[str, Any]] = {
    "chat": {
        "audio": {"format": "wav", "voice": "alloy"}, "modalities": ["audio"],
        "functions": [FUNCTION], "function_call": {"name": "f"}, "web_search_options": {},  # tools by their older name
    },
    "completions": {"suffix": "a"},
}  # fmt: skip

# What TGI's clients can send: always, not with a stream, and what is refused.
TGI_SAMPLING: dict[str, Any] = {
    "do_sample": True, "max_new_tokens": 8, "repetition_penalty": 1.1, "frequency_penalty": 0.1, "seed": 5,
    "return_full_text": True, "temperature": 0.7, "top_k": 50, "top_p": 0.9, "truncate": 100, "typical_p": 0.9,
    "watermark": True, "top_n_tokens": 2,
}  # fmt: skip
TGI_WHOLE = {"best_of": 1, "decoder_input_details": True}
GRAMMAR = {"type": "regex", "value": "[a-z ]+"}
TGI_CHAT: dict[str, Any] = {
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.1,
    "presence_penalty": 0.1,
    "logprobs": True,
    "top_logprobs": 2,
    "max_tokens": 8,
    "n": 2,
    "seed": 5,
    "temperature": 0.7,
    "top_p": 0.9,
    "tools": TOOLS,
    "tool_choice": "none",
}
TGI_CHAT_REFUSED = {"logit_bias": [1.0]}  # a list has no ids

# And huggingface_hub's chat. The type it gives `logit_bias`, a list, is TGI's alone.
HUB_CHAT = {
    **{name: SAMPLING[name] for name in SAMPLING if name not in ("user", "logit_bias")}, "logprobs": True,
    "top_logprobs": 2, "tool_prompt": "a", "response_format": {"type": "json_object"},
    "tools": TOOLS, "tool_choice": "none",
}  # fmt: skip
HUB_CHAT_REFUSED = {"logit_bias": [1.0]}


@pytest.fixture
def job(smollm2: Server) -> dict[str, Any]:
    """What every script is asked to do: the golden question, and the same with its template applied."""
    return {"url": smollm2.url, "user": GOLDEN["user"], "prompt": GOLDEN["prompt"]}


@pytest.fixture
def guarded(tiny_model: Path, tmp_path: Path) -> Iterator[Server]:
    """A server with a key and room for one request, which ends when its engine dies."""
    options = (f"--api-key={KEY}", "--resume-requests=false", "--max-concurrent-requests=1")
    options += ("--max-batch-size=8", "--max-batch-prefill-tokens=64")
    with serving(tmp_path, f"--model-id={tiny_model}", *options) as server:
        server.wait_ready()
        yield server


def test_openai(job: dict[str, Any]) -> None:
    assert run_script("modern", "openai_sync", **job) == {
        "model": MODEL,
        "chat": TEXT,
        "finish_reason": "stop",
        "logprobs": len(GOLDEN["greedy_ids"]),
        "usage": len(GOLDEN["greedy_ids"]),
        "chat_stream": TEXT,
        "chat_stream_usage": len(GOLDEN["greedy_ids"]),
        "added_up": ["assistant", TEXT],
        "completion": TEXT,
        "completion_stream": TEXT,
    }


@pytest.mark.parametrize("route", SERVED)
def test_every_parameter_of_openais_sdk_is_taken_or_refused_by_name(job: dict[str, Any], route: str) -> None:
    messages = [{"role": "user", "content": job["user"]}]
    question = {"chat": {"messages": messages}, "completions": {"prompt": job["prompt"]}}
    served = {**SERVED[route], **question[route], "model": MODEL}
    seen = run_script("modern", "openai_parameters", url=job["url"], route=route, served=served, refused=REFUSED[route])
    assert set(seen["parameters"]) == {*served, *REFUSED[route], "stream", "stream_options"}
    assert seen["refused"] == {name: name for name in REFUSED[route]}
    assert len(seen["texts"]) == 2 and seen["streamed"] == seen["texts"], "by the seed"
    whole, streamed = seen["usage"]
    assert 0 < whole == streamed <= 16


def test_openai_async(job: dict[str, Any]) -> None:
    assert run_script("modern", "openai_async", **job) == {"chats": [TEXT] * 4}


def test_openai_raises_the_right_exception_for_each_failure(guarded: Server) -> None:
    seen = run_script("modern", "openai_errors", url=guarded.url, key=KEY, engine=guarded.engine_pid())
    invalid = {"param": "temperature", "type": "invalid_request_error", "status": 400}
    assert seen["wrong_key"].items() >= {"class": "AuthenticationError", "status": 401}.items()
    assert seen["wrong_value"].items() >= {"class": "BadRequestError", **invalid}.items()
    assert seen["wrong_value_in_a_stream"].items() >= {"class": "BadRequestError", **invalid}.items()
    assert seen["too_long"].items() >= {"class": "BadRequestError", "code": "context_length_exceeded"}.items()
    assert seen["unknown_model"].items() >= {"class": "NotFoundError", "code": "model_not_found"}.items()
    assert seen["overload"].items() >= {"class": "RateLimitError", "status": 429}.items()
    assert 1 <= int(seen["overload"]["retry_after"]) <= 60
    assert seen["engine_death"].items() >= {"class": "APIError", "type": "server_error"}.items()


def test_text_generation(job: dict[str, Any]) -> None:
    answer = run_script("classic", "text_generation_client", **job)
    assert "Input validation error: `inputs`" in answer.pop("refusal")
    assert answer.pop("nowhere") == "Not Found: /docs lists every route"
    assert answer == {
        "text": TEXT,
        "ids": GOLDEN["greedy_ids"],
        "finish_reason": "eos_token",
        "stream_ids": GOLDEN["greedy_ids"],
        "stream_text": TEXT,
        "async_stream_ids": GOLDEN["greedy_ids"],
    }


@pytest.mark.parametrize(("environment", "client"), [("classic", "text_generation"), ("modern", "huggingface_hub")])
def test_every_parameter_of_tgis_clients_is_obeyed_or_refused_by_name(
    job: dict[str, Any], environment: str, client: str
) -> None:
    stop, refused, call = "stop_sequences", dict[str, str](), set[str]()
    if client == "huggingface_hub":
        stop, refused, call = "stop", {"adapter_id": "a"}, {"details", "stream", "model"}
    served = {**TGI_SAMPLING, "grammar": GRAMMAR, "prompt": job["prompt"], stop: ["\n\n"]}
    asked = {"client": client, "url": job["url"], "served": served, "whole": TGI_WHOLE, "refused": refused}
    seen = run_script(environment, "tgi_parameters", **asked)
    assert set(seen["parameters"]) == {*served, *TGI_WHOLE, *refused, *call}
    assert all(f"`{name}`" in (seen["refused"][name] or "") for name in refused)
    assert 0 < len(seen["ids"]) <= 8 and seen["stream_ids"] == seen["ids"], "by the seed"
    assert seen["stream_text"] == seen["text"] and seen["text"].startswith(job["prompt"]) and seen["seed"] == 5
    assert seen["top_tokens"] == seen["stream_top_tokens"] and len(seen["top_tokens"]) == len(seen["ids"])
    assert set(seen["top_tokens"]) <= {1, 2}, "one, where the grammar allows no more"
    assert seen["others"] == 1


def test_every_parameter_of_tgis_own_chat_is_obeyed_or_refused_by_name(job: dict[str, Any]) -> None:
    served = {**TGI_CHAT, "messages": [{"role": "user", "content": job["user"]}]}
    seen = run_script("classic", "tgi_chat", url=job["url"], served=served, refused=TGI_CHAT_REFUSED)
    assert set(seen["parameters"]) == {*served, *TGI_CHAT_REFUSED, "stream"}
    assert all(f"'param': '{name}'" in (seen["refused"][name] or "") for name in TGI_CHAT_REFUSED)
    first, second = seen["texts"]
    assert first == second and len(first) == 2, "by the seed"
    assert {count for each in seen["top"] for count in each} == {2}
    assert sum(map(len, seen["top"])) == seen["usage"] <= 16


def test_llama_index_and_tgis_client_inside_it(job: dict[str, Any]) -> None:
    assert run_script("llama_index", "llama_index_tgi", **job) == {
        "model": MODEL,
        "chat": TEXT,
        "stream": TEXT,
        "async_stream": TEXT,
        "client_stream": TEXT,
        "roles": ["assistant"],
    }


@pytest.mark.parametrize("environment", ["classic", "modern"])
def test_huggingface_hub(job: dict[str, Any], environment: str) -> None:
    answer = run_script(environment, "inference_client", **job)
    assert "`temperature` must be strictly positive" in answer.pop("refusal")
    assert answer.pop("nowhere") == 404
    assert answer == {
        "full_text": GOLDEN["prompt"] + TEXT,
        "text": TEXT,
        "ids": GOLDEN["greedy_ids"],
        "stream": TEXT + "<|im_end|>",  # this library passes on every token's text, special or not
        "stream_ids": GOLDEN["greedy_ids"],
        "chat": TEXT,
        "chat_stream": TEXT,
    }


def test_every_parameter_of_huggingface_hubs_chat_is_obeyed_or_refused_by_name(job: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": job["user"]}]
    served = {**HUB_CHAT, "messages": messages, "model": MODEL}
    seen = run_script("modern", "hub_chat", url=job["url"], served=served, refused=HUB_CHAT_REFUSED)
    assert set(seen["parameters"]) == {*served, *HUB_CHAT_REFUSED, "stream", "stream_options"}
    assert seen["refused"] == {name: name for name in HUB_CHAT_REFUSED}
    assert len(seen["texts"]) == 2 and seen["streamed"] == seen["texts"], "by the seed"
    assert set(seen["logprobs"]) <= {1, 2}, "one, where the format allows no more"
    whole, streamed = seen["usage"]
    assert 0 < whole == streamed <= 16


def test_langchain_openai(job: dict[str, Any]) -> None:
    assert run_script("modern", "langchain_chat", **job, model=MODEL) == {
        "chat": TEXT,
        "usage": len(GOLDEN["greedy_ids"]),
        "chat_stream": TEXT,
        "completion": TEXT,
        "completion_stream": TEXT,
    }


def test_langchains_own_suite_for_chat_models(job: dict[str, Any]) -> None:
    seen = run_script("modern", "langchain_suite", **job, model=MODEL)
    left_out = {name: reason for name, reason in seen.items() if reason != "passed"}
    failed = [f"{name}: {reason}" for name, reason in left_out.items() if reason not in LEFT_OUT]
    assert not failed, "\n".join(failed)
    assert set(left_out.values()) == LEFT_OUT
    assert len(seen) - len(left_out) == 17


def test_langchain_huggingface(job: dict[str, Any]) -> None:
    assert run_script("classic", "langchain_endpoint", **job, stop=" Paris") == {
        "text": TEXT,
        "stream": TEXT + "<|im_end|>",  # as huggingface_hub, which is inside, passes it on
        "async_text": TEXT,
        "async_stream": TEXT + "<|im_end|>",
        "stop": "The capital of France is",
        "stop_stream": "The capital of France is",
    }


def test_langchain_community(job: dict[str, Any]) -> None:
    assert run_script("classic", "langchain_tgi", **job) == {"text": TEXT, "stream": TEXT}


def test_litellm(job: dict[str, Any]) -> None:
    seen = run_script("litellm", "litellm_client", **job, model=MODEL)
    assert seen.pop("too_long") == {"class": "ContextWindowExceededError", "status": 400}
    assert seen.pop("wrong_value") == {"class": "BadRequestError", "status": 400}
    assert seen.pop("unknown_model") == {"class": "NotFoundError", "status": 404}
    tokens = len(GOLDEN["greedy_ids"])
    chat = {"chat": TEXT, "finish_reason": "stop", "usage": tokens, "logprobs": tokens}
    either = {**chat, "stream": TEXT, "stream_usage": tokens}
    assert seen == {"openai": either, "hosted_vllm": either, "completion": TEXT}


def test_lm_eval_chat(smollm2: Server) -> None:
    rows = [{"question": GOLDEN["user"], "answer": TEXT}]
    assert run_script("lm_eval", "lm_eval_client", url=smollm2.url, kind="chat", rows=rows) == [[[TEXT]]]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_with_the_readmes_command(smollm2: Server) -> None:
    (command,) = re.findall(r"^curl .*?(?=^```)", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert "127.0.0.1:3000" in command
    here = command.replace("127.0.0.1:3000", smollm2.url.removeprefix("http://"))
    done = subprocess.run(["sh", "-c", here], capture_output=True, text=True, timeout=PATIENCE)
    assert "Deep Learning is a subfield of artificial intelligence" in json.loads(done.stdout)["generated_text"]
