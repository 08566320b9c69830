"""A tokenizer rebuilt from GGUF metadata encodes and decodes as the one it was made from."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Regex, Tokenizer, pre_tokenizers

from convert.errors import CheckpointError
from convert.formats.gguf_splits import LLAMA3_SPLIT, SPLITS
from convert.formats.gguf_tokenizer import SPACE, write_tokenizer
from tests.convert.tiny_gguf_tokenizer import tokenizer_metadata
from tests.tiny import tokenizer

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "  two  spaces\t\ttabs\n\nlines \n",
    "don't I'LL we've",
    "x = 12 + 345\n    return  67",
    "Ünïcödé 日本語 🙂👍🏽 ½ ٣",
    "<s>user</s> <unk> <pad>",
    "",
]


def build(directory: Path, **changes: Any) -> Tokenizer:
    """Written from the tiny tokenizer's metadata with keys replaced, or removed where the value is `...`."""
    metadata = tokenizer_metadata() | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    write_tokenizer({key: value for key, value in metadata.items() if value is not ...}, directory, "x.gguf")
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


@pytest.mark.parametrize("pre", ["default", "gpt-2"])
def test_byte_level_bpe_equals_its_original(pre: str, tmp_path: Path) -> None:
    rebuilt, original = build(tmp_path, pre=pre), tokenizer().backend_tokenizer
    for text in TEXTS:
        assert rebuilt.encode(text).ids == original.encode(text).ids
        ids = original.encode(text).ids
        assert rebuilt.decode(ids, skip_special_tokens=False) == original.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("smollm", [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)]),
        (
            "llama-bpe",
            [pre_tokenizers.Split(Regex(LLAMA3_SPLIT), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)],
        ),
    ],
)
def test_each_split_is_its_models_own(pre: str, words: list[Any], tmp_path: Path) -> None:
    """As in the tokenizer.json of SmolLM2 and Llama 3."""
    expected = Tokenizer.from_str(tokenizer().backend_tokenizer.to_str())
    expected.pre_tokenizer = pre_tokenizers.Sequence(words)
    rebuilt = build(tmp_path, pre=pre)
    for text in TEXTS:
        assert rebuilt.encode(text).ids == expected.encode(text).ids
    assert rebuilt.pre_tokenizer.pre_tokenize_str("a  12") == expected.pre_tokenizer.pre_tokenize_str("a  12")


@pytest.mark.parametrize(
    ("pre", "model"),
    [
        ("gpt-2", transformers.GPT2Tokenizer),
        ("phi-2", transformers.CodeGenTokenizer),
        ("mpt", transformers.GPTNeoXTokenizer),
        ("olmo", transformers.GPTNeoXTokenizer),
        ("qwen2", transformers.Qwen2Tokenizer),
        ("qwen35", transformers.Qwen3_5Tokenizer),
        ("command-r", transformers.CohereTokenizer),
    ],
)
def test_words_are_those_of_transformers(pre: str, model: Any, tmp_path: Path) -> None:
    rebuilt, theirs = build(tmp_path, pre=pre), model().backend_tokenizer
    for text in [*TEXTS, "e\u0301te\u0301 x\u0301y\u0301 \u0301! 1234.5", "I'M  \n\n she'd", "\t\n 7 7"]:
        assert words(rebuilt, text) == words(theirs, text), text


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    normalized = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalized)]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("tekken", ["Hello", "World", "ĠXs", "'s", "Ġ", "1", "2", "3", "4", "!?/"]),
        ("pixtral", ["Hello", "World", "ĠXs", "'s", "Ġ", "1", "2", "3", "4", "!?/"]),
        ("lfm2", ["HelloWorld", "ĠXs", "'s", "Ġ", "123", "4", "!?/"]),
        ("gpt-4o", ["Hello", "World", "ĠXs's", "Ġ", "123", "4", "!?/"]),
        ("dbrx", ["HelloWorld", "ĠXs", "'s", "Ġ", "123", "4", "!?/"]),
        ("stablelm2", ["HelloWorld", "ĠXs", "'s", "Ġ", "1", "2", "3", "4", "!?/"]),
        ("glm4", ["HelloWorld", "ĠXs", "'s", "Ġ", "123", "4", "!?/"]),
        ("deepseek-llm", ["HelloWorld", "ĠXs", "'", "s", "Ġ", "1", "2", "3", "4", "!?/"]),
        ("deepseek-coder", ["HelloWorld", "ĠXs", "'", "s", "Ġ", "1", "2", "3", "4", "!?/"]),
        ("deepseek-v3", ["HelloWorld", "ĠXs", "'s", "Ġ", "123", "4", "!?/"]),
        ("kimi-k2", ["Hello", "World", "ĠXs's", "Ġ", "123", "4", "!?/"]),
        ("bloom", ["HelloWorld", "ĠXs's", "Ġ1234", "!?", "/"]),
        ("falcon", ["HelloWorld", "ĠXs", "'", "s", "Ġ", "123", "4", "!?/"]),
        ("starcoder", ["HelloWorld", "ĠXs", "'s", "Ġ", "1", "2", "3", "4", "!?/"]),
    ],
)
def test_words_of_models_that_transformers_has_no_code_for(pre: str, expected: list[str], tmp_path: Path) -> None:
    assert words(build(tmp_path, pre=pre), "HelloWorld Xs's 1234!?/") == expected


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("deepseek-llm", ["中文日本", "abc", "\u10d0\u10d1", "É", "\u0587", "\n", "\n"]),
        ("deepseek-v3", ["中文テスト", "abc\u10d0é", "\n\n"]),
        ("kimi-k2", ["中文", "テストAbc\u0301é", "\n\n"]),
    ],
)
def test_scripts_are_cut_apart_as_models_do(pre: str, expected: list[str], tmp_path: Path) -> None:
    tokenizer, text = build(tmp_path, pre=pre), "".join(expected)
    cuts = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [text[first:last] for _, (first, last) in cuts] == expected


