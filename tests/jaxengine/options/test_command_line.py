"""The table of an engine's options: one row reaches the launcher, the engine's command line and the engine."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from gateway.config import command_line as launcher
from gateway.config.options import Options
from gateway.processes import engine_process
from gateway.processes.engine_process import EnginePlace
from jaxengine import server
from jaxengine.options.command_line import arguments, parse, sections
from jaxengine.options.group import GroupOptions
from jaxengine.options.option import UsageError, flag
from jaxengine.options.plan import PlanOptions
from jaxengine.options.speculation import Speculation
from jaxengine.options.table import CheckpointOptions, ComputeOptions, EngineOptions, ServeOptions
from jaxengine.service.process import StartupError

ROWS = {row.name: row for row in dataclasses.fields(ServeOptions)}
PUBLISHED = [
    row.name for table in (CheckpointOptions, ComputeOptions, GroupOptions) for row in dataclasses.fields(table)
]
OF_GROUPS = [row.name for row in dataclasses.fields(GroupOptions)]
OF_THE_ENGINE = [row.name for row in dataclasses.fields(EngineOptions)]
SOCKET = "--uds-path=/s/engine.sock"
DRAFTS = '{"num_speculative_tokens": 3}'


def example(name: str) -> tuple[str, Any]:
    """A text that the option takes, and its value, which is not the default."""
    kind, default = ROWS[name].metadata["parse"], ROWS[name].default
    texts = ("7", "true", "false", "http://a.example", DRAFTS)
    for text in (*kind.shown.split("|"), kind.shown.partition("..")[0], *texts):
        try:
            value = kind(text)
        except ValueError:
            continue
        if value != default:
            return text, (value,) if isinstance(default, tuple) else value
    raise AssertionError(f"no example of {name}")


def loaded_with(argv: list[str], monkeypatch: pytest.MonkeyPatch, cache: Path) -> EngineOptions:
    """What an engine process with this command line would start its engine with."""
    told: list[EngineOptions] = []

    def load_engine(model: object, options: EngineOptions, progress: object, **_: object) -> None:
        told.append(options)
        raise ValueError("this is all the test asks")

    for name in ("XLA_CLIENT_MEM_FRACTION", *server.SECRETS):  # which loading sets, and drops
        monkeypatch.setitem(os.environ, name, "")
    monkeypatch.setattr("convert.source.open_model", lambda *_, **__: None)
    monkeypatch.setattr("jaxengine.executor.compile_cache.enable_compile_cache", lambda _: None)
    monkeypatch.setattr("jaxengine.startup.build.load_engine", load_engine)
    with pytest.raises(StartupError, match="all the test asks"):
        server.load(parse([*argv, f"--cache-dir={cache}"]), lambda _: None)
    return told[0]


@pytest.mark.parametrize("name", ROWS)
def test_what_is_written_for_an_option_is_read_as_the_same(name: str) -> None:
    text, value = example(name)
    options = parse([*([SOCKET] if name != "uds_path" else []), f"{flag(name)}={text}"])
    assert getattr(options, name) == value
    assert parse(arguments(options)) == options


@pytest.mark.parametrize("name", OF_THE_ENGINE)
def test_every_row_reaches_the_engine_by_the_real_command_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, value = example(name)
    told = loaded_with([SOCKET, f"{flag(name)}={text}"], monkeypatch, tmp_path)
    assert (getattr(told, name) or 1) == (value or 1)  # of devices, 0 stands for those that there are


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in ("lora_adapters", *OF_GROUPS)])
def test_an_option_that_the_launcher_takes_too_reaches_the_engine_from_there(name: str) -> None:
    text, value = example(name)
    for options in (launcher.parse([f"{flag(name)}={text}"], {}), launcher.parse([], {name.upper(): text})):
        command = engine_process.command(options, EnginePlace(Path("/s/engine.sock")), 7)
        assert getattr(parse(command[5:]), name) == value


def test_a_group_reaches_the_engine_with_its_key_by_an_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["--nnodes=2", "--node-rank=1", "--master-addr=a", "--group-key-file=key", "--engine-hang-timeout=7"]
    told = parse(engine_process.command(launcher.parse(given, {}), EnginePlace(Path("/s/engine.sock")), 7)[5:])
    assert (told.nnodes, told.node_rank, told.master_addr, told.master_port) == (2, 1, "a", 29500)
    assert told.group_key_file == tmp_path / "key" and told.group_patience == 5.25
    assert told.tensor_parallel == 0, "all devices of each machine"


def test_adapters_reach_the_engine_by_name_and_a_local_one_by_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    entries = "mine,org/one@v1,two=./mine"
    for options in (
        launcher.parse(["--lora-adapters", entries, "--merge-adapter=mine"], {}),
        launcher.parse(["--merge-adapter=mine"], {"LORA_ADAPTERS": entries}),
    ):
        told = parse(engine_process.command(options, EnginePlace(Path("/s/engine.sock")), 7)[5:])
        assert told.lora_adapters == (f"mine={tmp_path}/mine", "org/one=org/one@v1", f"two={tmp_path}/mine")
        assert told.merge_adapter == f"{tmp_path}/mine"


def test_a_drafter_reaches_the_engine_by_its_absolute_path_and_an_id_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("heads", "ngram", "[ngram]"):
        (tmp_path / name).mkdir()
    for config, meant in (
        ({"model": "heads", "num_speculative_tokens": 2}, Speculation(2, model=f"{tmp_path}/heads")),
        ({"model": "./heads", "method": "medusa"}, Speculation(method="medusa", model=f"{tmp_path}/heads")),
        ({"model": "org/heads@v1", "method": None}, Speculation(model="org/heads@v1")),
        ({"model": "org/heads", "revision": "v1"}, Speculation(model="org/heads@v1")),
        ({"model": "ngram", "num_speculative_tokens": 2}, Speculation(2, "ngram")),
        ({"model": "[ngram]", "num_speculative_tokens": 2}, Speculation(2, "ngram")),
    ):
        options = launcher.parse([f"--speculative-config={json.dumps(config)}"], {})
        assert parse(engine_process.command(options, EnginePlace(Path("/s/engine.sock")), 7)[5:]).speculation == meant


def test_the_launcher_takes_no_other_option_of_the_table() -> None:
    """The others have another name there, or are derived."""
    both = {"model_id", "otlp_endpoint", "otlp_service_name", "json_output"}
    assert ROWS.keys() & {row.name for row in dataclasses.fields(Options)} == both | set(PUBLISHED)


def test_an_option_that_takes_several_is_written_and_read_as_several() -> None:
    options = parse([SOCKET, "--lora-adapters", "a", "b=/data/b", "--lora-adapters=c"])
    assert options.lora_adapters == ("a", "b=/data/b", "c")
    assert parse(arguments(options)) == options


def test_a_switch_that_is_on_by_default_can_be_turned_off() -> None:
    options = parse([SOCKET, "--prefix-cache=false"])
    assert not options.prefix_cache
    assert "--prefix-cache=false" in arguments(options)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("max_batch_size", 0, "must be between 1 and 65536"),
        ("dtype", "int3", "must be one of auto, float32, float16, bfloat16"),
        ("page_size", 17, "must be one of 16, 32, 64, 128"),
        ("tensor_parallel", 1.5, "must be a whole number"),
        ("dtype", None, "must be one of auto, float32, float16, bfloat16"),
    ],
)
def test_a_wrong_value_is_refused_in_python_and_on_the_command_line(name: str, value: object, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} {reason}, got {value!r}$"):
        EngineOptions(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"^{flag(name)} '{value}' {reason}$"):
        parse([SOCKET, f"{flag(name)}={value}"])


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        ([], "--uds-path"),
        ([SOCKET, "--no-such"], "--no-such"),
        (["--uds-pth=x"], r"--uds-pth is unknown \(did you mean --uds-path\?\)"),
    ],
)
def test_an_option_that_is_missing_or_unknown_is_named(argv: list[str], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        parse(argv)


@pytest.mark.parametrize("table", [ServeOptions, PlanOptions])
def test_help_has_every_option_once_under_the_title_of_its_concern(table: type[Any]) -> None:
    found = sections(table)
    names = [name for names in found.values() for name in names]
    assert sorted(names) == sorted(row.name for row in dataclasses.fields(table))
    assert None not in found and next(iter(found)) == table.title
    assert found["Model"] == [row.name for row in dataclasses.fields(CheckpointOptions)]


def test_a_second_name_of_a_value_means_the_first() -> None:
    options = EngineOptions(quantize="eetq", kv_cache_dtype="fp8", attention="flashinfer")
    assert (options.quantize, options.kv_cache_dtype, options.attention) == ("eetq", "fp8_e4m3fn", "auto")
