"""What steps of several models need besides their arguments, by XLA and as plans estimate it. Run by `toolchain.run`;
writes both as JSON, in bytes.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jaxengine.architecture.model import ModelSpec
from jaxengine.capacity.temporaries import estimated_temporaries, of_pictures, of_prompts, of_sampling
from jaxengine.executor.compiler import Compiler
from jaxengine.startup.memory import besides_arguments
from jaxengine.weights.quantization import chosen_formats
from tests.gpu_compile.h200 import once
from tests.gpu_compile.steps import BY_AXES, OPTIONS, compiler, cut
from tests.shapes import (
    BLOOM_3B,
    DEEPSEEK_V3,
    FALCON_MAMBA_7B,
    FLAN_T5_XL,
    GEMMA2_9B,
    GLM_4_7_FLASH,
    GPT_OSS_20B,
    GRANITE_4_SMALL,
    H200,
    LLAMA3_2_11B,
    LLAMA_8B,
    LLAMA_70B,
    LLAVA_NEXT_7B,
    MIXTRAL,
    PHI3_MINI,
    QWEN3_5_27B,
)


@dataclass(frozen=True)
class Case:
    """The first `layers` of `spec` over so many devices: temporaries do not grow with layers. The sampler's depend on
    nothing but the size of the vocabulary.
    """

    spec: ModelSpec
    devices: int = 1
    longest: int = 8192
    sampled: bool = False
    quantize: str | None = None
    layers: int = 2


CASES = {
    "Llama-3.1-8B": Case(LLAMA_8B, sampled=True),
    "Llama-3.1-8B over 8": Case(LLAMA_8B, 8),
    "Llama-3.1-70B over 8": Case(LLAMA_70B, 8),
    "Llama-3.1-8B, int4": Case(LLAMA_8B, quantize="int4"),
    "Llama-3.1-8B over 8, int8": Case(LLAMA_8B, 8, quantize="int8"),
    "Llama-3.1-70B, int4": Case(LLAMA_70B, quantize="int4"),  # gate and up are written out in four chunks
    "BLOOM-3b": Case(BLOOM_3B, longest=2048),
    "Gemma-2-9b": Case(GEMMA2_9B, sampled=True),
    "Phi-3-mini": Case(PHI3_MINI, longest=4096, sampled=True),
    "Mixtral-8x7B": Case(MIXTRAL),
    "gpt-oss-20b": Case(GPT_OSS_20B),
    "Falcon-Mamba-7B": Case(FALCON_MAMBA_7B),
    "Qwen3.5-27B": Case(QWEN3_5_27B, layers=4),
    "Granite-4.0-H-Small": Case(GRANITE_4_SMALL, layers=6),
    "Granite-4.0-H-Small over 8": Case(GRANITE_4_SMALL, 8, layers=6),
    "GLM-4.7-Flash": Case(GLM_4_7_FLASH),
    "DeepSeek-V3": Case(DEEPSEEK_V3, layers=4),
    "FLAN-T5-XL": Case(FLAN_T5_XL, longest=2048),
}
SEEING = {
    "LLaVA-NeXT-7B": Case(LLAVA_NEXT_7B),
    "Qwen2.5-VL-7B": Case(BY_AXES),  # windows, each of which begins on a page of its own
    "Llama-3.2-11B-Vision": Case(LLAMA3_2_11B),
}


def needed(lowered: Any, options: dict[str, str]) -> dict[str, Any]:
    return {"bytes": besides_arguments(lowered.compile(compiler_options=options).memory_analysis())}


def facts(case: Case) -> dict[str, Any]:
    made = compiler(cut(case.spec, case.layers), case.devices, case.longest, case.quantize)
    shapes = made.shapes
    stored = (case.devices, H200, chosen_formats(shapes.spec, case.quantize, case.devices))
    told: dict[str, Any] = {
        "estimate": estimated_temporaries(shapes, *stored),
        "prompts": {"estimate": of_prompts(shapes, *stored), "xla": max(map(_bytes, _prompts(made)))},
    }
    if case.sampled:
        told["sampling"] = {"estimate": of_sampling(shapes), "xla": _bytes(_sampling(made))}
    return told


def pictures(case: Case) -> dict[str, int]:
    made = compiler(cut(case.spec), case.devices, case.longest)
    xla = _bytes(partial(made.lower_see, made.shapes.see_shapes()[-1]))
    return {"estimate": of_pictures(made.shapes, case.devices), "xla": xla}


def _prompts(made: Compiler) -> list[Callable[[], Any]]:
    shapes = made.shapes
    encoding = [partial(made.lower_encode, shape) for shape in shapes.encode_shapes()[-1:]]
    return [partial(made.lower_backbone, shapes.mixed(shapes.limits.token_budget)), *encoding]


def _sampling(made: Compiler) -> Callable[[], Any]:
    return partial(made.lower_sample, max(shape.samples for shape in made.shapes.step_shapes()), greedy=False)


def _bytes(lower: Callable[[], Any]) -> int:
    return int(once(needed, lower(), OPTIONS)["bytes"])


if __name__ == "__main__":
    told: dict[str, Any] = {name: facts(case) for name, case in CASES.items()}
    told |= {name: pictures(case) for name, case in SEEING.items()}
    Path(sys.argv[1]).write_text(json.dumps(told, indent=1))
