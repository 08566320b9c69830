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
    assert found == replace(CPU, int8_products=found.int8_products)
    assert CPU.on_host and CPU.capability is None


@pytest.mark.parametrize(("said", "capability"), [("9.0", (9, 0)), ("12.1", (12, 1)), ("gfx942", None)])
def test_only_an_nvidia_gpu_has_a_capability(said: str, capability: tuple[int, int] | None) -> None:
    traits = DeviceTraits.of(Gpu(said))
    assert (traits.platform, traits.kind, traits.capability) == ("gpu", "NVIDIA H200", capability)
    assert traits.kernels and not traits.on_host


@pytest.mark.parametrize(
    ("said", "kib"), [("8.0", 163), ("8.6", 99), ("8.9", 99), ("9.0", 227), ("10.0", 163), ("10.3", 163), ("12.0", 99)]
)
def test_products_take_the_shared_memory_that_their_gpu_has_use_for(said: str, kib: int) -> None:
    assert DeviceTraits.of(Gpu(said)).shared_memory == kib


AMD, INTEL = "vendor_id\t: AuthenticAMD\n", "vendor_id\t: GenuineIntel\n"


@pytest.mark.parametrize(
    ("cpuinfo", "products"),
    [
        (AMD + "flags\t\t: fpu avx512f avx512_bf16 avx512_vnni\n", "bf16"),
        (INTEL + "flags\t\t: fpu avx512f avx512_bf16 avx512_vnni\n\nflags : fpu\n", "integers"),
        (INTEL + "flags : fpu avx_vnni\n", "integers"),
        (INTEL + "flags : fpu amx_int8\n", "integers"),
        (INTEL + "flags : fpu avx512f\n", "f32"),
        (AMD + "flags : fpu avx2 avx512_vnni\n", "f32"),
        ("Features : fp asimd bf16\n", "f32"),
        (None, "f32"),
    ],
)
def test_a_cpu_multiplies_int8_as_is_fastest(
    cpuinfo: str | None, products: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(device, "CPUINFO", tmp_path / "cpuinfo")
    assert DeviceTraits.of(jax.devices("cpu")[0]).int8_products == products
