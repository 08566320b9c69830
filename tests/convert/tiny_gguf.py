"""A tiny checkpoint as llama.cpp would convert it: renamed, its metadata translated, some tensors laid out anew.

Names are those of the `gguf` library, which llama.cpp's converter asks too; what it does to tensors besides is written
out here.
"""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import transformers
from safetensors.numpy import load_file

from tests.convert import tiny_gguf_layers as layers
from tests.convert.tiny_gguf_latent import latent_metadata, stored_latent
from tests.convert.tiny_gguf_linear import linear_metadata, stored_linear
from tests.convert.tiny_gguf_tokenizer import tokenizer_metadata

F32 = gguf.GGMLQuantizationType.F32
ARCHITECTURES = {
    "arcee": "arcee",
    "baichuan": "baichuan",
    "bloom": "bloom",
    "cohere": "command-r",
    "cohere2": "cohere2",
    "dbrx": "dbrx",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "dots1": "dots1",
    "ernie4_5": "ernie4_5",
    "ernie4_5_moe": "ernie4_5-moe",
    "exaone4": "exaone4",
    "falcon": "falcon",
    "falcon_mamba": "mamba",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "glm4": "glm4",
    "glm4_moe": "glm4moe",
    "glm4_moe_lite": "deepseek2",
    "gpt2": "gpt2",
    "gpt_bigcode": "starcoder",
    "gpt_neox": "gptneox",
    "gpt_oss": "gpt-oss",
    "granite": "granite",
    "granitemoe": "granitemoe",
    "granitemoeshared": "granitemoe",
    "llama": "llama",
    "mamba": "mamba",
    "minimax_m2": "minimax-m2",
    "mistral": "llama",
    "mixtral": "llama",
    "mpt": "mpt",
    "mt5": "t5",
    "olmo": "olmo",
    "olmo2": "olmo2",
    "olmo3": "olmo2",
    "olmoe": "olmoe",
    "phi": "phi2",
    "phi3": "phi3",
    "phimoe": "phimoe",
    "qwen2": "qwen2",
    "qwen2_moe": "qwen2moe",
    "qwen3": "qwen3",
    "qwen3_5_moe_text": "qwen35moe",
    "qwen3_5_text": "qwen35",
    "qwen3_moe": "qwen3moe",
    "qwen3_next": "qwen3next",
    "seed_oss": "seed_oss",
    "smollm3": "smollm3",
    "stablelm": "stablelm",
    "starcoder2": "starcoder2",
    "t5": "t5",
    "umt5": "t5",
    "youtu": "deepseek2",
    **layers.ARCHITECTURES,
}
# Whose rows of q and k are put in rotary pairs.
PAIRED = ("llama", "mistral", "mixtral", "baichuan", "granite", "granitemoe", "granitemoeshared", "olmo", "smollm3")
PAIRED += ("arcee", *layers.PAIRED)
EXACT = ("conv1d.weight", "conv.conv.weight", ".A_log", ".D")
Named = Iterator[tuple[str, np.ndarray]]


