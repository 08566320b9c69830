"""The programs that `test_steps` judges: the engine's own steps at the shape of Llama-3.1-8B, and programs with known
faults that the same eyes must see. Run by `toolchain.run`; writes the facts as JSON, of all or of those named.
"""

import dataclasses
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp

from convert.quantized.mxfp4 import FORMAT as MXFP4
from jaxengine.architecture.adaptation import AdapterShapes
from jaxengine.architecture.drafter import DrafterSpec, DraftModel, Eagle, Medusa, MLPSpeculator
from jaxengine.architecture.model import LayerKind, ModelSpec, Rope
from jaxengine.architecture.parameters import parameter_table
from jaxengine.architecture.weight_format import WeightFormat
from jaxengine.capacity.compiler import described_devices
from jaxengine.executor.compiler import Compiler
from jaxengine.executor.compiler_options import COMPILER_OPTIONS
from jaxengine.executor.shapes import Shapes
from jaxengine.executor.step_model import StepModel
from jaxengine.model.vision.packing import EncodeShape
from jaxengine.ops import choose_backend
from jaxengine.options.table import EngineOptions
from jaxengine.sharding import make_mesh, replicated
from jaxengine.startup.defaults import derive_limits
from jaxengine.step import buffer, filters, sampling
from jaxengine.weights.loading import abstract_drafter, abstract_parameters
from jaxengine.weights.quantization import chosen_formats
from tests.gemma4_shapes import GEMMA4_26B_A4B, GEMMA4_E2B
from tests.gpu_compile import h200, toolchain
from tests.gpu_compile.h200 import Facts, facts
from tests.random_adapters import llama_targets
from tests.shapes import (
    BLOOM_3B,
    DEEPSEEK_V3,
    FLAN_T5_XL,
    GEMMA2_9B,
    GEMMA3_EYES,
    GLM_4_5_AIR,
    GLM_4_7_FLASH,
    GPT2,
    GPT_OSS_20B,
    GRANITE_4_SMALL,
    H200,
    LLAMA3_2_11B,
    LLAMA_8B,
    LLAMA_70B,
    LLAVA_NEXT_7B,
    OPT_6_7B,
    PHI2,
    PHI3_MINI,
    PYTHIA_6_9B,
    QWEN2_5_EYES,
    QWEN3_5_27B,
)


def cut(spec: ModelSpec, layers: int = 4) -> ModelSpec:
    """What holds for each of four layers holds for 32."""
    encoder = spec.encoder and dataclasses.replace(spec.encoder, num_layers=layers)
    return dataclasses.replace(spec, num_layers=layers, kinds=spec.kinds[:layers], encoder=encoder)


# Each of eight devices has a copy of the one head that is cached, as `replicate_heads` makes them.
DEEPSEEK_TP8 = dataclasses.replace(cut(DEEPSEEK_V3, 2), num_kv_heads=8, kinds=DEEPSEEK_V3.kinds[2:4])
FOUR_LAYERS, TWO_LAYERS = cut(LLAMA_8B), cut(LLAMA_8B, 2)
GRANITE = dataclasses.replace(GRANITE_4_SMALL, num_layers=4, kinds=GRANITE_4_SMALL.kinds[3:7])  # the third attends
# The same with LLaVA-NeXT's eyes, and with Qwen2.5-VL's and its rope.
SEEING = dataclasses.replace(FOUR_LAYERS, vision=LLAVA_NEXT_7B.vision)
BY_AXES = dataclasses.replace(FOUR_LAYERS, kinds=(LayerKind(Rope(theta=1e6, axes=(16, 24, 24))),), vision=QWEN2_5_EYES)
# A sliding and a global layer of Gemma 4, and as many that read their keys; or with experts.
GEMMA4_KINDS = (GEMMA4_E2B.kinds[0], GEMMA4_E2B.kinds[4])
GEMMA4_READING = tuple(dataclasses.replace(kind, reads=i) for i, kind in enumerate(GEMMA4_KINDS))
GEMMA4 = dataclasses.replace(GEMMA4_E2B, num_layers=4, kinds=(*GEMMA4_KINDS, *GEMMA4_READING))
GEMMA4_EXPERTS = dataclasses.replace(GEMMA4_26B_A4B, num_layers=2, kinds=GEMMA4_26B_A4B.kinds[4:6])
PAGES, FULL = 4096, 420_000  # of four layers of an 8B, 1 GiB and 110 GB
ROWS, TOKENS = 128, 2048
SLOTS, RANK = 8, 16  # of adapters
GUESSES = 7  # of a draft
FIVE_TILES = EncodeShape(5 * 576, 5, 5 * (576 + 24))  # of LLaVA-NeXT
HEADS = Medusa(5, 1, LLAMA_8B.hidden_size, LLAMA_8B.vocab_size)
EAGLE3 = Eagle(  # as published for Llama-3.1-8B, but for the model's number of layers
    dataclasses.replace(cut(LLAMA_8B, 1), vocab_size=32000),
    LLAMA_8B.hidden_size,
    LLAMA_8B.vocab_size,
    guesses=4,
    taps=(1, 2, 4),
    own_embedding=False,
    own_ids=True,
)
OPTIONS = COMPILER_OPTIONS["gpu"]
EXPERTS = ("experts_gate_up", "experts_down")


