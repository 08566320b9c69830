"""How long a request and how large a pool memory allows, and what is said where it does not."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jaxengine.architecture.model import Attention, Encoder, LayerKind, ModelSpec, RelativePositions
from jaxengine.cache.limits import Limits
from jaxengine.device import CPU, DeviceTraits
from jaxengine.executor.shapes import Shapes
from jaxengine.options.table import EngineOptions
from jaxengine.sharding import make_mesh
from jaxengine.startup.defaults import derive_limits, resolve_dtype
from jaxengine.startup.memory import (
    CPU_POOL_BYTES,
    Demand,
    check_host,
    clamp_total,
    fitting_pages,
    image_bytes,
    page_bytes,
    pool_pages,
    temporary_bytes,
    tuning_bytes,
)
from jaxengine.startup.place import DoesNotFit, Place
from tests.shapes import FALCON_MAMBA_7B, GEMMA2_9B, GEMMA3_270M, H200, LLAMA_8B, LLAVA_NEXT_7B, QWEN3_5_27B

ROOMY = EngineOptions()
LIMITS = Limits(max_total_tokens=1024, decode_buckets=(4,), mixed_buckets=(64,))  # 64 pages a request


def pages_in_host_memory(cache: str, spec: ModelSpec = LLAMA_8B) -> int:
    demand = Demand(0, 0, 0, 0, 0, 0, page_bytes(spec, 16, cache, 1))
    return fitting_pages(LIMITS, spec, cache, Place(make_mesh(), CPU), demand)


def test_what_was_seen_takes_a_row_of_every_device_and_patches_come_in_two_calls() -> None:
    """Of LLaVA-NeXT: rows of 4096 in bf16, and twice five tiles of patches with 588 numbers."""
    limits = derive_limits(EngineOptions(image_cache_tokens=10_000), LLAVA_NEXT_7B, H200)
    assert image_bytes(limits, LLAVA_NEXT_7B, "bfloat16") == 2 * (10_000 * 4096 + 2 * 5 * 576 * 588)
    assert image_bytes(LIMITS, LLAMA_8B, "bfloat16") == 0


def test_a_cpu_offers_its_share_in_whole_pages_less_the_sink() -> None:
    pages = pages_in_host_memory("float32")
    assert pages == CPU_POOL_BYTES // page_bytes(LLAMA_8B, 16, "float32", 1) - 1


def test_an_8_bit_cache_has_twice_the_pages_of_a_16_bit_one() -> None:
    of_8_bits = [pages_in_host_memory(cache) + 1 for cache in ("float8_e4m3fn", "float8_e5m2")]
    assert of_8_bits == 2 * [2 * (pages_in_host_memory("bfloat16") + 1)]


def test_an_8_bit_cache_has_twice_the_pages_whatever_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels cannot number the elements of 2 to 4 GiB of one byte each, so such a cache lies in several arrays."""
    for gibs in (2, 6, 8, 20, 1024):
        monkeypatch.setattr("jaxengine.startup.memory.CPU_POOL_BYTES", gibs << 30)
        assert pages_in_host_memory("float8_e4m3fn") + 1 == 2 * (pages_in_host_memory("bfloat16") + 1)


