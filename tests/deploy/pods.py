"""The chart's pods without a cluster: what is given to the launcher in each, and the launcher as a process."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gateway.config.command_line import parse
from gateway.config.options import Options
from tests.deploy.chart import Object, arguments, environment, launched, pod_templates, the
from tests.deploy.dockerfile import stages
from tests.processes import ROOT, Launcher, listening_url

IMAGE = stages()[-1]
PORTS = {"http": 3000, "admin": 9000}


def container(values: Mapping[str, Any], index: int = 0) -> Object:
    """That of the launcher, in the pod of a group that has this index; 0 serves."""
    return launched(pod_templates(values)[min(index, 1)]["spec"])


def injected(values: Mapping[str, Any], index: int = 0, leader: str = "") -> dict[str, str]:
    """The variables that a LeaderWorkerSet adds to the containers of a pod of its first group."""
    if values.get("hosts", 1) == 1:
        return {}
    name = the("LeaderWorkerSet", values)["metadata"]["name"]
    return {
        "LWS_GROUP_SIZE": str(values["hosts"]),
        "LWS_WORKER_INDEX": str(index),
        "LWS_LEADER_ADDRESS": leader or f"{name}-0.{name}.models",
    }


def mount_secrets(directory: Path) -> None:
    """Those that the chart mounts below /secrets, as files of `directory`."""
    for name, content in (("keys/keys", "first\nsecond\n"), ("group/key", "of all pods\n")):
        (directory / name).parent.mkdir()
        (directory / name).write_text(content)


def options(values: Mapping[str, Any], directory: Path, index: int = 0) -> Options:
    """What the launcher makes of a container's arguments and variables, with Secrets mounted in `directory`."""
    if not (directory / "keys").exists():
        mount_secrets(directory)
    its = container(values, index)
    given = [each.replace("/secrets", str(directory)) for each in arguments(its)]
    return parse(given, {**IMAGE.environment(), **environment(its), **injected(values, index)})


@contextmanager
def started(
    values: Mapping[str, Any], directory: Path, launcher: str, index: int = 0, leader: str = ""
) -> Iterator[Launcher]:
    """A container without a container: its arguments and variables through the image's entry point to `launcher`, a
    command of the shell. Ports are free ones, and what is mounted lies in `directory`.
    """
    for name in ("bin", "data", "tmp"):
        (directory / name).mkdir(parents=True)
    mount_secrets(directory)
    program = directory / "bin" / "text-generation-launcher"
    program.write_text(f"#!/bin/sh\nexec {launcher}\n")
    program.chmod(0o755)

    def here(text: str) -> str:
        return text.replace("/secrets", str(directory)).replace("/data", f"{directory}/data")

    its = container(values, index)
    image = {name: here(value) for name, value in IMAGE.environment().items() if name != "PATH"}
    free = {f"--port={PORTS['http']}": "--port=0", f"--admin-port={PORTS['admin']}": "--admin-port=0"}
    given = [free.get(each, here(each)) for each in arguments(its)]
    environ = {
        **image,
        **environment(its),
        **injected(values, index, leader),
        "PATH": f"{directory}/bin:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TMPDIR": f"{directory}/tmp",
        "SHARD_UDS_PATH": f"{directory}/tmp/s",
    }
    log = directory / "log"
    with log.open("w") as stderr:
        command = [str(ROOT / "deploy" / "entrypoint.sh"), *given]
        process = subprocess.Popen(command, env=environ, cwd="/", stderr=stderr, text=True)
    try:
        yield Launcher(process, listening_url(process, log) if index == 0 else "", log)
    finally:
        process.kill()
        process.wait()
