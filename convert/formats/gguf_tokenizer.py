"""The tokenizer in a GGUF file's metadata, written out as tokenizer.json and its companions.

Four kinds exist: byte-level BPE ("gpt2"), whose way of splitting text into words is only named ("pre"), sentencepiece
BPE ("llama"), whose merges are only implied by scores, the same with its merges ("gemma4"), and sentencepiece unigram
("t5"). An unknown name is refused: a wrong split encodes most texts right and some wrong, which nobody would notice.
"""

import json
import re
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from convert.errors import CheckpointError
from convert.formats.gguf_splits import GPT2, SPLITS

VERSION = 1  # of the files that are written; a cache has no use for those of other versions
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5  # token_type values
UNIGRAM_IDS = {"padding_token_id": 0, "eos_token_id": 1, "unknown_token_id": 2}  # where a file does not say
SPACE = "\u2581"  # sentencepiece's visible space
LONGEST = 1024  # characters of a token of sentencepiece, which is tried for merges at each of them; 48 are many
END_IDS = ("eos_token_id", "eot_token_id", "eom_token_id")

PADDING = re.compile(r"\[PAD\d+\]")  # what llama.cpp calls rows of the embedding that have no token


def write_tokenizer(metadata: dict[str, Any], directory: Path, where: str) -> None:
    """Write tokenizer.json, tokenizer_config.json, generation_config.json and, if there is one, chat_template.jinja.

    Raises:
        CheckpointError: the metadata is incomplete or describes a tokenizer we cannot rebuild exactly.
    """
    fields = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    tokens = _strings(fields, "tokens", where)
    kinds = fields.get("token_type") or [1] * len(tokens)
    if not isinstance(kinds, list):
        raise CheckpointError(f"{where}: tokenizer.ggml.token_type must be a list, got {kinds!r:.80}")
    if not tokens or len(kinds) != len(tokens):
        raise CheckpointError(f"{where}: tokenizer has {len(tokens)} tokens and {len(kinds)} token types")
    count = _without_padding(tokens, kinds)
    tokens, kinds = tokens[:count], kinds[:count]
    build = BUILDERS.get(str(fields.get("model")))
    if build is None:
        known = ", ".join(BUILDERS)
        raise CheckpointError(f"{where}: tokenizer.ggml.model must be one of {known}, got {fields.get('model')!r}")
    fields = {**(UNIGRAM_IDS if fields["model"] == "t5" else {}), **fields}
    special = {name: _special(fields, name, tokens, where) for name in ("bos", "eos", "unknown", "padding")}
    for key in END_IDS:
        _special(fields, key.removesuffix("_token_id"), tokens, where)
    try:
        tokenizer = build(fields, tokens, where)
        marks = _marks(fields, special)
        _add_whole_tokens(tokenizer, tokens, kinds, set(special.values()))
        tokenizer.post_processor = _template(marks, special, fields)
    except CheckpointError:
        raise
    except Exception as error:  # the library raises bare Exception, e.g. for a merge outside the vocabulary
        raise CheckpointError(f"{where}: tokenizer cannot be built: {error}") from error
    (directory / "tokenizer.json").write_text(tokenizer.to_str(), "utf-8")
    _write_configs(fields, special, marks, directory)


def _without_padding(tokens: list[str], kinds: list[int]) -> int:
    """The number of tokens without those at the end that only fill up the embedding."""
    count = len(tokens)
    while count and kinds[count - 1] == UNUSED and PADDING.fullmatch(tokens[count - 1]):
        count -= 1
    return count


def _add_whole_tokens(tokenizer: Tokenizer, tokens: list[str], kinds: list[int], named: set[str | None]) -> None:
    """Tokens found whole in a text: control tokens and named ones, hidden when decoded; user-defined ones, shown."""
    pairs = list(zip(tokens, kinds, strict=True))
    hidden = [token for token, kind in pairs if kind in (UNKNOWN, CONTROL) or token in named]
    shown = [token for token, kind in pairs if kind == USER_DEFINED and token not in named]
    # at once: one by one, Gemma's 6249 took 25 of 43 s
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in hidden])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in shown])


def _byte_level(fields: dict[str, Any], tokens: list[str], where: str) -> Tokenizer:
    name = fields.get("pre", "default")
    if not isinstance(name, str) or name not in SPLITS:
        raise CheckpointError(f"{where}: tokenizer.ggml.pre must be one of {', '.join(SPLITS)}, got {name!r}")
    split = SPLITS[name]
    merges = [_pair(merge, where) for merge in _strings(fields, "merges", where)]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=split.whole_words))
    if split.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = split.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(fields: dict[str, Any], tokens: list[str], where: str) -> Tokenizer:
    vocabulary = {token: id for id, token in enumerate(tokens)}
    unknown = _special(fields, "unknown", tokens, where)
    if long := next((token for token in tokens if len(token) > LONGEST), None):
        raise CheckpointError(f"{where}: token {long[:40]!r}… has {len(long)} characters, at most {LONGEST}")
    merges = _implied_merges(vocabulary, _scores(fields, len(vocabulary), where))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = bool(fields.get("add_space_prefix", True))
    scheme = "first" if prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme, split=False)
    parts: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        parts.append(decoders.Strip(content=" ", left=1))
    tokenizer.decoder = decoders.Sequence(parts)
    return tokenizer


