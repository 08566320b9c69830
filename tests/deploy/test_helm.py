"""The chart: Helm finds nothing wrong with it; Kubernetes, KEDA and the other operators would take what it makes."""

import copy
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.deploy import custom_resources, kubernetes
from tests.deploy.chart import CHART, KEDA, MATRIX, Object, pod_templates, refusal, rendered, run, the
from tests.processes import ROOT

every_values = pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
SCRAPED = {"monitoring": {"podMonitor": {"enabled": True}}, "cache": {"type": "emptyDir"}}
CORE_KINDS = {
    *("Deployment", "Service", "PersistentVolumeClaim", "PodDisruptionBudget", "NetworkPolicy", "ConfigMap", "Pod"),
    "HorizontalPodAutoscaler",
}


def is_custom(thing: Object) -> bool:
    return (thing["apiVersion"], thing["kind"]) in custom_resources.SPECS


@every_values
def test_helm_lint_finds_nothing(values: dict[str, Any]) -> None:
    done = run("lint", str(CHART), "--strict", "--quiet", values=values)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", kubernetes.VERSIONS)
@every_values
def test_kubernetes_takes_every_object(values: dict[str, Any], version: str) -> None:
    for thing in rendered(values):
        if not is_custom(thing):
            assert kubernetes.problems(thing, version) == [], thing["kind"]
    for template in pod_templates(values):
        assert kubernetes.found(template, "podtemplatespec-v1", version) == []


@every_values
def test_operators_take_every_object_of_theirs(values: dict[str, Any]) -> None:
    for thing in filter(is_custom, rendered(values)):
        assert custom_resources.problems(thing) == [], thing["kind"]


def numbers(value: Any) -> list[int | float]:
    if isinstance(value, dict | list):
        return [each for part in (value.values() if isinstance(value, dict) else value) for each in numbers(part)]
    return [value] if isinstance(value, int | float) else []


def test_numbers_of_ten_digits_are_written_as_whole_ones() -> None:
    """OpenShift's users have so many, which a template writes as 1.00065e+09: a float, which Kubernetes refuses."""
    values = {"user": 1000650000, "autoscaling": {**KEDA, "target": 1000000}, **SCRAPED}
    found = [number for thing in rendered(values) for number in numbers(thing)]
    assert 1000650000 in found and not [number for number in found if isinstance(number, float)]
    [trigger] = the("ScaledObject", values)["spec"]["triggers"]
    assert trigger["metadata"]["threshold"] == "1000000"


def problems(things: list[Object]) -> list[str]:
    return [
        problem
        for thing in things
        for problem in (
            custom_resources.problems(thing) if is_custom(thing) else kubernetes.problems(thing, kubernetes.OLDEST)
        )
    ]


@pytest.mark.parametrize("release", ["qwen3.5", "l" * 53, f"{'l' * 51}.5", "a.text-generation-jax.b"])
def test_a_release_of_any_name_has_objects_that_kubernetes_can_name(release: str) -> None:
    things = rendered(MATRIX["everything"], release)
    assert problems(things) == []
    names = {thing["metadata"]["name"] for thing in things}
    assert all(re.fullmatch("[a-z][-a-z0-9]{0,61}[a-z0-9]", name) for name in names), names  # as a Service's


def test_a_release_whose_name_no_service_can_have_is_refused() -> None:
    assert "70b-text-generation-jax, which must begin with a letter" in refusal(MATRIX["default"], "70b")


def test_a_name_that_yaml_would_read_as_a_number_or_a_truth_is_a_text() -> None:
    named = {
        "image": {"pullSecrets": ["123"]},
        "model": {"tokenSecret": {"name": "456", "key": "null"}},
        "apiKeys": {"secretName": "0x12", "key": "true"},
        **dict.fromkeys(("serviceAccountName", "runtimeClassName", "priorityClassName"), "1000"),
        "inferencePool": {"enabled": True, "endpointPicker": {"name": "789"}},
    }
    for cache in ({"storageClass": "12"}, {"type": "perPod", "storageClass": "12"}, {"existingClaim": "12"}):
        assert problems(rendered({**named, "cache": cache}, release="true", namespace="12")) == []


