"""A real Ray on this machine, with Serve, for a module of tests. No process of it outlives its `with` block."""

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ApplicationStatusOverview, ServeDeploySchema

from gateway.http.listener import bind
from tests.processes import PATIENCE, ROOT, command_line, gone
from tests.servers import descendants

PROCESSORS = 8  # that Ray believes to have: a replica asks for one
STORE_BYTES = 100 << 20
LOOK_SECONDS = 0.1  # between looks whether a replica that is to end is still answering requests
DEPLOYMENT = "TextGeneration"


@dataclass
class Cluster:
    """What is deployed is told as users tell it: by a config with all applications."""

    url: str
    applications: dict[str, dict[str, Any]] = field(default_factory=dict)

    def deploy(self, name: str, import_path: str, args: dict[str, Any], **options: Any) -> str:
        """Deploy an application, or replace it; its URL. `options` are the deployment's."""
        self.applications[name] = {
            "name": name,
            "route_prefix": f"/{name}",
            "import_path": import_path,
            "args": {"num-gpus": 0, **args},
            "deployments": [{"name": DEPLOYMENT, "graceful_shutdown_wait_loop_s": LOOK_SECONDS, **options}],
        }
        self._apply()
        return f"{self.url}/{name}"

    def delete(self, name: str) -> None:
        del self.applications[name]
        self._apply()

    def status(self, name: str) -> ApplicationStatusOverview | None:
        return serve.status().applications.get(name)

    def wait(self, name: str, status: str = "RUNNING") -> ApplicationStatusOverview:
        """Wait until an application has a status. Fails at once if it has failed."""
        deadline = time.monotonic() + PATIENCE
        while True:
            found = self.status(name)
            if found is not None and found.status == status:
                return found
            assert found is None or found.status != "DEPLOY_FAILED", found
            assert time.monotonic() < deadline, found
            time.sleep(0.05)

    def replicas(self, name: str) -> set[int]:
        """The processes of an application's replicas."""
        title = f"ray::ServeReplica:{name}:{DEPLOYMENT}"
        return {
            int(path.name) for path in Path("/proc").glob("[0-9]*") if command_line(int(path.name)).startswith(title)
        }

    def running(self, name: str) -> int:
        """How many replicas take requests."""
        found = self.status(name)
        deployed = None if found is None else found.deployments.get(DEPLOYMENT)
        return 0 if deployed is None else deployed.replica_states.get("RUNNING", 0)

    def _apply(self) -> None:
        config = {"applications": list(self.applications.values())}
        _get_global_client().deploy_apps(ServeDeploySchema.model_validate(config))


@contextmanager
def ray_cluster() -> Iterator[Cluster]:
    directory = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # in it are sockets: a path of pytest's would be too long
    with bind("127.0.0.1", 0)[0] as probe:
        port = probe.getsockname()[1]
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("PYTHONPATH", str(ROOT))  # of all processes: import_path names a module of the tests
        environ.setenv("RAY_USAGE_STATS_ENABLED", "0")
        for wait in ("READY", "HEALTH"):  # Serve kills a proxy that begins slowly, and fails
            environ.setenv(f"RAY_SERVE_PROXY_{wait}_CHECK_TIMEOUT_S", str(PATIENCE))
        environ.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))  # or Ray would write one to the user's home
        before = set(descendants(os.getpid()))
        ray.init(
            "local",
            num_cpus=PROCESSORS,
            num_gpus=0,
            include_dashboard=False,
            object_store_memory=STORE_BYTES,
            log_to_driver=False,
            configure_logging=False,
            _temp_dir=directory,
        )
        try:
            serve.start(http_options={"host": "127.0.0.1", "port": port})
            yield Cluster(f"http://127.0.0.1:{port}")
            serve.shutdown()
        finally:
            ours = set(descendants(os.getpid())) - before
            ray.shutdown()
            shutil.rmtree(directory, ignore_errors=True)
    assert not {pid for pid in ours if not gone(pid)}, "processes of Ray are left over"
