"""The traits of a device are those of its kind, read once from what JAX says of it."""

from dataclasses import dataclass, replace
from pathlib import Path

import jax
import pytest

from jaxengine import device
from jaxengine.device import CPU, DeviceTraits


@dataclass(frozen=True)
class Gpu:
    compute_capability: str
    platform: str = "gpu"
    device_kind: str = "NVIDIA H200"


def test_the_cpu_of_this_machine_has_a_cpu_s_traits() -> None:
    found = DeviceTraits.of(jax.devices("cpu")[0])
    assert found == replace(CPU, multiplies_bf16=found.multiplies_bf16)
    assert CPU.on_host and CPU.capability is None


@pytest.mark.parametrize(("said", "capability"), [("9.0", (9, 0)), ("12.1", (12, 1)), ("gfx942", None)])
def test_only_an_nvidia_gpu_has_a_capability(said: str, capability: tuple[int, int] | None) -> None:
    traits = DeviceTraits.of(Gpu(said))
    assert (traits.platform, traits.kind, traits.capability) == ("gpu", "NVIDIA H200", capability)
    assert traits.kernels and not traits.on_host and not traits.input_major


@pytest.mark.parametrize(
    ("cpuinfo", "multiplies"),
    [
        ("processor : 0\nflags\t\t: fpu avx512f avx512_bf16 amx_tile\n", True),
        ("flags : fpu amx_bf16\nflags : fpu amx_bf16\n", True),
        ("flags : fpu avx2 avx512_vnni\n", False),
        ("Features : fp asimd bf16\n", False),
        (None, False),
    ],
)
def test_a_cpu_says_whether_it_multiplies_bf16(
    cpuinfo: str | None, multiplies: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(device, "CPUINFO", tmp_path / "cpuinfo")
    assert DeviceTraits.of(jax.devices("cpu")[0]).multiplies_bf16 is multiplies
