"""What each of several engines runs on."""

import os
from pathlib import Path

import pytest

from gateway.config.command_line import parse
from gateway.config.options import Options
from gateway.processes import devices
from gateway.processes.devices import places, replicas_problem, split, visible_gpus
from gateway.processes.engine_process import EnginePlace, environment
from jaxengine.options.option import UsageError

HERE = Path("/run/s-1")


@pytest.fixture
def four_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.setattr(devices, "DEVICE_FILES", tmp_path)


def test_one_engine_may_use_whatever_there_is() -> None:
    assert places(Options(num_shard=4), {}, HERE) == [EnginePlace(HERE / "engine.sock")]
    assert environment({"CUDA_VISIBLE_DEVICES": "3"}, "t")["CUDA_VISIBLE_DEVICES"] == "3"


@pytest.mark.usefixtures("four_gpus")
def test_replicas_get_devices_of_their_own() -> None:
    found = places(Options(replicas=2, num_shard=2), {}, HERE)
    assert found == [EnginePlace(HERE / "engine-0.sock", 0, "0,1"), EnginePlace(HERE / "engine-1.sock", 1, "2,3")]
    assert environment({}, "t", found[1].devices)["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert len({each.adapters_file for each in found}) == 2


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, ["0", "1", "2", "3"]),
        ({"CUDA_VISIBLE_DEVICES": "2, GPU-8a,MIG-1"}, ["2", "GPU-8a", "MIG-1"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "1,0,1,-1,2"}, ["1", "0"]),
        ({"JAX_PLATFORMS": "cpu"}, []),
        ({"JAX_PLATFORMS": "cuda,cpu"}, ["0", "1", "2", "3"]),
    ],
)
def test_devices_are_those_that_an_engine_would_see(environ: dict[str, str], found: list[str]) -> None:
    assert visible_gpus(environ) == found


@pytest.mark.usefixtures("four_gpus")
def test_more_devices_than_there_are_is_one_line() -> None:
    assert replicas_problem(Options(replicas=4), {}) is None
    said = replicas_problem(Options(replicas=3, num_shard=2), {})
    assert said == "--replicas 3 with 2 devices each needs 6 devices, and 4 are visible"
    said = replicas_problem(Options(replicas=3), {"CUDA_VISIBLE_DEVICES": "0,1"})
    assert said == "--replicas 3 with a device each needs 3 devices, and 2 are visible"


def test_without_a_gpu_they_get_processors_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 3, 7, 9})
    found = places(Options(replicas=2), {"JAX_PLATFORMS": "cpu"}, HERE)
    assert [each.processors for each in found] == [(0, 2), (3, 7, 9)]
    assert [each.devices for each in found] == [None, None]
    assert split([0, 1], 3) == [(), (), ()]  # they share


def test_all_devices_for_each_of_several_is_refused() -> None:
    with pytest.raises(UsageError, match="--num-shard says how many each has"):
        parse(["--replicas=2", "--sharded=true"], {})
