"""How long a request and how large a pool memory allows, and what is said where it does not."""

import pytest

from jaxengine.memory import CPU_POOL_BYTES, DoesNotFit, clamp_total, fitting_pages, page_bytes, pool_pages
from jaxengine.options import EngineOptions, Limits, derive_limits, resolve_dtype
from jaxengine.sharding import make_mesh
from tests.shapes import LLAMA_8B

ROOMY = EngineOptions()
LIMITS = Limits(max_total_tokens=1024, decode_buckets=(4,), mixed_buckets=(64,))  # 64 pages a request


def test_a_cpu_offers_its_share_in_whole_pages_less_the_sink() -> None:
    pages = fitting_pages(ROOMY, LIMITS, LLAMA_8B, "float32", make_mesh(), temporaries=0)
    assert pages == CPU_POOL_BYTES // page_bytes(LLAMA_8B, 16, "float32", 1) - 1


def test_the_longest_request_shrinks_to_what_fits_unless_it_was_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    limits = derive_limits(ROOMY, LLAMA_8B, "cpu")
    assert clamp_total(ROOMY, limits, fit=100).max_total_tokens == 1600
    assert "max_total_tokens is 1600" in caplog.text
    assert clamp_total(EngineOptions(max_total_tokens=131072), limits, fit=100) == limits
    assert clamp_total(EngineOptions(max_batch_total_tokens=800), limits, fit=100).max_total_tokens == 800
    assert clamp_total(ROOMY, LIMITS, fit=100) == LIMITS


def test_the_pool_holds_what_the_largest_batch_can_use_and_no_more() -> None:
    assert pool_pages(ROOMY, LIMITS, "cpu", fit=100) == 101
    assert pool_pages(ROOMY, LIMITS, "cpu", fit=10_000) == 4 * 64 + 1
    assert pool_pages(EngineOptions(max_batch_total_tokens=2000), LIMITS, "gpu", fit=10_000) == 125 + 1


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
        pool_pages(options, LIMITS, "gpu", fit)


@pytest.mark.parametrize(
    ("asked", "checkpoint", "platform", "dtype"),
    [
        ("auto", "bfloat16", "cpu", "float32"),
        ("auto", "float16", "gpu", "float16"),
        ("auto", "float32", "gpu", "bfloat16"),
        ("float32", "float16", "gpu", "float32"),
    ],
)
def test_auto_is_the_type_that_is_fast_there(asked: str, checkpoint: str, platform: str, dtype: str) -> None:
    assert resolve_dtype(EngineOptions(dtype=asked), checkpoint, platform) == dtype
