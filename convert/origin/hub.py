"""Checkpoints of the Hugging Face Hub: fetched into the hub's own cache, or found there.

The hub library resumes, retries and checks sizes; here its failures become one line. Only weights, configuration and
tokenizer files at the top of a repository are fetched: never code; pickled weights only where there are no others, and
an ONNX file, which may lie in a folder, only where there are none of both.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from convert.errors import NO_PERMISSION, UNREACHABLE, USAGE, CheckpointError

try:
    from huggingface_hub import HfApi, constants, errors
except ValueError as error:  # it reads its variables now; HF_HUB_DOWNLOAD_TIMEOUT=10s is no number
    given = {name: value for name, value in os.environ.items() if name.startswith("HF_") and value}
    wrong = [f"{name}={value!r}" for name, value in given.items() if repr(value) in str(error)]
    message = f"the hub's library refuses {' or '.join(wrong) or 'a variable HF_…'}: {error}"
    raise CheckpointError(message, exit_code=USAGE) from error
import huggingface_hub
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # the HTTP library differs by hub version
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

from convert.announce import announce
from convert.cache import disk_errors, require_space
from convert.formats.onnx import ENDS, FOLDERS, STEMS
from convert.progress import FetchProgress, NoProgress, megabytes

FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "merges.txt"]
DESCRIPTION = ["*config.json", "*.index.json", "1_Pooling/*", "modules.json"]
PICKLED = ["pytorch_model*.bin", "adapter_model.bin", "medusa_lm_head.pt"]
# Subfolders, but 1_Pooling, which has one file; Mistral's second copy of the same weights.
SKIPPED = ["[!1]*/*", "1[!_]*/*", "1_[!P]*/*", "*/*/*", "consolidated*.safetensors"]
PARTIAL = 206  # HTTP's status of a part of a file
PART_OF_GGUF = r"-\d{5}-of-(?!00001)\d{5}\.gguf$"
ID_PATTERN = r"[A-Za-z0-9][\w.\-]{0,95}(/[A-Za-z0-9][\w.\-]{0,95})?"


def is_hub_id(model_id: str) -> bool:
    return re.fullmatch(ID_PATTERN, model_id) is not None and ".." not in model_id and "--" not in model_id


def gguf_of(model_id: str) -> tuple[str, str] | None:
    """The repository and the file that `org/name/file.gguf` means."""
    found = re.fullmatch(r"([^/]+/[^/]+)/(.+\.gguf)", model_id)
    return (found[1], found[2]) if found and is_hub_id(found[1]) and ".." not in found[2] else None


def fetch_snapshot(
    model_id: str, revision: str | None, cache_dir: Path | None, kind: str = "model", token: str | None = None
) -> Path:
    """The directory of `model_id` at `revision`; its name is the commit's sha.

    `cache_dir` replaces the hub's cache (`HF_HUB_CACHE`). Endpoint and offline mode come from the hub's own
    environment variables, and so does the token if none is given. Errors call it a `kind`.

    Raises:
        CheckpointError: unknown id or revision, no permission, hub unreachable, offline and missing, or disk full.
    """
    cache = Path(cache_dir or constants.HF_HUB_CACHE)
    download = partial(
        huggingface_hub.snapshot_download,
        model_id,
        revision=revision,
        cache_dir=cache,
        ignore_patterns=SKIPPED,
        token=token,
        tqdm_class=FetchProgress,
    )
    with disk_errors(cache), _one_line(model_id, revision, kind):
        snapshot = _fetch(model_id, partial(download, allow_patterns=FILES), cache)
        if not any(snapshot.glob("*.safetensors")):
            snapshot = _fetch(model_id, partial(download, allow_patterns=PICKLED), cache)
            if not any(path for pattern in PICKLED for path in snapshot.glob(pattern)):
                _fetch_onnx(model_id, download, snapshot, cache)
    return snapshot


def fetch_description(model_id: str, revision: str | None, cache_dir: Path | None) -> Path:
    """What describes `model_id`, without weights and tokenizer: a snapshot's directory, which may have these already.

    Raises:
        CheckpointError: as `fetch_snapshot`.
    """
    cache = Path(cache_dir or constants.HF_HUB_CACHE)
    with disk_errors(cache), _one_line(model_id, revision):
        made = huggingface_hub.snapshot_download(
            model_id,
            revision=revision,
            cache_dir=cache,
            allow_patterns=DESCRIPTION,
            ignore_patterns=SKIPPED,
            tqdm_class=NoProgress,
        )
    return Path(made)


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository, of which parts are read."""

    model_id: str
    name: str
    revision: str

    def exists(self) -> bool:
        """Raises CheckpointError where that cannot be told."""
        with _one_line(self.model_id, self.revision):
            return HfApi(constants.ENDPOINT).file_exists(self.model_id, self.name, revision=self.revision)

    def read(self, start: int, end: int) -> tuple[bytes, int]:
        """Bytes `start` to `end`, or as far as the file goes, and its size. Raises CheckpointError."""
        url = huggingface_hub.hf_hub_url(self.model_id, self.name, revision=self.revision)
        headers = {**build_hf_headers(), "range": f"bytes={start}-{end - 1}", "accept-encoding": "identity"}
        with (
            _one_line(f"{self.model_id}/{self.name}", self.revision),
            huggingface_hub.get_session().stream(
                "GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT
            ) as response,
        ):
            hf_raise_for_status(response)
            size = re.fullmatch(r"bytes \d+-\d+/(\d+)", response.headers.get("content-range", ""))
            if response.status_code != PARTIAL or size is None:
                message = f"{self.model_id}: {constants.ENDPOINT} sends no parts of files; fetch the model first"
                raise CheckpointError(message, exit_code=UNREACHABLE)
            return response.read(), int(size[1])


