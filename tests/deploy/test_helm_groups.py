"""A model over several hosts: groups of pods, of which one serves, and the others are asked by none but each other."""

import copy
import shlex
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from convert.cache import cache_root
from jaxengine.group.distributed import free_port
from tests.deploy.chart import CHART, MATRIX, POD_ADDRESS, Object, launched, pod_templates, rendered, run, selects, the
from tests.deploy.pods import options, started
from tests.processes import NO_CERTIFICATES, PATIENCE
from tests.servers import READY_SECONDS

SMALL, EVERYTHING = MATRIX["hosts"], MATRIX["everything over hosts"]
HPA = {**SMALL, "autoscaling": {"type": "hpa"}}
every_group = pytest.mark.parametrize("values", [SMALL, EVERYTHING], ids=["hosts", "everything over hosts"])


def the_group(values: Mapping[str, Any]) -> Object:
    spec: Object = the("LeaderWorkerSet", values)["spec"]
    return spec


def kinds(values: Mapping[str, Any]) -> set[str]:
    return {thing["kind"] for thing in rendered(values)}


def test_hosts_say_whether_pods_are_a_deployments_or_come_in_groups() -> None:
    assert "LeaderWorkerSet" in kinds(SMALL) and "Deployment" not in kinds(SMALL)
    assert "Deployment" in kinds(MATRIX["default"]) and "LeaderWorkerSet" not in kinds(MATRIX["default"])
    assert (the_group(SMALL)["leaderWorkerTemplate"]["size"], the_group(SMALL)["replicas"]) == (2, 1)


def without_address(leader: Object) -> None:
    """Take out of a template where its pod listens for workers."""
    container = launched(leader["spec"])
    container["env"] = [each for each in container["env"] if each["name"] != "POD_ADDRESS"]
    container["args"].remove("--master-addr=$(POD_ADDRESS)")
    if not container["env"]:
        del container["env"]


@every_group
def test_a_leader_is_the_pod_that_would_serve_alone(values: dict[str, Any]) -> None:
    alone = {**values, "hosts": 1, "group": {}}
    [expected] = pod_templates(alone)
    leader = copy.deepcopy(pod_templates(values)[0])
    without_address(leader)
    for each in (launched(leader["spec"])["args"], launched(leader["spec"])["volumeMounts"], leader["spec"]["volumes"]):
        each[:] = [part for part in each if "group" not in str(part)]  # the key, which only a group has
    assert leader == expected


@every_group
def test_a_worker_is_like_its_leader_but_nobody_asks_it_anything(values: dict[str, Any]) -> None:
    leader, worker = copy.deepcopy(pod_templates(values))
    assert leader["metadata"]["labels"].pop("app.kubernetes.io/component") == "server"
    assert worker["metadata"]["labels"].pop("app.kubernetes.io/component") == "worker"
    asked = {"ports", "startupProbe", "readinessProbe", "livenessProbe", "lifecycle"}
    assert asked <= launched(leader["spec"]).keys() and not asked & launched(worker["spec"]).keys()
    for name in asked:
        del launched(leader["spec"])[name]
    without_address(leader)
    for each in (launched(leader["spec"])["args"], launched(leader["spec"])["volumeMounts"], leader["spec"]["volumes"]):
        each[:] = [part for part in each if "keys" not in str(part)]  # of users
    assert leader == worker


def test_whoever_asks_or_watches_a_server_finds_leaders_alone() -> None:
    leader, worker = (each["metadata"]["labels"] for each in pod_templates(EVERYTHING))
    selectors = [
        {"matchLabels": the("Service", EVERYTHING)["spec"]["selector"]},
        *(the(kind, EVERYTHING)["spec"]["selector"] for kind in ("InferencePool", "PodMonitor", "PodDisruptionBudget")),
    ]
    for selector in selectors:
        assert selects(selector, leader) and not selects(selector, worker)


