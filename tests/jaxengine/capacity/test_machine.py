"""What a plan is made for: devices by name, and those of a machine as its driver tells them."""

import os
from pathlib import Path

import pytest

from jaxengine.capacity.gpus import ALIASES, GPUS, find
from jaxengine.capacity.machine import Machine, here, named
from jaxengine.startup.host import host_memory


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [
        ("h200", "NVIDIA H200", 1),
        ("h200x8", "NVIDIA H200", 8),
        ("8xH200", "NVIDIA H200", 8),
        ("H200 x 8", "NVIDIA H200", 8),
        ("h200*2", "NVIDIA H200", 2),
        ("h200:4", "NVIDIA H200", 4),
        ("a100", "NVIDIA A100-SXM4-80GB", 1),
        ("A100-40GBx2", "NVIDIA A100-SXM4-40GB", 2),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB", 1),
        ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090", 1),
        ("rtx4090x2", "NVIDIA GeForce RTX 4090", 2),
        ("l40s", "NVIDIA L40S", 1),
    ],
)
def test_devices_by_name(text: str, name: str, count: int) -> None:
    gpu, many = named(text)
    assert gpu is not None
    assert (gpu.name, many) == (name, count)


def test_a_cpu_is_no_gpu() -> None:
    assert named("cpu") == (None, 1)


@pytest.mark.parametrize("text", ["", "x8", "h200x", "2xh200x2", "cpux2", "tpu", "h200x0", "h200x65", "h200x1.5"])
def test_what_no_machine_has_is_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"must be cpu, or a GPU as in h200x8, one of a10, .*|must be 1 to 64 of a GPU"
    ):
        named(text)


def test_every_name_is_found() -> None:
    assert all(find(name) is gpu and find(gpu.name) is gpu for name, gpu in GPUS.items())
    assert all(find(name) is GPUS[meant] for name, meant in ALIASES.items())


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS.keys())
def test_no_figure_is_off_by_a_thousand(gpu: object) -> None:
    """Between the smallest and the largest that are sold."""
    assert 20e9 < gpu.memory < 300e9  # type: ignore[attr-defined]
    assert 300e9 <= gpu.bandwidth <= 8000e9  # type: ignore[attr-defined]
    assert 70e12 <= gpu.rate <= 2500e12  # type: ignore[attr-defined]
    assert (8, 0) <= gpu.capability <= (12, 0)  # type: ignore[attr-defined]


def test_tensor_cores_of_workstations_accumulate_in_f32_at_their_full_rate() -> None:
    """512 products a core and clock in bf16, at the boost clock; half as many where NVIDIA sells them to gamers."""
    assert GPUS["rtx6000-pro"].rate == pytest.approx(188 * 1024 * 2.617e9, rel=0.01)
    assert GPUS["rtx5090"].rate == pytest.approx(170 * 512 * 2.407e9, rel=0.01)
    assert GPUS["a10"].rate == pytest.approx(72 * 1024 * 1.695e9, rel=0.01)
    assert find("NVIDIA A10") is not find("NVIDIA A10G")


def test_an_engine_may_take_a_share_of_a_gpu_and_all_of_a_host() -> None:
    assert Machine.of(GPUS["h200"], 8, 0.5).usable == GPUS["h200"].memory // 2
    host = Machine.of(None, 1, 0.5)
    assert host.usable == host.memory == host_memory()


def test_a_container_has_what_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = tmp_path / "memory.max"
    monkeypatch.setattr("jaxengine.startup.host.CONTAINER", limit)
    for told, memory in ((None, whole), ("max", whole), ("1073741824", 1 << 30), (str(2 * whole), whole)):
        if told:
            limit.write_text(f"{told}\n")
        assert host_memory() == memory


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in nvidia-smi's place, that prints what is written to the path."""
    told = tmp_path / "told"
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\n[ "$2" = "--format=csv,noheader,nounits" ] || exit 2\ncat {told}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return told


def test_this_machine_s_gpus_are_those_of_its_driver(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.write_text("".join(f"NVIDIA H200, 143771, 9.0, GPU-{number}f3a-77\n" for number in range(4)))
    assert here() == (GPUS["h200"], 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert here() == (GPUS["h200"], 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-2f3a, GPU-3f3a-77,1")
    assert here() == (GPUS["h200"], 3)
    for nothing in ("", "-1", "-1,2"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", nothing)
        assert here() == (None, 1)


@pytest.mark.parametrize("name", ["MIG-7d0f", "GPU-", "2", "GPU-9"])
def test_a_device_that_the_driver_does_not_name_is_refused(
    name: str, driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan for the processors instead would be of another machine."""
    driver.write_text("NVIDIA H200, 143771, 9.0, GPU-0f3a\nNVIDIA H200, 143771, 9.0, GPU-1f3a\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", name)
    with pytest.raises(ValueError, match=f"names '{name}', which is none of this machine's GPUs"):
        here()


def test_a_gpu_that_is_not_known_has_memory_but_no_speeds(driver: Path) -> None:
    driver.write_text("NVIDIA Future 1, 1000, 15.3, GPU-0\n")
    gpu, count = here()
    assert gpu is not None
    assert (gpu.name, gpu.capability, gpu.memory, gpu.bandwidth, count) == (
        "NVIDIA Future 1",
        (15, 3),
        1000 << 20,
        0,
        1,
    )


def test_gpus_that_differ_are_no_machine_to_plan_for(driver: Path) -> None:
    driver.write_text("NVIDIA H200, 143771, 9.0, GPU-0\nNVIDIA L4, 23034, 8.9, GPU-1\n")
    with pytest.raises(ValueError, match=r"GPUs differ \(NVIDIA H200, NVIDIA L4\)"):
        here()


def test_a_driver_that_fails_is_no_gpu(driver: Path) -> None:
    assert not driver.exists()
    assert here() == (None, 1)


@pytest.mark.parametrize("told", ["[N/A], 12.1", "1000, [N/A]"])
def test_a_gpu_that_the_driver_does_not_describe_is_refused_by_name(told: str, driver: Path) -> None:
    """Nvidia's own words for one that shares the processor's memory."""
    driver.write_text(f"NVIDIA Unknown 10, {told}, GPU-0\n")
    with pytest.raises(ValueError, match=r"NVIDIA Unknown 10 the driver tells memory .*\[N/A\].*: name a kind"):
        here()
