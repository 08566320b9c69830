"""`deploy/kuberay`: the operators would take the manifests, Ray and Serve what is in them, the server its options."""

import copy
import re
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from ray.scripts.scripts import start
from ray.serve.schema import ServeDeploySchema

import gateway.ray_serve
from gateway.config.command_line import parse
from gateway.ray_serve.deployment import Scale, argv, deployment
from tests.deploy import custom_resources, kubernetes
from tests.deploy.chart import MATRIX, pod_spec, server
from tests.deploy.dockerfile import stages
from tests.processes import ROOT

FILES = ("ray-service.yaml", "pod-monitor.yaml")
SERVICE, MONITOR = (yaml.safe_load((ROOT / "deploy" / "kuberay" / name).read_text()) for name in FILES)
CLUSTER = SERVICE["spec"]["rayClusterConfig"]
HEAD, [WORKERS] = CLUSTER["headGroupSpec"], CLUSTER["workerGroupSpecs"]
GROUPS = [pytest.param(HEAD, id="head"), pytest.param(WORKERS, id="workers")]
[APPLICATION] = yaml.safe_load(SERVICE["spec"]["serveConfigV2"])["applications"]
DEFAULT = MATRIX["default"]
SCALE = {"num_gpus", "min_replicas", "max_replicas"}


def names(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("-", "_"): value for name, value in arguments.items()}


GIVEN = {name: value for name, value in names(APPLICATION["args"]).items() if name not in SCALE}
ASKED = Scale(**{name: value for name, value in names(APPLICATION["args"]).items() if name in SCALE})
OPTIONS = parse(argv(GIVEN), {})


def container(group: dict[str, Any]) -> dict[str, Any]:
    [found] = group["template"]["spec"]["containers"]
    return dict(found)


def ports(group: dict[str, Any]) -> dict[str, int]:
    return {each["name"]: each["containerPort"] for each in container(group)["ports"]}


@pytest.mark.parametrize("thing", [SERVICE, MONITOR], ids=FILES)
def test_the_operators_know_every_field(thing: dict[str, Any]) -> None:
    assert custom_resources.problems(thing) == []


def test_what_checks_them_sees_a_field_that_is_unknown_or_wrong() -> None:
    broken = copy.deepcopy(SERVICE)
    broken["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["maxReplicas"] = "4"
    broken["spec"]["rayClusterConfig"]["headGroupSpec"]["startParams"] = {}
    found = "\n".join(custom_resources.problems(broken))
    assert "'4' is not of type 'integer'" in found and "'startParams' was unexpected" in found


@pytest.mark.parametrize("version", kubernetes.VERSIONS)
@pytest.mark.parametrize("group", GROUPS)
def test_kubernetes_knows_every_field_of_a_pod(group: dict[str, Any], version: str) -> None:
    assert kubernetes.found(group["template"]["spec"], "podspec-v1", version) == []


@pytest.mark.parametrize("group", GROUPS)
def test_ray_start_knows_its_parameters(group: dict[str, Any]) -> None:
    known = {flag.removeprefix("--") for each in start.params for flag in each.opts}
    assert "num-cpus" in known and group["rayStartParams"].keys() <= known


def test_serve_builds_the_application_of_the_config() -> None:
    [application] = ServeDeploySchema.model_validate({"applications": [APPLICATION]}).applications
    module, _, builder = application.import_path.partition(":")
    assert (module, getattr(gateway.ray_serve, builder)) == ("gateway.ray_serve", gateway.ray_serve.build)
    gateway.ray_serve.build(application.args)
    assert (OPTIONS.model_id, OPTIONS.served_model_name) == ("Qwen/Qwen3-8B", ("qwen3",))


def test_a_worker_has_the_gpus_of_a_replica_and_there_are_workers_for_all_replicas() -> None:
    limits = container(WORKERS)["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == deployment(OPTIONS, ASKED).ray_actor_options["num_gpus"]
    assert WORKERS["minReplicas"] <= WORKERS["replicas"] <= WORKERS["maxReplicas"] == ASKED.max_replicas
    assert WORKERS["minReplicas"] == ASKED.min_replicas
    assert HEAD["rayStartParams"]["num-cpus"] == "0" and "nvidia.com/gpu" not in container(HEAD)["resources"]["limits"]


def test_running_requests_end_before_a_pod_does() -> None:
    least = deployment(OPTIONS, ASKED)._deployment_config.graceful_shutdown_timeout_s
    assert WORKERS["template"]["spec"]["terminationGracePeriodSeconds"] > least


def test_prometheus_asks_every_replica() -> None:
    [endpoint] = MONITOR["spec"]["podMetricsEndpoints"]
    assert ports(WORKERS)[endpoint["port"]] == OPTIONS.admin_port and OPTIONS.admin_hostname == "0.0.0.0"
    selected = MONITOR["spec"]["selector"]["matchLabels"].items()
    assert selected <= WORKERS["template"]["metadata"]["labels"].items()


def test_a_worker_is_ready_once_serves_proxy_is() -> None:
    assert container(WORKERS)["readinessProbe"]["httpGet"] == {"path": "/-/healthz", "port": ports(WORKERS)["serve"]}
    assert ports(HEAD)["serve"] == ports(WORKERS)["serve"] == 8000


def test_rays_version_is_one_that_the_package_takes() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    [ray] = set(re.findall(r'"(ray\[serve\][^"]*)"', text))
    assert CLUSTER["rayVersion"] in Requirement(ray).specifier


def test_the_image_installs_ray_beside_cuda() -> None:
    [extras] = [text for stage in stages() for text in stage.texts("RUN") if "${EXTRA:+,$EXTRA}" in text]
    assert "otel,ngrok${EXTRA:+,$EXTRA}]" in extras
    assert "EXTRA=cuda12,ray" in (ROOT / "deploy" / "kuberay" / FILES[0]).read_text()


@pytest.mark.parametrize("group", GROUPS)
def test_pods_are_run_as_the_chart_runs_them(group: dict[str, Any]) -> None:
    ours, pod, spec = server(DEFAULT), pod_spec(DEFAULT)["securityContext"], group["template"]["spec"]
    user = {key: pod[key] for key in ("runAsNonRoot", "runAsUser", "runAsGroup", "seccompProfile")}
    assert container(group)["securityContext"] == {**ours["securityContext"], **user}
    assert spec["securityContext"] == {key: pod[key] for key in ("fsGroup", "fsGroupChangePolicy")}
    assert spec["enableServiceLinks"] is False
    assert container(group)["image"] == ours["image"]
    assert {each["mountPath"] for each in container(group)["volumeMounts"]} == {
        "/data",
        "/tmp",
    }  # /dev/shm is KubeRay's


def test_only_the_head_talks_to_kubernetes() -> None:
    """Ray's autoscaler runs beside it, with an account that the operator makes."""
    assert WORKERS["template"]["spec"]["automountServiceAccountToken"] is False
    assert CLUSTER["enableInTreeAutoscaling"] and "automountServiceAccountToken" not in HEAD["template"]["spec"]
