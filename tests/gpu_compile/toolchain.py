"""NVIDIA's compiler without NVIDIA's GPU: the four wheels that let XLA compile for CUDA on any x86-64 or arm64 Linux.

They are laid beside the running environment's packages, not into it: JAX would then look for a GPU at every start. The
first use downloads about 300 MB and unpacks 650 MB under the cache directory; later ones find them there.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import pytest

from convert.cache import cache_root, locked, new_directory
from tests.gpu_compile import sources
from tests.shared_cache import digest, found, found_from_sources

ROOT = Path(__file__).parents[2]
COMPILE_SECONDS = 1800
WHEELS = (
    f"jax-cuda13-plugin=={jax.__version__}",
    f"jax-cuda13-pjrt=={jax.__version__}",
    "nvidia-cuda-nvcc==13.0.88",  # ptxas
    "nvidia-nvvm==13.0.88",  # libdevice
)
VERSIONS = [sys.version, *(f"{name} {version(name)}" for name in ("jax", "jaxlib", "flax", "numpy"))]


class ToolchainMissing(RuntimeError):
    """The wheels are not here and cannot be fetched."""


def toolchain() -> Path:
    """The directory that holds the wheels' contents, made on first use.

    Raises:
        ToolchainMissing: with pip's own words.
    """
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    target = cache_root() / "h200-compiler" / f"jax-{jax.__version__}-{python}"
    with locked(target):
        if not target.exists():
            with new_directory(target) as directory:
                _install(directory)
    return target


def _install(directory: Path) -> None:
    # their dependencies are run-time libraries, which only a program that runs on a GPU would load
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", str(directory)]
    done = subprocess.run([*pip, *WHEELS], capture_output=True, text=True)
    if done.returncode:
        raise ToolchainMissing(f"{' '.join(WHEELS)}: pip said: {done.stderr.strip()[-500:]}")


def facts(module: str, paths: pytest.TempPathFactory) -> Any:
    """What `module` finds, by `run`, once for the files that it reads; without the toolchain the test is skipped."""
    if sys.platform != "linux":
        pytest.skip(f"NVIDIA's compiler comes as wheels for Linux, this is {sys.platform}")
    try:
        return found_from_sources("h200-facts", digest(module, *VERSIONS), lambda: run(module, paths.mktemp("h200")))
    except ToolchainMissing as missing:
        pytest.skip(f"NVIDIA's compiler is neither here nor to be had: {missing}")


def made_in_turn(program: str, parts: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """What the functions `parts` of `program` return, by way of JSON. Of two processes that share the tests, each
    begins at its own end, and takes over what the other has made in this run of the same sources.
    """
    worker, shared_run = (os.environ.get(f"PYTEST_XDIST_{name}", "") for name in ("WORKER", "TESTRUNUID"))
    if not shared_run:
        return {name: make() for name, make in parts.items()}
    begun = digest(shared_run, *(ROOT / file for file in sources.made_of(program)))

    def part(name: str) -> dict[str, Any]:
        return {"made": parts[name](), "of": sources.made_of(program)}

    backwards = int(worker.removeprefix("gw")) % 2
    names = [*parts][::-1] if backwards else [*parts]
    found_parts = {name: found("h200-parts", digest(begun, name), partial(part, name)) for name in names}
    sources.note(file for each in found_parts.values() for file in each["of"])
    return {name: each["made"] for name, each in found_parts.items()}


def run(module: str, directory: Path, *names: str) -> tuple[Any, list[str]]:
    """`python -m module result names…` with the toolchain at hand, in a process of its own: the JSON that it wrote, and
    our files that it read, see `sources`.

    Raises:
        ToolchainMissing: see `toolchain`.
        AssertionError: the process failed; the message ends with its stderr.
    """
    paths = os.pathsep.join([str(toolchain()), str(ROOT)])
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths, "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment.pop("XLA_FLAGS", None)  # the options under test are the engine's own
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)  # what comes from a cache leaves no dump to be read
    result, read = directory / "facts.json", directory / "sources.json"
    command = [sys.executable, "-m", sources.__name__, str(read), module, str(result), *names]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=COMPILE_SECONDS)
    assert done.returncode == 0, f"{module} ended with {done.returncode}:\n{done.stderr[-4000:]}"
    return json.loads(result.read_text()), json.loads(read.read_text())
