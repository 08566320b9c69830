"""The back end is chosen at start; what cannot run is refused with what is supported, and never replaced."""

from dataclasses import replace

import pytest

from jaxengine.architecture.latent import Latent
from jaxengine.device import CPU, DeviceTraits
from jaxengine.ops import BACKENDS, AttentionSpec, Ops, choose_backend
from jaxengine.sharding import make_mesh
from tests.shapes import H200


def gpu(capability: tuple[int, int] | None) -> DeviceTraits:
    return replace(H200, capability=capability)


@pytest.mark.parametrize("attention", ["auto", "triton"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_a_gpu_runs_the_kernels(attention: str, dtype: str, head_dim: int) -> None:
    assert choose_backend(attention, H200, head_dim, group=4, dtype=dtype) == "triton"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_heads_of_512_run_in_16_bits(dtype: str) -> None:
    assert choose_backend("auto", H200, 512, group=8, dtype=dtype) == "triton"


def test_a_cpu_runs_the_reference() -> None:
    assert choose_backend("auto", CPU, 128, group=4, dtype="float32") == "reference"


def test_the_reference_runs_anywhere_if_asked_for() -> None:
    assert choose_backend("reference", gpu((7, 5)), 1000, group=500, dtype="float32") == "reference"


@pytest.mark.parametrize(
    ("attention", "device", "head_dim", "group", "dtype", "words"),
    [
        ("flash", CPU, 128, 4, "float32", "attention must be one of auto, reference, triton, got 'flash'"),
        ("triton", CPU, 128, 4, "float32", r"triton needs an NVIDIA GPU, this is cpu \(cpu\)"),
        ("auto", gpu((7, 5)), 128, 4, "float16", "compute capability 8.0 or newer, NVIDIA H200 has 7.5"),
        ("auto", gpu(None), 128, 4, "float16", "triton needs an NVIDIA GPU"),
        ("auto", H200, 520, 4, "bfloat16", "head_dim 16 to 512 in multiples of 8, the model has 520"),
        ("auto", H200, 100, 4, "bfloat16", "head_dim 16 to 512 in multiples of 8, the model has 100"),
        ("auto", H200, 512, 4, "float32", "head_dim up to 256 in float32, the model has 512; use bfloat16"),
        ("auto", H200, 512, 33, "bfloat16", "up to 32 query heads of 512 per key/value head, the model has 33"),
        ("auto", H200, 128, 129, "bfloat16", "up to 128 query heads of 128 per key/value head, the model has 129"),
        ("auto", H200, 256, 71, "bfloat16", "up to 64 query heads of 256 per key/value head, the model has 71"),
        ("auto", H200, 128, 4, "float64", "dtype bfloat16, float16, float32, got float64"),
    ],
)
def test_what_cannot_run_is_refused_in_one_sentence(
    attention: str, device: DeviceTraits, head_dim: int, group: int, dtype: str, words: str
) -> None:
    with pytest.raises(ValueError, match=words) as refusal:
        choose_backend(attention, device, head_dim, group, dtype)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("latent", "dtype", "words"),
    [
        (Latent(512, 128, 64, 128), "bfloat16", ""),
        (Latent(256, 64, 32, 64), "float16", ""),
        (Latent(768, 128, 64, 128), "bfloat16", "latents of rank 16 to 512 in multiples of 8, the model has 768"),
        (Latent(512, 128, 72, 128), "bfloat16", "latents of rope_dim 16 to 64 in multiples of 8, the model has 72"),
        (Latent(512, 128, 64, 128), "float32", "latents of dtype bfloat16, float16, got float32"),
    ],
)
def test_latents_are_refused_by_their_own_sizes(latent: Latent, dtype: str, words: str) -> None:
    if not words:
        assert choose_backend("auto", H200, latent.head_dim, 128, dtype, latent=latent) == "triton"
        return
    with pytest.raises(ValueError, match=words):
        choose_backend("auto", H200, latent.head_dim, 128, dtype, latent=latent)


def test_kernels_read_e4m3_from_ada_on_and_e5m2_wherever_they_run() -> None:
    assert choose_backend("auto", gpu((8, 9)), 128, 4, "bfloat16", "float8_e4m3fn") == "triton"
    assert choose_backend("auto", gpu((8, 0)), 128, 4, "bfloat16", "float8_e5m2") == "triton"
    with pytest.raises(ValueError, match=r"a cache of float8_e4m3fn needs compute capability 8\.9 or newer"):
        choose_backend("auto", gpu((8, 0)), 128, 4, "bfloat16", "float8_e4m3fn")


def test_an_unknown_back_end_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'flash' is not one of reference, triton"):
        Ops("flash", make_mesh(1))
    assert set(BACKENDS) == {"reference", "triton"}


@pytest.mark.parametrize("wrong", [{"window": -1}, {"softcap": -0.5}])
def test_a_spec_without_meaning_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be at least 0"):
        AttentionSpec(**wrong)  # type: ignore[arg-type]


def test_a_model_without_attention_has_the_gpu_s_kernels_too() -> None:
    assert choose_backend("auto", H200, head_dim=0, group=0, dtype="bfloat16") == "triton"
