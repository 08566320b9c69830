"""TGI's rules for requests, each with its status, its error_type, and the given value and the limit in its message."""

from typing import Any

import pytest

from tests.gateway.fixtures import serve

LIMITS = {"max_best_of": 2, "max_stop_sequences": 2, "max_top_n_tokens": 3, "max_input_tokens": 40}  # of 64 in all

REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    ({"best_of": 3, "do_sample": True}, ["best_of", "2", "3"]),
    ({"best_of": 2}, ["best_of", "sampling", "2"]),
    ({"temperature": 0.0}, ["temperature", "positive", "0.0"]),
    ({"temperature": -1}, ["temperature", "-1"]),
    ({"temperature": 1e39}, ["temperature", "100", "1e+39"]),
    ({"repetition_penalty": 0.0}, ["repetition_penalty", "positive", "0.0"]),
    ({"repetition_penalty": 1e-30}, ["repetition_penalty", "0.001", "1e-30"]),
    ({"frequency_penalty": 2.5}, ["frequency_penalty", "2.0", "2.5"]),
    ({"frequency_penalty": -2.5}, ["frequency_penalty", "-2.0", "-2.5"]),
    ({"top_p": 0.0}, ["top_p", "0.0", "1.0"]),
    ({"top_p": 1.0}, ["top_p", "< 1.0", "Given: 1.0"]),
    ({"typical_p": 1.5}, ["typical_p", "1.0", "1.5"]),
    ({"top_k": 0}, ["top_k", "positive", "0"]),
    ({"top_k": -1}, ["top_k", "positive", "-1"]),
    ({"max_new_tokens": 0}, ["max_new_tokens", "positive", "0"]),
    ({"stop": ["a", "b", "c"]}, ["stop", "2", "3"]),
    ({"stop": [""]}, ["stop", "256", "0"]),
    ({"stop": ["a" * 257]}, ["stop", "256", "257"]),
    ({"best_of": 2, "do_sample": True, "seed": 1}, ["seed", "best_of", "2"]),
    ({"top_n_tokens": 4}, ["top_n_tokens", "3", "4"]),
    ({"truncate": 0}, ["truncate", "40", "0"]),
    ({"truncate": 41}, ["truncate", "40", "41"]),
    ({"max_new_tokens": 63}, ["max_new_tokens", "64", "2 `inputs`", "63"]),
    ({"grammar": {"type": "regex", "value": "a" * 2049}}, ["grammar is not valid", "2049", "2048"]),
    ({"adapter_id": "x"}, ["adapter_id", "serves none", "--lora-adapters", "Given: x"]),
]


@pytest.mark.parametrize(("parameters", "parts"), REFUSED, ids=[str(row[0]) for row in REFUSED])
async def test_a_value_out_of_range_is_422_on_every_route(parameters: dict[str, Any], parts: list[str]) -> None:
    async with serve(**LIMITS) as app:
        for path, stream in (("/generate", False), ("/", False), ("/generate_stream", True), ("/", True)):
            if stream and "best_of" in parameters:
                continue
            response = await app.post(path, inputs="lo", parameters=parameters, stream=stream)
            assert response.status_code == 422
            body = response.json()
            assert body["error_type"] == "validation"
            assert body["error"].startswith("Input validation error: ")
            assert all(part in body["error"] for part in parts), body["error"]
        assert app.engine.requests == []


@pytest.mark.parametrize(
    ("parameters", "field"),
    [({"best_of": 2, "do_sample": True}, "best_of"), ({"best_of": 0}, "best_of"),
     ({"decoder_input_details": True}, "decoder_input_details")],
)  # fmt: skip
async def test_what_streams_can_not_do(parameters: dict[str, Any], field: str) -> None:
    async with serve(**LIMITS) as app:
        response = await app.post("/generate_stream", inputs="lo", parameters=parameters)
        assert response.status_code == 422
        assert f"`{field}`" in response.json()["error"]
        assert "streaming" in response.json()["error"]
        assert (await app.post("/generate", inputs="lo", parameters=parameters)).status_code == 200


async def test_best_of_may_be_switched_off() -> None:
    async with serve(max_best_of=1) as app:
        response = await app.post("/generate", inputs="lo", parameters={"best_of": 2, "do_sample": True})
        assert response.status_code == 422
        assert "not allowed" in response.json()["error"]


async def test_empty_inputs_are_refused_and_blank_ones_are_not() -> None:
    async with serve() as app:
        assert (await app.post("/generate", inputs="")).status_code == 422
        assert (await app.post("/generate", inputs=" ")).status_code == 200


async def test_a_prompt_may_be_as_long_as_the_limit() -> None:
    async with serve(**LIMITS) as app:
        assert (await app.post("/generate", inputs="lo" * 39, parameters={})).status_code == 200
        response = await app.post("/generate", inputs="lo" * 40, parameters={})
        assert response.status_code == 422
        assert "40" in response.json()["error"]
        assert "41" in response.json()["error"]