def compiler(
    spec: ModelSpec,
    devices: int,
    longest: int = 8192,
    quantize: str | None = None,
    cache: str = "bfloat16",
    ordered: bool = False,
    experts: WeightFormat | None = None,
    adapters: int = 0,
    speculate: int = 0,
    drafter: DrafterSpec | None = None,
    hosts: int = 1,
    pages: int = PAGES,
) -> Compiler:
    """The engine's compiler on `devices` imaginary H200s of `hosts`, weights being shapes without data, with sorted
    inputs if `ordered`; `experts` is the format of theirs. Steps mix so many `adapters` of rank 16, of every matrix,
    and verify drafts of `speculate` tokens, which `drafter` may have learnt to guess.
    """
    mesh = make_mesh(devices, described_devices(h200.TARGET, devices, hosts))
    latent = spec.attention.latent
    back_end = choose_backend("auto", H200, spec.head_dim, spec.group, "bfloat16", cache, latent)
    limits = derive_limits(EngineOptions(max_total_tokens=longest, speculate=speculate), spec, H200)
    shapes = Shapes(spec, limits, "bfloat16", pages, limits.page_size, top=20, cache_dtype=cache)
    if adapters:
        shapes = dataclasses.replace(shapes, adapters=AdapterShapes(llama_targets(spec), adapters, RANK, "bfloat16"))
    formats = chosen_formats(spec, quantize, devices)
    formats = {name: dataclasses.replace(format, ordered=ordered) for name, format in formats.items()}
    if experts is not None:
        formats |= {name: experts for name in parameter_table(spec) if name.endswith(EXPERTS)}
    weights = abstract_parameters(spec, mesh, "bfloat16", H200, formats)
    if drafter is not None:
        shapes = dataclasses.replace(shapes, drafter=drafter)
        weights |= abstract_drafter(drafter, mesh, "bfloat16", H200)
    return Compiler(shapes, StepModel.build(shapes, weights, mesh, H200, back_end), mesh, H200)


def decode(spec: ModelSpec, devices: int, rows: int = ROWS, longest: int = 8192, **stored: Any) -> Facts:
    made = compiler(spec, devices, longest, **stored)
    (shape,) = made.shapes.for_adapters([made.shapes.decode(rows)])
    return facts(made.lower_backbone(shape), (made.caches(), made.slot_state()), OPTIONS)


def decode_of_hosts(spec: ModelSpec, devices: int, hosts: int) -> Facts:
    made = compiler(spec, devices, hosts=hosts)
    assert not made.replicated.is_fully_addressable
    lowered = made.lower_backbone(made.shapes.decode(ROWS))
    return facts(lowered, (made.caches(), made.slot_state()), OPTIONS)


def mixed(spec: ModelSpec, devices: int, longest: int = 8192, **stored: Any) -> Facts:
    made = compiler(spec, devices, longest, **stored)
    (shape,) = made.shapes.for_adapters([made.shapes.mixed(TOKENS)])
    return facts(made.lower_backbone(shape), (made.caches(), made.slot_state()), OPTIONS)


def verify(spec: ModelSpec, tokens: int) -> Facts:
    made = compiler(spec, 1, speculate=GUESSES)
    return facts(made.lower_backbone(made.shapes.verify(tokens)), (made.caches(), made.slot_state()), OPTIONS)


def place_adapter(spec: ModelSpec) -> Facts:
    made = compiler(spec, 1, adapters=SLOTS)
    return facts(made.lower_place_adapter(), made.model.adapters, OPTIONS)


