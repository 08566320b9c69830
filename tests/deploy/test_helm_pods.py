"""What the chart's pods are and do: as little as they may, and with options and probes that the server has."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from convert.arguments import parse
from convert.cache import cache_root
from convert.errors import CheckpointError
from gateway.processes.engine_process import environment as engine_environment
from tests.deploy.chart import (
    CHART,
    MATRIX,
    Object,
    environment,
    launched,
    pod_spec,
    pod_templates,
    rendered,
    selects,
    server,
    the,
)
from tests.deploy.pods import IMAGE, PORTS, options, started
from tests.gateway.toys import write_model
from tests.processes import NO_CERTIFICATES, PATIENCE, ROOT

every_values = pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
EVERYTHING, DEFAULT, CPU = MATRIX["everything"], MATRIX["default"], MATRIX["CPU"]


def specs(values: Any) -> list[Object]:
    """Of the server's pods and of the one that `helm test` starts."""
    return [*(each["spec"] for each in pod_templates(values)), the("Pod", values)["spec"]]


def containers(values: Any) -> list[Object]:
    return [each for spec in specs(values) for each in (*spec.get("initContainers", ()), *spec["containers"])]


@every_values
def test_a_container_may_do_no_more_than_it_needs(values: dict[str, Any]) -> None:
    for spec in specs(values):
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    for container in containers(values):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@every_values
def test_a_container_says_what_it_takes_and_never_runs_an_image_that_may_change(values: dict[str, Any]) -> None:
    for container in containers(values):
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert container["resources"]["limits"]["memory"]
        _, _, version = container["image"].rpartition("@" if "@" in container["image"] else ":")
        assert version and version != "latest"


def test_the_user_is_the_images() -> None:
    user, group = map(int, IMAGE.texts("USER")[0].split(":"))
    for spec in specs(DEFAULT):
        assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsGroup"]) == (user, group)


