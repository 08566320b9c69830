"""The image built by buildah from `deploy/Dockerfile`, and run as Docker would run it, without Docker.

A container here is what `docker run --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges --network
none -v DATA:/data -v MODEL:/model:ro IMAGE …` makes: namespaces of its own for processes, mounts, network, host name
and IPC; the entry point as process 1, as the image's user, with the image's environment. Two things are not Docker's:
there is no seccomp filter and no control group.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.processes import ROOT
from tests.servers import children

PIP = "[global]\nno-index = true\nfind-links = /wheels\n"
HOSTNAME = "f00dfeedbeef"
# Docker lets every user bind every port of a container's network. `exec` makes the entry point process 1.
RUN = """
set -e
hostname "$HOSTNAME"
ip link set lo up
echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start
mount --make-rprivate /
mount --bind "$1" "$1"
mount --bind "$2" "$1/data"
mount --bind "$3" "$1/model"
mount -o remount,bind,ro "$1/model"
mount -t tmpfs -o noexec,nosuid,nodev tmpfs "$1/tmp"
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
mount -o remount,bind,ro "$1"
root=$1 user=$4 group=$5
shift 5
exec chroot "$root" setpriv --reuid "$user" --regid "$group" --clear-groups --bounding-set -all --inh-caps -all \
    --no-new-privs "$@"
"""


def buildah(*arguments: object) -> str:
    done = subprocess.run(["buildah", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout.strip()


def build(base: str, wheels: Path, scratch: Path) -> str:
    """The name of the image for CPUs on `base`, which has Python and is here; packages are taken from `wheels`."""
    (scratch / "pip.conf").write_text(PIP)
    name = "localhost/text-generation-jax:test"
    volumes = (f"--volume={wheels}:/wheels:ro", f"--volume={scratch}/pip.conf:/etc/pip.conf:ro")
    arguments = (f"--build-arg=BASE={base}", "--build-arg=EXTRA=")
    options = ("--isolation=chroot", "--format=docker", "--layers", "--pull-never", f"--tag={name}")
    buildah("bud", *options, *volumes, *arguments, f"--file={ROOT}/deploy/Dockerfile", ROOT)
    return name


@contextmanager
def unpacked(image: str) -> Iterator[Path]:
    """The files of the image; what is written there is the container's own."""
    container = buildah("from", "--pull-never", image)
    try:
        root = Path(buildah("mount", container))
        (root / "model").mkdir()
        yield root
    finally:
        buildah("rm", container)


def configuration(image: str) -> dict[str, Any]:
    """What the Dockerfile says beside files: Env, User, Entrypoint, Healthcheck, …"""
    found: dict[str, Any] = json.loads(buildah("inspect", "--type=image", image))["Docker"]["config"]
    return found


@dataclass
class Container:
    process: "subprocess.Popen[str]"  # unshare, which ends with the exit code of process 1
    root: Path
    environment: dict[str, str]
    log: Path

    def first(self) -> int:
        """Process 1, as the host numbers it."""
        while not (found := children(self.process.pid)):
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.01)
        return found[0]

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """As `docker exec --user 0`."""
        entered = ["nsenter", f"--target={self.first()}", "--pid", "--mount", "--net", "chroot", self.root, *command]
        return subprocess.run(entered, env=self.environment, capture_output=True, text=True, timeout=60)

    def client(self, script: str, *arguments: str) -> "subprocess.Popen[str]":
        """A Python process outside that sees the container's network, and outlives it."""
        command = ["nsenter", f"--target={self.first()}", "--net", sys.executable, "-I", "-c", script, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def stop(self) -> None:
        """As `docker stop` begins: process 1 alone gets the signal."""
        os.kill(self.first(), signal.SIGTERM)


@contextmanager
def running(
    root: Path,
    configuration: dict[str, Any],
    log: Path,
    volumes: tuple[Path, Path],
    *arguments: str,
    user: str | None = None,
) -> Iterator[Container]:
    """The entry point with `arguments`; `volumes` are mounted at /data and, to be read, at /model."""
    environment = dict(pair.split("=", 1) for pair in configuration["Env"]) | {"HOSTNAME": HOSTNAME}
    uid, _, gid = (user or configuration["User"]).partition(":")
    unshare = [
        "unshare",
        "--mount",
        "--pid",
        "--net",
        "--uts",
        "--ipc",
        "--fork",
        "--kill-child",
        "sh",
        "-c",
        RUN,
        "sh",
    ]
    command = [*unshare, root, *volumes, uid, gid or "0", *configuration["Entrypoint"], *arguments]
    with log.open("w") as stderr:
        process = subprocess.Popen(command, env=environment, stdout=stderr, stderr=stderr, text=True)
    try:
        yield Container(process, root, environment, log)
    finally:
        process.kill()
        process.wait()