def encode(spec: ModelSpec, devices: int) -> Facts:
    made = compiler(spec, devices, TOKENS)
    return facts(made.lower_encode(made.shapes.encode(TOKENS)), (made.caches(), made.slot_state()), OPTIONS)


def see(spec: ModelSpec, devices: int, shape: EncodeShape) -> Facts:
    made = compiler(spec, devices, TOKENS)
    return facts(made.lower_see(shape), made.pool(), OPTIONS)


def sample(spec: ModelSpec, devices: int, greedy: bool, speculate: int = 0) -> Facts:
    made = compiler(spec, devices, speculate=speculate)
    donated = made.slot_state().latest if greedy else (made.slot_state().latest, made.sampler_state())
    return facts(made.lower_sample(ROWS, greedy), donated, OPTIONS)


def sum_hidden(devices: int, tokens: int = 2048) -> Facts:
    return facts(compiler(FOUR_LAYERS, devices).lower_sum_hidden(tokens), (), OPTIONS)


def logits(devices: int) -> Facts:
    return facts(compiler(FOUR_LAYERS, devices).lower_logits(), (), OPTIONS)


def propose(drafter: DrafterSpec, rows: int = ROWS, devices: int = 1) -> Facts:
    made = compiler(FOUR_LAYERS, devices, speculate=drafter.guesses, drafter=drafter)
    return facts(made.lower_propose(rows), (), OPTIONS)


def draft(rows: int, devices: int = 1, guesses: int = 4) -> Facts:
    """What a draft model of two layers guesses."""
    made = compiler(FOUR_LAYERS, devices, speculate=guesses, drafter=DraftModel(TWO_LAYERS, guesses))
    return facts(made.lower_propose(rows), made.draft_caches(), OPTIONS)


def draft_reading(tokens: int) -> Facts:
    made = compiler(FOUR_LAYERS, 1, speculate=GUESSES, drafter=DraftModel(TWO_LAYERS, GUESSES))
    return facts(made.lower_read(tokens), made.draft_caches(), OPTIONS)


def eagle(rows: int, devices: int = 1) -> Facts:
    """What EAGLE-3's layer guesses."""
    made = compiler(FOUR_LAYERS, devices, speculate=EAGLE3.guesses, drafter=EAGLE3)
    return facts(made.lower_propose(rows), made.draft_caches(), OPTIONS)


def eagle_reading(tokens: int) -> Facts:
    made = compiler(FOUR_LAYERS, 1, speculate=EAGLE3.guesses, drafter=EAGLE3)
    return facts(made.lower_read(tokens), made.draft_caches(), OPTIONS)


def sample_for_drafter() -> Facts:
    made = compiler(FOUR_LAYERS, 1, speculate=HEADS.guesses, drafter=HEADS)
    return facts(made.lower_sample(ROWS, True), made.slot_state().latest, OPTIONS)


def sample_without_masks() -> Facts:
    """`sample` as it would be if no grammar had to be asked."""
    with patch.object(sampling, "_mask", lambda logits, samples, state: logits):
        return sample(FOUR_LAYERS, 1, greedy=False)


def sample_without_samplers() -> Facts:
    """`sample` as it would be if nobody looked back or filtered."""

    def as_counted(scores: Any, samples: Any, state: Any, memory: Any, guesses: int) -> Any:
        repetition = samples.repetition_penalty[:, None]
        return sampling._ban(sampling._penalise(scores, samples, memory, repetition), samples, state, memory)

    def unfiltered(scores: Any, samples: Any, state: Any) -> filters.Filtered:
        return filters.Filtered(scores, scores[:, 0])

    with patch.object(sampling, "_look_back", as_counted), patch.object(filters, "narrow", unfiltered):
        return sample(FOUR_LAYERS, 1, greedy=False)


def sample_without_sums() -> Facts:
    """`sample` as it would be if no beam search added up what it says."""
    with patch.object(sampling, "_normalise", lambda logits, samples: logits), patch.object(buffer, "SUMMED", 0):
        return sample(FOUR_LAYERS, 1, greedy=False)


def copy_pages() -> Facts:
    made = compiler(FOUR_LAYERS, 1)
    return facts(made.lower_copy_pages(), made.caches(), OPTIONS)


def write_masks() -> Facts:
    made = compiler(FOUR_LAYERS, 1)
    return facts(made.lower_write_masks(made.shapes.mask_writes[0]), made.sampler_state().mask, OPTIONS)


