"""The compose files, and what Prometheus and Grafana are configured with."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config.command_line import parse
from gateway.config.options import rows
from tests.deploy.fetched import promtool
from tests.processes import ROOT

DEPLOY = ROOT / "deploy"
FILES = ("compose.yaml", "compose.gpu.yaml")
BOARD = json.loads((DEPLOY / "grafana" / "board.json").read_text())


def read(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


SERVER = read("compose.yaml")["services"]["server"]


@pytest.mark.parametrize("files", [FILES[:1], FILES], ids=["CPU", "GPU"])
def test_docker_compose_reads_it(files: tuple[str, ...]) -> None:
    compose = ["docker-compose"] if shutil.which("docker-compose") else ["docker", "compose"]
    if shutil.which(compose[0]) is None or subprocess.run([*compose, "version"], capture_output=True).returncode:
        pytest.skip("docker compose is not installed: Docker's plugin, or docker-compose")
    command = [*compose, *(f"--file={DEPLOY / name}" for name in files), "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_server_may_do_no_more_than_it_needs() -> None:
    assert SERVER["read_only"] is True and SERVER["tmpfs"] == ["/tmp"]
    assert SERVER["cap_drop"] == ["ALL"]
    assert SERVER["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in SERVER and "user" not in SERVER


def test_docker_waits_until_running_requests_have_ended() -> None:
    seconds = float(SERVER["stop_grace_period"].removesuffix("s"))
    assert seconds > parse([], {}).graceful_termination_timeout


def test_port_and_volume_are_the_images() -> None:
    assert SERVER["ports"] == ["8080:80"]
    assert SERVER["volumes"] == ["data:/data"]
    assert "data" in read("compose.yaml")["volumes"]


def test_secrets_come_from_outside() -> None:
    known = {row.name.upper() for row in rows()} | {"HF_TOKEN"}
    assert set(SERVER["environment"]) <= known and "API_KEY" in SERVER["environment"]


@pytest.mark.parametrize("service", ["prometheus", "grafana"])
def test_what_watches_the_server_is_seen_from_this_machine_only(service: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in read("compose.yaml")["services"][service]["ports"])


def test_images_have_versions() -> None:
    for service in ("prometheus", "grafana"):
        assert re.fullmatch(r".+:v?\d+\.\d+\.\d+", read("compose.yaml")["services"][service]["image"])


def test_every_file_that_is_mounted_exists() -> None:
    for service in read("compose.yaml")["services"].values():
        for volume in service["volumes"]:
            host = volume.partition(":")[0]
            assert not host.startswith("./") or (DEPLOY / host).is_file(), host


def test_prometheus_asks_the_server_on_its_port() -> None:
    [job] = read("prometheus.yml")["scrape_configs"]
    assert job["dns_sd_configs"] == [{"names": ["server"], "type": "A", "port": 80}]
    assert "metrics_path" not in job  # /metrics


def test_promtool_reads_it(tmp_path: Path) -> None:
    variables = {"$__rate_interval": "1m", "$server": ".*"}
    rules = [{"record": f"panel:{n}", "expr": expression} for n, expression in enumerate(expressions())]
    text = json.dumps({"groups": [{"name": "board", "rules": rules}]})
    for name, value in variables.items():
        text = text.replace(name, value)
    (tmp_path / "rules.yml").write_text(text)
    for kind, path in (("config", DEPLOY / "prometheus.yml"), ("rules", tmp_path / "rules.yml")):
        done = subprocess.run([promtool(), "check", kind, path], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def test_grafana_finds_prometheus_and_the_board() -> None:
    [source] = read("grafana/datasource.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    [provider] = read("grafana/boards.yml")["providers"]
    mounted = [volume.split(":")[1] for volume in read("compose.yaml")["services"]["grafana"]["volumes"]]
    assert any(path.startswith(provider["options"]["path"] + "/") for path in mounted)


def test_the_panels_of_the_board_do_not_overlap_and_say_what_they_show() -> None:
    cells = [
        (x, y)
        for panel in BOARD["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))
    assert all(panel["title"] and panel["description"] and panel["targets"] for panel in BOARD["panels"])


def expressions() -> list[str]:
    return [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
