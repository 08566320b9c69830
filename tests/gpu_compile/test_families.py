"""What holds for Llama's steps holds for other arrangements: Gemma 2 (head_dim 256, soft cap, a window in every other
layer, norms behind branches), Phi 2 (80, parallel), Phi 3 (96, a window), gpt-oss (sinks, experts in MXFP4),
GLM 4.5 (experts chosen by sigmoid, beside a shared one), Qwen 3.5 (linear attention in three of four layers), Granite 4
(Mamba 2, and experts), T5 (an encoder, relative positions) and Gemma 4 (heads of 256 and 512 in parts of a page, layers
that read the keys of others).
"""

import pytest

from tests.gemma4_shapes import GEMMA4_26B_A4B, GEMMA4_E2B
from tests.gpu_compile.conftest import FactsByProgram
from tests.shapes import FLAN_T5_XL, GEMMA2_9B, GLM_4_5_AIR, GPT_OSS_20B, GRANITE_4_SMALL, PHI2, PHI3_MINI, QWEN3_5_27B

pytestmark = pytest.mark.slow

MODELS = {
    "decode_gemma2": GEMMA2_9B,
    "mixed_gemma2": GEMMA2_9B,
    "decode_gemma4": GEMMA4_E2B,
    "mixed_gemma4": GEMMA4_E2B,
    "decode_gemma4_experts": GEMMA4_26B_A4B,
    "decode_gemma4_experts_tp2": GEMMA4_26B_A4B,
    "decode_phi2": PHI2,
    "mixed_phi3": PHI3_MINI,
    "decode_gpt_oss": GPT_OSS_20B,
    "mixed_gpt_oss": GPT_OSS_20B,
    "decode_glm": GLM_4_5_AIR,
    "mixed_glm_tp8": GLM_4_5_AIR,
    "decode_qwen3_5": QWEN3_5_27B,
    "mixed_qwen3_5": QWEN3_5_27B,
    "decode_qwen3_5_int4": QWEN3_5_27B,
    "decode_qwen3_5_tp2": QWEN3_5_27B,
    "decode_granite_4": GRANITE_4_SMALL,
    "decode_granite_4_tp2": GRANITE_4_SMALL,
    "encode_t5": FLAN_T5_XL,
    "decode_t5": FLAN_T5_XL,
    "mixed_t5": FLAN_T5_XL,
}
BF16, MIB = 2, 1 << 20
# Partial results of 128 rows: 32 splits of each if it has one key/value head of 8 queries of 512, 16 if it has two.
GEMMA4 = ("decode_gemma4", "decode_gemma4_experts", "decode_gemma4_experts_tp2")
PARTIALS = dict.fromkeys(GEMMA4, 128 * 32 * 8 * 512 * 4)


@pytest.mark.parametrize("step", MODELS)
def test_caches_are_updated_in_place_and_nothing_large_is_written_twice(facts: FactsByProgram, step: str) -> None:
    assert facts[step]["aliased"] == facts[step]["donated"] > 0
    assert facts[step]["copies"] == facts[step]["rewrites"] == []


@pytest.mark.parametrize("step", MODELS)
def test_the_host_launches_one_cuda_graph_a_step(facts: FactsByProgram, step: str) -> None:
    assert facts[step]["launched"] == ["CommandBuffer"]


@pytest.mark.parametrize("step", MODELS)
def test_temporaries_are_one_layers_activations(facts: FactsByProgram, step: str) -> None:
    spec, tokens = MODELS[step], 128 if step.startswith("decode") else 2048
    heads = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    activations = tokens * (3 * spec.ffn_size + 8 * max(spec.hidden_size, heads)) * BF16
    assert facts[step]["temporaries"] < activations + PARTIALS.get(step, 0) + 16 * MIB


@pytest.mark.parametrize(("step", "layer"), [("decode_gemma2", 10), ("decode_phi2", 8), ("decode_t5", 12)])
def test_a_layer_is_few_kernels(facts: FactsByProgram, step: str, layer: int) -> None:
    """Gemma 2 has two more norms. T5 has a third branch of four: query, attention, out, add and norm. Phi 2 has one
    norm, no gate, and both branches at once; its biases and its norm are XLA's. Of each window and of an encoder's
    output it is summed once how much there is to read.
    """
    assert facts[step]["kernels"] <= 2 * layer + 10


def test_a_layer_with_linear_attention_is_few_kernels(facts: FactsByProgram) -> None:
    """15 with JAX 0.10.2: two products more than attention has, a convolution, and the gated norm."""
    assert facts["decode_qwen3_5"]["kernels"] <= 4 * 15 + 12


def test_split_linear_attention_only_sums_where_attention_does(facts: FactsByProgram) -> None:
    assert facts["decode_qwen3_5_tp2"]["collectives"] == {"all-reduce": 2 * 4 + 1}


def test_split_mamba_2_sums_for_its_norm_too(facts: FactsByProgram) -> None:
    """Three of the four layers have a norm over all heads; B and C are made on each device."""
    assert facts["decode_granite_4_tp2"]["collectives"] == {"all-reduce": 2 * 4 + 1 + 3}


def test_slots_are_copied_in_place(facts: FactsByProgram) -> None:
    assert facts["copy_slots"]["aliased"] == facts["copy_slots"]["donated"] > 0
    assert facts["copy_slots"]["copies"] == []