def test_every_split_can_be_written(tmp_path: Path) -> None:
    for pre in SPLITS:
        assert "".join(words(build(tmp_path, pre=pre), "a b")).replace("Ġ", " ") == "a b"


def test_padding_is_no_token(tmp_path: Path) -> None:
    metadata = tokenizer_metadata()
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    rebuilt = build(tmp_path, tokens=[*tokens, "[PAD320]", "[PAD321]"], token_type=[*kinds, 5, 5])
    assert rebuilt.get_vocab_size() == 320


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["<s>", "a"]),
        ({"add_bos_token": False}, ["a"]),
        ({"add_bos_token": ...}, ["a"]),
        ({"add_bos_token": ..., "pre": "llama-bpe"}, ["<s>", "a"]),
        ({"add_eos_token": True}, ["<s>", "a", "</s>"]),
    ],
)
def test_bos_and_eos_are_added_as_the_file_says(changes: dict[str, Any], expected: list[str], tmp_path: Path) -> None:
    assert build(tmp_path, **changes).encode("a").tokens == expected


def test_control_tokens_are_whole_and_special(tmp_path: Path) -> None:
    rebuilt = build(tmp_path)
    ids = rebuilt.encode("a</s>b", add_special_tokens=False).ids
    assert rebuilt.token_to_id("</s>") in ids
    assert rebuilt.decode(ids) == "ab"


def test_user_defined_tokens_are_whole_and_visible(tmp_path: Path) -> None:
    metadata = tokenizer_metadata()
    kinds = metadata["tokenizer.ggml.token_type"]
    word = metadata["tokenizer.ggml.tokens"].index("er")
    rebuilt = build(tmp_path, token_type=[4 if id == word else kind for id, kind in enumerate(kinds)])
    ids = rebuilt.encode("xery", add_special_tokens=False).ids
    assert word in ids
    assert rebuilt.decode(ids) == "xery"


def test_transformers_loads_what_was_written(tmp_path: Path) -> None:
    build(tmp_path, padding_token_id=0, unknown_token_id=3)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (loaded.bos_token, loaded.eos_token, loaded.pad_token, loaded.unk_token) == ("<s>", "</s>", "<pad>", "<unk>")
    assert loaded.chat_template == tokenizer().chat_template
    for text in TEXTS:
        assert loaded(text)["input_ids"] == tokenizer()(text)["input_ids"]


def test_generation_config_names_every_end(tmp_path: Path) -> None:
    build(tmp_path, eot_token_id=7, eom_token_id=9)
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == [2, 7, 9]


def test_gemma_4_s_is_that_of_transformers(tmp_path: Path) -> None:
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{b:02X}>" for b in range(256))]
    merges = [(SPACE, "t"), ("h", "e"), (SPACE + "t", "he"), (SPACE, SPACE), ("\n", "\n"), ("n", "\n")]
    tokens += [SPACE, "\n", *"abcdefghijklmnopqrstuvwxyz", *("".join(pair) for pair in merges)]
    special = {"bos_token_id": 2, "eos_token_id": 1, "padding_token_id": 0, "unknown_token_id": 3}
    types = [3] * 5 + [6] * 256 + [1] * (len(tokens) - 261)
    of_merges = [" ".join(pair) for pair in merges]
    changes = {"model": "gemma4", "pre": ..., "add_bos_token": ..., **special}
    rebuilt = build(tmp_path, tokens=tokens, token_type=types, merges=of_merges, **changes)
    original = transformers.GemmaTokenizer({token: id for id, token in enumerate(tokens)}, merges)
    for text in [*TEXTS, "the  the\n\nthen\n the", " the", "<bos>the<eos>"]:
        ids = original(text, add_special_tokens=False)["input_ids"]
        assert rebuilt.encode(text).ids == [2, *ids]  # whether a text begins so is told by llama.cpp, if by no one else
        assert rebuilt.decode(ids, skip_special_tokens=False) == original.decode(ids, skip_special_tokens=False)


SENTENCEPIECE = [SPACE + "th", "he", SPACE + "t", "th", "e" + SPACE, SPACE + "the"]