def test_the_matrix_has_every_kind() -> None:
    kinds = {thing["kind"] for values in MATRIX.values() for thing in rendered(values)}
    assert kinds == CORE_KINDS | {kind for _, kind in custom_resources.SPECS} - {"RayService"}  # of deploy/kuberay


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Deployment", ("spec", "template", "spec", "containers", 0, "readinessProbes"), {}),
        ("Deployment", ("spec", "replicas"), "2"),
        ("Service", ("spec", "ports", 0, "port"), "80"),
        ("PodMonitor", ("spec", "podMetricsEndpoints", 0, "ports"), "admin"),
        ("ScaledObject", ("spec", "triggers", 0, "metadata", "threshold"), 5),
        ("InferencePool", ("spec", "targetPorts", 0, "number"), 0),
        ("HTTPRoute", ("spec", "rules", 0, "backendRefs", 0, "weights"), 1),
        ("LeaderWorkerSet", ("spec", "leaderWorkerTemplate", "restartPolicy"), "Always"),
        ("LeaderWorkerSet", ("spec", "leaderWorkerTemplate", "sizes"), 4),
    ],
)
def test_what_checks_the_objects_sees_a_field_that_is_unknown_or_wrong(
    kind: str, path: tuple[str | int, ...], value: Any
) -> None:
    values = MATRIX["everything over hosts" if kind == "LeaderWorkerSet" else "everything"]
    broken = copy.deepcopy(the(kind, values))
    place: Any = broken
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    found = custom_resources.problems(broken) if is_custom(broken) else kubernetes.problems(broken, kubernetes.OLDEST)
    assert len(found) == 1 and str(path[-1]) in found[0]


def test_what_checks_templates_of_pods_sees_a_field_that_is_unknown() -> None:
    [template] = pod_templates(MATRIX["default"])
    broken = {**template, "spec": {**template["spec"], "container": []}}
    assert "container" in kubernetes.found(broken, "podtemplatespec-v1", kubernetes.OLDEST)[0]


def test_a_kind_without_a_schema_is_an_error_and_not_a_warning() -> None:
    unknown = {"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": {"name": "a"}, "spec": {}}
    with pytest.raises(KeyError):
        kubernetes.problems(unknown, kubernetes.OLDEST)
    with pytest.raises(KeyError):
        custom_resources.problems(unknown)


def test_the_oldest_version_of_kubernetes_is_the_charts() -> None:
    assert f'kubeVersion: ">={kubernetes.OLDEST}.0-0"' in (CHART / "Chart.yaml").read_text()


def test_a_package_has_the_board_and_makes_the_same_objects(tmp_path: Path) -> None:
    """The board is a link to the one that compose mounts: in a package it has to be a file."""
    done = run("package", str(CHART), f"--destination={tmp_path}")
    assert done.returncode == 0, done.stderr
    [package] = tmp_path.glob("*.tgz")
    with tarfile.open(package) as files:
        assert all(member.isfile() for member in files)
        names = {member.name.partition("/")[2] for member in files}
    assert names == {str(path.relative_to(CHART)) for path in CHART.rglob("*") if path.is_file()}
    from_package = run("template", "demo", str(package), "--namespace=models", values=MATRIX["everything"])
    from_tree = run("template", "demo", str(CHART), "--namespace=models", values=MATRIX["everything"])
    assert (from_package.returncode, from_package.stdout) == (0, from_tree.stdout)


def test_the_board_is_that_of_compose() -> None:
    board = the("ConfigMap", MATRIX["everything"])["data"]["text-generation.json"]
    assert json.loads(board) == json.loads((ROOT / "deploy" / "grafana" / "board.json").read_text())
    assert (CHART / "board.json").is_symlink()


def test_charts_and_projects_version_are_one() -> None:
    version = (ROOT / "pyproject.toml").read_text().partition('\nversion = "')[2].partition('"')[0]
    chart = (CHART / "Chart.yaml").read_text()
    assert f"\nversion: {version}\n" in chart and f'\nappVersion: "{version}"' in chart


def test_the_notes_say_how_to_ask_and_whether_a_key_is_needed() -> None:
    for values, asked in ((MATRIX["default"], False), (MATRIX["everything"], True)):
        done = run("install", "demo", str(CHART), "--dry-run=client", "--namespace=models", values=values)
        assert done.returncode == 0, done.stderr
        notes = done.stdout.partition("\nNOTES:\n")[2]
        assert "curl 127.0.0.1:3000/generate" in notes and "service/demo-text-generation-jax 3000:80" in notes
        assert ("Authorization: Bearer" in notes) is asked
        assert ("Nobody is asked for a key" in notes) is not asked
