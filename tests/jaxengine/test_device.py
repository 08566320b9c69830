"""The traits of a device are those of its kind, read once from what JAX says of it."""

from dataclasses import dataclass

import jax
import pytest

from jaxengine.device import CPU, DeviceTraits


@dataclass(frozen=True)
class Gpu:
    compute_capability: str
    platform: str = "gpu"
    device_kind: str = "NVIDIA H200"


def test_the_cpu_of_this_machine_has_a_cpu_s_traits() -> None:
    assert DeviceTraits.of(jax.devices("cpu")[0]) == CPU
    assert CPU.on_host and CPU.capability is None


@pytest.mark.parametrize(("said", "capability"), [("9.0", (9, 0)), ("12.1", (12, 1)), ("gfx942", None)])
def test_only_an_nvidia_gpu_has_a_capability(said: str, capability: tuple[int, int] | None) -> None:
    traits = DeviceTraits.of(Gpu(said))
    assert (traits.platform, traits.kind, traits.capability) == ("gpu", "NVIDIA H200", capability)
    assert traits.kernels and not traits.on_host and not traits.input_major
