"""The tokenizer that `--tokenizer-name` names: of a directory, or from the hub."""

from pathlib import Path

from gateway.benchmark.options import BenchmarkOptions
from gateway.text.tokenizer import Tokenizer
from jaxengine.options.option import UsageError

FILE = "tokenizer.json"


def tokenizer(options: BenchmarkOptions) -> Tokenizer | None:
    """None if none is named. Raises UsageError if it cannot be had."""
    name = options.tokenizer_name
    if name is None:
        return None
    directory = Path(name).expanduser()
    directory = directory if directory.is_dir() else _fetched(name, options.revision)
    try:
        return Tokenizer.load(directory)
    except FileNotFoundError:
        raise UsageError(f"--tokenizer-name {name}: there is no {FILE}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"--tokenizer-name {name}: {error}") from None


def _fetched(name: str, revision: str) -> Path:
    from huggingface_hub import hf_hub_download  # half a second that most calls do not need

    try:
        return Path(hf_hub_download(name, FILE, revision=revision)).parent
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"--tokenizer-name {name} is no directory, and not on the hub: {reason}") from None
