"""The families we can convert, by `model_type`."""

from collections.abc import Callable

from convert.config.config import Config
from convert.families.baichuan import baichuan
from convert.families.bamba import BAMBA
from convert.families.bart import BART
from convert.families.bloom import BLOOM
from convert.families.cohere import COHERE, COHERE2
from convert.families.dbrx import DBRX
from convert.families.deepseek import axk1, deepseek_v2, deepseek_v3, glm4_moe_lite, minicpm3, youtu
from convert.families.ernie import ERNIE, ERNIE_MOE
from convert.families.exaone import EXAONE4
from convert.families.falcon import FALCON
from convert.families.falcon_h1 import FALCON_H1
from convert.families.family import Family
from convert.families.gemma import GEMMA, GEMMA2, GEMMA3
from convert.families.gemma4 import gemma4
from convert.families.glm import DOTS, GLM, GLM4, GLM4_MOE
from convert.families.gpt2 import GPT_BIGCODE, gpt2
from convert.families.gpt_neo import GPT_NEO
from convert.families.gpt_neox import GPT_NEOX
from convert.families.gpt_oss import GPT_OSS
from convert.families.gptj import CODEGEN, GPTJ
from convert.families.granite import GRANITE, GRANITE_HYBRID, GRANITE_MOE
from convert.families.idefics import idefics
from convert.families.lfm2 import LFM2, LFM2_MOE
from convert.families.llama import LLAMA, MINISTRAL, MINISTRAL3, MISTRAL
from convert.families.llama_kin import ARCEE, HELIUM, SEED_OSS
from convert.families.mamba import FALCON_MAMBA, MAMBA
from convert.families.minimax import MINIMAX_M2
from convert.families.mixtral import MIXTRAL, PHIMOE
from convert.families.mllama import MLLAMA
from convert.families.mpt import MPT
from convert.families.nemotron_h import NEMOTRON_H
from convert.families.olmo import OLMO, OLMO2, OLMO3, OLMOE
from convert.families.olmo_hybrid import olmo_hybrid
from convert.families.opt import OPT
from convert.families.phi import PHI, PHI3
from convert.families.qwen import QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE, QWEN3_VL_MOE
from convert.families.qwen_hybrid import QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT
from convert.families.smollm3 import SMOLLM3
from convert.families.stablelm import STABLELM
from convert.families.starcoder2 import STARCODER2
from convert.families.t5 import t5

FAMILIES: dict[str, Family | Callable[[Config], Family]] = {
    "RefinedWeb": FALCON,
    "RefinedWebModel": FALCON,
    "arcee": ARCEE,
    "axk1": axk1,
    "baichuan": baichuan,
    "bamba": BAMBA,
    "bart": BART,
    "bloom": BLOOM,
    "codegen": CODEGEN,
    "cohere": COHERE,
    "cohere2": COHERE2,
    "dbrx": DBRX,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "dots1": DOTS,
    "ernie4_5": ERNIE,
    "ernie4_5_moe": ERNIE_MOE,
    "exaone4": EXAONE4,
    "falcon": FALCON,
    "falcon_h1": FALCON_H1,
    "falcon_mamba": FALCON_MAMBA,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "gemma4_text": gemma4,
    "glm": GLM,
    "glm4": GLM4,
    "glm4_moe": GLM4_MOE,
    "glm4_moe_lite": glm4_moe_lite,
    "gpt2": gpt2,
    "gpt_bigcode": GPT_BIGCODE,
    "gpt_neo": GPT_NEO,
    "gpt_neox": GPT_NEOX,
    "gpt_oss": GPT_OSS,
    "gptj": GPTJ,
    "granite": GRANITE,
    "granitemoe": GRANITE_MOE,
    "granitemoehybrid": GRANITE_HYBRID,
    "granitemoeshared": GRANITE_MOE,
    "helium": HELIUM,
    "idefics": idefics,
    "kimi_k2": deepseek_v3,
    "lfm2": LFM2,
    "lfm2_moe": LFM2_MOE,
    "llama": LLAMA,
    "mamba": MAMBA,
    "mbart": BART,
    "minicpm3": minicpm3,
    "minimax_m2": MINIMAX_M2,
    "ministral": MINISTRAL,
    "ministral3": MINISTRAL3,
    "mistral": MISTRAL,
    "mixtral": MIXTRAL,
    "mllama_text_model": MLLAMA,
    "mpt": MPT,
    "mt5": t5,
    "nemotron_h": NEMOTRON_H,
    "olmo": OLMO,
    "olmo2": OLMO2,
    "olmo3": OLMO3,
    "olmo_hybrid": olmo_hybrid,
    "olmoe": OLMOE,
    "opt": OPT,
    "phi": PHI,
    "phi3": PHI3,
    "phimoe": PHIMOE,
    "qwen2": QWEN2,
    "qwen2_moe": QWEN2_MOE,
    "qwen3": QWEN3,
    "qwen3_5_moe_text": QWEN3_5_MOE,
    "qwen3_5_text": QWEN3_5,
    "qwen3_moe": QWEN3_MOE,
    "qwen3_next": QWEN3_NEXT,
    "qwen3_vl_moe_text": QWEN3_VL_MOE,
    "seed_oss": SEED_OSS,
    "smollm3": SMOLLM3,
    "stablelm": STABLELM,
    "starcoder2": STARCODER2,
    "t5": t5,
    "umt5": t5,
    "youtu": youtu,
}


def family_of(config: Config) -> Family:
    """The family that `config` names."""
    model_type = config.text("model_type")
    if model_type not in FAMILIES:
        raise config.error("model_type", f"is not supported; supported are {', '.join(FAMILIES)}")
    chosen = FAMILIES[model_type]
    return chosen if isinstance(chosen, Family) else chosen(config)
