"""`deploy/kserve`: KServe would take the manifests, and the image what KServe makes of them."""

import copy
from typing import Any

import pytest
import yaml

from gateway.config.command_line import parse
from tests.deploy import kserve_types
from tests.deploy.chart import MATRIX, pod_spec, server
from tests.deploy.dockerfile import stages
from tests.processes import ROOT

FILES = ("serving-runtime.yaml", "inference-service.yaml")
RUNTIME, SERVICE = (yaml.safe_load((ROOT / "deploy" / "kserve" / name).read_text()) for name in FILES)
[CONTAINER] = RUNTIME["spec"]["containers"]
PREDICTOR = SERVICE["spec"]["predictor"]
DEFAULT = MATRIX["default"]


@pytest.mark.parametrize("thing", [RUNTIME, SERVICE], ids=FILES)
def test_kserve_knows_every_field(thing: dict[str, Any]) -> None:
    assert kserve_types.problems(thing) == []


def test_what_checks_them_sees_a_field_that_is_unknown_or_wrong() -> None:
    broken = copy.deepcopy(SERVICE)
    broken["spec"]["predictor"]["model"]["formats"] = []
    broken["spec"]["predictor"]["minReplicas"] = "1"
    broken["spec"]["predictor"]["model"]["resources"]["limit"] = {}
    found = "\n".join(kserve_types.problems(broken))
    assert "'formats' is no field of V1beta1ModelSpec" in found
    assert "minReplicas: '1' is not of type int" in found
    assert "'limit' was unexpected" in found
    with pytest.raises(KeyError):
        kserve_types.problems({**SERVICE, "kind": "Gadget"})


def test_the_service_names_the_runtime_and_what_it_serves() -> None:
    model = PREDICTOR["model"]
    assert model["runtime"] == RUNTIME["metadata"]["name"]
    formats = [{"name": each["name"], "version": each["version"]} for each in RUNTIME["spec"]["supportedModelFormats"]]
    assert model["modelFormat"] in formats
    assert model["protocolVersion"] in RUNTIME["spec"]["protocolVersions"]


def test_the_server_knows_its_options() -> None:
    arguments = [each.replace("{{.Name}}", SERVICE["metadata"]["name"]) for each in CONTAINER["args"]]
    given = parse(arguments, stages()[-1].environment())
    assert (given.model_id, given.served_model_name) == ("/mnt/models", ("qwen3",))
    ports = {each["containerPort"] for each in CONTAINER["ports"]}
    assert ports == {given.port} == {int(RUNTIME["spec"]["annotations"]["prometheus.kserve.io/port"])}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert CONTAINER[probe]["httpGet"]["port"] == given.port
    assert PREDICTOR["terminationGracePeriodSeconds"] > 10 + given.graceful_termination_timeout
    gpus = PREDICTOR["model"]["resources"]["limits"]["nvidia.com/gpu"]
    assert gpus == (given.num_shard or 1) * given.replicas


def test_it_is_run_as_the_chart_runs_it() -> None:
    ours = server(DEFAULT)
    pod = pod_spec(DEFAULT)["securityContext"]
    user = {key: pod[key] for key in ("runAsNonRoot", "runAsUser", "runAsGroup", "seccompProfile")}
    assert CONTAINER["securityContext"] == {**ours["securityContext"], **user}
    assert PREDICTOR["securityContext"] == {key: pod[key] for key in ("fsGroup", "fsGroupChangePolicy")}
    assert PREDICTOR["enableServiceLinks"] is PREDICTOR["automountServiceAccountToken"] is False
    assert CONTAINER["image"] == ours["image"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert {**CONTAINER[probe], "httpGet": {**CONTAINER[probe]["httpGet"], "port": "admin"}} == ours[probe]
    assert CONTAINER["lifecycle"] == ours["lifecycle"]
    assert {each["mountPath"] for each in CONTAINER["volumeMounts"]} == {"/data", "/tmp", "/dev/shm"}
