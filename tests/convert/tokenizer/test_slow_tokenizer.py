"""Tokenizers without tokenizer.json encode as transformers does; sentencepiece models as the sentencepiece library."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import transformers
from tokenizers import Tokenizer

from convert.errors import CheckpointError
from convert.source import open_model
from convert.tokenizer.slow_tokenizer import tokenizer_directory
from tests.tiny import CORPUS

TEXTS = ["The quick  brown fox\n\njumps", "over 12345 dogs, ünïcode 日本", "<mark> in a text", ""]
KEPT = ("tokenizer_config.json", "special_tokens_map.json")


@pytest.fixture
def opt_like(copy_of: Callable[[str], Path]) -> Path:
    """A checkpoint like OPT's, with vocab.json and merges.txt but no tokenizer.json; </s> comes before each text."""
    directory = copy_of("llama")
    model = json.loads((directory / "tokenizer.json").read_text())["model"]
    (directory / "tokenizer.json").unlink()
    (directory / "vocab.json").write_text(json.dumps(model["vocab"]))
    (directory / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in model["merges"]))
    config = {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "bos_token": "</s>", "eos_token": "</s>"}
    write(directory, **config, unk_token="</s>", pad_token="<pad>")
    return directory


def write(directory: Path, **config: Any) -> None:
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def ids_in(directory: Path) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    return [tokenizer.encode(text).ids for text in TEXTS]


def test_a_tokenizer_is_built_of_a_vocabulary_and_merges(opt_like: Path, cache: Path) -> None:
    model = open_model(str(opt_like), cache_dir=cache)
    reference = transformers.AutoTokenizer.from_pretrained(opt_like)
    assert ids_in(model.directory) == reference(TEXTS)["input_ids"]
    assert ids_in(model.directory)[-1] == [2]
    assert (model.directory / "tokenizer_config.json").read_text() == (opt_like / "tokenizer_config.json").read_text()


def test_a_tokenizer_is_built_once_and_again_when_a_file_changes(opt_like: Path, cache: Path) -> None:
    first = tokenizer_directory(opt_like, KEPT, cache)
    stamp = (first / "tokenizer.json").stat().st_mtime_ns
    assert tokenizer_directory(opt_like, KEPT, cache) == first
    assert (first / "tokenizer.json").stat().st_mtime_ns == stamp
    write(opt_like, tokenizer_class="GPT2Tokenizer", add_bos_token=False, bos_token="</s>")
    assert ids_in(tokenizer_directory(opt_like, KEPT, cache))[-1] == []


def test_a_tokenizer_that_transformers_cannot_read_is_refused(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"none")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(CheckpointError, match="transformers cannot read the tokenizer: "):
        tokenizer_directory(tmp_path, KEPT, cache)
    assert not list((cache / "text-generation-jax" / "tokenizers").glob("*/"))


def test_a_tokenizer_written_in_python_is_refused(opt_like: Path, cache: Path) -> None:
    write(opt_like, tokenizer_class="CTRLTokenizer", unk_token="</s>")
    with pytest.raises(CheckpointError, match="CTRLTokenizer is written in Python and has no"):
        tokenizer_directory(opt_like, KEPT, cache)


BPE = {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity"}
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "vicuna": (
        "tokenizer.model",
        {**BPE, "remove_extra_whitespaces": False},
        {"tokenizer_class": "LlamaTokenizer", "legacy": False, "add_bos_token": False},
    ),
    "t5": (
        "spiece.model",
        {"model_type": "unigram", "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
        {"tokenizer_class": "T5Tokenizer", "extra_ids": 0},
    ),
    "code of its own": (
        "tokenizer.model",
        {**BPE, "remove_extra_whitespaces": False, "add_dummy_prefix": False, "user_defined_symbols": ["<mark>"]},
        {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}},
    ),
}


def test_a_tokenizer_that_is_code_of_the_checkpoint_s_own_is_refused(copy_of: Callable[[str], Path]) -> None:
    directory = copy_of("llama")
    (directory / "tokenizer.json").unlink()
    (directory / "own.tiktoken").write_text("IQ== 0")
    write(directory, tokenizer_class="OwnTokenizer", auto_map={"AutoTokenizer": ["own.OwnTokenizer", None]})
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json, and code of the checkpoint's own is never run"):
        open_model(str(directory))
    write(directory, tokenizer_class="OwnTokenizer")
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json, and nothing to make one of"):
        open_model(str(directory))


@pytest.mark.parametrize("name", KINDS)
def test_a_tokenizer_is_built_of_a_sentencepiece_model(name: str, tmp_path: Path, cache: Path) -> None:
    file, training, config = KINDS[name]
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*CORPUS, *TEXTS[:2]] * 20),
        model_writer=made,
        vocab_size=400 if "byte_fallback" in training else 120,
        hard_vocab_limit=False,
        minloglevel=2,
        **training,
    )
    (tmp_path / file).write_bytes(made.getvalue())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5" if name == "t5" else "llama"}))
    write(tmp_path, **config)
    reference = sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())
    end = [reference.eos_id()] if name == "t5" else []
    expected = [[*reference.encode(text), *end] for text in TEXTS]
    assert ids_in(tokenizer_directory(tmp_path, KEPT, cache)) == expected
