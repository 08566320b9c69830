"""Answers of the default model at temperature 1.5 under published schemas and regexes, through the whole server."""

import asyncio
import json
import random
import re
from typing import Any

import httpx
import jsonschema
import pytest

from tests.grammars.collection import Published, published
from tests.processes import NO_CERTIFICATES, PATIENCE, ROOT
from tests.servers import Server

pytestmark = pytest.mark.slow

DRAWN = {"bfcl": 20, "json-schema-test-suite": 12, "kubernetes": 4, "mcp": 5, "schemastore": 7}
EVERY_NTH_REGEX = 8
ANSWERS = 2
AT_ONCE = 8
MAX_TOKENS = 100


def drawn() -> list[Published]:
    """Schemas of objects, which is what `response_format` is for."""
    chance = random.Random(11)
    found = []
    for source, count in DRAWN.items():
        found += chance.sample([each for each in published(source) if isinstance(each.schema, dict)], count)
    return found


async def answered(url: str, bodies: list[dict[str, Any]]) -> list[httpx.Response]:
    """The answers to chats, in their order."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(http: httpx.AsyncClient, body: dict[str, Any]) -> httpx.Response:
        async with limit:
            return await http.post(url + "/v1/chat/completions", json={**CHAT, **body})

    async with httpx.AsyncClient(timeout=PATIENCE, **NO_CERTIFICATES) as http:
        return list(await asyncio.gather(*(one(http, body) for body in bodies)))


CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Invent something and answer in JSON."}],
    "temperature": 1.5,
    "n": ANSWERS,
    "max_tokens": MAX_TOKENS,
    "seed": 3,
}


def response_format(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}}


async def test_every_complete_answer_is_valid_or_the_schema_is_refused(smollm2: Server) -> None:
    schemas = drawn()
    answers = await answered(smollm2.url, [response_format(each.schema) for each in schemas])
    ends = {"stop": 0, "length": 0, "refused": 0}
    for each, answer in zip(schemas, answers, strict=True):
        if answer.status_code == 400:
            assert answer.json()["error"]["param"].startswith("response_format"), answer.text
            ends["refused"] += 1
            continue
        assert answer.status_code == 200, (each.name, answer.text)
        for choice in answer.json()["choices"]:
            ends[choice["finish_reason"]] += 1
            if choice["finish_reason"] == "stop":
                assert_valid(each, choice["message"]["content"])
    print(ends)
    assert ends["stop"] > len(schemas) / 2, ends


def assert_valid(each: Published, text: str) -> None:
    try:
        each.validator.validate(json.loads(text))
    except re.error:  # a pattern that the judge cannot read
        return
    except (ValueError, jsonschema.ValidationError) as error:
        pytest.fail(f"{each.source} {each.name}: {text!r}: {error}")


async def test_every_complete_text_matches_its_regex(smollm2: Server) -> None:
    patterns = json.loads((ROOT / "tests/goldens/regexes.json").read_text())[::EVERY_NTH_REGEX]
    answers = await answered(
        smollm2.url, [{"structured_outputs": {"regex": each}, "max_tokens": 40} for each in patterns]
    )
    complete = 0
    for pattern, answer in zip(patterns, answers, strict=True):
        assert answer.status_code == 200, (pattern, answer.text)
        texts = [each["message"]["content"] for each in answer.json()["choices"] if each["finish_reason"] == "stop"]
        assert all(re.fullmatch(pattern, text) for text in texts), (pattern, texts)
        complete += len(texts)
    assert complete > len(patterns), complete