def cache_not_donated() -> Facts:
    """An update of a cache that the caller keeps: it must be copied."""
    return control(lambda cache, new: jax.lax.dynamic_update_slice(cache, new, (7, 0)), (1024, 4096), (8, 4096))


def weight_turned() -> Facts:
    """A weight that is wanted as it is and transposed: it must be written out."""
    return control(lambda x, weight: (x @ weight, weight.T), (8, 4096), (4096, 2048))


def vocabulary_sorted() -> Facts:
    """More than the 16 highest of a vocabulary: XLA sorts all of it."""
    return control(lambda logits: jax.lax.top_k(logits, 20), (8, 128256))


def loop_of_unknown_length() -> Facts:
    """A loop whose length only the device knows: without loops in graphs the host must drive it."""
    options = {name: graphs.replace(",WHILE", "") for name, graphs in OPTIONS.items()}
    loop = partial(jax.lax.while_loop, lambda y: y.max() > 1, lambda y: y @ y / 2)
    return control(loop, (1024, 1024), options=options)


def control(function: Callable[..., Any], *shapes: tuple[int, ...], options: dict[str, str] = OPTIONS) -> Facts:
    mesh = make_mesh(1, h200.devices(1))
    arguments = [jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=replicated(mesh)) for shape in shapes]
    return facts(jax.jit(function).lower(*arguments), (), options)


def copy_slots() -> Facts:
    made = compiler(cut(QWEN3_5_27B), 1)
    return facts(made.lower_copy_slots(), made.caches(), OPTIONS)