def test_of_one_layer_no_more_8_bit_pages_are_made_than_kernels_address(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spec = replace(LLAMA_8B, num_layers=1)
    monkeypatch.setattr("jaxengine.startup.memory.CPU_POOL_BYTES", 6 << 30)
    assert (pages_in_host_memory("float8_e4m3fn", spec) + 1) << 14 == 2**31
    assert "the cache gets 131071 pages of the 196607 that fit" in caplog.text
    assert pages_in_host_memory("bfloat16", spec) == 98303


def test_the_longest_request_shrinks_to_what_fits_unless_it_was_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    limits = derive_limits(ROOMY, LLAMA_8B, CPU)
    assert clamp_total(ROOMY, limits, fit=100).max_total_tokens == 1600
    assert "max_total_tokens is 1600: the model takes 131072, but memory does not" in caplog.text
    assert clamp_total(EngineOptions(max_total_tokens=131072), limits, fit=100) == limits
    assert clamp_total(EngineOptions(max_batch_total_tokens=800), limits, fit=100).max_total_tokens == 800
    assert "max_total_tokens is 800: the model takes 131072, but max_batch_total_tokens does not" in caplog.text
    assert clamp_total(ROOMY, LIMITS, fit=100) == LIMITS


def test_on_a_cpu_a_larger_pool_that_is_asked_for_holds_longer_requests() -> None:
    asked, limits = EngineOptions(max_batch_total_tokens=3200), replace(LIMITS, max_total_tokens=100_000)
    clamped = clamp_total(asked, limits, fit=100)
    assert clamped.max_total_tokens == 3200
    assert pool_pages(asked, clamped, CPU, fit=100) == 201
    with pytest.raises(DoesNotFit, match="max_batch_total_tokens needs a cache of 3200 tokens, 1600 fit: lower it"):
        pool_pages(asked, clamped, H200, fit=100)


def test_a_pool_that_is_asked_for_is_no_larger_than_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4 GiB, one of which the weights take: 3 are left, 3072 pages of a MiB."""
    monkeypatch.setattr("jaxengine.startup.memory.host_memory", lambda: 4 << 30)
    demand = Demand(1 << 30, 0, 0, 0, 0, 0, page=1 << 20)
    asked = EngineOptions(max_batch_total_tokens=3072 * 16)
    check_host(asked, demand, 3072)
    with pytest.raises(
        DoesNotFit, match=r"max_batch_total_tokens 49152 needs a cache of 3.50 GiB, this machine has 3.00 GiB beside"
    ):
        check_host(asked, demand, 3584)
    check_host(ROOMY, demand, 3584)


def test_states_are_no_larger_than_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4 GiB, one of which the weights take. Where these alone are too large, states are not to blame."""
    monkeypatch.setattr("jaxengine.startup.memory.host_memory", lambda: 4 << 30)
    limits, place = replace(LIMITS, snapshots=100), Place(make_mesh(), CPU)
    demand = Demand(1 << 30, 0, 0, 0, 0, 0, page=1 << 20, slots=3 << 30)
    assert fitting_pages(limits, LLAMA_8B, "float32", place, demand) == 2047
    with pytest.raises(DoesNotFit, match=r"of 4 requests and of 100 prefixes take 4\.00 GiB, 1\.00 GiB more"):
        fitting_pages(limits, LLAMA_8B, "float32", place, replace(demand, slots=4 << 30))
    fitting_pages(limits, LLAMA_8B, "float32", place, replace(demand, weights=5 << 30))


def test_a_pool_is_measured_by_what_each_table_keeps_of_the_longest_request() -> None:
    """16 pages each of two tables that see 100 positions, in steps of 64 tokens, and all of the third."""
    limits = replace(LIMITS, windows=(0, 100, 100))
    assert limits.request_pages == 64 + 2 * 16
    assert pool_pages(EngineOptions(max_batch_total_tokens=512), limits, H200, fit=1000) == 3 * 32 + 1
    with pytest.raises(DoesNotFit, match="max_total_tokens needs a cache of 512 tokens, 496 fit: lower it"):
        pool_pages(ROOMY, limits, H200, fit=95)
    derived = replace(limits, max_total_tokens=100_000)
    for fit, holds in ((60, 28 * 16), (95, 63 * 16), (96, 64 * 16)):
        assert clamp_total(ROOMY, derived, fit).max_total_tokens == holds


@pytest.mark.parametrize(
    ("options", "limits", "fit"),
    [
        (ROOMY, replace(LIMITS, windows=(0, 100, 100)), 2),
        (EngineOptions(max_batch_total_tokens=16), replace(LIMITS, encode_buckets=(64,)), 100),
    ],
)
def test_a_pool_too_small_for_any_request_is_refused(options: EngineOptions, limits: Limits, fit: int) -> None:
    with pytest.raises(DoesNotFit, match=r"a request of 16 tokens takes . pages, .* gives [12]"):
        clamp_total(options, limits, fit)


@pytest.mark.parametrize(("spec", "then"), [(GEMMA3_270M, 5.5), (GEMMA2_9B, 1.77)])
def test_of_long_texts_more_fit_where_layers_have_windows_and_of_short_ones_no_fewer(
    spec: ModelSpec, then: float
) -> None:
    """Texts of 200 and of 32,768 tokens as they grow, against pages that span all layers."""
    limits = derive_limits(EngineOptions(max_batch_prefill_tokens=16, max_batch_size=16), spec, CPU)
    of_all = page_bytes(replace(spec, kinds=(LayerKind(),)), 16, "bfloat16", 1)
    page = page_bytes(spec, 16, "bfloat16", 1)
    for tokens, more in ((200, 1.0), (32768, then)):
        before, after = -(-tokens // 16) * of_all, limits.peak_pages(tokens) * page
        assert before / after == pytest.approx(more, rel=0.01)


def test_the_pool_holds_what_the_largest_batch_can_use_and_no_more() -> None:
    assert pool_pages(ROOMY, LIMITS, CPU, fit=100) == 101
    assert pool_pages(ROOMY, LIMITS, CPU, fit=10_000) == 4 * 64 + 1
    assert pool_pages(EngineOptions(max_batch_total_tokens=2000), LIMITS, H200, fit=10_000) == 125 + 1


def test_a_page_of_states_is_a_request_however_long() -> None:
    """Of Falcon-Mamba 7B: 3 inputs in bf16 and 16 states in f32 for each of 8,192 channels in 64 layers."""
    limits = derive_limits(EngineOptions(max_total_tokens=500_000), FALCON_MAMBA_7B, H200)
    assert limits.page_size == 500_000
    assert page_bytes(FALCON_MAMBA_7B, limits.page_size, "bfloat16", 1) == 64 * 8192 * (3 * 2 + 16 * 4)
    assert page_bytes(FALCON_MAMBA_7B, limits.page_size, "bfloat16", 4) == 16 * 8192 * (3 * 2 + 16 * 4)
    assert pool_pages(EngineOptions(), limits, H200, fit=10_000) == limits.max_batch_size + 1
    assert pool_pages(EngineOptions(max_batch_total_tokens=2_000_000), limits, H200, fit=10_000) == 4 + 1


@pytest.mark.parametrize(
    ("options", "fit", "message"),
    [
        (ROOMY, 63, "max_total_tokens needs a cache of 1024 tokens, 1008 fit: lower it"),
        (EngineOptions(max_batch_total_tokens=1000), 63, "max_batch_total_tokens 1000 holds no request of"),
        (EngineOptions(max_batch_total_tokens=3200), 100, "max_batch_total_tokens needs a cache of 3200 tokens"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_option_to_change(options: EngineOptions, fit: int, message: str) -> None:
    with pytest.raises(DoesNotFit, match=message):
        pool_pages(options, LIMITS, H200, fit)


@pytest.mark.parametrize(
    ("asked", "checkpoint", "device", "dtype"),
    [
        ("auto", "bfloat16", CPU, "float32"),
        ("auto", "float16", H200, "float16"),
        ("auto", "float32", H200, "bfloat16"),
        ("float32", "float16", H200, "float32"),
    ],
)
def test_auto_is_the_type_that_is_fast_there(asked: str, checkpoint: str, device: DeviceTraits, dtype: str) -> None:
    assert resolve_dtype(EngineOptions(dtype=asked), LLAMA_8B, checkpoint, device) == dtype


def test_what_overflows_f16_is_never_served_in_it() -> None:
    t5 = replace(LLAMA_8B, attention=Attention(relative=RelativePositions(32, 128)), encoder=Encoder(2, 0))
    assert resolve_dtype(ROOMY, t5, "float16", H200) == "bfloat16"
    with pytest.raises(ValueError, match=r"dtype 'float16' cannot hold .*: use 'bfloat16' or 'float32'"):
        resolve_dtype(EngineOptions(dtype="float16"), t5, "float16", H200)
    bart = replace(LLAMA_8B, encoder=Encoder(2, 0))
    assert resolve_dtype(EngineOptions(dtype="float16"), bart, "float32", H200) == "float16"


class ScratchPerSample:
    """In place of a compiler: a backbone takes a byte for each token, a sampler 100 for each sample, a block of a
    prompt's logits one, and copies of slots 5000.
    """

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes

    def lower_backbone(self, shape: Any) -> int:
        return int(shape.tokens)

    def lower_sample(self, samples: int, greedy: bool) -> int:
        return 100 * samples

    def lower_logits(self) -> int:
        return 1

    def lower_copy_slots(self) -> int:
        return 5000

    def compile(self, lowered: int) -> Any:
        sizes = SimpleNamespace(temp_size_in_bytes=lowered, output_size_in_bytes=0, alias_size_in_bytes=0)
        return SimpleNamespace(memory_analysis=lambda: sizes)


def scratch(spec: ModelSpec, speculate: int) -> int:
    options = EngineOptions(max_batch_size=4, speculate=speculate, max_batch_prefill_tokens=256)
    shapes = Shapes(spec, derive_limits(options, spec, H200), "bfloat16", 64, 16, 20, "bfloat16")
    return temporary_bytes(ScratchPerSample(shapes))  # type: ignore[arg-type]


def test_memory_is_set_aside_for_the_samples_of_steps_that_verify_drafts() -> None:
    """Of few rows, they have more than any other."""

    assert scratch(LLAMA_8B, 0) == 400
    assert scratch(LLAMA_8B, 15) == 6400


def test_memory_is_set_aside_for_copies_of_what_layers_keep() -> None:
    assert scratch(QWEN3_5_27B, 0) == 5000


def test_room_to_time_the_largest_product_is_no_great_share_of_a_small_gpu() -> None:
    assert tuning_bytes(1 << 30, 140 << 30) == 1 << 30
    assert tuning_bytes(1 << 30, 20 << 30) == (20 << 30) // 50
