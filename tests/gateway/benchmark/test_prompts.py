"""The prompts of a load: their lengths, their likeness, and files with mistakes."""

import itertools
import json
import sys
from pathlib import Path

import pytest

from gateway.benchmark.command_line import parse
from gateway.benchmark.options import BenchmarkOptions
from gateway.benchmark.prompt import Prompt
from gateway.benchmark.prompts import prompts
from gateway.benchmark.tokenizer import tokenizer as find_tokenizer
from gateway.text.tokenizer import Tokenizer
from jaxengine.options.option import UsageError
from tests.tiny import tokenizer as tiny_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer().save_pretrained(directory)
    return Tokenizer.load(directory)


def some(tokenizer: Tokenizer | None, *options: str, count: int = 20) -> list[Prompt]:
    return list(itertools.islice(prompts(parse(["--url=http://x", "--seed=7", *options], {}), tokenizer), count))


@pytest.mark.parametrize("length", [2, 10, 333])
def test_synthetic_prompts_have_their_length_to_the_token_and_differ(tokenizer: Tokenizer, length: int) -> None:
    texts = [each.text for each in some(tokenizer, f"-s={length}", "-d=5")]
    assert {len(tokenizer.encode(text, add_special_tokens=True)) for text in texts} == {length}
    assert length < 10 or len(set(texts)) == len(texts)
    assert [each.text for each in some(tokenizer, f"-s={length}")] == texts, "the seed decides"
    assert length < 10 or [each.text for each in some(tokenizer, f"-s={length}", "--seed=1")] != texts


def test_without_a_tokenizer_a_prompt_has_so_many_words() -> None:
    assert {len(each.text.split()) for each in some(None, "-s=17")} == {17}


def test_prompts_of_a_group_share_their_first_tokens(tokenizer: Tokenizer) -> None:
    found = some(tokenizer, "-s=8", "--prompts=shared-prefix", "--prefix-length=24", "--prefix-groups=3", count=60)
    ids = [tokenizer.encode(each.text, add_special_tokens=True) for each in found]
    assert {len(each) for each in ids} <= {31, 32, 33}
    assert len({tuple(each[:23]) for each in ids}) == 3
    assert len({tuple(each) for each in ids}) > 50


def unreachable(*_: object, **__: object) -> None:
    raise OSError("gone\nfor many reasons")


def test_a_tokenizer_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def options(name: str) -> BenchmarkOptions:
        return parse(["--url=http://x", f"-t={name}"], {})

    with pytest.raises(UsageError, match=r"--tokenizer-name .*: there is no tokenizer\.json"):
        find_tokenizer(options(str(tmp_path)))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match=r"--tokenizer-name .*not a readable tokenizer"):
        find_tokenizer(options(str(tmp_path)))
    monkeypatch.setattr("huggingface_hub.hf_hub_download", unreachable)
    with pytest.raises(UsageError, match=r"--tokenizer-name no/such/model is no directory, and not on the hub: gone$"):
        find_tokenizer(options("no/such/model"))
    tiny_tokenizer().save_pretrained(tmp_path)
    assert find_tokenizer(options(str(tmp_path))) is not None
    assert find_tokenizer(parse([], {})) is None


def test_a_file_says_prompts_or_chats_and_their_lengths(tmp_path: Path) -> None:
    texts, chats = tmp_path / "texts.jsonl", tmp_path / "chats.jsonl"
    texts.write_text('{"prompt": "a", "max_tokens": 3}\n\n{"prompt": "b"}\n')
    found = sorted(some(None, f"--prompts={texts}", "-d=9", count=2), key=lambda each: each.text)
    assert [(each.text, each.tokens, each.fixed) for each in found] == [("a", 3, True), ("b", 9, True)]
    chats.write_text('{"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function"}]}')
    [chat] = some(None, f"--prompts={chats}", count=1)
    assert chat.is_chat and not chat.fixed and chat.tools == ({"type": "function"},)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no prompt"),
        ("{", "line 1: is no JSON"),
        ('{"prompt": "a"}\n{"text": "b"}', "line 2: must be an object with either prompt or messages"),
        ('{"prompt": "a", "top_p": 1}', "line 1: has the unknown field 'top_p'"),
        ('{"prompt": ""}', "prompt must be a text that is not empty"),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens must be a whole number from 1 on"),
        ('{"messages": "hi"}', "messages must be a list of objects"),
        ('{"messages": []}', "messages must not be empty"),
        ('{"prompt": "a"}\n{"messages": [{}]}', "all lines must have prompt, or all must have messages"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError, match=message):
        some(None, f"--prompts={path}")


def test_a_kind_of_prompts_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="--prompts sharegpt: must be synthetic, shared-prefix, bfcl, or a file"):
        some(None, "--prompts=sharegpt")


def test_questions_with_tools_come_from_the_package_if_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bfcl_eval", None)
    with pytest.raises(UsageError, match="needs the data of the package bfcl-eval"):
        some(None, "--prompts=bfcl")
    monkeypatch.delitem(sys.modules, "bfcl_eval")
    data = tmp_path / "bfcl_eval" / "data"
    data.mkdir(parents=True)
    nested = {
        "type": "dict",
        "properties": {"type": {"type": "float"}, "xs": {"type": "tuple", "items": {"type": "any"}}},
    }
    function = {"name": "math.add", "description": "adds", "parameters": {**nested, "required": ["type"]}}
    line = {"id": "1", "question": [[{"role": "user", "content": "1 + 1?"}]], "function": [function]}
    (data / "BFCL_v4_live_simple.json").write_text(json.dumps(line))
    monkeypatch.syspath_prepend(str(tmp_path))
    [chat] = some(None, "--prompts=bfcl", "-d=64", count=1)
    assert chat.is_chat and not chat.fixed and chat.tokens == 64
    offered = chat.tools[0]["function"]
    assert offered["name"] == "math_add"
    assert offered["parameters"]["type"] == "object" and offered["parameters"]["required"] == ["type"]
    properties = offered["parameters"]["properties"]
    assert properties["type"] == {"type": "number"}
    assert properties["xs"]["type"] == "array" and "string" in properties["xs"]["items"]["type"]