def write_tiny_gguf(
    checkpoint: Path,
    path: Path,
    *,
    kind: gguf.GGMLQuantizationType = F32,
    metadata: dict[str, int | float | str | bool] | None = None,
    extra: dict[str, np.ndarray] | None = None,
    early: bool = False,
) -> Path:
    """Matrices are stored as `kind`, vectors as F32; `metadata` and `extra` add to or replace keys and tensors.

    early: as the converter wrote the first files of an architecture.
    """
    config = _config(checkpoint)
    layered = config["model_type"] in layers.ARCHITECTURES
    architecture = layers.architecture(config) if layered else ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path, architecture)
    fields = {**_metadata(config, early), **(layers.metadata(config) if layered else {})}
    own = {f"{architecture}.{key}": value for key, value in fields.items() if value is not None}
    _write_metadata(writer, {**own, **tokenizer_metadata(), **(metadata or {})})
    names = _names(architecture)
    tensors = load_file(checkpoint / "model.safetensors")
    for name, values in _stored(layers.stored(tensors, config) if layered else tensors, config, early):
        stem, suffix = re.fullmatch(r"(.*?)(\.weight|\.bias|\.scale|)", name).groups()
        stem = re.sub(r"^transformer\.(?=h\.|word_|ln_f)", "", stem) if architecture == "bloom" else stem
        known = names.get_name(stem)
        if known is None and (whole := names.get_name(name)):  # one that the library knows by its whole name
            known, suffix = whole, ""
        assert known is not None, f"{architecture} has no name for {name}"
        exact = values.ndim == 1 or suffix == ".bias" or "norm" in stem or name.endswith(EXACT)
        _add(writer, known + suffix, values, F32 if exact else kind)
    for name, values in {**(layers.extra(config) if layered else {}), **(extra or {})}.items():
        _add(writer, name, values, F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _config(checkpoint: Path) -> dict[str, Any]:
    raw = json.loads((checkpoint / "config.json").read_text())
    if raw["model_type"] == "baichuan":
        return raw
    config = transformers.AutoConfig.from_pretrained(checkpoint)
    return {**config.to_dict(), **{key: getattr(config, key) for key in config.attribute_map if hasattr(config, key)}}


def _names(architecture: str) -> gguf.TensorNameMap:
    kind = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    return gguf.get_tensor_name_map(kind, 8)


def _metadata(config: dict[str, Any], early: bool) -> dict[str, Any]:
    if "d_kv" in config:
        return _t5(config)
    if "state_size" in config:
        return _mamba(config)
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    attention, ffn = config.get("attn_config") or {}, config.get("ffn_config") or {}
    if config["model_type"] in ("mpt", "dbrx"):
        attention, ffn = (value if isinstance(value, dict) else value.to_dict() for value in (attention, ffn))
    inner = config.get("intermediate_size") or config.get("n_inner") or ffn.get("ffn_hidden_size") or 4 * hidden
    positions = ("max_position_embeddings", "n_positions", "max_seq_len", "model_max_length", "seq_length")
    dim = config.get("head_dim") or hidden // heads
    return {
        "block_count": config.get("num_hidden_layers"),
        "context_length": next((config[key] for key in positions if config.get(key)), 2048),
        "embedding_length": hidden,
        "feed_forward_length": 4 * hidden if config["model_type"] == "falcon" else inner,
        "attention.head_count": heads,
        "attention.head_count_kv": _kv_heads(config, attention, heads),
        "attention.key_length": config.get("head_dim"),
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps"),
        "attention.layer_norm_epsilon": next(
            (config[key] for key in ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon") if key in config), 1e-5
        ),
        "attention.sliding_window": config.get("sliding_window"),
        "attention.sliding_window_pattern": _pattern(config),
        "attention.clamp_kqv": attention.get("clip_qkv") or config.get("clip_qkv"),
        "attention.max_alibi_bias": float(attention["alibi_bias_max"]) if "alibi_bias_max" in attention else None,
        "use_parallel_residual": config.get("use_parallel_residual"),
        "expert_count": config.get("num_local_experts") or config.get("num_experts") or ffn.get("moe_num_experts"),
        "expert_used_count": config.get("num_experts_per_tok") or ffn.get("moe_top_k"),
        "expert_feed_forward_length": config.get("moe_intermediate_size"),
        "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size")
        or config.get("shared_intermediate_size"),
        "expert_shared_count": config.get("n_shared_experts") or config.get("moe_num_shared_experts") or None,
        "expert_group_count": config.get("n_group"),
        "expert_group_used_count": config.get("topk_group"),
        "expert_weights_scale": config.get("routed_scaling_factor"),
        "expert_weights_norm": config.get("norm_topk_prob"),
        "leading_dense_block_count": config.get("first_k_dense_replace", config.get("moe_layer_start_index")),
        "interleave_moe_layer_step": config.get("moe_layer_interval"),
        "attn_logit_softcapping": config.get("attn_logit_softcapping"),
        "final_logit_softcapping": config.get("final_logit_softcapping"),
        "logit_scale": config.get("logits_scaling") or config.get("logit_scale"),
        "embedding_scale": config.get("embedding_multiplier"),
        "residual_scale": config.get("residual_multiplier"),
        "attention.scale": config.get("attention_multiplier"),
        **_rope(config, dim),
        **linear_metadata(config),
        **latent_metadata(config, early),
    }


def _pattern(config: dict[str, Any]) -> Any:
    """Every how many layers one has no window, or of each whether it has one."""
    if config["model_type"] not in ("exaone4", "olmo3"):
        return config.get("sliding_window_pattern")
    sliding = [each == "sliding_attention" for each in config["layer_types"]]
    return sliding if config["sliding_window"] else None


def _t5(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "context_length": 512,
        "embedding_length": config["d_model"],
        "feed_forward_length": config["d_ff"],
        "block_count": config["num_layers"],
        "decoder_block_count": config["num_decoder_layers"],
        "attention.head_count": config["num_heads"],
        "attention.key_length": config["d_kv"],
        "attention.value_length": config["d_kv"],
        "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
        "attention.relative_buckets_count": config["relative_attention_num_buckets"],
        "decoder_start_token_id": config["decoder_start_token_id"],
    }


def _mamba(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "context_length": 2**20,
        "embedding_length": config["hidden_size"],
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "block_count": config["num_hidden_layers"],
        "ssm.conv_kernel": config["conv_kernel"],
        "ssm.inner_size": 2 * config["hidden_size"],
        "ssm.state_size": config["state_size"],
        "ssm.time_step_rank": config["time_step_rank"],
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
        "ssm.dt_b_c_rms": config["model_type"] == "falcon_mamba",
    }


def _kv_heads(config: dict[str, Any], attention: dict[str, Any], heads: int) -> int:
    if config["model_type"] == "gpt_bigcode" or (config["model_type"] == "falcon" and config["multi_query"]):
        new = config.get("new_decoder_architecture")
        return config["num_kv_heads"] if new else 1
    return attention.get("kv_n_heads") or config.get("num_key_value_heads") or heads


def _rope(config: dict[str, Any], dim: int) -> dict[str, Any]:
    given = config.get("rope_parameters") or {}
    rope = given.get("full_attention", given)
    if not rope:
        return {}
    part = rope.get("partial_rotary_factor", 1.0)
    written = {
        "rope.freq_base": float(rope.get("rope_theta", 10000.0)),
        "rope.dimension_count": int(dim * part),
        "rope.freq_base_swa": (given.get("sliding_attention") or {}).get("rope_theta"),
    }
    if rope["rope_type"] == "linear":
        written |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope["factor"])}
    if rope["rope_type"] == "yarn":
        original = rope["original_max_position_embeddings"]
        written |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": float(rope["factor"]),
            "rope.scaling.original_context_length": original,
        }
    if rope["rope_type"] == "longrope":
        original = config["original_max_position_embeddings"]
        factor = config["max_position_embeddings"] / original
        written |= {
            "rope.scaling.type": "longrope",
            "rope.scaling.original_context_length": original,
            "rope.scaling.attn_factor": math.sqrt(1 + math.log(factor) / math.log(original)),
        }
    return written


