"""How each kind of byte-level tokenizer splits a text into words. A GGUF file only names it (`tokenizer.ggml.pre`).

Patterns and normalisation (NFC) are those of the models' own tokenizer.json. llama.cpp approximates the patterns and
does not normalise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, pre_tokenizers

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LAST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
# LLAMA3_SPLIT is cl100k's, which cuts numbers into threes. Qwen and StableLM 2 cut them into digits.
LLAMA3_SPLIT = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + LAST
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
# Qwen 3.5's words have combining marks within them.
QWEN35_SPLIT = QWEN2_SPLIT.replace(r"?\p{L}+|", r"?[\p{L}\p{M}]+|").replace(r"^\s\p{L}\p{N}", r"^\s\p{L}\p{M}\p{N}")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
WORDS = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*%s|"
TEKKEN_SPLIT = WORDS % ("", "") + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + LAST
GPT4O_SPLIT = WORDS % (f"{CONTRACTIONS}?", f"{CONTRACTIONS}?") + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + LAST
# Kimi's words have no Chinese characters, which are words of their own.
KIMI_SPLIT = r"\p{Han}+|" + GPT4O_SPLIT.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]").replace(r"[\r\n/]*", r"[\r\n]*")
# DeepSeek's cut a text by one pattern after the other. Those of the first models list letters that have a case, but not
# Georgian's and some others' (EXCLUDED), and what follows "9" in ASCII is punctuation, letters too.
CHINESE, JAPANESE = "\u4e00-\u9fa5", "\u3040-\u309f\u30a0-\u30ff"
MARKS = r"""!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~"""
DEEPSEEK_V3_SPLITS = (
    r"\p{N}{1,3}",
    f"[{CHINESE}{JAPANESE}]+",
    rf"[{MARKS}][A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|" + LAST,
)
EXCLUDED = "\u0560-\u0588\u10c6-\u10ff\u1c80-\u1c8f\u2d00-\u2d2d\ua78f-\ua7ff\uab30-\uab6f\U00010570-\U000105bf"
EXCLUDED += "\U00010d50-\U00010d8f\U00016e40-\U00016edf\U0001d400-\U0001d7ff\U0001df00-\U0001dfff"
PUNCTUATION = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"
EAST_ASIAN = f"[{CHINESE}\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK_SPLITS = (
    r"[\r\n]",
    rf"\s?[\p{{Lu}}\p{{Ll}}\p{{Lt}}&&[^{EXCLUDED}]]+",
    rf"\s?[{PUNCTUATION}]+",
    r"\s+$",
    EAST_ASIAN,
    r"\p{N}",
)
DEEPSEEK_CODER_SPLITS = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EAST_ASIAN, r"\p{N}")
BLOOM_SPLIT = r" ?[^(\s|[.,!?…。，、।۔،])]+"  # noqa: RUF001


@dataclass(frozen=True)
class Split:
    """How a text is cut into words.

    pattern: of a word, or several that cut one after the other; "" is GPT-2's, which byte-level pre-tokenizers have
        built in.
    digits: each digit is cut off first.
    falcon: punctuation is cut off first, and numbers then fall into threes.
    whole_words: a word that is a token is not merged out of its parts.
    """

    pattern: str | tuple[str, ...] = ""
    digits: bool = False
    falcon: bool = False
    nfc: bool = False
    whole_words: bool = False
    adds_bos: bool = False  # where the file does not say

    def pre_tokenizer(self) -> Any:
        words: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not self.pattern)]
        patterns = (self.pattern,) if isinstance(self.pattern, str) else self.pattern
        words = [*(pre_tokenizers.Split(Regex(each), "isolated") for each in patterns if each), *words]
        if self.digits:
            words.insert(0, pre_tokenizers.Digits(individual_digits=True))
        if self.falcon:
            threes = pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")
            words = [pre_tokenizers.Punctuation("contiguous"), *words, pre_tokenizers.Digits(False), threes]
        return pre_tokenizers.Sequence(words)


GPT2, DIGITS = Split(), Split(digits=True)
NEOX = Split(nfc=True)
LLAMA3 = Split(LLAMA3_SPLIT, whole_words=True, adds_bos=True)
CL100K = Split(LLAMA3_SPLIT)
SPLITS: Mapping[str, Split] = {
    "default": GPT2,
    "gpt-2": GPT2,
    "phi-2": GPT2,
    "mpt": NEOX,
    "olmo": NEOX,
    "smollm": DIGITS,
    "starcoder": DIGITS,
    "refact": DIGITS,
    "codeshell": DIGITS,
    "command-r": Split(digits=True, nfc=True),
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "falcon3": LLAMA3,
    "lfm2": LLAMA3,
    "dbrx": CL100K,
    "smaug-bpe": CL100K,
    "qwen2": Split(QWEN2_SPLIT, nfc=True),
    "qwen35": Split(QWEN35_SPLIT, nfc=True),
    "deepseek-r1-qwen": Split(QWEN2_SPLIT, nfc=True),
    "stablelm2": Split(QWEN2_SPLIT),
    "glm4": CL100K,
    "deepseek-llm": Split(DEEPSEEK_SPLITS),
    "deepseek-coder": Split(DEEPSEEK_CODER_SPLITS),
    "deepseek-v3": Split(DEEPSEEK_V3_SPLITS),
    "kimi-k2": Split(KIMI_SPLIT, whole_words=True),
    "tekken": Split(TEKKEN_SPLIT, whole_words=True),
    "pixtral": Split(TEKKEN_SPLIT, whole_words=True, adds_bos=True),  # and Nemotron Nano's
    "gpt-4o": Split(GPT4O_SPLIT),
    "bloom": Split(BLOOM_SPLIT),
    "falcon": Split(falcon=True),
}
