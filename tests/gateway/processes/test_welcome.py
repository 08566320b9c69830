"""What a person is told at the end of the start: a command that works as it is, and no secret."""

import io
import logging
import shlex
from pathlib import Path

import pytest

from gateway.config.command_line import parse
from gateway.processes.welcome import PLAYGROUND, Welcome, reachable
from jaxengine.rpc import engine_pb2 as pb

DESCRIBED = pb.Description(model_id="org/model", max_total_tokens=2048)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(*flags: str, template: bool = True, description: pb.Description = DESCRIBED) -> list[str]:
    return Welcome(parse(flags, {}), 3001, 1, lambda: template).lines(description)


def command(*flags: str, template: bool = True, description: pb.Description = DESCRIBED) -> list[str]:
    return shlex.split(lines(*flags, template=template, description=description)[-1].removeprefix("try: "))


def test_the_page_and_the_command_have_the_address_that_is_listened_on() -> None:
    page, curl = lines()
    assert page == f"page: http://127.0.0.1:3001{PLAYGROUND}"
    assert "curl http://127.0.0.1:3001/v1/chat/completions -H" in curl


def test_the_command_goes_by_the_proxys_prefix_and_does_not_ask_who_signed_the_certificate(tmp_path: Path) -> None:
    (tmp_path / "chain.pem").touch()
    words = command(f"--ssl-certfile={tmp_path}/chain.pem", "--root-path=/it's", "--hostname=::")
    assert words[:3] == ["curl", "-k", "https://[::1]:3001/it's/v1/chat/completions"]


def test_a_key_is_named_by_its_variable_and_never_shown(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("hush\n")
    for given in ("--api-key=hush", f"--api-key-file={tmp_path}/keys"):
        assert '-H "Authorization: Bearer $API_KEY"' in lines(given)[-1]
        assert "hush" not in "".join(lines(given))
    assert "Bearer" not in "".join(lines())


@pytest.mark.parametrize(
    ("template", "embeds", "route"),
    [(True, False, "/v1/chat/completions"), (False, False, "/v1/completions"), (True, True, "/v1/embeddings")],
)
def test_the_command_asks_for_what_the_model_can_do(template: bool, embeds: bool, route: str) -> None:
    described = pb.Description(model_id="it's", embeds_only=embeds)
    words = command(template=template, description=described)
    assert words[1].endswith(f":3001{route}") and '"model": "it\'s"' in words[-1]
    assert '"model": "mine"' in command("--served-model-name", "mine", "other", description=described)[-1]


def test_without_a_page_there_is_the_command_alone() -> None:
    assert len(lines("--disable-ui")) == 1


def test_it_is_told_once_when_all_engines_have_been_ready(caplog: pytest.LogCaptureFixture) -> None:
    welcome = Welcome(parse([], {}), 3001, 2, lambda: True, stream=io.StringIO())
    with caplog.at_level(logging.INFO, "gateway"):
        welcome.engine_ready(1, DESCRIBED)
        welcome.engine_ready(1, DESCRIBED)
        assert not caplog.records
        for engine in (0, 0, 1):
            welcome.engine_ready(engine, DESCRIBED)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["page", "try"]


def test_a_terminal_gets_lines_to_copy_unless_logs_are_for_machines(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gateway"):
        Welcome(parse([], {}), 3001, 1, lambda: True, stream=(terminal := Terminal())).engine_ready(0, DESCRIBED)
        assert terminal.getvalue().splitlines() == lines() and not caplog.records
        machines = parse(["--json-output"], {})
        Welcome(machines, 3001, 1, lambda: True, stream=(silent := Terminal())).engine_ready(0, DESCRIBED)
        assert silent.getvalue() == "" and len(caplog.records) == 2
        caplog.set_level(logging.WARNING, "gateway")
        Welcome(parse([], {}), 3001, 1, lambda: True, stream=silent).engine_ready(0, DESCRIBED)
    assert silent.getvalue() == ""


@pytest.mark.parametrize(
    ("listened", "host"),
    [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("fd00::1", "[fd00::1]"), ("llm.example", "llm.example")],
)
def test_any_address_is_reached_by_the_loopback(listened: str, host: str) -> None:
    assert reachable(listened) == host