@pytest.mark.parametrize(("kind", "values"), [("ScaledObject", EVERYTHING), ("HorizontalPodAutoscaler", HPA)])
def test_a_scaler_gives_more_groups_or_fewer(kind: str, values: dict[str, Any]) -> None:
    assert the(kind, values)["spec"]["scaleTargetRef"] == {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "name": the("LeaderWorkerSet", values)["metadata"]["name"],
    }
    assert "replicas" not in the_group(values)


def test_pods_of_a_group_reach_each_other_on_every_port_and_others_do_not() -> None:
    policy = the("NetworkPolicy", EVERYTHING)["spec"]
    leader, worker = (each["metadata"]["labels"] for each in pod_templates(EVERYTHING))
    assert selects(policy["podSelector"], leader) and selects(policy["podSelector"], worker)
    for rules, end in ((policy["ingress"], "from"), (policy["egress"], "to")):
        [open_to_all_ports] = [rule for rule in rules if "ports" not in rule]
        [peer] = open_to_all_ports[end]
        assert peer.keys() == {"podSelector"}  # of this namespace
        assert selects(peer["podSelector"], leader) and selects(peer["podSelector"], worker)
        assert not selects(peer["podSelector"], the("Pod", EVERYTHING)["metadata"]["labels"])
        assert not selects(peer["podSelector"], {**leader, "app.kubernetes.io/instance": "another"})
    alone = the("NetworkPolicy", MATRIX["everything"])["spec"]
    assert all("ports" in rule for rule in (*alone["ingress"], *alone["egress"]))


def test_the_group_s_key_is_a_file_of_every_pod_and_its_users_keys_are_the_leader_s(tmp_path: Path) -> None:
    for index, template in enumerate(pod_templates(EVERYTHING)):
        secrets = {each["name"]: each["secret"] for each in template["spec"]["volumes"] if "secret" in each}
        assert secrets["group-key"] == {
            "secretName": "ours",
            "defaultMode": 0o440,
            "items": [{"key": "secret", "path": "key"}],
        }
        mounts = {each["name"]: each for each in launched(template["spec"])["volumeMounts"]}
        assert mounts["group-key"] == {"name": "group-key", "mountPath": "/secrets/group", "readOnly": True}
        assert ("api-keys" in secrets, "api-keys" in mounts) == (index == 0, index == 0)
        given = options(EVERYTHING, tmp_path, index)
        assert given.group_key_file == tmp_path / "group" / "key"
        assert bool(given.keys) is (index == 0)


@every_group
def test_the_launchers_of_a_group_know_their_places(values: dict[str, Any], tmp_path: Path) -> None:
    """The leader by its own address: its name may not be known yet, or as that of the pod before it."""
    name = the("LeaderWorkerSet", values)["metadata"]["name"]
    leader, worker = (options(values, tmp_path, index) for index in (0, values["hosts"] - 1))
    assert (leader.nnodes, leader.node_rank, leader.follows) == (values["hosts"], 0, False)
    assert (worker.nnodes, worker.node_rank, worker.follows) == (values["hosts"], values["hosts"] - 1, True)
    assert leader.master_port == worker.master_port
    assert (leader.master_addr, worker.master_addr) == (POD_ADDRESS, f"{name}-0.{name}.models")
    assert leader.warnings == worker.warnings == []


@pytest.mark.parametrize("release", ["demo", "qwen3.5", "l" * 53, f"{'l' * 52}k", "text-generation-jax-" + "a.b" * 11])
def test_groups_have_a_name_that_no_service_has_and_their_pods_can(release: str) -> None:
    """Their operator makes a headless Service of that name, by which a leader is found, unless there is a Service. And
    workers are in a StatefulSet called as their leader; a label has its name and eleven characters, 63 at most.
    """
    things = rendered(SMALL, release)
    [name] = [thing["metadata"]["name"] for thing in things if thing["kind"] == "LeaderWorkerSet"]
    assert name not in [thing["metadata"]["name"] for thing in things if thing["kind"] == "Service"]
    assert len(f"{name}-1000") <= 63 - 11


def test_releases_whose_names_begin_alike_have_groups_of_their_own() -> None:
    found = {
        thing["metadata"]["name"]
        for release in ("l" * 53, f"{'l' * 52}k")
        for thing in rendered(SMALL, release)
        if thing["kind"] == "LeaderWorkerSet"
    }
    assert len(found) == 2


