"""The engine's own programs, lowered for imaginary H200s: what `programs` names."""

import dataclasses
from typing import Any

from jaxengine.architecture.adaptation import AdapterShapes
from jaxengine.architecture.drafter import DrafterSpec
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
from jaxengine.sharding import make_mesh
from jaxengine.startup.defaults import derive_limits
from jaxengine.weights.loading import abstract_drafter, abstract_parameters
from jaxengine.weights.quantization import chosen_formats
from tests.gemma4_shapes import GEMMA4_26B_A4B, GEMMA4_E2B
from tests.gpu_compile import h200
from tests.gpu_compile.h200 import Facts, facts
from tests.random_adapters import llama_targets
from tests.shapes import (
    DEEPSEEK_V3,
    GRANITE_4_SMALL,
    H200,
    LLAMA_8B,
    LLAVA_NEXT_7B,
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


def copy_slots() -> Facts:
    made = compiler(cut(QWEN3_5_27B), 1)
    return facts(made.lower_copy_slots(), made.caches(), OPTIONS)


def copy_pages() -> Facts:
    made = compiler(FOUR_LAYERS, 1)
    return facts(made.lower_copy_pages(), made.caches(), OPTIONS)


def write_masks() -> Facts:
    made = compiler(FOUR_LAYERS, 1)
    return facts(made.lower_write_masks(made.shapes.mask_writes[0]), made.sampler_state().mask, OPTIONS)
