"""Executables on disk, found without tracing the functions that they were compiled from.

JAX's persistent cache finds an executable by its program, so a start that compiles nothing still traces and lowers
every step function, with the GIL held: 4.8 of the 7 s that the default model's 13 take on two cores. This store finds
an executable by what decides its program: the engine's source, the versions of JAX and Python, flags, devices, and the
engine's recipe.
"""

import hashlib
import logging
import os
import pickle
import platform
import shutil
import tempfile
import zlib
from collections.abc import Hashable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jaxlib.version
from jax.experimental import serialize_executable

import jaxengine

logger = logging.getLogger(__name__)

DIRECTORY = "executables"
FLAGS = ("XLA_", "JAX_")  # variables whose names begin so may change a program
NO_FLAGS = ("JAX_PLATFORMS", "JAX_COMPILATION_CACHE_DIR")  # these do not: the devices are part of the key
FASTEST = 1  # of zlib: 22 ms for the largest of the default model's, 3.8 MB, of which it leaves a sixth


def forget_executables(compile_cache: Path) -> None:
    """Remove all that stores beside this compile cache have kept."""
    shutil.rmtree(compile_cache / DIRECTORY, ignore_errors=True)


class ExecutableStore:
    """The executables of one engine.

    Args:
        compile_cache: the stores of several engines may lie beside it. What they hold is run: nobody else may write
            there.
        recipe: everything beside code and devices that decides the engine's programs.
        devices: where the executables run.
    """

    def __init__(self, compile_cache: Path, recipe: str, devices: Sequence[jax.Device]) -> None:
        self._directory = compile_cache / DIRECTORY
        self._devices = devices
        self._key = (recipe, code_digest(), *_versions(), *_flags(), *_machine(devices))

    def load(self, name: Hashable) -> Any | None:
        """The `jax.stages.Compiled` that was saved as `name`, if one was. A file that cannot be read is removed."""
        path = self._path(name)
        try:
            program, inputs, outputs = pickle.loads(zlib.decompress(path.read_bytes()))  # noqa: S301 — private, see above
            client = self._devices[0].client
            return serialize_executable.deserialize_and_load(program, inputs, outputs, client, self._devices)
        except OSError:
            return None
        except Exception as error:
            logger.warning("the executable in %s cannot be loaded, it is compiled again", path, exc_info=error)
            path.unlink(missing_ok=True)
            return None

    def save(self, name: Hashable, executable: Any) -> None:
        """Keep `executable`, which this process has compiled: on a CPU, one out of JAX's cache lacks its functions when
        it is serialised again (JAX 0.10.2). Without a word, nothing is kept where that cannot be done.
        """
        path = self._path(name)
        try:
            stored = zlib.compress(pickle.dumps(serialize_executable.serialize(executable)), FASTEST)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as directory:
                whole = Path(directory) / path.name
                whole.write_bytes(stored)
                whole.rename(path)
        except Exception as error:
            logger.debug("executable %s is not kept", name, exc_info=error)

    def _path(self, name: Hashable) -> Path:
        return self._directory / hashlib.sha256(repr((name, self._key)).encode()).hexdigest()


@cache
def code_digest() -> str:
    """Of the engine's source."""
    digest = hashlib.sha256()
    for file in sorted(Path(jaxengine.__path__[0]).rglob("*.py")):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


# Now, while the source is imported: a file may change while weights load, and this process runs it as it was.
code_digest()


def _versions() -> tuple[str, ...]:
    """Of what compiles the source."""
    return jax.__version__, jaxlib.version.__version__, platform.python_version()


def program_flags() -> dict[str, str]:
    """What of the environment may change a program, by its names; not where XLA writes what it did."""
    names = (name for name in sorted(os.environ) if name.startswith("JAX_") and name not in NO_FLAGS)
    flags = " ".join(each for each in os.environ.get("XLA_FLAGS", "").split() if "dump" not in each)
    return {**({"XLA_FLAGS": flags} if flags else {}), **{name: os.environ[name] for name in names}}


def _flags() -> tuple[str, ...]:
    names = (name for name in sorted(os.environ) if name.startswith(FLAGS) and name not in NO_FLAGS)
    return tuple(f"{name}={os.environ[name]}" for name in names)


def _machine(devices: Sequence[jax.Device]) -> tuple[str, ...]:
    """What the programs run on. XLA compiles for all that a CPU can do, and /proc/cpuinfo says what that is."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    abilities = {line for line in lines if line.startswith(("flags", "Features", "model name"))}
    kinds = (f"{device.process_index} {device.id} {device.device_kind}" for device in devices)
    return platform.machine(), devices[0].client.platform_version, *kinds, *sorted(abilities)
