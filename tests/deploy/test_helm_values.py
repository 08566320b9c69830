"""Values of the chart: what is unknown, out of range or a contradiction is refused, by name."""

import json
from typing import Any

import pytest
import yaml

from tests.deploy.chart import CHART, KEDA, refusal, rendered

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
SHARED = {"cache": {"accessMode": "ReadWriteMany"}}

# Values, and what the refusal must name.
OUT_OF_RANGE: list[tuple[dict[str, Any], str]] = [
    ({"replica": 2}, "replica"),
    ({"server": {"numshard": 2}}, "numshard"),
    ({"model": {"token": "hf_…"}}, "token"),
    ({"monitoring": {"podMonitor": {"enable": True}}}, "enable"),
    ({"server": {"numShard": 0}}, "/server/numShard"),
    ({"server": {"numShard": 65}}, "/server/numShard"),
    ({"server": {"replicas": 1.5}}, "/server/replicas"),
    ({"server": {"device": "tpu"}}, "/server/device"),
    ({"server": {"options": {"--max-batch-size": 4}}}, "--max-batch-size"),
    ({"server": {"options": {"lora-adapters": {"a": "b"}}}}, "/server/options/lora-adapters"),
    ({"server": {"gracefulTerminationSeconds": -1}}, "/server/gracefulTerminationSeconds"),
    ({"replicas": -1}, "/replicas"),
    ({"hosts": 0}, "/hosts"),
    ({"hosts": 65}, "/hosts"),
    ({"group": {"keySecret": {"name": "My Key"}}}, "/group/keySecret/name"),
    ({"group": {"exclusiveTopology": "rack = 1"}}, "/group/exclusiveTopology"),
    ({"image": {"tag": "latest"}}, "/image/tag"),
    ({"image": {"digest": "md5:1"}}, "/image/digest"),
    ({"image": {"repository": "registry.example:5000/team/server:v1"}}, "/image/repository"),
    ({"model": {"id": "org/model@main"}}, "/model/id"),
    ({"cache": {"size": "100 GB"}}, "/cache/size"),
    ({"cache": {"accessMode": "ReadOnlyMany"}}, "/cache/accessMode"),
    ({"cache": {"type": "hostPath"}}, "/cache/type"),
    ({"service": {"port": 0}}, "/service/port"),
    ({"service": {"port": 65536}}, "/service/port"),
    ({"strategy": "OnDelete"}, "/strategy"),
    ({"autoscaling": {"type": "cpu"}}, "/autoscaling/type"),
    ({"autoscaling": {"target": 0}}, "/autoscaling/target"),
    ({"autoscaling": {"prometheus": "prometheus:9090"}}, "/autoscaling/prometheus"),
    ({"monitoring": {"selector": "job=a"}}, "/monitoring/selector"),
    ({"monitoring": {"podMonitor": {"interval": "often"}}}, "/monitoring/podMonitor/interval"),
    ({"inferencePool": {"endpointPicker": {"failureMode": "Open"}}}, "/inferencePool/endpointPicker/failureMode"),
    ({"route": {"hostnames": ["https://llm.example.com"]}}, "/route/hostnames/0"),
    ({"user": 0}, "/user"),
    ({"apiKeys": {"secretName": "My Keys"}}, "/apiKeys/secretName"),
    ({"tolerations": ["gpu"]}, "/tolerations/0"),
]

CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"replicas": 3}, "3 pods cannot share a volume that is ReadWriteOnce: set cache.accessMode to ReadWriteMany"),
    ({"autoscaling": KEDA}, "4 pods cannot share a volume that is ReadWriteOnce"),
    ({"autoscaling": {"type": "hpa"}}, "4 pods cannot share a volume that is ReadWriteOnce"),
    ({"cache": {"accessMode": "ReadWriteOncePod"}, "replicas": 2}, "a volume that is ReadWriteOncePod"),
    ({"strategy": "RollingUpdate"}, "strategy RollingUpdate starts a pod while the old one has a volume"),
    ({"cache": {"type": "perPod", "existingClaim": "weights"}}, "cache.existingClaim is weights, but cache.type is"),
    ({"autoscaling": {**KEDA, "min": 5}, **SHARED}, "autoscaling.min is 5, above autoscaling.max, which is 4"),
    ({"autoscaling": {"type": "keda"}, **SHARED}, "needs autoscaling.prometheus"),
    ({"autoscaling": KEDA, **SHARED}, "autoscaling.type keda asks Prometheus for series that nothing collects"),
    ({"monitoring": {"rules": {"enabled": True}}}, "monitoring.rules.enabled asks Prometheus for series that nothing"),
    (
        {
            "autoscaling": {"type": "hpa", "metric": "running", "target": 32},
            "server": {"replicas": 2, "options": {"max-batch-size": 16}},
            **SHARED,
        },
        "autoscaling.target is 32, but a pod runs 32 requests at most",
    ),
    ({"server": {"device": "cpu", "numShard": 2}}, "server.numShard is 2, but a CPU is one device"),
    ({"resources": {"limits": {"nvidia.com/gpu": 8}}}, "resources.limits must not name nvidia.com/gpu"),
    ({"inferencePool": {"enabled": True}}, "inferencePool.endpointPicker.name"),
    ({"route": {"enabled": True}}, "route.parentRefs"),
    ({"server": {"options": {"num-shard": 8}}}, "server.options.num-shard is the chart's own: set server.numShard"),
    ({"server": {"options": {"api-key": "secret"}}}, "server.options.api-key is the chart's own: set apiKeys"),
    ({"server": {"options": {"ngrok-authtoken": "secret"}}}, "server.options.ngrok-authtoken would show the token"),
    ({"server": {"options": {"replicas": 2}}}, "server.options.replicas is the chart's own: set server.replicas"),
    ({"hosts": 2}, "2 pods cannot share a volume that is ReadWriteOnce: set cache.accessMode to ReadWriteMany"),
    ({"hosts": 2, "replicas": 3}, "6 pods cannot share a volume that is ReadWriteOnce"),
    ({"hosts": 2, "replicas": 0}, "2 pods cannot share a volume that is ReadWriteOnce"),
    ({"hosts": 4, "autoscaling": {"type": "hpa", "max": 2}}, "8 pods cannot share a volume that is ReadWriteOnce"),
    ({"hosts": 2, "server": {"replicas": 2}, **SHARED}, "hosts is 2, but each of server.replicas has the whole model"),
    ({"group": {"keySecret": {"name": "ours"}}}, "group is for a model over several hosts, but hosts is 1"),
    ({"group": {"exclusiveTopology": "rack"}}, "group is for a model over several hosts, but hosts is 1"),
    *(({"server": {"options": {name: 1}}}, "is the chart's own: set hosts") for name in ("nnodes", "node-rank")),
    ({"server": {"options": {"master-addr": "a"}}}, "server.options.master-addr is the chart's own: set hosts"),
    ({"server": {"options": {"group-key-file": "/a"}}}, "is the chart's own: set group.keySecret"),
]


def names(cases: list[tuple[dict[str, Any], str]]) -> list[str]:
    return [json.dumps(values, ensure_ascii=False) for values, _ in cases]


@pytest.mark.parametrize(("values", "named"), OUT_OF_RANGE, ids=names(OUT_OF_RANGE))
def test_a_value_that_is_unknown_or_out_of_range_is_refused(values: dict[str, Any], named: str) -> None:
    said = refusal(values)
    assert "don't meet the specifications of the schema" in said
    assert named in said


@pytest.mark.parametrize(("values", "reason"), CONTRADICTIONS, ids=names(CONTRADICTIONS))
def test_values_that_contradict_each_other_are_refused(values: dict[str, Any], reason: str) -> None:
    assert reason in refusal(values)


@pytest.mark.parametrize(
    "values",
    [
        {"image": {"repository": "registry.example:5000/team/text-generation_jax"}},
        {"image": {"repository": "localhost:5000/server"}},
        {"monitoring": {"rules": {"enabled": True}, "selector": 'app="mine"'}},
        {"autoscaling": KEDA, "monitoring": {"podMonitor": {"enabled": True}}, **SHARED},
        {"autoscaling": {"type": "hpa", "target": 32}, "server": {"options": {"max-batch-size": 16}}, **SHARED},
        {"hosts": 2, "group": {"exclusiveTopology": "cloud.google.com/gke-nodepool"}, **SHARED},
        {"hosts": 2, "server": {"options": {"master-port": 29501}}, **SHARED},
        {"replicas": 0},
    ],
    ids=json.dumps,
)
def test_values_that_are_close_to_these_are_taken(values: dict[str, Any]) -> None:
    assert rendered(values)


def objects(schema: dict[str, Any], path: str = "") -> dict[str, dict[str, Any]]:
    """Every object with named members in a schema, by its path."""
    inside = {
        key: its
        for name, part in schema.get("properties", {}).items()
        for key, its in objects(part, f"{path}/{name}").items()
    }
    return {path: schema, **inside} if "properties" in schema else inside


def test_every_object_is_closed_and_has_exactly_the_values_that_there_are() -> None:
    for path, schema in objects(SCHEMA).items():
        defaults = DEFAULTS
        for step in filter(None, path.split("/")):
            defaults = defaults[step]
        assert schema["additionalProperties"] is False, path
        assert schema["properties"].keys() - {"global"} == defaults.keys(), path


def test_no_default_names_a_secret_or_an_image_that_may_change() -> None:
    assert DEFAULTS["apiKeys"]["secretName"] == DEFAULTS["model"]["tokenSecret"]["name"] == ""
    assert DEFAULTS["image"]["tag"] == ""  # the chart's own version


@pytest.mark.parametrize(
    ("values", "strategy"),
    [
        ({}, "Recreate"),
        (SHARED, "RollingUpdate"),
        ({"cache": {"type": "emptyDir"}}, "RollingUpdate"),
        ({**SHARED, "strategy": "Recreate"}, "Recreate"),
    ],
)
def test_a_new_pod_waits_for_the_old_one_where_both_need_one_volume(values: dict[str, Any], strategy: str) -> None:
    [deployment] = [each for each in rendered(values) if each["kind"] == "Deployment"]
    assert deployment["spec"]["strategy"]["type"] == strategy