def test_workers_come_before_their_leader_is_ready_and_rejoin_it_alone() -> None:
    """A leader that waits to be ready for its workers would wait for ever, and one restart is none of all pods."""
    assert the_group(SMALL)["startupPolicy"] == "LeaderCreated"
    assert the_group(SMALL)["leaderWorkerTemplate"]["restartPolicy"] == "None"


@pytest.mark.parametrize(
    ("strategy", "update"),
    [
        ("", {"maxSurge": 1, "maxUnavailable": 0}),
        ("RollingUpdate", {"maxSurge": 1, "maxUnavailable": 0}),
        ("Recreate", {"maxSurge": 0, "maxUnavailable": 1}),
    ],
)
def test_a_group_is_replaced_by_a_spare_one_or_where_it_is(strategy: str, update: dict[str, int]) -> None:
    rollout = the_group({**SMALL, "strategy": strategy})["rolloutStrategy"]
    assert rollout == {"type": "RollingUpdate", "rollingUpdateConfiguration": update}


def test_a_group_may_have_a_rack_to_itself() -> None:
    annotations = the("LeaderWorkerSet", EVERYTHING)["metadata"]["annotations"]
    assert annotations == {"leaderworkerset.sigs.k8s.io/exclusive-topology": "example.com/rack"}
    assert "annotations" not in the("LeaderWorkerSet", SMALL)["metadata"]


def test_all_pods_of_groups_are_spread_over_nodes() -> None:
    for template in pod_templates(SMALL):
        [spread] = template["spec"]["topologySpreadConstraints"]
        assert all(selects(spread["labelSelector"], each["metadata"]["labels"]) for each in pod_templates(SMALL))


def test_the_notes_tell_of_groups_and_of_a_missing_key() -> None:
    for values, has_key in ((SMALL, False), (EVERYTHING, True)):
        done = run("install", "demo", str(CHART), "--dry-run=client", "--namespace=models", values=values)
        assert done.returncode == 0, done.stderr
        notes = done.stdout.partition("\nNOTES:\n")[2]
        assert "wait --for condition=Available leaderworkerset/demo-text-generation-jax-group " in notes
        assert "deployment/" not in notes
        assert ("can join its group" in notes) is not has_key


def test_two_pods_of_a_group_serve_as_one(tiny_model: Path, tmp_path: Path) -> None:
    """With the chart's arguments and variables, real launchers and real engines, on one machine."""
    values = {
        "hosts": 2,
        "model": {"id": str(tiny_model)},
        "server": {
            "device": "cpu",
            "env": [{"name": "XDG_CACHE_HOME", "value": str(cache_root().parent)}],  # compiled once, as other tests do
            "options": {
                "master-port": free_port(POD_ADDRESS),
                "max-batch-size": 2,
                "max-batch-prefill-tokens": 64,
                "max-total-tokens": 128,
            },
        },
        "group": {"keySecret": {"name": "ours"}},
        "cache": {"type": "emptyDir"},
    }
    real = f'{shlex.quote(sys.executable)} -m gateway.launcher "$@"'
    with ExitStack() as stack:
        worker, leader = (
            stack.enter_context(started(values, tmp_path / str(index), real, index, POD_ADDRESS)) for index in (1, 0)
        )
        leader.wait_for(200, "/health/ready", READY_SECONDS)
        body = {"inputs": "Hello", "parameters": {"max_new_tokens": 3, "details": True}}
        url = leader.url.replace("0.0.0.0", POD_ADDRESS)
        answer = httpx.post(f"{url}/generate", json=body, timeout=PATIENCE, **NO_CERTIFICATES)
        assert answer.status_code == 200 and answer.json()["details"]["generated_tokens"] > 0, answer.text
        assert "machine 1 follows" in worker.log.read_text()
        assert "listening on" not in worker.log.read_text()
        assert "can join this group" not in leader.log.read_text()  # it has the key
        for each in (leader, worker):
            each.process.terminate()
            assert each.process.wait(PATIENCE) == 0, each.log.read_text()
