"""Kimi's tokenizer, built of tiktoken's file: its ids are those of tiktoken itself."""

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers.convert_slow_tokenizer import bytes_to_unicode

from convert.errors import CheckpointError
from convert.tokenizer.slow_tokenizer import tokenizer_directory
from convert.tokenizer.tiktoken_file import NAME, SPECIAL

TEXT = """The Quick brown fox's 12345 jumps, isn't it? HTTPServer, naïve café, ÀÉÎ \tЖизнь жЖ ΔΣΩ δσω
月之暗面 means the far side of the moon; 漢字かな交じり文 and한국어 text.\r\n\r\n   if (x == 1) { return "y"; }  // 🙂🚀
"""
# As `pat_str` of tokenization_kimi.py has it, alternative by alternative.
PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
NAMED = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 10: "<|tool_call_begin|>"}
PLAIN = 10  # not marked as special
KEPT = ("tokenizer_config.json",)


@pytest.fixture(scope="module")
def ranks() -> dict[bytes, int]:
    """Byte pairs that were learnt from the text."""
    trained = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    trained.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator([TEXT] * 4, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet))
    byte_of = {char: byte for byte, char in bytes_to_unicode().items()}
    tokens = sorted(trained.get_vocab(), key=trained.token_to_id)
    return {bytes(byte_of[char] for char in token): id for id, token in enumerate(tokens)}


@pytest.fixture
def directory(tmp_path: Path, ranks: dict[bytes, int]) -> Path:
    write(tmp_path, ranks)
    return tmp_path


def write(directory: Path, ranks: dict[bytes, int], **settings: Any) -> None:
    lines = [base64.b64encode(token) + b" %d" % rank for token, rank in ranks.items()]
    (directory / NAME).write_bytes(b"\n".join(lines) + b"\n")
    named = {str(len(ranks) + i): {"content": name, "special": i != PLAIN} for i, name in NAMED.items()}
    config = {"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": named}
    auto_map = {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}
    (directory / "tokenizer_config.json").write_text(json.dumps({**config, "auto_map": auto_map, **settings}))


def special_names(first: int) -> list[str]:
    return [NAMED.get(i, f"<|reserved_token_{first + i}|>") for i in range(SPECIAL)]


def test_ids_and_texts_are_tiktoken_s(directory: Path, ranks: dict[bytes, int], cache: Path) -> None:
    special = {name: len(ranks) + i for i, name in enumerate(special_names(len(ranks)))}
    reference = tiktoken.Encoding("kimi", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)
    built = Tokenizer.from_file(str(tokenizer_directory(directory, KEPT, cache) / "tokenizer.json"))
    assert built.get_vocab_size() == len(ranks) + SPECIAL
    dice, alphabet = random.Random(0), [*TEXT, *special]
    texts = [TEXT, "", *("".join(dice.choices(alphabet, k=dice.randrange(1, 60))) for _ in range(3000))]
    for text in texts:
        ids = built.encode(text, add_special_tokens=False).ids
        assert ids == reference.encode(text, allowed_special="all")
        assert built.decode(ids, skip_special_tokens=False) == reference.decode(ids) == text


def test_what_is_named_and_not_special_is_part_of_texts(directory: Path, ranks: dict[bytes, int], cache: Path) -> None:
    built = Tokenizer.from_file(str(tokenizer_directory(directory, KEPT, cache) / "tokenizer.json"))
    text = "a<|tool_call_begin|>b<|im_end|>"
    ids = built.encode(text).ids
    assert {len(ranks) + 10, len(ranks) + 2} < {*ids}
    assert built.decode(ids) == "a<|tool_call_begin|>b"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"AA== 0\nAA= 1\n", "line 2 is no token and its id"),
        (b"AA== zero\n", "line 1 is no token and its id"),
        (b"AA== 0\nAQ== 2\n", "its ids are not 0, 1, 2"),
        (b"AA== 0\nAQ== 1\n", "has no token for the byte 2"),
        (b"", "has no token for the byte 0"),
    ],
)
def test_what_is_malformed_is_refused(directory: Path, cache: Path, content: bytes, said: str) -> None:
    (directory / NAME).write_bytes(content)
    with pytest.raises(CheckpointError, match=said):
        tokenizer_directory(directory, KEPT, cache)


@pytest.mark.parametrize("name", [{"special": True}, {"content": ""}, {"content": 3}, "[BOS]"])
def test_a_special_token_without_a_name_is_refused(
    directory: Path, ranks: dict[bytes, int], cache: Path, name: object
) -> None:
    write(directory, ranks, added_tokens_decoder={str(len(ranks)): name})
    with pytest.raises(CheckpointError, match=f"no content for the id {len(ranks)}"):
        tokenizer_directory(directory, KEPT, cache)


def test_another_tokenizer_in_such_a_file_is_refused(directory: Path, ranks: dict[bytes, int], cache: Path) -> None:
    write(directory, ranks, tokenizer_class="OwnTokenizer")
    with pytest.raises(CheckpointError, match=r"tiktoken\.model is of tokenizer_class 'OwnTokenizer', only"):
        tokenizer_directory(directory, KEPT, cache)