def _fetch_onnx(model_id: str, download: Callable[..., Any], snapshot: Path, cache: Path) -> None:
    """Of the ONNX files of a repository, which are often many, the one that will be read, and its external data."""
    for stem in STEMS:
        patterns = [f"{folder}{stem}{end}" for folder in FOLDERS for end in ENDS]
        _fetch(model_id, partial(download, allow_patterns=patterns, ignore_patterns=None), cache)
        if any((snapshot / f"{folder}{stem}{ENDS[0]}").is_file() for folder in FOLDERS):
            return


def token() -> str | None:
    """The user's, from the environment or the hub's own file."""
    return huggingface_hub.get_token()


def _fetch(model_id: str, download: Callable[..., Any], cache: Path) -> Path:
    if octets := _bytes_to_fetch(download):
        require_space(cache, octets)
        announce(f"fetching {model_id} ({megabytes(octets)}) from {constants.ENDPOINT}")
    return Path(download())


def fetch_file(model_id: str, filename: str, revision: str | None, cache_dir: Path | None) -> Path:
    """One file of a repository, for GGUF: `org/name/file.gguf`.

    Raises:
        CheckpointError: as `fetch_snapshot`, or it is one of several parts, which are not fetched to be refused.
    """
    if re.search(PART_OF_GGUF, filename):
        problem = "is one of several parts; fetch and join them with llama.cpp's llama-gguf-split --merge"
        raise CheckpointError(f"{model_id}/{filename}: {problem}", exit_code=USAGE)
    cache = Path(cache_dir or constants.HF_HUB_CACHE)
    with disk_errors(cache), _one_line(f"{model_id}/{filename}", revision):
        if not huggingface_hub.try_to_load_from_cache(model_id, filename, cache_dir=cache, revision=revision):
            announce(f"fetching {model_id}/{filename} from {constants.ENDPOINT}")
        return Path(huggingface_hub.hf_hub_download(model_id, filename, revision=revision, cache_dir=cache))


def _bytes_to_fetch(download: Callable[..., Any]) -> int:
    """Size of what is not in the cache yet; 0 if the hub cannot be reached: then only cached files are used."""
    if constants.is_offline_mode():
        return 0
    try:
        return sum(file.file_size for file in download(dry_run=True, tqdm_class=NoProgress) if file.will_download)
    except (errors.LocalEntryNotFoundError, errors.DryRunError):  # the hub cannot be reached
        return 0


def _proxies() -> list[str]:
    """The variables that name one. Its address, which may hold a password, is not repeated."""
    return [name for name, value in os.environ.items() if name.lower().endswith("_proxy") and value]


@contextmanager
def _one_line(model_id: str, revision: str | None, kind: str = "model") -> Iterator[None]:
    at = f" at revision {revision!r}" if revision else ""
    try:
        yield
    except errors.GatedRepoError as error:
        message = f"{kind} {model_id!r} is gated: accept its licence on the hub and set HF_TOKEN"
        raise CheckpointError(message, exit_code=NO_PERMISSION) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(f"{kind} {model_id!r} has no revision {revision!r}", exit_code=USAGE) from error
    except errors.RepositoryNotFoundError as error:
        message = f"{kind} {model_id!r} is neither a local path nor on the hub (private models need HF_TOKEN)"
        raise CheckpointError(message, exit_code=USAGE) from error
    except errors.LocalEntryNotFoundError as error:
        reason = "offline mode is set" if constants.is_offline_mode() else f"{constants.ENDPOINT} cannot be reached"
        message = f"{kind} {model_id!r}{at} is not in the cache and {reason}"
        raise CheckpointError(message, exit_code=UNREACHABLE) from error
    except errors.EntryNotFoundError as error:
        raise CheckpointError(f"{model_id!r}{at} is not on the hub", exit_code=USAGE) from error
    except (HTTPError, errors.OfflineModeIsEnabled, ConnectionError, TimeoutError) as error:
        raise CheckpointError(f"fetching {model_id!r}{at} failed: {error}", exit_code=UNREACHABLE) from error
    except ImportError as error:  # a SOCKS proxy is named, and httpx can do without what it needs for one
        message = f"fetching {model_id!r}{at} failed: {error} (a proxy is set: {', '.join(_proxies())})"
        raise CheckpointError(message, exit_code=UNREACHABLE) from error
    except errors.HFValidationError as error:
        raise CheckpointError(f"{model_id!r} is not the id of a {kind}: {error}", exit_code=USAGE) from error
