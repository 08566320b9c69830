"""Alerts and scalers of the chart ask for series that the server has, and alerts fire when they should."""

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from gateway.observability.sink import Failure
from tests.deploy import fetched
from tests.deploy.chart import CHART, MATRIX, rendered, the
from tests.gateway.observability.test_replica_metrics import samples, two_engines

EVERYTHING = MATRIX["everything"]
JOB = 'job="models/demo-text-generation-jax"'
ALERTS = [rule["alert"] for rule in yaml.safe_load((CHART / "alerts.yaml").read_text())["groups"][0]["rules"]]
METRICS = ("waiting", "running")  # that a scaler may watch
SELECTOR = re.compile(r"\b((?:textgen|tgi|vllm|nv)[_:]\w+)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)(=~|!=|=)"([^"]*)"')


def rules(values: Mapping[str, Any] = EVERYTHING, release: str = "demo") -> dict[str, dict[str, Any]]:
    """By their alerts."""
    [found] = [thing for thing in rendered(values, release) if thing["kind"] == "PrometheusRule"]
    [group] = found["spec"]["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def scaler_query(metric: str) -> str:
    scaling = {**EVERYTHING["autoscaling"], "metric": metric}
    [trigger] = the("ScaledObject", {**EVERYTHING, "autoscaling": scaling})["spec"]["triggers"]
    query: str = trigger["metadata"]["query"]
    return query


def queries() -> dict[str, str]:
    """Every expression that the chart has Prometheus compute, by its alert or the scaler's metric."""
    return {name: rule["expr"] for name, rule in rules().items()} | {name: scaler_query(name) for name in METRICS}


def exported() -> dict[str, list[dict[str, str]]]:
    """The labels of each series that a server with two engines has from its start, by name."""
    metrics = two_engines()
    for engine in (0, 1):
        metrics.engine_state(engine, "ready")
    found: dict[str, list[dict[str, str]]] = {}
    for sample in samples(metrics):
        name, _, labels = sample.partition("{")
        found.setdefault(name, []).append(dict(re.findall(r'(\w+)="([^"]*)"', labels)))
    return found


def matches(labels: dict[str, str], selector: str) -> bool:
    tests = {
        "=": lambda value, wanted: value == wanted,
        "=~": lambda value, wanted: re.fullmatch(wanted, value) is not None,
        "!=": lambda value, wanted: value != wanted,
    }
    own = [each for each in MATCHER.findall(selector) if each[0] != "job"]  # which the scraper adds
    return all(name in labels and tests[operator](labels[name], wanted) for name, operator, wanted in own)


@pytest.mark.parametrize("name", [*ALERTS, *METRICS])
def test_every_query_is_of_this_release_and_finds_a_series(name: str) -> None:
    query, found = queries()[name], exported()
    selectors = SELECTOR.findall(query)
    assert selectors and query.count("{") == len(selectors)
    for metric, selector in selectors:
        assert JOB in selector
        assert any(matches(labels, selector) for labels in found.get(metric, ())), f"{metric}{{{selector}}}"


def test_every_cause_of_failure_that_an_alert_names_exists() -> None:
    named = {
        cause
        for query in queries().values()
        for each in re.findall(r'err=~?"([^"]*)', query)
        for cause in each.split("|")
    }
    assert named == {"overloaded", "generation", "incomplete", "unavailable"} and named <= set(get_args(Failure))


def test_pods_that_cannot_be_scraped_are_not_taken_for_idle() -> None:
    """KEDA takes no answer for 0, unless it is told not to, and would then stop pods at work."""
    [trigger] = the("ScaledObject", EVERYTHING)["spec"]["triggers"]
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert the("ScaledObject", EVERYTHING)["spec"]["minReplicaCount"] > 0  # there are always pods to be asked of


@pytest.mark.parametrize("metric", METRICS)
def test_a_horizontal_pod_autoscaler_reads_a_series_of_each_pod(metric: str) -> None:
    values = {"autoscaling": {"type": "hpa", "metric": metric, "target": 1000000}, "cache": {"type": "emptyDir"}}
    [asked] = the("HorizontalPodAutoscaler", values)["spec"]["metrics"]
    assert asked["pods"]["target"] == {"type": "AverageValue", "averageValue": "1000000"}
    assert exported()[asked["pods"]["metric"]["name"]] == [{}]  # one, whatever the engines


def test_the_scaler_decides_how_many_pods_there_are() -> None:
    for name in ("KEDA", "HPA"):
        assert "replicas" not in the("Deployment", MATRIX[name])["spec"]
    spec = the("ScaledObject", EVERYTHING)["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (2, 8)
    assert spec["scaleTargetRef"]["name"] == the("Deployment", EVERYTHING)["metadata"]["name"]
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert (
        behavior["scaleUp"]["stabilizationWindowSeconds"] < behavior["scaleDown"]["stabilizationWindowSeconds"] == 600
    )


@pytest.mark.parametrize("selector", ['app="mine",cluster=~"a|b"', 'app="the: one #2"'])
def test_another_scrapers_series_may_be_asked_for(selector: str) -> None:
    values = {**EVERYTHING, "monitoring": {"rules": {"enabled": True}, "selector": selector}}
    [trigger] = the("ScaledObject", values)["spec"]["triggers"]
    for query in (*(rule["expr"] for rule in rules(values).values()), trigger["metadata"]["query"]):
        assert selector in query and "job=" not in query


def test_alerts_of_two_releases_in_a_namespace_are_not_taken_for_one() -> None:
    """Alertmanager takes alerts with the same labels for one, and most of these know of their pods' namespace alone."""
    ours, theirs = rules(), rules(release="true")
    for name in ALERTS:
        assert (ours[name]["labels"]["release"], theirs[name]["labels"]["release"]) == ("demo", "true")
        assert ours[name]["expr"] != theirs[name]["expr"]


def test_every_alert_says_what_it_means_and_what_to_do() -> None:
    assert [*rules()] == ALERTS and len({*ALERTS}) == len(ALERTS)
    for rule in rules().values():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"] and len(rule["annotations"]["description"]) > 80, rule["alert"]
        assert "SERIES" not in rule["expr"]


def promtool(*arguments: str) -> None:
    done = subprocess.run([str(fetched.promtool()), *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def write_rules(directory: Path) -> Path:
    (directory / "rules.yml").write_text(json.dumps(the("PrometheusRule", EVERYTHING)["spec"]))
    return directory / "rules.yml"


def test_promtool_reads_the_rules(tmp_path: Path) -> None:
    promtool("check", "rules", str(write_rules(tmp_path)))


def test_promtool_reads_the_scalers_queries(tmp_path: Path) -> None:
    recorded = [{"record": f"scaler:{metric}", "expr": scaler_query(metric)} for metric in METRICS]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "scalers", "rules": recorded}]}))
    promtool("check", "rules", str(tmp_path / "rules.yml"))


@dataclass(frozen=True)
class Case:
    """An alert, with series of a pod by name and labels, as promtool writes their values a minute apart.

    labels: of the alert that fires, besides its severity.
    says: its summary then.
    """

    alert: str
    fires: dict[str, str]
    silent: dict[str, str]
    labels: dict[str, str]
    says: str


NAMESPACE = {"namespace": "models"}
POD = {**NAMESPACE, "pod": "demo-0"}
ENGINE = {**POD, "engine": "0"}
STEADY = "1x60"  # one, for an hour


def state(name: str) -> str:
    return f'textgen_engine_state{{engine="0",state="{name}"}}'


def failed(cause: str) -> str:
    return f'tgi_request_failure{{err="{cause}"}}'


def bucket(bound: str) -> str:
    return f'textgen_time_to_first_token_seconds_bucket{{le="{bound}"}}'


def restarts(cause: str) -> str:
    return f'textgen_engine_restarts_total{{engine="0",cause="{cause}"}}'


AGE = 'textgen_last_step_age_seconds{engine="0"}'
STEPS = 'textgen_step_failures_total{engine="0"}'
COMPILES = 'textgen_compiles_after_warmup_total{engine="0"}'
USAGE = 'vllm:kv_cache_usage_perc{engine="0",model_name="m"}'
REQUESTS = {"tgi_request_count": "0+100x60"}
CASES = [
    Case(
        "TextGenerationGone",
        {},
        {state("ready"): STEADY},
        {"job": "models/demo-text-generation-jax"},
        "Prometheus knows no server of this release",
    ),
    Case(
        "TextGenerationNotReady",
        {state("starting"): "0x60", state("warming"): STEADY},
        {state("warming"): "0x60", state("ready"): STEADY},
        POD,
        "No engine of demo-0 has been ready for half an hour",
    ),
    Case(
        "TextGenerationEngineRestarts",
        {restarts("hung"): "0x50 1x10"},
        {restarts("asked"): "0x50 1x10"},
        {**ENGINE, "cause": "hung"},
        "Engine 0 of demo-0 hung and was started again",
    ),
    Case(
        "TextGenerationEngineStalled",
        {AGE: "0x50 90x10"},
        {AGE: "20x60"},
        ENGINE,
        "Engine 0 of demo-0 has been still for 1m 30s",
    ),
    Case("TextGenerationStepsFail", {STEPS: "0x50 2x10"}, {STEPS: "0x60"}, ENGINE, "Steps of engine 0 of demo-0 fail"),
    Case(
        "TextGenerationCompilesLate",
        {COMPILES: "0x50 1x10"},
        {COMPILES: "0x60"},
        ENGINE,
        "Engine 0 of demo-0 compiled while requests waited",
    ),
    Case(
        "TextGenerationOverloaded",
        {**REQUESTS, failed("overloaded"): "0+10x60"},
        {**REQUESTS, failed("overloaded"): "0+2x60", failed("validation"): "0+50x60"},
        NAMESPACE,
        "10% of the requests are refused with 429",
    ),
    Case(
        "TextGenerationRequestsFail",
        {**REQUESTS, failed("generation"): "0+1x60", failed("unavailable"): "0+1x60"},
        {**REQUESTS, failed("generation"): "0x60", failed("dropped"): "0+50x60"},
        NAMESPACE,
        "2% of the requests fail in the server",
    ),
    Case(
        "TextGenerationSlowToBegin",
        {bucket("10"): "0+90x60", bucket("20"): "0+100x60", bucket("+Inf"): "0+100x60"},
        {bucket("10"): "0+99x60", bucket("20"): "0+100x60", bucket("+Inf"): "0+100x60"},
        NAMESPACE,
        "One request in twenty waits 15s or longer for its first token",
    ),
    Case("TextGenerationCacheFull", {USAGE: "0.99x60"}, {USAGE: "0.9x60"}, POD, "The KV cache of demo-0 is full"),
]


def scraped(series: dict[str, str]) -> list[dict[str, str]]:
    """As Prometheus has them, with what a PodMonitor adds."""
    added = f'{JOB},namespace="models",pod="demo-0"'
    return [
        {"series": f"{name[:-1]},{added}}}" if name.endswith("}") else f"{name}{{{added}}}", "values": values}
        for name, values in series.items()
    ]


def test_every_alert_has_a_case() -> None:
    assert [case.alert for case in CASES] == ALERTS


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_an_alert_fires_when_it_should_and_not_else(case: Case, tmp_path: Path) -> None:
    rule = rules()[case.alert]
    firing = {
        "exp_labels": {**case.labels, **rule["labels"]},
        "exp_annotations": {**rule["annotations"], "summary": case.says},
    }
    tests = [
        {
            "interval": "1m",
            "input_series": scraped(series),
            "alert_rule_test": [{"eval_time": "55m", "alertname": case.alert, "exp_alerts": expected}],
        }
        for series, expected in ((case.fires, [firing]), (case.silent, []))
    ]
    write_rules(tmp_path)
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": tests}))
    promtool("test", "rules", str(tmp_path / "test.yml"))


@pytest.mark.parametrize(
    ("alert", "up", "down"), [("TextGenerationNotReady", 2, 6), ("TextGenerationGone", 1, 20)], ids=["often", "seldom"]
)
def test_a_pod_that_dies_again_and_again_is_noticed(alert: str, up: int, down: int, tmp_path: Path) -> None:
    """Its series come and go, `up` minutes and `down`: no state of it lasts."""
    life = " ".join(["1"] * up + ["stale"] + ["_"] * (down - 1))
    evaluated = f"{4 * (up + down) + up + 15}m"  # in the fifth pause, if it is long enough
    labels = {**rules()[alert]["labels"], **({"job": JOB[5:-1]} if alert == "TextGenerationGone" else POD)}
    summary = next(case.says for case in CASES if case.alert == alert)
    firing = {"exp_labels": labels, "exp_annotations": {**rules()[alert]["annotations"], "summary": summary}}
    test = {
        "interval": "1m",
        "input_series": scraped({state("starting"): " ".join([life] * 10)}),
        "alert_rule_test": [{"eval_time": evaluated, "alertname": alert, "exp_alerts": [firing]}],
    }
    write_rules(tmp_path)
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": [test]}))
    promtool("test", "rules", str(tmp_path / "test.yml"))