def sentencepiece_metadata() -> dict[str, Any]:
    """<unk> <s> </s>, 256 bytes, some letters and merges with falling scores, one pair of equal ones."""
    letters = [SPACE, *"abcdefghijklmnopqrstuvwxyz"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *SENTENCEPIECE, *letters]
    scores = [0.0] * 259 + [-1.0, -2.0, -3.0, -3.0, -4.0, -5.0] + [-1e6] * len(letters)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (len(SENTENCEPIECE) + len(letters)),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def test_sentencepiece_equals_transformers(tmp_path: Path) -> None:
    metadata = sentencepiece_metadata()
    write_tokenizer(metadata, tmp_path, "x.gguf")
    rebuilt = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    merges = transformers.tokenization_utils_base.generate_merges(vocabulary, dict(zip(tokens, scores, strict=True)))
    reference = transformers.LlamaTokenizer(vocab=vocabulary, merges=merges)
    assert rebuilt.encode("").tokens == ["<s>"]
    for text in ["the then he", " the  the", "ether", "日本 the🙂", "x</s>the", "", " "]:
        ids = reference(text, add_special_tokens=False)["input_ids"]
        assert rebuilt.encode(text, add_special_tokens=False).ids == ids, text
        assert rebuilt.decode(ids, skip_special_tokens=False) == reference.decode(ids), text


def test_sentencepiece_adds_no_space_when_told_so(tmp_path: Path) -> None:
    write_tokenizer(sentencepiece_metadata() | {"tokenizer.ggml.add_space_prefix": False}, tmp_path, "x.gguf")
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("th").tokens == ["<s>", "th"]


def test_unigram_equals_transformers(tmp_path: Path) -> None:
    """An added token, padding of the embedding, and scores by which the longest token does not always win."""
    letters = [(letter, -6.0 - n) for n, letter in enumerate([SPACE, *"abcdefghijklmnopqrstuvwxyz"])]
    words = [(SPACE + "the", -3.0), (SPACE + "th", -2.0), ("he", -2.5), ("then", -8.0), ("hen", -4.0), ("er", -2.2)]
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *words, *letters, ("<extra_id_0>", 0.0)]
    reference = transformers.T5Tokenizer(vocab=vocabulary, extra_ids=1)
    padding = [(f"[PAD{n}]", -10000.0) for n in range(len(vocabulary), 40)]
    stored = [*vocabulary[:-1], ("<extra_id_0>", -1000.0), *padding]
    metadata = {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": [token for token, _ in stored],
        "tokenizer.ggml.scores": [score for _, score in stored],
        "tokenizer.ggml.token_type": [3, 3, 2] + [1] * (len(vocabulary) - 4) + [4] + [5] * len(padding),
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.remove_extra_whitespaces": True,
    }
    write_tokenizer(metadata, tmp_path, "x.gguf")
    rebuilt = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert rebuilt.get_vocab_size() == len(vocabulary)
    for text in ["the then", "  theher \n\n  ether ", "日本 the🙂", "x</s>the <extra_id_0>.", "", " "]:
        ids = reference(text)["input_ids"]
        assert rebuilt.encode(text).ids == ids, text
        assert rebuilt.decode(ids, skip_special_tokens=False) == reference.decode(ids), text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "bert"}, "model must be one of gpt2, llama, gemma4, t5, got 'bert'"),
        ({"model": ...}, "model must be one of gpt2, llama, gemma4, t5, got None"),
        ({"pre": "chatglm-bpe"}, "pre must be one of default, gpt-2, .*, got 'chatglm-bpe'"),
        ({"tokens": ...}, "tokens must be a list of strings"),
        ({"tokens": [1, 2]}, "tokens must be a list of strings"),
        ({"tokens": []}, "0 tokens"),
        ({"merges": ...}, "merges must be a list of strings"),
        ({"merges": ["ab"]}, "merge 'ab' must be two tokens"),
        ({"merges": ["never seen"]}, "tokenizer cannot be built"),
        ({"token_type": [1]}, "320 tokens and 1 token types"),
        ({"token_type": 5}, "token_type must be a list, got 5"),
        ({"model": ["gpt2"]}, r"model must be one of gpt2, llama, gemma4, t5, got \['gpt2'\]"),
        ({"pre": ["x"]}, r"pre must be one of default, gpt-2, .*, got \['x'\]"),
        ({"eos_token_id": 320}, "eos_token_id must be below 320, got 320"),
        ({"eot_token_id": [1]}, r"eot_token_id must be below 320, got \[1\]"),
        ({"eom_token_id": "x"}, "eom_token_id must be below 320, got 'x'"),
        ({"model": "llama", "tokens": ["a" * 1025] * 320}, "token 'a{40}'… has 1025 characters, at most 1024"),
        ({"model": "llama", "scores": [0.0]}, "one score for each"),
        ({"model": "t5", "add_space_prefix": True}, "remove_extra_whitespaces must be true, got None"),
    ],
)
def test_metadata_that_cannot_be_rebuilt_exactly_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=rf"x\.gguf: .*{message}"):
        build(tmp_path, **changes)