def llama3_factors(factor: float, theta: float = 10000.0, dim: int = 16) -> np.ndarray:
    """llama.cpp's divisors, wavelength by wavelength."""
    factors = []
    for k in range(0, dim, 2):
        wavelength = 2 * math.pi * theta ** (k / dim)
        smooth = (8192 / wavelength - 1) / (4 - 1)
        between = 1 / ((1 - smooth) / factor + smooth)
        factors.append(1.0 if wavelength < 8192 / 4 else factor if wavelength > 8192 else between)
    return np.array(factors, np.float32)


def longrope_factors(checkpoint: Path) -> dict[str, np.ndarray]:
    """The two tensors that longrope adds to a file."""
    rope = _config(checkpoint)["rope_parameters"]
    return {f"rope_factors_{each}.weight": np.array(rope[f"{each}_factor"], np.float32) for each in ("long", "short")}


def _stored(tensors: dict[str, np.ndarray], config: dict[str, Any], early: bool) -> Named:
    """Tensors by the names that the `gguf` library knows."""
    family, heads = config["model_type"], config.get("num_attention_heads", 0)
    groups: dict[str, list[np.ndarray]] = {}
    for name, values in sorted(tensors.items(), key=_number):
        if re.search(r"\.(experts|norms)\.\d+", name):
            groups.setdefault(re.sub(r"(\.experts)\.\d+|\.norms\.\d+", r"\1", name), []).append(values)
        elif family == "gpt_oss" and "experts" in name:
            yield from _gpt_oss(name, values)
        elif family.startswith("granitemoe") and "input_linear" in name:
            experts = "block_sparse_moe" in name
            stem = name.partition("block_sparse_moe" if experts else "shared_mlp")[0]
            alone = "mlp" if config["num_local_experts"] == 0 else "mlp.shared_expert"
            gate, up = np.split(values, 2, axis=-2)
            yield stem + ("block_sparse_moe.experts.w1" if experts else f"{alone}.gate_proj") + ".weight", gate
            yield stem + ("block_sparse_moe.experts.w3" if experts else f"{alone}.up_proj") + ".weight", up
        elif name.endswith("kv_b_proj.weight") and not early:
            yield from stored_latent(name, values, config)
        elif "linear_num_value_heads" in config:
            yield from stored_linear(name, values, config, early)
        elif name.endswith("e_score_correction_bias"):
            yield name.replace("_bias", ".bias"), values.reshape(-1)
        elif name.endswith(".sinks"):
            yield f"{name}.weight", values
        elif "W_pack" in name:
            q, k, v = np.split(values, 3)
            layer = name.partition("self_attn")[0]
            yield from (
                (f"{layer}self_attn.{x}_proj.weight", _paired(y, heads) if x != "v" else y)
                for x, y in (("q", q), ("k", k), ("v", v))
            )
        else:
            yield name, _changed(family, name, values, config, heads)
    for name, stack in groups.items():
        yield name, np.stack(stack)