def test_openshift_may_choose_the_user() -> None:
    for spec in specs(MATRIX["OpenShift"]):
        assert not spec["securityContext"].keys() & {"runAsUser", "runAsGroup", "fsGroup"}
        assert spec["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"  # of the group that it chooses


@every_values
def test_all_that_the_image_writes_to_is_mounted(values: dict[str, Any]) -> None:
    for spec in (each["spec"] for each in pod_templates(values)):
        volumes = {each["name"] for each in spec["volumes"]}
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            mounted = {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}
            assert mounted >= {IMAGE.environment()["HF_HOME"], "/tmp"}
            assert {each["name"] for each in container["volumeMounts"]} <= volumes
        assert "/dev/shm" in {each["mountPath"] for each in launched(spec)["volumeMounts"]}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can hand a directory to another user")
def test_a_cache_that_kubernetes_opens_to_a_group_would_not_be_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the chart has it do so once, while the volume is empty: by its root's mode and group alone."""
    assert pod_spec(DEFAULT)["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    os.chown(tmp_path, 0, pod_spec(DEFAULT)["securityContext"]["fsGroup"])
    tmp_path.chmod(0o2775)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    cache = cache_root()
    cache.chmod(cache.stat().st_mode | 0o2070)
    with pytest.raises(CheckpointError, match="writable by others"):
        cache_root()


@every_values
def test_the_server_knows_its_options(values: dict[str, Any], tmp_path: Path) -> None:
    given = options(values, tmp_path)
    assert (given.port, given.admin_port, given.admin_hostname) == (PORTS["http"], PORTS["admin"], "0.0.0.0")
    assert given.hostname == "0.0.0.0"
    assert given.warnings == []
    assert {each["name"]: each["containerPort"] for each in server(values)["ports"]} == PORTS


def test_values_reach_the_option_that_they_are_for(tmp_path: Path) -> None:
    given = options(EVERYTHING, tmp_path)
    assert (given.model_id, given.revision) == ("org/model", "refs/pr/1")
    assert given.served_model_name == ("mine", "claude-sonnet-4-5")
    assert (given.num_shard, given.replicas, given.keys) == (2, 4, ["first", "second"])
    assert given.lora_adapters == ("sql=org/sql", "tone=org/tone") and given.enable_lora is True
    assert (given.max_batch_total_tokens, given.cuda_memory_fraction) == (1048576, 0.85)
    assert json.loads(given.speculative_config or "") == {"method": "ngram", "num_speculative_tokens": 4}


def test_a_cluster_of_ipv6_alone_is_listened_to(tmp_path: Path) -> None:
    given = options({"server": {"options": {"hostname": "::", "admin-hostname": "::"}}}, tmp_path)
    assert given.hostname == given.admin_hostname == "::"


@every_values
def test_the_pod_has_a_gpu_for_each_part_of_each_engine(values: dict[str, Any], tmp_path: Path) -> None:
    given = options(values, tmp_path)
    gpus = server(values)["resources"]["limits"].get("nvidia.com/gpu")
    assert gpus == (
        None if values.get("server", {}).get("device") == "cpu" else (given.num_shard or 1) * given.replicas
    )


@every_values
def test_containers_without_a_gpu_do_not_see_one(values: dict[str, Any]) -> None:
    """Where NVIDIA's runtime is the default, what the image says of GPUs would give every container all of the node."""
    for container in containers(values):
        sees_none = environment(container).get("NVIDIA_VISIBLE_DEVICES") == "void"
        assert sees_none is ("nvidia.com/gpu" not in container["resources"]["limits"]), container["name"]


def test_a_service_of_the_namespace_sets_no_option() -> None:
    """Kubernetes tells containers of Services by variables, such as PROMETHEUS_PORT, an option of the launcher, which
    passes over them; here it is not asked to.
    """
    assert all(spec["enableServiceLinks"] is False for spec in specs(DEFAULT))


def test_running_requests_end_before_the_pod_is_killed(tmp_path: Path) -> None:
    before_sigterm = server(DEFAULT)["lifecycle"]["preStop"]["sleep"]["seconds"]
    after = pod_spec(DEFAULT)["terminationGracePeriodSeconds"] - before_sigterm
    assert after > options(DEFAULT, tmp_path).graceful_termination_timeout


@pytest.mark.parametrize("timeout", [None, 60, 7200, "3600.5", 86400])
def test_a_pod_may_take_longer_to_start_than_its_server(timeout: object, tmp_path: Path) -> None:
    """So it is the server that gives up, and says why."""
    values = {"server": {"options": {"startup-timeout": timeout}}} if timeout else DEFAULT
    probe, allowed = server(values)["startupProbe"], options(values, tmp_path).startup_timeout
    assert probe["periodSeconds"] * probe["failureThreshold"] > allowed
    assert the("Deployment", values)["spec"]["progressDeadlineSeconds"] > allowed + 60


def test_secrets_are_files_and_never_variables_or_arguments() -> None:
    secrets = {each["name"]: each["secret"] for each in pod_spec(EVERYTHING)["volumes"] if "secret" in each}
    assert {name: each["secretName"] for name, each in secrets.items()} == {"api-keys": "keys", "hub-token": "hub"}
    assert {each["defaultMode"] for each in secrets.values()} == {0o440}
    assert "--api-key-file=/secrets/keys/keys" in server(EVERYTHING)["args"]
    for container in containers(EVERYTHING):
        assert not [each for each in container["env"] if "valueFrom" in each]
        assert all(each["readOnly"] for each in container["volumeMounts"] if each["mountPath"].startswith("/secrets"))


def test_the_hubs_token_is_read_from_its_file(tmp_path: Path) -> None:
    """In the engine, which fetches the model, and in the container that does so before."""
    (tmp_path / "token").write_text("hf_secret\n")
    path = environment(server(EVERYTHING))["HF_TOKEN_PATH"].replace("/secrets/hub", str(tmp_path))
    ours = {"PATH": os.environ["PATH"], "HF_HOME": str(tmp_path), "HF_TOKEN_PATH": path}
    code = "from convert.origin.hub import huggingface_hub; print(huggingface_hub.get_token())"
    for environ in (ours, engine_environment(ours, "token")):
        environ = {**environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE)
        assert done.stdout == "hf_secret\n", done.stderr


def test_what_fetches_the_weights_knows_its_arguments() -> None:
    [container] = pod_spec(EVERYTHING)["initContainers"]
    *program, command = container["command"]
    assert program == ["tini", "--", "text-generation-server"]
    given = parse([command, *container["args"]])
    assert (given.command, given.model_id, given.revision) == ("download-weights", "org/model", "refs/pr/1")
    [container] = pod_spec(DEFAULT)["initContainers"]
    assert container["args"] == ["default"]


@pytest.mark.parametrize(
    "values",
    [
        {"model": {"downloadFirst": False}},
        {"model": {"id": "/models/mine"}},
        {"model": {"id": "a-name"}, "server": {"options": {"weights-cache-override": "/models/mine"}}},
    ],
)
def test_weights_that_are_there_are_not_fetched(values: dict[str, Any]) -> None:
    assert "initContainers" not in pod_spec(values)


def test_the_service_and_the_pool_find_the_servers_pods_and_no_others() -> None:
    labels = the("Deployment", EVERYTHING)["spec"]["template"]["metadata"]["labels"]
    selectors = [
        {"matchLabels": the("Service", EVERYTHING)["spec"]["selector"]},
        the("InferencePool", EVERYTHING)["spec"]["selector"],
        the("PodMonitor", EVERYTHING)["spec"]["selector"],
        the("PodDisruptionBudget", EVERYTHING)["spec"]["selector"],
        the("NetworkPolicy", EVERYTHING)["spec"]["podSelector"],
    ]
    for selector in selectors:
        assert selects(selector, labels)
        assert not selects(selector, the("Pod", EVERYTHING)["metadata"]["labels"])
    assert labels["team"] == "ml"
    assert the("InferencePool", EVERYTHING)["spec"]["targetPorts"] == [{"number": PORTS["http"]}]


def test_the_policy_lets_in_clients_scrapers_and_helms_test_each_where_they_belong() -> None:
    policy = the("NetworkPolicy", EVERYTHING)["spec"]
    [asking, scraping] = policy["ingress"]
    assert (asking["ports"], scraping["ports"]) == ([{"port": "http"}], [{"port": "admin"}])
    assert scraping["from"] == EVERYTHING["networkPolicy"]["monitoring"]
    test, clients = asking["from"]
    assert selects(test["podSelector"], the("Pod", EVERYTHING)["metadata"]["labels"])
    assert clients == EVERYTHING["networkPolicy"]["clients"][0]
    ports = [port["port"] for rule in policy["egress"] for port in rule["ports"]]
    assert ports == [53, 53, 443, 4317]
    offline = {"networkPolicy": {"enabled": True, "hub": False}}
    [dns] = the("NetworkPolicy", offline)["spec"]["egress"]
    assert [port["port"] for port in dns["ports"]] == [53, 53]


def test_a_pod_that_may_not_reach_the_hub_does_not_try() -> None:
    """A policy drops packets: a connection is not refused, but waited for."""
    offline = {"networkPolicy": {"enabled": True, "hub": False}}
    spec = pod_spec(offline)
    for container in (*spec["initContainers"], *spec["containers"]):
        assert engine_environment(environment(container), "token")["HF_HUB_OFFLINE"] == "1"
    for container in (*containers(DEFAULT), *containers(EVERYTHING)):
        assert "HF_HUB_OFFLINE" not in environment(container)
    own = {**offline, "server": {"env": [{"name": "HF_HUB_OFFLINE", "value": "0"}]}}
    assert [each for each in server(own)["env"] if each["name"] == "HF_HUB_OFFLINE"] == own["server"]["env"]


def test_a_pod_starts_answers_its_probes_and_passes_helms_test(tmp_path: Path) -> None:
    values = {**CPU, "apiKeys": {"secretName": "keys"}, "server": {"device": "cpu", "options": {"max-best-of": 3}}}
    mock = shlex.join([sys.executable, "-m", "tests.mock_launcher"])
    model = shlex.quote(f"--model-dir={write_model(tmp_path)}")
    with started(values, tmp_path, f'{mock} "$@" -- {model}') as launcher:
        launcher.wait_for(200, "/health/ready")
        admin = launcher.admin_url.replace("0.0.0.0", "127.0.0.1")
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            path = server(values)[probe]["httpGet"]["path"]
            assert httpx.get(admin + path, timeout=PATIENCE, **NO_CERTIFICATES).status_code == 200, probe
        assert "textgen_engine_state" in httpx.get(f"{admin}/metrics", timeout=PATIENCE, **NO_CERTIFICATES).text
        [asking] = the("Pod", values)["spec"]["containers"]
        assert asking["command"] == ["python3", "-c"]
        url = launcher.url.replace("0.0.0.0", "127.0.0.1")
        environ = {**environment(asking), "URL": url, "KEYS": f"{tmp_path}/keys/keys", "PATH": os.environ["PATH"]}
        command = [sys.executable, "-c", *asking["args"]]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        (tmp_path / "keys" / "keys").write_text("wrong\n")
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode != 0 and "401" in done.stderr


def test_helms_test_asks_the_service() -> None:
    asked = environment(the("Pod", EVERYTHING)["spec"]["containers"][0])
    service = the("Service", EVERYTHING)
    assert asked["URL"] == f"http://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    assert service["spec"]["ports"][0]["targetPort"] == "http"
    assert asked["KEYS"] == "/secrets/keys/keys"
    [text] = the("Pod", EVERYTHING)["spec"]["containers"][0]["args"]
    assert text.strip() == (CHART / "one_token.py").read_text().strip()


def test_every_object_is_of_the_release() -> None:
    for thing in rendered(EVERYTHING):
        assert thing["metadata"]["namespace"] == "models"
        assert thing["metadata"]["labels"]["app.kubernetes.io/instance"] == "demo"
