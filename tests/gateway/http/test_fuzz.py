"""Ten thousand broken bodies over every route: each gets a clear 4xx or an answer, soon, and none does lasting harm."""

import asyncio
import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.gateway.fixtures import ServedApp, serve

pytestmark = pytest.mark.slow

SCHEMA = {
    "type": "object", "required": ["a"], "$defs": {"b": {"type": "string", "pattern": "^a{1,3}$", "nullable": True}},
    "properties": {"a": {"$ref": "#/$defs/b"}, "c": {"oneOf": [{"enum": [1, "x"]}, {"type": "array", "items": {}}]}},
}  # fmt: skip
TAGS = {"structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}], "triggers": ["<a"]}
ROUTES: dict[str, dict[str, Any]] = {
    "/generate": {
        "inputs": "CANARY lo",
        "parameters": {
            "best_of": 1, "temperature": 0.5, "top_k": 3, "top_p": 0.9, "typical_p": 0.9, "stop": ["x"], "seed": 1,
            "max_new_tokens": 3, "details": True, "truncate": 5, "top_n_tokens": 1, "repetition_penalty": 1.1,
            "do_sample": True, "watermark": False, "return_full_text": False,
            "grammar": {"type": "json", "value": SCHEMA},
        },
    },
    "/v1/completions": {
        "prompt": "CANARY lo", "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "n": 2, "logprobs": 1, "echo": True,
        "stop": ["x"], "seed": 1, "logit_bias": {"5": 1.5}, "stream": True, "stream_options": {"include_usage": True},
        "min_p": 0.1, "stop_token_ids": [7], "model": None, "min_tokens": 1, "return_token_ids": True,
        "request_id": "a",
        "allowed_token_ids": [5, 7], "prompt_logprobs": None, "truncate_prompt_tokens": 9, "best_of": None,
        "structured_outputs": {"structural_tag": TAGS, "whitespace_pattern": " "},
        "use_beam_search": False, "length_penalty": 1.0, "early_stopping": False,
    },
    "/v1/chat/completions": {
        "messages": [
            {"role": "user", "content": "CANARY lo"}, {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"a\": \"CANARY\"}"}},
            ]},
            {"role": "tool", "tool_call_id": "a", "content": "CANARY"},
            {"role": "assistant", "content": "a", "function_call": {"name": "f", "arguments": "{}"}, "reasoning": "a"},
            {"role": "function", "name": "f", "content": "a"},
        ],
        "max_completion_tokens": 3, "logprobs": True, "top_logprobs": 2, "temperature": 0.5, "stop": "x", "n": 1,
        "chat_template_kwargs": {"a": 1}, "continue_final_message": False,
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}},
        "chat_template": None, "documents": [{"text": "a"}], "echo": False, "include_reasoning": True,
        "tools": [{"type": "function", "function": {"name": "f", "description": "CANARY", "strict": False, "parameters":
            {"type": "object", "properties": {"a": {"type": "string", "enum": ["CANARY"]}}}}}],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {
            "mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]}},
        "parallel_tool_calls": True, "functions": None, "function_call": None, "tool_prompt": "CANARY",
        "separate_reasoning": True, "stream_reasoning": True, "thinking_token_budget": -1, "reasoning_effort": "low",
    },
    "/v1/chat/completions/batch": {
        "messages": [[{"role": "user", "content": "CANARY lo"}], [{"role": "user", "content": "a"}]],
        "max_tokens": 3, "logprobs": True, "top_logprobs": 2, "n": 1, "stream": False, "return_token_ids": True,
        "guided_choice": ["a", "b"], "ignore_eos": False,
    },
    "/v1/embeddings": {
        "input": ["CANARY lo", "CANARY"], "encoding_format": "base64", "dimensions": 2, "normalize": True, "user": "a",
        "add_special_tokens": True, "truncate_prompt_tokens": 3, "truncation_side": "right", "priority": 0,
        "cache_salt": "a", "request_id": "a", "model": None, "use_activation": True,
    },
    "/v1/messages": {
        "model": "mock/model", "max_tokens": 3, "temperature": 0.5, "top_k": 3, "top_p": 0.9, "stop_sequences": ["x"],
        "system": [{"type": "text", "text": "CANARY", "cache_control": {"type": "ephemeral"}}], "stream": True,
        "messages": [
            {"role": "user", "content": "CANARY lo"}, {"role": "system", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "CANARY", "signature": ""}, {"type": "redacted_thinking", "data": "a"},
                {"type": "text", "text": "a"}, {"type": "tool_use", "id": "a", "name": "f", "input": {"a": "CANARY"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "is_error": True, "content": "CANARY"},
                {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "a"}]},
                {"type": "text", "text": "a"},
            ]},
        ],
        "tools": [{"type": "custom", "name": "f", "description": "CANARY", "strict": False, "input_schema":
            {"type": "object", "properties": {"a": {"type": "string", "enum": ["CANARY"]}}}}],
        "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 2, "display": "omitted"}, "metadata": {"user_id": "a"},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}}, "output_format": None,
        "context_management": {"edits": []}, "mcp_servers": [], "container": None, "chat_template_kwargs": {"a": 1},
    },
    "/v1/responses": {
        "input": [
            {"role": "user", "content": "CANARY lo"},
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a"}], "status": None},
            {"type": "reasoning", "id": "rs_a", "summary": [], "content": [{"type": "reasoning_text", "text": "a"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}], "encrypted_content": "text:YQ=="},
            {"type": "message", "id": "msg_a", "role": "assistant", "content": [
                {"type": "output_text", "text": "a", "annotations": []}, {"type": "refusal", "refusal": "CANARY"},
            ]},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{\"a\": \"CANARY\"}"},
            {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "CANARY"}]},
        ],
        "instructions": "CANARY", "previous_response_id": None, "max_output_tokens": 3, "store": True, "stream": True,
        "temperature": 0.5, "include": ["message.output_text.logprobs"], "top_logprobs": 2, "truncation": "disabled",
        "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}, "verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"}, "metadata": {"a": "b"}, "parallel_tool_calls": True,
        "tools": [{"type": "function", "name": "f", "description": "CANARY", "strict": False, "parameters":
            {"type": "object", "properties": {"a": {"type": "string", "enum": ["CANARY"]}}}}],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        "background": False, "stop": ["x"], "seed": 1, "top_k": 3, "thinking_token_budget": -1,
    },
    "/v1/responses/input_tokens": {
        "input": [{"role": "user", "content": "CANARY lo"}, {"role": "assistant", "content": "a"}],
        "instructions": "a", "previous_response_id": None, "tools": [{"type": "function", "name": "f"}],
    },
    "/v2/models/ensemble/infer": {
        "id": "a", "parameters": {"temperature": "0.5", "priority": 1, "binary_data_output": False, "sequence_id": 0},
        "inputs": [
            {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": [["CANARY lo"]]},
            {"name": "max_tokens", "shape": [1], "datatype": "INT32", "data": [3], "parameters": {"a": True}},
            {"name": "stop_words", "shape": [2], "datatype": "BYTES", "data": ["x", ""]},
            {"name": "sampling_parameters", "shape": [1], "datatype": "BYTES", "data": ["{\"logprobs\": 1}"]},
            {"name": "return_logprobs", "shape": [1], "datatype": "BOOL", "data": [True]},
        ],
        "outputs": [{"name": "text_output", "parameters": {"binary_data": True}}, {"name": "logprobs"}],
    },
    "/v2/models/ensemble_tokenizer/infer": {
        "inputs": [{"name": "TEXT", "shape": [2], "datatype": "BYTES", "data": ["CANARY", "a"]}],
        "outputs": [{"name": "input_ids", "parameters": {"classification": 0}}],
    },
    "/v2/models/ensemble_logits/infer": {
        "inputs": [
            {"name": "input_ids", "shape": [1, 2], "datatype": "INT64", "data": [[5, 6]]},
            {"name": "attention_mask", "shape": [1, 2], "datatype": "INT64", "data": [1, 1]},
        ],
        "outputs": [{"name": "logits", "parameters": {"classification": 3}}], "parameters": {"positions": "last"},
    },
    "/v2/models/ensemble/generate": {
        "id": "a", "text_input": "CANARY lo", "max_tokens": 3, "bad_words": "", "stop_words": ["x"], "end_id": 0,
        "parameters": {"temperature": 0.5, "top_p": "0.5", "seed": 1, "return_log_probs": True}, "stream": False,
        "beam_width": 1, "num_return_sequences": 1, "guided_decoding_guide_type": "regex", "guided_decoding_guide": "a",
    },
    "/api/v1/generate": {
        "prompt": "CANARY lo", "memory": "CANARY", "max_context_length": 900, "max_length": "3", "temperature": "0.5",
        "top_k": 5, "top_p": 0.9, "top_a": 0.1, "min_p": 0.1, "typical": 0.9, "tfs": 1, "nsigma": 1, "rep_pen": 1.1,
        "rep_pen_range": 64, "rep_pen_slope": 0.5, "presence_penalty": 0.1, "mirostat": 0, "dynatemp_range": 0.1,
        "smoothing_factor": 0.1, "xtc_probability": 0.5, "dry_multiplier": 0.5, "dry_sequence_breakers": ["a"],
        "sampler_order": [6, 0, 1, 3, 4, 2, 5], "sampler_seed": 1, "stop_sequence": ["x", None], "trim_stop": False,
        "ban_eos_token": True, "bypass_eos": False, "logit_bias": {"5": "1.5"}, "banned_tokens": ["a"],
        "custom_token_bans": "7, 8", "grammar": "", "images": [], "genkey": "KCPP1", "n": 1, "render_special": True,
    },
    "/api/extra/tokencount": {"prompt": "CANARY", "special": True},
    "/api/extra/detokenize": {"ids": [5, 6], "special": False},
    "/api/extra/generate/check": {"genkey": "KCPP1"},
    "/detokenize": {"tokens": [5, 6], "model": "mock/model"},
    "/vertex": {
        "instances": [
            {"inputs": "CANARY lo", "parameters": {"max_new_tokens": 2, "seed": 1}},
            {"messages": [{"role": "user", "content": "CANARY lo"}], "max_tokens": 2},
        ],
    },
}  # fmt: skip
SAME_BODY = {
    "/generate_stream": "/generate", "/": "/generate", "/tokenize": "/generate", "/invocations": "/generate",
    "/chat_tokenize": "/v1/chat/completions", "/v1/messages/count_tokens": "/v1/messages",
    "/v2/models/ensemble/generate_stream": "/v2/models/ensemble/generate",
    "/api/extra/generate/stream": "/api/v1/generate", "/api/latest/generate": "/api/v1/generate",
    "/api/extra/tokenize": "/api/extra/tokencount", "/api/extra/abort": "/api/extra/generate/check",
}  # fmt: skip
PATHS = [*ROUTES, *SAME_BODY]
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**60, 0.5, -0.0, 1e-300, 1e300,
    "", "a", "5", "\x00", "\uffff", "🙂" * 50, "a" * 3000,
    [], [[]], [None], ["a"] * 30, [1] * 100, [2**40], [True],
    {}, {"a": None}, {"type": "x"}, {"5": 1e300}, {"role": "user"},
    [{"role": "user", "content": "a"}] * 3, [{"type": "image_url", "image_url": {"url": "file:///"}}],
]  # fmt: skip
SPLICES = [
    b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\\ud800", b"NaN", b"Infinity", b"1e999", b"[" * 3000, b"{}", b'"', b",",
    b"-", b"\xef\xbb\xbf", b"9" * 5000, b'"a":1,"a":1', b"/**/", b"0x1", b"\r\n\r\n",
]  # fmt: skip
BODIES = 10_000
SECONDS = 20  # for one answer, on a busy machine: most take a millisecond
LEAKS = ("Traceback", "/usr/", "site-packages", ".py", "0x7f", "pydantic", "CANARY")


def body_of(path: str) -> dict[str, Any]:
    return ROUTES[SAME_BODY.get(path, path)]


def paths_into(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        yield (*at, key)
        yield from paths_into(child, (*at, key))


def mutated(body: dict[str, Any], draw: random.Random) -> bytes:
    """`body` with one to three values replaced, dropped or duplicated, and perhaps its bytes damaged."""
    mutant = copy.deepcopy(body)
    for _ in range(draw.randint(1, 3)):
        places = list(paths_into(mutant))
        if not places:
            break
        *parents, key = draw.choice(places)
        target = mutant
        for parent in parents:
            target = target[parent]
        if draw.random() < 0.2:
            del target[key]
        else:
            target[key] = copy.deepcopy(draw.choice(VALUES))
    raw = json.dumps(mutant, ensure_ascii=draw.random() < 0.5).encode()
    if draw.random() < 0.4:
        at = draw.randrange(len(raw))
        raw = raw[:at] + draw.choice([*SPLICES, b""]) + raw[at + draw.randint(0, 5) :]
    return raw


async def golden(app: ServedApp) -> list[bytes]:
    answers = [
        await app.post("/generate", inputs="lo", parameters={"details": True}),
        await app.post("/generate_stream", inputs="lo", parameters={}),
        await app.post("/tokenize", inputs="lo"),
    ]
    return [answer.content for answer in answers]


def check(path: str, response: httpx.Response, raw: bytes) -> None:
    assert response.status_code in (200, 400, 404, 422), (path, response.status_code, raw)
    if response.status_code != 200:
        error = response.json()["detail" if path.startswith("/api/") else "error"]
        in_object = path.startswith(("/v1", "/api/")) or path == "/detokenize"
        assert isinstance(error, dict) is in_object, (path, raw)
        assert not any(leak in response.text for leak in LEAKS), (path, response.text)
        assert len(response.content) < 4096, (path, raw)


async def test_no_body_breaks_the_server() -> None:
    draw = random.Random(20240607)
    statuses: dict[int, int] = {}
    async with serve(max_total_tokens=1000) as app:
        before = await golden(app)
        for number in range(BODIES):
            path = PATHS[number % len(PATHS)]
            raw = mutated(body_of(path), draw)
            response = await asyncio.wait_for(app.raw(path, raw), SECONDS)
            check(path, response, raw)
            statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
        assert await golden(app) == before
        assert app.engine.open == 0
        assert app.gateway.admission.active == 0
        assert app.gateway.admission.queued_tokens == 0
    assert statuses[200] > BODIES / 20, "too few mutants are valid: the fuzz no longer reaches the engine"
    assert statuses[400] + statuses[422] > BODIES / 4
