"""The zoo: one tiny checkpoint for each way a family computes, with sizes that make every branch show.

Prompts of the tests are longer than every window and trained length here. With ALiBi, the number of heads is no power
of two. Configurations are in transformers' spelling. Models that transformers lacks are written here, and computed in
`references.py`.
"""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from tests.tiny import BASE, BOS, EOS, PAD, VOCAB, redraw, tokenizer, write_model

IDS = {"vocab_size": VOCAB, "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
GPT = {**IDS, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
WINDOW = 7


def _rope(kind: str = "default", **parameters: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 10000.0, **parameters}


def _opt(**fields: Any) -> dict[str, Any]:
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "ffn_dim": 80}
    return {"model_type": "opt", **IDS, **sizes, "max_position_embeddings": 128, **fields}


def _falcon(**fields: Any) -> dict[str, Any]:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8}
    return {"model_type": "falcon", **IDS, **sizes, "bias": False, **fields}


def _like_llama(model_type: str, **fields: Any) -> dict[str, Any]:
    return {"model_type": model_type, **BASE, "num_key_value_heads": 2, **fields}


def _gemma4(**fields: Any) -> dict[str, Any]:
    """Sliding layers of 2 or 4 heads of 8, global ones of 16; of those 4 pairs turn, and the others stand still."""
    plain = {"num_hidden_layers": 5, "layer_types": [SLIDING, SLIDING, FULL, SLIDING, FULL], "sliding_window": WINDOW}
    plain |= {"head_dim": 8, "global_head_dim": 16, "hidden_size_per_layer_input": 0, "rope_parameters": GEMMA4_ROPES}
    return {"model_type": "gemma4_text", **BASE, "num_key_value_heads": 2, **plain, **fields}


GEMMA3_ROPES = {
    "sliding_attention": _rope(),
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
}
LONGROPE = _rope(
    "longrope",
    partial_rotary_factor=0.75,
    short_factor=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    long_factor=[1.5, 2.0, 3.0, 4.0, 6.0, 8.0],
    original_max_position_embeddings=16,
)
FULL, SLIDING = "full_attention", "sliding_attention"
YARN = _rope("yarn", factor=4.0, original_max_position_embeddings=16, truncate=False)
GEMMA4_ROPES = {
    SLIDING: _rope(),
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1000.0},
}
OLMO3_ROPES = {SLIDING: _rope(), FULL: YARN}
DEEPSEEK = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "n_shared_experts": 2}
DEEPSEEK |= {"routed_scaling_factor": 1.5, "norm_topk_prob": True}
LATENT = {"kv_lora_rank": 24, "q_lora_rank": 40, "qk_nope_head_dim": 16, "qk_rope_head_dim": 12, "v_head_dim": 20}
LATENT |= {"num_key_value_heads": 4}
MSCALE_YARN = {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2}
LATENT_LONGROPE = {key: value for key, value in LONGROPE.items() if key != "partial_rotary_factor"}


def _latent(model_type: str, **fields: Any) -> dict[str, Any]:
    experts = {**DEEPSEEK, "norm_topk_prob": model_type != "deepseek_v2", "first_k_dense_replace": 1}
    return _like_llama(model_type, num_hidden_layers=3, **LATENT, **experts) | fields


LINEAR = {"linear_num_value_heads": 8, "linear_num_key_heads": 4, "linear_key_head_dim": 12, "linear_value_head_dim": 8}
QWEN3_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
QWEN3_EXPERTS |= {"shared_expert_intermediate_size": 48}

