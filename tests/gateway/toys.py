"""Toy tokenizers, small enough to check by eye, and a model directory as the gateway reads it."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tests.engine_mock import EOS, FAIL, VOCABULARY

WORDS = ["the", "he", "lo", "hel", "hello", " w", "or", "ld", "world", "stop", " a", "ing"]
FAIL_TEXT = f"<unused{FAIL}>"  # a prompt that begins with it makes the mock engine fail
BOS = VOCABULARY - 1
THINK, END_THINK = VOCABULARY - 5, VOCABULARY - 4
IM_START, IM_END = VOCABULARY - 3, VOCABULARY - 2
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level() -> Tokenizer:
    """A byte-level BPE of `VOCABULARY` ids: EOS is 0, bytes are 1 … 256, then words, then special tokens.

    It puts `<s>` before every text.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"</s>": EOS} | {character: i for i, character in enumerate(alphabet, 1)}
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        spelled = word.replace(" ", "Ġ")
        for end in range(2, len(spelled) + 1):
            if spelled[:end] not in vocabulary:
                vocabulary[spelled[:end]] = len(vocabulary)
                merges.append((spelled[: end - 1], spelled[end - 1]))
    while len(vocabulary) < THINK:
        vocabulary[f"<unused{len(vocabulary)}>"] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.add_tokens([FAIL_TEXT])
    tokenizer.add_special_tokens(["</s>", "[THINK]", "[/THINK]", "<|im_start|>", "<|im_end|>", "<s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    return tokenizer


def sentencepiece() -> Tokenizer:
    """A tokenizer like Llama 2's: `▁` for a space, one before every text, and byte tokens where no piece fits."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "h", "e", "l", "o", "w", "a", "b", "i", "n", "g", "é", ".", "he", "▁w", "in", "ing"]
    merges = [("h", "e"), ("▁", "w"), ("i", "n"), ("in", "g")]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def write_model(directory: Path, *, template: str | None = TEMPLATE, **generation_config: Any) -> Path:
    """Write the files about text of a model directory, and no weights."""
    byte_level().save(str(directory / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>"} | ({"chat_template": template} if template else {})
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text(json.dumps(generation_config))
    return directory
