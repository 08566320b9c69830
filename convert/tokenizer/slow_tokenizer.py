"""Tokenizers that come without tokenizer.json: sentencepiece's model file, tiktoken's, or a vocabulary and merges.

transformers knows how each family's tokenizer is built of them. The tokenizer.json that it builds is kept in our cache,
beside copies of the other files that the gateway reads. Code that a checkpoint brings along is never run: a tokenizer
with such code is built of its sentencepiece model alone.
"""

import hashlib
import shutil
from pathlib import Path
from typing import Any

from convert.announce import announce
from convert.cache import cache_root, made_once
from convert.config.config import read_json
from convert.errors import CheckpointError
from convert.tokenizer import tiktoken_file

VOCABULARIES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json", tiktoken_file.NAME)
OTHERS = ("merges.txt", "added_tokens.json", "special_tokens_map.json", "tokenizer_config.json")


def tokenizer_directory(directory: Path, kept: tuple[str, ...], cache_dir: Path | None) -> Path:
    """Where the tokenizer.json of the model in `directory` is: there, or in our cache, with the `kept` files.

    Raises:
        CheckpointError: transformers cannot read the tokenizer, or has it in Python only.
    """
    if (directory / "tokenizer.json").is_file() or not _present(directory, VOCABULARIES):
        return directory
    files = _present(directory, (*VOCABULARIES, *OTHERS, *kept, "config.json"))

    def build(made: Path) -> None:
        announce(f"building tokenizer.json of {directory}")
        _read(directory).save(str(made / "tokenizer.json"))
        for path in _present(directory, kept):
            shutil.copyfile(path, made / path.name)

    return made_once(cache_root(cache_dir) / "tokenizers" / _digest(files), build)


def _present(directory: Path, names: tuple[str, ...]) -> list[Path]:
    return [directory / name for name in dict.fromkeys(names) if (directory / name).is_file()]


def _digest(files: list[Path]) -> str:
    """A digest of all that the tokenizer depends on: the files, and transformers' version."""
    import transformers

    digest = hashlib.sha256(transformers.__version__.encode())
    for path in files:
        digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _read(directory: Path) -> Any:
    """The tokenizer of `directory`, as an object of the `tokenizers` library."""
    from transformers import AutoTokenizer, TokenizersBackend

    if (directory / tiktoken_file.NAME).is_file():
        return tiktoken_file.read(directory)
    config = directory / "tokenizer_config.json"
    own_code = config.is_file() and "auto_map" in read_json(config)
    try:
        reader = TokenizersBackend if own_code else AutoTokenizer
        tokenizer = reader.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # whatever transformers raises for a tokenizer
        raise CheckpointError.by(error, directory, "transformers cannot read the tokenizer") from error
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise CheckpointError(f"{directory}: {type(tokenizer).__name__} is written in Python and has no tokenizer.json")
    return tokenizer.backend_tokenizer
