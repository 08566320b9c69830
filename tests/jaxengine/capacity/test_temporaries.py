"""What a step of prompts is estimated to need, where matrices in few bits are written out. How near it is to what XLA
says, `tests/gpu_compile/test_temporaries.py` tells.
"""

from dataclasses import replace

import pytest

from jaxengine.architecture.adaptation import Adaptable, AdapterShapes
from jaxengine.architecture.model import LayerKind, ModelSpec
from jaxengine.capacity.temporaries import estimated_temporaries, of_prompts
from jaxengine.device import CPU, DeviceTraits
from jaxengine.executor.shapes import Shapes
from jaxengine.ops.triton import dequantised
from jaxengine.ops.triton.grouped import MANY_TOKENS
from jaxengine.options.table import EngineOptions
from jaxengine.startup.defaults import derive_limits
from jaxengine.weights.quantization import chosen_formats
from tests.shapes import H200, LLAMA_8B, LLAMA_70B, MIXTRAL, QWEN3_5_27B

MIB = 1 << 20


def estimate(
    spec: ModelSpec,
    quantize: str | None,
    tokens: int,
    devices: int = 1,
    dtype: str = "bfloat16",
    device: DeviceTraits = H200,
    adapters: AdapterShapes | None = None,
) -> int:
    limits = replace(derive_limits(EngineOptions(max_total_tokens=8192), spec, H200), mixed_buckets=(tokens,))
    shapes = Shapes(spec, limits, dtype, 4096, limits.page_size, 20, dtype, adapters)
    return of_prompts(shapes, devices, device, chosen_formats(spec, quantize, devices))


@pytest.mark.parametrize("quantize", ["int4", "nf4", "int8", "fp8"])
@pytest.mark.parametrize(
    ("tokens", "devices", "mebibytes"),
    [
        (2048, 1, 48 + 112 + 224),  # of hidden states, gate and up, and their matrix; XLA says 369
        (2048, 8, 48 + 16 + 28),  # gate and up are narrower than what they are made of
        (1 << 16, 1, 1536 + 5376),  # of hidden states, gate, up and activation: these are larger
    ],
)
def test_the_largest_matrix_is_counted_beside_its_product(
    quantize: str, tokens: int, devices: int, mebibytes: int
) -> None:
    assert estimate(LLAMA_8B, quantize, tokens, devices) == mebibytes * MIB


def test_of_a_matrix_that_is_too_large_a_chunk_is_counted() -> None:
    """Gate and up of a Llama of 70B have 896 MiB."""
    assert estimate(LLAMA_70B, "int4", 2048) == (96 + 224) * MIB + dequantised.CHUNK


def test_what_is_multiplied_as_it_is_stored_takes_no_more_than_16_bits() -> None:
    few = MANY_TOKENS - 1
    assert estimate(LLAMA_8B, "int4", few) == estimate(LLAMA_8B, None, few)
    assert estimate(LLAMA_8B, "int4", 2048, dtype="float32") == estimate(LLAMA_8B, None, 2048, dtype="float32")
    assert estimate(LLAMA_8B, "int8", 2048, device=CPU) == estimate(LLAMA_8B, None, 2048)


def test_experts_are_never_written_out() -> None:
    """Of Mixtral the matrix behind qkv is: 48 MiB, beside less than its experts make."""
    assert estimate(MIXTRAL, "int8", 2048) == estimate(MIXTRAL, None, 2048)
    few, matrix = MANY_TOKENS, 6144 * 4096 * 2
    assert estimate(MIXTRAL, "int8", few) == 2 * few * (3 * 4096 + 6144) + matrix


def test_the_widest_layer_s_adapters_are_counted() -> None:
    """As those of Gemma 4 E2B, whose last layers have MLPs twice as wide as the others."""
    wide = replace(LLAMA_8B, kinds=(LayerKind(), LayerKind(ffn_size=2 * LLAMA_8B.ffn_size)))
    adapters = AdapterShapes({"layers.1.gate_up": Adaptable((0, 1), 0)}, 4, 16, "bfloat16")
    added = estimate(wide, None, 2048, adapters=adapters) - estimate(wide, None, 2048)
    assert added == 2048 * 2 * (2 * LLAMA_8B.ffn_size) * 2


def test_copies_of_what_layers_keep_are_counted() -> None:
    """Of eight requests at once, all 48 layers': more than a small step. XLA says 24 MiB a layer."""
    limits = derive_limits(EngineOptions(max_batch_size=4, max_batch_prefill_tokens=256), QWEN3_5_27B, H200)
    shapes = Shapes(QWEN3_5_27B, limits, "bfloat16", 4096, limits.page_size, 20, "bfloat16")
    assert 48 * 24 * MIB < estimated_temporaries(shapes, 1, H200, {}) < 1.05 * 48 * 24 * MIB
    assert 6 * 24 * MIB < estimated_temporaries(shapes, 8, H200, {}) < 1.05 * 6 * 24 * MIB
