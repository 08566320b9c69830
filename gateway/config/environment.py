"""What `--env` logs: the versions and devices that a bug report needs, and nothing secret."""

import os
import platform
import subprocess
from importlib import metadata

from gateway import __version__, child_process

PACKAGES = ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "flax", "transformers", "tokenizers", "fastapi")
NVIDIA_SMI_SECONDS = 5.0


def environment_report() -> str:
    """A heading, then lines of `name: value`."""
    facts = {
        "server": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processors": str(os.cpu_count()),
        **{package: _version(package) for package in PACKAGES},
        "nvidia-smi": _nvidia_smi(),
    }
    return "runtime environment\n" + "\n".join(f"{name}: {value}" for name, value in facts.items())


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _nvidia_smi() -> str:
    command = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            command,
            cwd=child_process.NEUTRAL_DIRECTORY,
            env=child_process.environment(os.environ),
            capture_output=True,
            text=True,
            timeout=NVIDIA_SMI_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "not available"
    return "; ".join(done.stdout.split("\n")).strip("; ") or "not available"