async def test_text_that_can_not_fit_is_refused_before_it_is_tokenised() -> None:
    async with serve() as app:
        response = await app.post("/generate", inputs="a" * (64 * len("<|im_start|>") + 1025))
        assert response.status_code == 422
        assert "1793 characters" in response.json()["error"]
        assert "1792" in response.json()["error"]


async def test_rules_are_applied_in_order() -> None:
    """With everything wrong at once the first rule speaks; mended, the next."""
    inputs, parameters = "", {
        "best_of": 3, "temperature": 0.0, "repetition_penalty": 0.0, "frequency_penalty": 9.0, "top_p": 0.0,
        "typical_p": 0.0, "top_k": 0, "max_new_tokens": 0, "stop": ["a", "b", "c"], "top_n_tokens": 9, "truncate": 0,
        "grammar": {"type": "regex", "value": ""},
    }  # fmt: skip
    order = list(parameters)
    order.insert(order.index("truncate"), "inputs")
    async with serve(**LIMITS) as app:
        for field in order:
            response = await app.post("/generate", inputs=inputs, parameters=parameters)
            assert (field if field == "grammar" else f"`{field}`") in response.json()["error"]
            if field == "inputs":
                inputs = "lo"
            else:
                del parameters[field]
        assert (await app.post("/generate", inputs=inputs, parameters=parameters)).status_code == 200


@pytest.mark.parametrize(
    "parameters",
    [
        {"do_sample": None},
        {"stop": None},
        {"details": None},
        {"watermark": None},
        {"decoder_input_details": None},
        {"do_sample": 1},
        {"temperature": "0.5"},
        {"seed": -1},
        {"seed": 2**64},
        {"max_new_tokens": 1.5},
        {"max_new_tokens": -1},
        {"truncate": -1},
        {"stop": "a"},
        {"top_k": True},
    ],
    ids=str,
)
async def test_a_wrong_type_is_422_and_names_the_field(parameters: dict[str, Any]) -> None:
    async with serve() as app:
        response = await app.post("/generate", inputs="lo", parameters=parameters)
        assert response.status_code == 422
        assert response.json()["error_type"] == "validation"
        assert f"parameters.{next(iter(parameters))}" in response.json()["error"]


@pytest.mark.parametrize(
    "parameters",
    [{name: None} for name in ("best_of", "temperature", "top_k", "top_p", "typical_p", "seed", "truncate",
                               "repetition_penalty", "frequency_penalty", "max_new_tokens", "return_full_text",
                               "top_n_tokens", "grammar", "adapter_id")]
    + [{"temperature": 2}, {"nonsense": {"a": 1}}, {"best_of": 0}, {"max_new_tokens": 62}],
    ids=str,
)  # fmt: skip
async def test_what_tgi_accepts_is_accepted(parameters: dict[str, Any]) -> None:
    async with serve() as app:
        response = await app.post("/generate", inputs="lo", parameters=parameters)
        assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b'{"inputs": "lo"', "application/json", 400),
        (b"", "application/json", 400),
        (b'{"inputs": "lo", "inputs": "lo"}', "application/json", 400),
        (b'\xef\xbb\xbf{"inputs": "lo"}', "application/json", 400),
        (b'{"inputs": "\xff"}', "application/json", 400),
        (b'{"inputs": "\\ud800"}', "application/json", 400),
        (b'{"inputs": "lo", "x": NaN}', "application/json", 400),
        (b'{"inputs": "lo", "x": 1e999}', "application/json", 400),
        (b'{"inputs": "lo", "x": ' + b"1" * 4301 + b"}", "application/json", 400),
        (b'{"inputs": "lo", "x": ' + b"[" * 72 + b"]" * 72 + b"}", "application/json", 400),
        (b'{"inputs": "lo", "x": ' + b"[" * 9999 + b"]" * 9999 + b"}", "application/json", 400),
        ('{"inputs": "lo"}'.encode("utf-16"), "application/json", 400),
        (b'["inputs"]', "application/json", 422),
        (b"{}", "application/json", 422),
        (b'{"inputs": "lo"}', "text/plain", 415),
        (b'{"inputs": "lo"}', "", 415),
        (b'{"inputs": "lo"}', "application/json; charset=utf-8", 200),
        (b'{"inputs": "lo"}', "application/vnd.x+json", 200),
    ],
)
async def test_bodies_that_are_not_strict_json(content: bytes, content_type: str, status: int) -> None:
    async with serve() as app:
        response = await app.raw("/generate", content, content_type)
        assert response.status_code == status
        if status != 200:
            assert set(response.json()) == {"error", "error_type"}


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/invocations"])
async def test_an_empty_body_is_told_to_be_empty(path: str) -> None:
    async with serve() as app:
        for content in (b"", b" \n"):
            answer = await app.raw(path, content)
            assert answer.status_code == 400 and "the body is empty" in answer.text