def _gemma4(fields: dict[str, Any], tokens: list[str], where: str) -> Tokenizer:
    """As transformers' GemmaTokenizer. llama.cpp also cuts a text at its line breaks."""
    merges = [_pair(merge, where) for merge in _strings(fields, "merges", where)]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    unknown = _special(fields, "unknown", tokens, where)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _unigram(fields: dict[str, Any], tokens: list[str], where: str) -> Tokenizer:
    """sentencepiece's unigram model, with T5's spaces: one in front, none behind, none twice in a row."""
    for key in ("add_space_prefix", "remove_extra_whitespaces"):
        if fields.get(key) is not True:
            raise CheckpointError(f"{where}: tokenizer.ggml.{key} must be true, got {fields.get(key)!r}")
    scores = _scores(fields, len(tokens), where)
    kinds = fields.get("token_type") or [NORMAL] * len(tokens)
    ranked = [
        (token, score if kind == NORMAL else 0.0) for token, score, kind in zip(tokens, scores, kinds, strict=False)
    ]
    tokenizer = Tokenizer(models.Unigram(ranked, unk_id=fields["unknown_token_id"], byte_fallback=False))
    characters = fields.get("precompiled_charsmap")
    if characters:
        tokenizer.normalizer = normalizers.Precompiled(bytes(byte % 256 for byte in characters))
    marked = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), marked])
    tokenizer.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    return tokenizer


BUILDERS = {"gpt2": _byte_level, "llama": _sentencepiece, "gemma4": _gemma4, "t5": _unigram}


def _implied_merges(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """sentencepiece merges whichever neighbours give the best-scored token; ranked merges say the same in advance.

    Equal scores are ordered as transformers does: the longer left part first, then the longer right part.
    """
    ranked = []
    for (token, _), score in zip(vocabulary.items(), scores, strict=False):
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [pair for pair in pairs if pair[0] in vocabulary and pair[1] in vocabulary]
        known.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        ranked += [(score, len(left), len(right), left, right) for left, right in known]
    ranked.sort(key=lambda merge: merge[:3], reverse=True)
    return [(left, right) for *_, left, right in ranked]


def _scores(fields: dict[str, Any], count: int, where: str) -> list[float]:
    scores = fields.get("scores")
    if not isinstance(scores, list) or len(scores[:count]) != count:
        raise CheckpointError(f"{where}: a sentencepiece tokenizer needs one score for each of its distinct tokens")
    return scores


def _strings(fields: dict[str, Any], key: str, where: str) -> list[str]:
    values = fields.get(key)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise CheckpointError(f"{where}: tokenizer.ggml.{key} must be a list of strings")
    return values


def _pair(merge: str, where: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right:
        raise CheckpointError(f"{where}: merge {merge!r} must be two tokens separated by a space")
    return left, right


def _special(fields: dict[str, Any], name: str, tokens: list[str], where: str) -> str | None:
    id = fields.get(f"{name}_token_id")
    if id is None:
        return None
    if type(id) is not int or not 0 <= id < len(tokens):
        raise CheckpointError(f"{where}: {name}_token_id must be below {len(tokens)}, got {id!r}")
    return tokens[id]


def _marks(fields: dict[str, Any], special: dict[str, str | None]) -> dict[str, bool]:
    """Whether a text gets bos in front and eos behind. Where the file does not say, llama.cpp's default counts."""
    model = fields["model"]
    bos_by_default = model in ("llama", "gemma4") or (
        model == "gpt2" and SPLITS.get(fields.get("pre", ""), GPT2).adds_bos
    )
    bos = bool(fields.get("add_bos_token", bos_by_default)) and special["bos"] is not None
    eos = bool(fields.get("add_eos_token", model == "t5")) and special["eos"] is not None
    return {"add_bos_token": bos, "add_eos_token": eos}


def _template(
    marks: dict[str, bool], special: dict[str, str | None], fields: dict[str, Any]
) -> processors.TemplateProcessing:
    bos = [special["bos"]] if marks["add_bos_token"] else []
    eos = [special["eos"]] if marks["add_eos_token"] else []
    used = [(special[name], fields[f"{name}_token_id"]) for name in ("bos", "eos") if marks[f"add_{name}_token"]]
    return processors.TemplateProcessing([*bos, "$A", *eos], [*bos, "$A", *eos, *bos, "$B:1", *eos], used)


def _write_configs(
    fields: dict[str, Any], special: dict[str, str | None], marks: dict[str, bool], directory: Path
) -> None:
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **{names[name]: token for name, token in special.items() if token is not None},
        **marks,
    }
    ends = {fields[key] for key in END_IDS if key in fields}
    generation = {"bos_token_id": fields.get("bos_token_id"), "eos_token_id": sorted(ends)}
    template = fields.get("tokenizer.chat_template")
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1, ensure_ascii=False), "utf-8")
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=1), "utf-8")
    if isinstance(template, str):
        (directory / "chat_template.jinja").write_text(template, "utf-8")