ZOO: dict[str, dict[str, Any]] = {
    "arcee": _like_llama("arcee"),
    "bloom": {"model_type": "bloom", **IDS, "hidden_size": 48, "n_layer": 2, "n_head": 6},
    "codegen": {"model_type": "codegen", **GPT, "n_embd": 128, "n_head": 8, "rotary_dim": 8, "n_ctx": 128},
    "cohere": _like_llama("cohere", logit_scale=0.25),
    "cohere_qk_norm": _like_llama("cohere", logit_scale=0.25, use_qk_norm=True),
    "cohere2": _like_llama("cohere2", num_hidden_layers=4, logit_scale=0.25, sliding_window=WINDOW),
    "ernie4_5": _like_llama("ernie4_5", head_dim=24, use_bias=True, tie_word_embeddings=False),
    "exaone4": _like_llama("exaone4", num_hidden_layers=4, sliding_window=WINDOW),
    "exaone4_whole": _like_llama("exaone4", head_dim=24, sliding_window=None, layer_types=[FULL, FULL]),
    "falcon_7b": _falcon(num_attention_heads=4, multi_query=True, parallel_attn=True),
    "falcon_11b": _falcon(num_kv_heads=2, new_decoder_architecture=True, num_ln_in_parallel_attn=1),
    "falcon_40b": _falcon(num_kv_heads=2, new_decoder_architecture=True),
    "falcon_rw": _falcon(hidden_size=96, num_attention_heads=12, multi_query=False, parallel_attn=False, alibi=True)
    | {"bias": True},
    "galactica": _opt(activation_function="gelu", enable_bias=False, layer_norm_elementwise_affine=False),
    "gemma": _like_llama("gemma", num_key_value_heads=1, head_dim=24),
    "gemma2": _like_llama("gemma2", num_hidden_layers=3, head_dim=24, query_pre_attn_scalar=20, sliding_window=WINDOW)
    | {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0},
    "gemma3_text": _like_llama("gemma3_text", num_hidden_layers=4, head_dim=24, query_pre_attn_scalar=20)
    | {"sliding_window": WINDOW, "sliding_window_pattern": 3, "rope_parameters": GEMMA3_ROPES},
    "gemma4_text": _gemma4(num_key_value_heads=4, num_global_key_value_heads=1, attention_k_eq_v=True)
    | {"final_logit_softcapping": 2.0},
    "gemma4_e2b": _gemma4(num_key_value_heads=1, num_hidden_layers=8, num_kv_shared_layers=4, use_double_wide_mlp=True)
    | {"layer_types": [SLIDING, FULL] * 4, "hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": VOCAB},
    "gemma4_moe": _gemma4(enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=32)
    | {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "final_logit_softcapping": 2.0},
    "gemma4_wide": _gemma4(global_head_dim=20, num_hidden_layers=3, layer_types=[FULL, SLIDING, FULL]),
    "glm": _like_llama("glm", head_dim=24),
    "glm4": _like_llama("glm4", head_dim=24),
    "gpt2": {"model_type": "gpt2", **GPT},
    "gpt2_by_layer": {"model_type": "gpt2", **GPT, "scale_attn_by_inverse_layer_idx": True, "n_inner": 96},
    "gpt2_unscaled": {"model_type": "gpt2", **GPT, "scale_attn_weights": False, "tie_word_embeddings": False},
    "gpt_bigcode": {"model_type": "gpt_bigcode", **GPT, "multi_query": True},
    "gpt_bigcode_mha": {"model_type": "gpt_bigcode", **GPT, "multi_query": False, "activation_function": "gelu"},
    "gpt_neo": {"model_type": "gpt_neo", **IDS, "hidden_size": 64, "num_layers": 2, "num_heads": 4}
    | {"attention_types": [[["global", "local"], 1]], "window_size": WINDOW, "max_position_embeddings": 128},
    "gpt_neox": {"model_type": "gpt_neox", **BASE, "rope_parameters": _rope(partial_rotary_factor=0.25)},
    "gpt_neox_sequential": {"model_type": "gpt_neox", **BASE, "use_parallel_residual": False, "attention_bias": False}
    | {"hidden_act": "gelu_new", "rope_parameters": _rope(partial_rotary_factor=1.0)},
    "gptj": {"model_type": "gptj", **GPT, "rotary_dim": 8},
    "granite": _like_llama("granite", embedding_multiplier=3.0, attention_multiplier=0.11, residual_multiplier=0.3)
    | {"logits_scaling": 4.0},
    "helium": _like_llama("helium", head_dim=16),
    "mistral": _like_llama("mistral", head_dim=24, sliding_window=WINDOW),
    "ministral": _like_llama("ministral", num_hidden_layers=3, head_dim=24, sliding_window=WINDOW)
    | {"layer_types": [SLIDING, FULL, SLIDING]},
    "ministral3": _like_llama("ministral3", head_dim=24)
    | {"rope_parameters": {**YARN, "original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.3}},
    "mpt": {"model_type": "mpt", **IDS, "d_model": 48, "n_heads": 6, "n_layers": 2, "max_seq_len": 64}
    | {"attn_config": {"clip_qkv": 2.0, "alibi": True}},
    "olmo": _like_llama("olmo"),
    "olmo_clipped": _like_llama("olmo", clip_qkv=1.0, tie_word_embeddings=True),
    "olmo2": _like_llama("olmo2"),
    "olmo3": _like_llama("olmo3", num_hidden_layers=4, sliding_window=WINDOW, rope_parameters=OLMO3_ROPES),
    "opt": _opt(),
    "opt_350m": _opt(do_layer_norm_before=False, word_embed_proj_dim=32),
    "phi": _like_llama("phi", num_key_value_heads=4, rope_parameters=_rope(partial_rotary_factor=0.5)),
    "phi_qk_norm": _like_llama("phi", qk_layernorm=True, rope_parameters=_rope(partial_rotary_factor=0.25)),
    "phi3": _like_llama("phi3", sliding_window=WINDOW),
    "phi3_longrope": _like_llama("phi3", tie_word_embeddings=True, rope_parameters=LONGROPE)
    | {"original_max_position_embeddings": 16},
    "qwen2": _like_llama("qwen2", tie_word_embeddings=True),
    "qwen2_window": _like_llama("qwen2", num_hidden_layers=3, use_sliding_window=True, sliding_window=WINDOW)
    | {"max_window_layers": 1},
    "qwen3": _like_llama("qwen3", head_dim=24),
    "seed_oss": _like_llama("seed_oss", head_dim=24),
    "seed_oss_biased": _like_llama("seed_oss", head_dim=24, attention_out_bias=True, mlp_bias=True),
    "smollm3": _like_llama("smollm3", num_hidden_layers=4),
    "smollm3_window": _like_llama("smollm3", num_hidden_layers=3, no_rope_layers=[0, 1, 0], use_sliding_window=True)
    | {"sliding_window": WINDOW, "tie_word_embeddings": False},
    "stablelm": _like_llama("stablelm", rope_parameters=_rope(partial_rotary_factor=0.25)),
    "stablelm_12b": _like_llama("stablelm", use_qkv_bias=True, qk_layernorm=True, use_parallel_residual=True)
    | {"rope_parameters": _rope(partial_rotary_factor=0.25)},
    "starcoder2": _like_llama("starcoder2", sliding_window=WINDOW),
}
ZOO |= {
    "dbrx": {"model_type": "dbrx", **IDS, "d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 128}
    | {"attn_config": {"clip_qkv": 1.0, "kv_n_heads": 2, "rope_theta": 500000.0}}
    | {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
    | {"ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2}},
    "axk1": _latent("axk1", mlp_layer_types=["dense", "sparse", "sparse"], n_group=4, topk_group=2),
    "deepseek_v2": _latent("deepseek_v2", n_group=4, topk_group=2, topk_method="group_limited_greedy"),
    "deepseek_v2_lite": _latent("deepseek_v2", q_lora_rank=None, topk_method="greedy", attention_bias=True)
    | {"rope_parameters": MSCALE_YARN},
    "deepseek_v3": _latent("deepseek_v3", n_group=4, topk_group=2, attention_bias=True)
    | {"rope_parameters": MSCALE_YARN},
    "deepseek_v3_plain": _latent("deepseek_v3", n_group=1, topk_group=1, rope_interleave=False, q_lora_rank=None),
    "dots1": _like_llama(
        "dots1", num_hidden_layers=3, head_dim=24, sliding_window=WINDOW, max_window_layers=2, **DEEPSEEK
    )
    | {"first_k_dense_replace": 1},
    "ernie4_5_moe": _like_llama("ernie4_5_moe", num_hidden_layers=3, moe_num_experts=6, moe_k=2)
    | {"moe_intermediate_size": 32, "moe_num_shared_experts": 2, "moe_layer_interval": 2},
    "glm4_moe": _like_llama("glm4_moe", head_dim=24, attention_bias=True, use_qk_norm=True, **DEEPSEEK),
    "glm4_moe_lite": _latent("glm4_moe_lite", qk_nope_head_dim=20, v_head_dim=24),
    "glm4_moe_groups": _like_llama("glm4_moe", num_hidden_layers=3, **DEEPSEEK) | {"n_group": 4, "topk_group": 2},
    "granitemoe": _like_llama("granitemoe", intermediate_size=32, num_local_experts=4, num_experts_per_tok=2)
    | {"embedding_multiplier": 3.0, "attention_multiplier": 0.11, "residual_multiplier": 0.3, "logits_scaling": 4.0},
    "granitemoeshared": _like_llama("granitemoeshared", intermediate_size=32, num_local_experts=4)
    | {"num_experts_per_tok": 3, "shared_intermediate_size": 48, "attention_multiplier": 0.2},
    "minicpm3": _like_llama("minicpm3", **LATENT, scale_emb=3.0, scale_depth=2.0, dim_model_base=24)
    | {"tie_word_embeddings": True, "rope_parameters": LATENT_LONGROPE},
    "minimax_m2": _like_llama("minimax_m2", head_dim=24, intermediate_size=32, num_local_experts=6)
    | {"num_experts_per_tok": 2, "rope_parameters": _rope(partial_rotary_factor=0.5)},
    "olmoe": _like_llama("olmoe", intermediate_size=32, num_experts=6, num_experts_per_tok=2),
    "gpt_oss": _like_llama("gpt_oss", head_dim=24, intermediate_size=32, num_local_experts=6, num_experts_per_tok=2)
    | {"num_hidden_layers": 3, "sliding_window": WINDOW, "swiglu_limit": 1.2, "rope_parameters": YARN},
    "mixtral": _like_llama("mixtral", intermediate_size=32, num_local_experts=4, num_experts_per_tok=2),
    "phimoe": _like_llama("phimoe", intermediate_size=32, num_local_experts=4, num_experts_per_tok=2)
    | {"sliding_window": WINDOW, "attention_bias": True, "lm_head_bias": True},
    "qwen2_moe": _like_llama("qwen2_moe", num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32)
    | {"shared_expert_intermediate_size": 48, "norm_topk_prob": False},
    "qwen3_5": _like_llama("qwen3_5_text", num_hidden_layers=4, head_dim=16, **LINEAR),
    "qwen3_5_moe": _like_llama("qwen3_5_moe_text", num_hidden_layers=3, head_dim=16, **LINEAR, **QWEN3_EXPERTS)
    | {"full_attention_interval": 3},
    "qwen3_next": _like_llama("qwen3_next", num_hidden_layers=3, head_dim=16, **LINEAR, **QWEN3_EXPERTS)
    | {"layer_types": ["linear_attention", FULL, "linear_attention"], "mlp_only_layers": [1]},
    "youtu": _like_llama("youtu", **LATENT, tie_word_embeddings=True) | {"pad_token_id": None},
    "qwen3_moe": _like_llama("qwen3_moe", num_hidden_layers=3, head_dim=16, num_experts=6, num_experts_per_tok=3)
    | {"moe_intermediate_size": 32, "mlp_only_layers": [1], "norm_topk_prob": True},
}
MAMBA, ATTENTION, LINEAR_ATTENTION, CONV = "mamba", "attention", "linear_attention", "conv"
MAMBA2 = {"mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 12, "mamba_d_conv": 3, "mamba_chunk_size": 8}
GRANITE = {"embedding_multiplier": 3.0, "attention_multiplier": 0.11, "residual_multiplier": 0.3, "logits_scaling": 4.0}
FALCON_H1 = {
    "embedding_multiplier": 3.0,
    "lm_head_multiplier": 0.5,
    "key_multiplier": 0.6,
    "mlp_multipliers": [0.7, 1.4],
}
FALCON_H1 |= {"attention_in_multiplier": 1.3, "attention_out_multiplier": 0.8, "ssm_in_multiplier": 1.2}
FALCON_H1 |= {"ssm_out_multiplier": 0.9, "ssm_multipliers": [0.8, 1.1, 0.7, 1.2, 0.5], "mamba_d_ssm": 128}
NEMOTRON = {"model_type": "nemotron_h", **IDS, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
NEMOTRON |= {"head_dim": 24, "intermediate_size": 96, "mamba_num_heads": 8, "mamba_head_dim": 12, "n_groups": 2}
NEMOTRON |= {"ssm_state_size": 10, "max_position_embeddings": 128}
NEMOTRON |= {"time_step_min": 1e-9}  # to which transformers clamps what should not be
ZOO |= {
    "bamba": _like_llama("bamba", num_hidden_layers=3, attn_layer_indices=[1], **MAMBA2, time_step_limit=[0.0, 1.0]),
    "falcon_h1": _like_llama("falcon_h1", **MAMBA2, **FALCON_H1),
    "falcon_h1_normed": _like_llama("falcon_h1", **MAMBA2, **FALCON_H1)
    | {"mamba_rms_norm": True, "mamba_norm_before_gate": True, "mamba_d_ssm": 96}
    | {"projectors_bias": True, "mamba_proj_bias": True, "attention_bias": True},
    "granite_hybrid": _like_llama("granitemoehybrid", num_hidden_layers=3, num_local_experts=0, **MAMBA2, **GRANITE)
    | {"shared_intermediate_size": 112, "layer_types": [MAMBA, ATTENTION, MAMBA], "mamba_proj_bias": True}
    | {"time_step_limit": [0.3, 1.5]},
    "granite_hybrid_moe": _like_llama("granitemoehybrid", num_hidden_layers=3, num_local_experts=4, **MAMBA2, **GRANITE)
    | {"intermediate_size": 32, "shared_intermediate_size": 48, "layer_types": [ATTENTION, MAMBA, ATTENTION]}
    | {"mamba_n_groups": 1, "position_embedding_type": "rope", "mamba_conv_bias": False},
    "lfm2": _like_llama("lfm2", num_hidden_layers=3, layer_types=[CONV, FULL, CONV], tie_word_embeddings=False)
    | {"block_multiple_of": 32, "conv_bias": True, "conv_L_cache": 4},
    "lfm2_moe": _like_llama("lfm2_moe", num_hidden_layers=3, layer_types=[CONV, FULL, CONV], num_experts=6)
    | {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_dense_layers": 1, "routed_scaling_factor": 1.5},
    "nemotron_h": {**NEMOTRON, "layers_block_type": [MAMBA, "moe", ATTENTION, "mlp"]}
    | {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "n_group": 4, "topk_group": 2}
    | {"moe_shared_expert_intermediate_size": 48, "routed_scaling_factor": 1.5},
    "nemotron_h_dense": {
        **NEMOTRON,
        "layers_block_type": ["mlp", MAMBA, ATTENTION],
        "use_bias": True,
        "mlp_bias": True,
    },
    "olmo_hybrid": _like_llama("olmo_hybrid", num_hidden_layers=3, rms_norm_eps=1e-3, **LINEAR)
    | {"layer_types": [LINEAR_ATTENTION, FULL, LINEAR_ATTENTION], "linear_value_head_dim": 6},
    "olmo_hybrid_nope": _like_llama("olmo_hybrid", num_hidden_layers=3, rope_parameters=_rope() | {"rope_theta": None})
    | {**LINEAR, "layer_types": [LINEAR_ATTENTION, FULL, LINEAR_ATTENTION], "linear_value_head_dim": 6}
    | {"linear_allow_neg_eigval": False},
}
STATE_SPACE = {**IDS, "hidden_size": 48, "num_hidden_layers": 2, "state_size": 8}
ZOO |= {
    "mamba": {"model_type": "mamba", **STATE_SPACE, "time_step_rank": 6},
    "mamba_biased": {"model_type": "mamba", **STATE_SPACE, "expand": 3, "conv_kernel": 3, "tie_word_embeddings": False}
    | {"use_bias": True, "use_conv_bias": False},
    "falcon_mamba": {"model_type": "falcon_mamba", **STATE_SPACE, "time_step_rank": 6, "mixer_rms_eps": 1e-3},
}
BAICHUAN: dict[str, dict[str, Any]] = {
    "baichuan_7b": {"max_position_embeddings": 128, "hidden_size": 64, "num_attention_heads": 4},
    "baichuan_13b": {"model_max_length": 128, "hidden_size": 48, "num_attention_heads": 6},
    "baichuan2_13b": {"model_max_length": 128, "hidden_size": 48, "num_attention_heads": 6, "vocab_size": 125696},
    "baichuan2_extended": {"max_position_embeddings": 128, "hidden_size": 64, "num_attention_heads": 4}
    | {"vocab_size": VOCAB, "z_loss_weight": 0},
}
SANTACODER = "santacoder"
NAMES = (*ZOO, *BAICHUAN, SANTACODER)


def write_zoo(directory: Path, name: str) -> Path:
    """Write the checkpoint `name` of `NAMES` to `directory/name`, tokenizer included."""
    target = directory / name
    if name in BAICHUAN:
        return _write_baichuan(target, BAICHUAN[name])
    if name == SANTACODER:
        return _write_santacoder(target)
    return write_model(target, ZOO[name])


def _write(target: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> Path:
    target.mkdir()
    save_file({name: values.contiguous() for name, values in tensors.items()}, target / "model.safetensors")
    (target / "config.json").write_text(json.dumps({**IDS, **config}))
    tokenizer().save_pretrained(target)
    return target


def _write_baichuan(target: Path, fields: dict[str, Any]) -> Path:
    """Write a Llama whose q, k and v are packed, as in Baichuan 7B."""
    config = {**BASE, **fields}
    model = redraw(transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)), seed=3)
    tensors = {name: values.clone() for name, values in model.state_dict().items()}
    for layer in range(BASE["num_hidden_layers"]):
        prefix = f"model.layers.{layer}.self_attn."
        tensors[prefix + "W_pack.weight"] = torch.cat([tensors.pop(f"{prefix}{x}_proj.weight") for x in "qkv"])
    left_out = {"max_position_embeddings"} - set(fields)
    kept = {key: value for key, value in config.items() if key not in left_out}
    return _write(target, tensors, {"model_type": "baichuan", **kept})


def _write_santacoder(target: Path) -> Path:
    """Write a GPT-BigCode model in SantaCoder's first layout: q and kv apart, matrices [in, out]."""
    model = redraw(santacoder_model(), seed=4)
    tensors = {}
    for name, values in model.state_dict().items():
        stored = values.T if values.ndim == 2 and ".h." in name else values
        if ".c_attn." in name:
            tensors[name.replace("c_attn", "q_attn")] = stored[..., :64].clone()
            tensors[name.replace("c_attn", "kv_attn")] = stored[..., 64:].clone()
        elif name != "lm_head.weight":
            tensors[name] = stored.clone()
    custom = {"architectures": ["GPT2LMHeadCustomModel"], "attention_head_type": "multiquery"}
    return _write(target, tensors, {**GPT, **custom, "model_type": "gpt2", "activation_function": "gelu_pytorch_tanh"})


def santacoder_model() -> Any:
    """SantaCoder before its weights are drawn."""
    config = transformers.GPTBigCodeConfig(**{**GPT, "multi_query": True})
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
