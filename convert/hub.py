"""Checkpoints of the Hugging Face Hub: fetched into the hub's own cache, or found there.

The hub library resumes, retries and checks sizes; here its failures become one line. Only weights, configuration and
tokenizer files at the top of a repository are fetched: never code, pickles or archives.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants, errors
from huggingface_hub.file_download import DryRunFileInfo

from convert.cache import disk_errors, require_space
from convert.errors import NO_PERMISSION, UNREACHABLE, USAGE, CheckpointError

FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
SKIPPED = ["*/*", "consolidated*.safetensors"]  # subfolders; Mistral's second copy of the same weights
ID_PATTERN = r"[A-Za-z0-9][\w.\-]{0,95}(/[A-Za-z0-9][\w.\-]{0,95})?"


def is_hub_id(model_id: str) -> bool:
    return re.fullmatch(ID_PATTERN, model_id) is not None and ".." not in model_id and "--" not in model_id


def fetch_snapshot(model_id: str, revision: str | None, cache_dir: Path | None) -> Path:
    """The directory of `model_id` at `revision`; its name is the commit's sha.

    `cache_dir` replaces the hub's cache (`HF_HUB_CACHE`). Token, endpoint and offline mode come from the hub's own
    environment variables.

    Raises:
        CheckpointError: unknown id or revision, no permission, hub unreachable, offline and missing, or disk full.
    """
    cache = Path(cache_dir or constants.HF_HUB_CACHE)
    options = {"revision": revision, "cache_dir": cache, "allow_patterns": FILES, "ignore_patterns": SKIPPED}
    with disk_errors(cache), _one_line(model_id, revision):
        if not constants.is_offline_mode():
            planned = huggingface_hub.snapshot_download(model_id, dry_run=True, **options)
            require_space(cache, sum(file.file_size for file in planned if _is_missing(file)))
        return Path(huggingface_hub.snapshot_download(model_id, **options))


def fetch_file(model_id: str, filename: str, revision: str | None, cache_dir: Path | None) -> Path:
    """One file of a repository, for GGUF: `org/name/file.gguf`."""
    cache = Path(cache_dir or constants.HF_HUB_CACHE)
    with disk_errors(cache), _one_line(f"{model_id}/{filename}", revision):
        return Path(huggingface_hub.hf_hub_download(model_id, filename, revision=revision, cache_dir=cache))


def _is_missing(file: DryRunFileInfo) -> bool:
    return file.will_download


@contextmanager
def _one_line(model_id: str, revision: str | None) -> Iterator[None]:
    at = f" at revision {revision!r}" if revision else ""
    try:
        yield
    except errors.GatedRepoError as error:
        message = f"model {model_id!r} is gated: accept its licence on the hub and set HF_TOKEN"
        raise CheckpointError(message, exit_code=NO_PERMISSION) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(f"model {model_id!r} has no revision {revision!r}", exit_code=USAGE) from error
    except errors.RepositoryNotFoundError as error:
        message = f"model {model_id!r} is neither a local path nor on the hub (private models need HF_TOKEN)"
        raise CheckpointError(message, exit_code=USAGE) from error
    except errors.LocalEntryNotFoundError as error:
        reason = "offline mode is set" if constants.is_offline_mode() else f"{constants.ENDPOINT} cannot be reached"
        message = f"model {model_id!r}{at} is not in the cache and {reason}"
        raise CheckpointError(message, exit_code=UNREACHABLE) from error
    except errors.EntryNotFoundError as error:
        raise CheckpointError(f"{model_id!r}{at} is not on the hub", exit_code=USAGE) from error
    except (errors.HTTPError, errors.OfflineModeIsEnabled, ConnectionError, TimeoutError) as error:
        raise CheckpointError(f"fetching {model_id!r}{at} failed: {error}", exit_code=UNREACHABLE) from error
    except errors.HFValidationError as error:
        raise CheckpointError(f"{model_id!r} is not a model id: {error}", exit_code=USAGE) from error