def _gpt_oss(name: str, values: np.ndarray) -> Named:
    """Experts with gate and up apart, matrices [expert, out, in]."""
    stem, kind = name.removesuffix("_bias"), ".bias" if name.endswith("_bias") else ".weight"
    turned = np.ascontiguousarray(values if kind == ".bias" else values.swapaxes(1, 2))  # [expert, out, …]
    if "gate_up" not in name:
        yield stem + kind, turned
        return
    for i, part in enumerate(("gate", "up")):
        yield stem.replace("gate_up", part) + kind, np.ascontiguousarray(turned[:, i::2])


def _number(item: tuple[str, Any]) -> tuple[str, int]:
    """Tensors in the order of their experts and heads."""
    found = re.search(r"\.(?:experts|norms)\.(\d+)", item[0])
    return (re.sub(r"\.\d+(?=\.(w\d|\w+_proj|weight))", "", item[0]), int(found[1])) if found else (item[0], 0)


def _changed(family: str, name: str, values: np.ndarray, config: dict[str, Any], heads: int) -> np.ndarray:
    if family in ("gemma", "gemma2", "gemma3_text") and name.endswith("norm.weight"):
        return values + 1
    if family in PAIRED and (found := re.search(r"\.([qk])_proj\.", name)):
        return _paired(values, heads if found[1] == "q" else config.get("num_key_value_heads") or heads)
    if family == "gpt2" and values.ndim == 2 and ".h." in name:
        return np.ascontiguousarray(values.T)
    if "query_key_value" in name:
        groups = _kv_heads(config, {}, heads) if family == "falcon" else heads
        each = values.reshape(groups, heads // groups + 2, -1, *values.shape[1:])
        split = (each[:, :-2], each[:, -2], each[:, -1])
        return np.concatenate([part.reshape(-1, *values.shape[1:]) for part in split])
    if name.endswith(".A_log"):
        return -np.exp(values)
    if name.endswith(".conv1d.weight"):
        return values.squeeze(1)
    if ".experts.mlp." in name:  # DBRX, whose down projection has the axes of the up projection
        each = values.reshape(config["ffn_config"]["moe_num_experts"], -1, values.shape[1])
        return np.ascontiguousarray(each.swapaxes(1, 2)) if name.endswith("w2") else each
    return values


def _paired(values: np.ndarray, heads: int) -> np.ndarray:
    """Row i of a head's first half is followed by row i of its second half."""
    halves = values.reshape(heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(np.swapaxes(halves, 1, 2)).reshape(values.shape)


def _add(writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: gguf.GGMLQuantizationType) -> None:
    if kind == F32:
        writer.add_tensor(name, values.astype(np.float32))
    else:
        writer.add_tensor(name, gguf.quants.quantize(values.astype(np.float32), kind), raw_dtype=kind)


def _write_metadata(writer: gguf.GGUFWriter, values: dict[str, Any]) -> None:
    for key, value in values.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_array)(key, value)
