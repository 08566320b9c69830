"""The architectures of llama.cpp that are families here: which keys of a configuration a GGUF file has, and where.

Data only. Names of tensors are not here: the `gguf` library has them, in the table that llama.cpp's converter uses.
Source of how each architecture is stored: https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from convert.config.config import Config
from convert.formats.gguf import GgufFile
from convert.llama_cpp import gemma4, hybrids
from convert.llama_cpp.latents import LATENT_KEYS, latent_fields
from convert.llama_cpp.linear_attention import IN_TURN, LINEAR_KEYS, LINEAR_TENSORS, linear_fields, qwen3_next_fields

ALIBI_13B = 40  # layers of Baichuan's 13B, which alone has ALiBi
BAICHUAN_13B = {
    "model_max_length": "context_length",
    "max_position_embeddings": "",
}  # without max_position_embeddings, as in the checkpoint
QK_NORM = "blk.0.attn_q_norm.weight"
FALCON_40B_NORM = "blk.0.attn_norm_2.weight"  # the norm of attention; in other Falcons attention and MLP share one
T5_GATE = "enc.blk.0.ffn_gate.weight"
T5_SECOND_BUCKETS = "enc.blk.1.attn_rel_b.weight"  # only umT5 has it
OWN_ATTENTION_SCALE = {46: 144, 62: 168}  # query_pre_attn_scalar of Gemma 2 and 3 27B, by layers; else the head's size


@dataclass(frozen=True)
class Architecture:
    """How a family of Hugging Face checkpoints lies in a GGUF file.

    model_type: of the family.
    keys: for each key of config.json, the key of the metadata that holds its value; a dot leads into a section.
    fixed: values of config.json that need no metadata, because they are the same in all models of the family.
    present: for each flag of config.json, the tensor whose presence it tells.
    tensors: names of the tensors that the library's table lacks, by parameter.
    interleaved: rows of q and k are in rotary pairs; None: as in the checkpoint.
    plus_one: weights of norms are stored with 1 added.
    unread: patterns of tensors that no layer reads.
    multiplied: weights have the configuration's multipliers in them, so an adapter of the checkpoint does not fit.
    layout: what else `Layout` says of its files and not of its checkpoints.
    """

    model_type: str
    keys: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    present: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    interleaved: bool | None = False
    plus_one: bool = False
    unread: tuple[str, ...] = ()
    multiplied: bool = False
    layout: Mapping[str, Any] = field(default_factory=dict)


COMMON = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "norm_epsilon": "attention.layer_norm_epsilon",
    "sliding_window": "attention.sliding_window",
    "sliding_window_pattern": "attention.sliding_window_pattern",
    "use_parallel_residual": "use_parallel_residual",
}
MIXTRAL = {"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
QWEN_MOE = {
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}
EXPERT = "blk.{i}.ffn_%s_exps.%s"
GPT_OSS_TENSORS = {"layers.{i}.sinks": ("blk.{i}.attn_sinks.weight",)} | {
    f"layers.{{i}}.experts_{ours}": tuple(EXPERT % (each, kind) for each in theirs)
    for kind, names in (
        ("weight", {"gate_up": ("gate", "up"), "down": ("down",)}),
        ("bias", {"gate_up_bias": ("gate", "up"), "down_bias": ("down",)}),
    )
    for ours, theirs in names.items()
}
GRANITE = {
    "embedding_multiplier": "embedding_scale",
    "attention_multiplier": "attention.scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
SHARED_EXPERT = "blk.{i}.ffn_%s_shexp.weight"
STACKED_EXPERTS = {
    "layers.{i}.experts_gate_up": (EXPERT % ("gate", "weight"), EXPERT % ("up", "weight")),
    "layers.{i}.experts_down": (EXPERT % ("down", "weight"),),
}
GRANITE_EXPERTS = {
    "layers.{i}.router": ("blk.{i}.ffn_gate_inp.weight",),
    **STACKED_EXPERTS,
    "layers.{i}.shared_gate_up": (SHARED_EXPERT % "gate", SHARED_EXPERT % "up"),
    "layers.{i}.shared_down": (SHARED_EXPERT % "down",),
}
DEEPSEEK_EXPERTS = {
    "n_routed_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "routed_scaling_factor": "expert_weights_scale",
    "norm_topk_prob": "expert_weights_norm",
    "first_k_dense_replace": "leading_dense_block_count",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
}
ERNIE_EXPERTS = {
    "moe_num_experts": "expert_count",
    "moe_k": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "moe_num_shared_experts": "expert_shared_count",
    "moe_layer_start_index": "leading_dense_block_count",
    "moe_layer_interval": "interleave_moe_layer_step",
}
CHOICE = {"layers.{i}.router_choice_bias": ("blk.{i}.exp_probs_b.bias",)}
COHERE = Architecture("cohere", {"logit_scale": "logit_scale"}, present={"use_qk_norm": QK_NORM}, interleaved=True)
LLAMA = Architecture("llama", interleaved=True)
NEMOTRON_H = Architecture("nemotron_h", hybrids.NEMOTRON, tensors=hybrids.NEMOTRON_TENSORS, interleaved=True)
QKV = tuple(f"blk.{{i}}.attn_{x}.weight" for x in "qkv")
FALCON_NORMS = {
    "layers.{i}.attention_norm": ("blk.{i}.attn_norm_2.weight",),
    "layers.{i}.mlp_norm": ("blk.{i}.attn_norm.weight",),
}

ARCHITECTURES: Mapping[str, Architecture] = {
    "arcee": Architecture("arcee", interleaved=True),
    "baichuan": Architecture("baichuan", tensors={"layers.{i}.qkv": QKV}, interleaved=True),
    "bloom": Architecture("bloom"),
    "cohere2": replace(COHERE, model_type="cohere2"),
    "command-r": COHERE,
    "dbrx": Architecture(
        "dbrx",
        {
            "attn_config.clip_qkv": "attention.clamp_kqv",
            "attn_config.kv_n_heads": "attention.head_count_kv",
            "attn_config.rope_theta": "rope.freq_base",
            "ffn_config.ffn_hidden_size": "feed_forward_length",
            "ffn_config.moe_num_experts": "expert_count",
            "ffn_config.moe_top_k": "expert_used_count",
        },
    ),
    "deepseek2": Architecture("deepseek_v3", {**LATENT_KEYS, **DEEPSEEK_EXPERTS}, tensors=CHOICE, interleaved=None),
    "dots1": Architecture("dots1", DEEPSEEK_EXPERTS, tensors=CHOICE),
    "ernie4_5-moe": Architecture(
        "ernie4_5_moe", ERNIE_EXPERTS, {"moe_num_shared_experts": 0}, tensors=CHOICE, interleaved=True
    ),
    "ernie4_5": Architecture("ernie4_5", interleaved=True),
    "exaone4": Architecture("exaone4", fixed={"sliding_window": None}),
    "falcon": Architecture("falcon", {"num_kv_heads": "attention.head_count_kv"}),
    "falcon-h1": Architecture(
        "falcon_h1",
        hybrids.FALCON_H1,
        fixed={"mamba_norm_before_gate": False},  # as llama.cpp computes it; the multipliers are in the weights
        present={"mamba_rms_norm": "blk.0.ssm_norm.weight", "mamba_conv_bias": "blk.0.ssm_conv1d.bias"},
        tensors=hybrids.FALCON_H1_TENSORS,
        multiplied=True,
    ),
    "gemma": Architecture("gemma", plus_one=True),
    "gemma2": Architecture(
        "gemma2",
        {
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        plus_one=True,
    ),
    "gemma3": Architecture("gemma3_text", plus_one=True),
    "gemma4": Architecture("gemma4_text", gemma4.KEYS),
    "glm4": Architecture("glm4", interleaved=True),
    "glm4moe": Architecture(
        "glm4_moe",
        {**DEEPSEEK_EXPERTS, "num_nextn_predict_layers": "nextn_predict_layers"},
        present={"use_qk_norm": QK_NORM},
        tensors=CHOICE,
    ),
    "gpt-oss": Architecture("gpt_oss", MIXTRAL, tensors=GPT_OSS_TENSORS),
    "gpt2": Architecture("gpt2"),
    "gptneox": Architecture("gpt_neox"),
    "granite": Architecture("granite", GRANITE, interleaved=True),
    "granitehybrid": Architecture(
        "granitemoehybrid",
        {**GRANITE, **MIXTRAL, **hybrids.MAMBA2, "shared_intermediate_size": "expert_shared_feed_forward_length"},
        tensors={**GRANITE_EXPERTS, **hybrids.GRANITE_MLP, **hybrids.STEP},
        interleaved=True,
    ),
    "granitemoe": Architecture(
        "granitemoe",
        {**GRANITE, **MIXTRAL, "shared_intermediate_size": "expert_shared_feed_forward_length"},
        tensors=GRANITE_EXPERTS,
        interleaved=True,
    ),
    "lfm2": Architecture("lfm2", hybrids.LFM2),
    "lfm2moe": Architecture("lfm2_moe", {**hybrids.LFM2, **hybrids.LFM2_EXPERTS}, tensors=CHOICE | STACKED_EXPERTS),
    "llama": LLAMA,
    "mamba": Architecture(
        "mamba",
        {
            "state_size": "ssm.state_size",
            "conv_kernel": "ssm.conv_kernel",
            "time_step_rank": "ssm.time_step_rank",
            "layer_norm_epsilon": "attention.layer_norm_rms_epsilon",
        },
        fixed={"expand": 2},
    ),
    "minimax-m2": Architecture("minimax_m2", MIXTRAL, tensors=CHOICE),
    "mpt": Architecture(
        "mpt",
        {
            "attn_config.clip_qkv": "attention.clamp_kqv",
            "attn_config.alibi_bias_max": "attention.max_alibi_bias",
        },
    ),
    "nemotron_h": NEMOTRON_H,
    "nemotron_h_moe": NEMOTRON_H,
    "olmo": Architecture("olmo", {"clip_qkv": "attention.clamp_kqv"}, interleaved=True),
    "olmo2": Architecture("olmo2"),
    "olmoe": Architecture("olmoe", QWEN_MOE, {"norm_topk_prob": False}),
    "phi2": Architecture("phi"),
    "phi3": Architecture("phi3"),
    "phimoe": Architecture("phimoe", MIXTRAL),
    "qwen2": Architecture("qwen2"),
    "qwen2moe": Architecture("qwen2_moe", QWEN_MOE, {"norm_topk_prob": False}),
    "qwen3": Architecture("qwen3"),
    "qwen35": Architecture("qwen3_5_text", LINEAR_KEYS, tensors=LINEAR_TENSORS, plus_one=True, layout=IN_TURN),
    "qwen35moe": Architecture(
        "qwen3_5_moe_text",
        {**LINEAR_KEYS, **QWEN_MOE},
        tensors={**LINEAR_TENSORS, **STACKED_EXPERTS},
        plus_one=True,
        layout=IN_TURN,
    ),
    "qwen3next": Architecture("qwen3_next", {**LINEAR_KEYS, **QWEN_MOE}, tensors=LINEAR_TENSORS, plus_one=True),
    "qwen3moe": Architecture("qwen3_moe", QWEN_MOE, {"norm_topk_prob": True}),
    "seed_oss": Architecture("seed_oss"),
    "smollm3": Architecture("smollm3", interleaved=True),
    "stablelm": Architecture("stablelm", present={"qk_layernorm": QK_NORM}),
    "starcoder": Architecture("gpt_bigcode"),
    "starcoder2": Architecture("starcoder2", fixed={"sliding_window": 4096}),
    "t5": Architecture(
        "t5",
        {
            "d_model": "embedding_length",
            "d_kv": "attention.key_length",
            "d_ff": "feed_forward_length",
            "num_heads": "attention.head_count",
            "num_layers": "block_count",
            "num_decoder_layers": "decoder_block_count",
            "relative_attention_num_buckets": "attention.relative_buckets_count",
            "decoder_start_token_id": "decoder_start_token_id",
        },
    ),
}
# Fields of entries that depend on the file; its `tensors` come to those of the entry.
BY_FILE: Mapping[str, Callable[[GgufFile, Config], dict[str, Any]]] = {
    "deepseek2": latent_fields,
    "gemma4": gemma4.gemma4,
    "granitehybrid": hybrids.granite_hybrid,
    "lfm2": hybrids.lfm2,
    "lfm2moe": hybrids.lfm2,
    "nemotron_h": hybrids.nemotron_h,
    "nemotron_h_moe": hybrids.nemotron_h,
    "qwen35": linear_fields,
    "qwen35moe": linear_fields,
    "qwen3next": qwen3_next_fields,
}


def architecture(name: str, file: GgufFile, metadata: Config) -> Architecture:
    """The entry of `name`, or its variant that `file` holds: some architectures are several families."""
    known = ARCHITECTURES[name]
    if name == "llama" and metadata.get("expert_count"):
        return replace(known, model_type="mixtral", keys=MIXTRAL)
    if name == "llama" and metadata.get("attention.sliding_window"):
        return replace(known, model_type="mistral")
    if name == "olmo2" and metadata.get("attention.sliding_window"):
        return replace(known, model_type="olmo3")
    if name == "baichuan" and metadata.get("block_count") == ALIBI_13B:
        return replace(known, keys=BAICHUAN_13B)
    if name == "falcon":
        return _falcon(known, file, metadata)
    if name == "mamba" and metadata.get("ssm.dt_b_c_rms"):
        return replace(known, model_type="falcon_mamba")
    if name == "t5":
        return _t5(known, file)
    if name in BY_FILE:
        fields = BY_FILE[name](file, metadata)
        return replace(known, **{**fields, "tensors": {**known.tensors, **fields.get("tensors", {})}})
    if name in ("gemma2", "gemma3"):
        scalar = OWN_ATTENTION_SCALE.get(metadata.integer("block_count"), metadata.integer("attention.key_length"))
        return replace(known, fixed={"query_pre_attn_scalar": scalar})
    return known


def _falcon(known: Architecture, file: GgufFile, metadata: Config) -> Architecture:
    """7B shares one key/value head; 40B and 180B have two norms; 11B has neither."""
    two = FALCON_40B_NORM in file.tensors
    new = two or metadata.integer("attention.head_count_kv", 1) > 1
    fixed = {"new_decoder_architecture": new, "num_ln_in_parallel_attn": 2 if two else 1, "multi_query": not new}
    return replace(known, fixed=fixed, tensors=FALCON_NORMS if two else {})


def _t5(known: Architecture, file: GgufFile) -> Architecture:
    """A T5 with a gate has a head of its own. T5 1.0 has neither, though a file may hold its embedding twice."""
    model_type = "umt5" if T5_SECOND_BUCKETS in file.tensors else "t5"
    if T5_GATE in file.tensors:
        return replace(known, model_type=model_type, fixed={"feed_forward_proj": "gated-gelu"})
    return replace(known, model_type=model_type, fixed={"feed_forward_proj": "relu", "tie_word_embeddings": True})