PROGRAMS = {
    "decode": lambda: decode(LLAMA_8B, 1),
    "decode_1": lambda: decode(FOUR_LAYERS, 1, rows=1),
    "decode_long": lambda: decode(FOUR_LAYERS, 1, longest=131072),
    "mixed": lambda: mixed(FOUR_LAYERS, 1),
    "decode_1_full": lambda: decode(FOUR_LAYERS, 1, rows=1, pages=FULL),
    "mixed_full": lambda: mixed(FOUR_LAYERS, 1, pages=FULL),
    "decode_int8": lambda: decode(FOUR_LAYERS, 1, quantize="int8", cache="float8_e4m3fn"),
    "decode_fp8": lambda: decode(FOUR_LAYERS, 1, quantize="fp8", cache="float8_e5m2"),
    "decode_4_layers": lambda: decode(FOUR_LAYERS, 1),
    "decode_int4": lambda: decode(FOUR_LAYERS, 1, quantize="int4"),
    "decode_1_int4": lambda: decode(FOUR_LAYERS, 1, rows=1, quantize="int4"),
    "decode_int4_ordered": lambda: decode(FOUR_LAYERS, 1, quantize="int4", ordered=True),
    "decode_1_int4_ordered": lambda: decode(FOUR_LAYERS, 1, rows=1, quantize="int4", ordered=True),
    "decode_1_nf4": lambda: decode(FOUR_LAYERS, 1, rows=1, quantize="nf4"),
    "mixed_int4": lambda: mixed(FOUR_LAYERS, 1, quantize="int4"),
    "decode_int4_tp8": lambda: decode(FOUR_LAYERS, 8, quantize="int4"),
    "decode_int4_ordered_tp8": lambda: decode(FOUR_LAYERS, 8, quantize="int4", ordered=True),
    "decode_1_int8": lambda: decode(FOUR_LAYERS, 1, rows=1, quantize="int8"),
    "decode_1_fp8": lambda: decode(FOUR_LAYERS, 1, rows=1, quantize="fp8"),
    "mixed_int8": lambda: mixed(FOUR_LAYERS, 1, quantize="int8", cache="float8_e4m3fn"),
    "decode_fp8_tp8": lambda: decode(FOUR_LAYERS, 8, quantize="fp8", cache="float8_e4m3fn"),
    "sample_greedy": lambda: sample(FOUR_LAYERS, 1, greedy=True),
    "sample": lambda: sample(FOUR_LAYERS, 1, greedy=False),
    "sample_without_masks": sample_without_masks,
    "sum_hidden": lambda: sum_hidden(1),
    "sum_hidden_tp8": lambda: sum_hidden(8),
    "logits": lambda: logits(1),
    "logits_tp8": lambda: logits(8),
    "verify_16": lambda: verify(FOUR_LAYERS, 16),
    "verify_128": lambda: verify(FOUR_LAYERS, 128),
    "sample_guesses": lambda: sample(FOUR_LAYERS, 1, greedy=False, speculate=GUESSES),
    "sample_greedy_guesses": lambda: sample(FOUR_LAYERS, 1, greedy=True, speculate=GUESSES),
    "sample_for_drafter": sample_for_drafter,
    "propose_medusa": lambda: propose(HEADS),
    "propose_medusa_1": lambda: propose(HEADS, rows=1),
    "propose_medusa_tp8": lambda: propose(HEADS, devices=8),
    "propose_of_the_models_head": lambda: propose(dataclasses.replace(HEADS, own_heads=False), rows=16),
    "propose_mlp": lambda: propose(MLPSpeculator(4, 3072, LLAMA_8B.hidden_size, LLAMA_8B.vocab_size)),
    "draft_1": lambda: draft(1),
    "draft_16": lambda: draft(16),
    "draft_16_tp8": lambda: draft(16, devices=8),
    "draft_in_a_loop": lambda: draft(16, guesses=10),
    "draft_reading": lambda: draft_reading(TOKENS),
    "eagle_1": lambda: eagle(1),
    "eagle_16": lambda: eagle(16),
    "eagle_16_tp8": lambda: eagle(16, devices=8),
    "eagle_reading": lambda: eagle_reading(TOKENS),
    "decode_1_for_eagle": lambda: decode(FOUR_LAYERS, 1, rows=1, speculate=EAGLE3.guesses, drafter=EAGLE3),
    "decode_for_eagle": lambda: decode(FOUR_LAYERS, 1, speculate=EAGLE3.guesses, drafter=EAGLE3),
    "mixed_for_eagle": lambda: mixed(FOUR_LAYERS, 1, speculate=EAGLE3.guesses, drafter=EAGLE3),
    "decode_for_eagle_tp8": lambda: decode(FOUR_LAYERS, 8, speculate=EAGLE3.guesses, drafter=EAGLE3),
    "sample_without_samplers": sample_without_samplers,
    "sample_without_sums": sample_without_sums,
    "write_masks": write_masks,
    "copy_slots": copy_slots,
    "decode_qwen3_5": lambda: decode(cut(QWEN3_5_27B), 1),
    "mixed_qwen3_5": lambda: mixed(cut(QWEN3_5_27B), 1),
    "decode_granite_4": lambda: decode(GRANITE, 1),
    "mixed_granite_4": lambda: mixed(GRANITE, 1),
    "decode_granite_4_tp2": lambda: decode(GRANITE, 2),
    "decode_qwen3_5_int4": lambda: decode(cut(QWEN3_5_27B), 1, quantize="int4"),
    "decode_qwen3_5_tp2": lambda: decode(cut(QWEN3_5_27B), 2),
    "copy_pages": copy_pages,
    "decode_tp8": lambda: decode(FOUR_LAYERS, 8),
    "decode_2_hosts_tp8": lambda: decode_of_hosts(FOUR_LAYERS, 8, hosts=2),
    "decode_70b_tp8": lambda: decode(cut(LLAMA_70B), 8),
    "mixed_tp8": lambda: mixed(FOUR_LAYERS, 8),
    "sample_greedy_tp8": lambda: sample(FOUR_LAYERS, 8, greedy=True),
    "decode_gpt2": lambda: decode(cut(GPT2), 1, longest=1024),
    "decode_gpt2_2_layers": lambda: decode(cut(GPT2, 2), 1, longest=1024),
    "decode_bloom": lambda: decode(cut(BLOOM_3B), 1, longest=2048),
    "decode_bloom_2_layers": lambda: decode(cut(BLOOM_3B, 2), 1, longest=2048),
    "decode_pythia": lambda: decode(cut(PYTHIA_6_9B), 1, longest=2048),
    "decode_pythia_2_layers": lambda: decode(cut(PYTHIA_6_9B, 2), 1, longest=2048),
    "decode_opt": lambda: decode(cut(OPT_6_7B), 1, longest=2048),
    "decode_opt_2_layers": lambda: decode(cut(OPT_6_7B, 2), 1, longest=2048),
    "decode_gemma2": lambda: decode(cut(GEMMA2_9B, 2), 1),
    "mixed_gemma2": lambda: mixed(cut(GEMMA2_9B, 2), 1),
    "decode_gemma4": lambda: decode(GEMMA4, 1),
    "mixed_gemma4": lambda: mixed(GEMMA4, 1),
    "decode_gemma4_experts": lambda: decode(GEMMA4_EXPERTS, 1),
    "decode_gemma4_experts_tp2": lambda: decode(GEMMA4_EXPERTS, 2),
    "decode_phi2": lambda: decode(cut(PHI2, 2), 1, longest=2048),
    "mixed_phi3": lambda: mixed(cut(PHI3_MINI, 2), 1, longest=4096),
    "decode_gpt_oss": lambda: decode(cut(GPT_OSS_20B, 2), 1, experts=MXFP4),
    "mixed_gpt_oss": lambda: mixed(cut(GPT_OSS_20B, 2), 1, experts=MXFP4),
    "decode_glm": lambda: decode(cut(GLM_4_5_AIR, 2), 1),
    "mixed_glm_tp8": lambda: mixed(cut(GLM_4_5_AIR, 2), 8),
    "decode_deepseek_tp8": lambda: decode(DEEPSEEK_TP8, 8),
    "mixed_deepseek_tp8": lambda: mixed(DEEPSEEK_TP8, 8),
    "decode_glm_flash": lambda: decode(cut(GLM_4_7_FLASH, 2), 1),
    "decode_seeing": lambda: decode(SEEING, 1),
    "mixed_seeing": lambda: mixed(SEEING, 1),
    "decode_by_axes": lambda: decode(BY_AXES, 1),
    "mixed_by_axes": lambda: mixed(BY_AXES, 1),
    "see_llava_next": lambda: see(cut(LLAVA_NEXT_7B, 1), 1, FIVE_TILES),
    "see_llava_next_tp8": lambda: see(cut(LLAVA_NEXT_7B, 1), 8, FIVE_TILES),
    "see_gemma3": lambda: see(dataclasses.replace(cut(LLAMA_8B, 1), vision=GEMMA3_EYES), 1, EncodeShape(4096, 1, 256)),
    "see_qwen2_5": lambda: see(
        dataclasses.replace(cut(LLAMA_8B, 1), vision=QWEN2_5_EYES), 1, EncodeShape(5476, 1, 1369, 100)
    ),
    "decode_mllama": lambda: decode(cut(LLAMA3_2_11B), 1, rows=64),
    "mixed_mllama": lambda: mixed(cut(LLAMA3_2_11B), 1),
    "see_mllama": lambda: see(cut(LLAMA3_2_11B), 1, EncodeShape(6400, 1, 4)),
    "encode_t5": lambda: encode(cut(FLAN_T5_XL, 2), 1),
    "decode_t5": lambda: decode(cut(FLAN_T5_XL, 2), 1),
    "mixed_t5": lambda: mixed(cut(FLAN_T5_XL, 2), 1),
    "decode_adapters": lambda: decode(FOUR_LAYERS, 1, adapters=SLOTS),
    "decode_1_adapters": lambda: decode(FOUR_LAYERS, 1, rows=1, adapters=SLOTS),
    "decode_adapters_tp8": lambda: decode(FOUR_LAYERS, 8, adapters=SLOTS),
    "decode_int4_adapters": lambda: decode(FOUR_LAYERS, 1, quantize="int4", adapters=SLOTS),
    "mixed_adapters": lambda: mixed(FOUR_LAYERS, 1, adapters=SLOTS),
    "place_adapter": lambda: place_adapter(FOUR_LAYERS),
    "cache_not_donated": cache_not_donated,
    "weight_turned": weight_turned,
    "vocabulary_sorted": vocabulary_sorted,
    "loop_of_unknown_length": loop_of_unknown_length,
}
# What the tests leave out: a minute and more each. `python -m tests.gpu_compile` compiles them.
WHOLE = {
    "8b_decode_1": lambda: decode(LLAMA_8B, 1, rows=1),
    "8b_mixed": lambda: mixed(LLAMA_8B, 1),
    "70b_decode_tp8": lambda: decode(LLAMA_70B, 8),
}

if __name__ == "__main__":
    result, *names = sys.argv[1:]
    chosen = {name: (PROGRAMS | WHOLE)[name] for name in names or PROGRAMS}
    parts = {name: lambda make=make: dataclasses.asdict(make()) for name, make in chosen.items()}
    made = toolchain.made_in_turn("tests.gpu_compile.programs", parts)
    Path(result).write_text(json.dumps(made, indent=1))
