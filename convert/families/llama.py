"""Llama 1 to 3, Code Llama, Vicuna, SmolLM2 and others of that shape; Mistral without a window.

Whether projections have biases is read from the checkpoint; a bias that the configuration promises must be there.
`pretraining_tp` is ignored: it only splits matrix products, the result is the same.
"""

from convert.config import Config, longest, rope
from convert.families.family import Family, activation, refuse_quantized, refuse_window
from convert.formats.tensors import Tensors
from jaxengine.model.spec import ModelSpec

LAYER = "model.layers.{i}."
HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"

TENSORS = {
    "embedding": (EMBEDDING,),
    "layers.{i}.attention_norm": (LAYER + "input_layernorm.weight",),
    "layers.{i}.qkv": tuple(f"{LAYER}self_attn.{x}_proj.weight" for x in "qkv"),
    "layers.{i}.qkv_bias": tuple(f"{LAYER}self_attn.{x}_proj.bias" for x in "qkv"),
    "layers.{i}.out": (LAYER + "self_attn.o_proj.weight",),
    "layers.{i}.out_bias": (LAYER + "self_attn.o_proj.bias",),
    "layers.{i}.mlp_norm": (LAYER + "post_attention_layernorm.weight",),
    "layers.{i}.gate_up": (LAYER + "mlp.gate_proj.weight", LAYER + "mlp.up_proj.weight"),
    "layers.{i}.gate_up_bias": (LAYER + "mlp.gate_proj.bias", LAYER + "mlp.up_proj.bias"),
    "layers.{i}.down": (LAYER + "mlp.down_proj.weight",),
    "layers.{i}.down_bias": (LAYER + "mlp.down_proj.bias",),
    "final_norm": ("model.norm.weight",),
    "head": (HEAD,),
}


def _spec(config: Config, tensors: Tensors) -> ModelSpec:
    refuse_quantized(config)
    heads, hidden = config.integer("num_attention_heads"), config.integer("hidden_size")
    if config.get("head_dim") is None and hidden % heads:
        raise config.error("hidden_size", f"must be a multiple of num_attention_heads {heads}")
    positions = rope(config)
    first = LAYER.replace("{i}", "0")
    attention_bias, mlp_bias = config.flag("attention_bias", False), config.flag("mlp_bias", False)
    return ModelSpec(
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden,
        num_layers=config.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=config.integer("num_key_value_heads", heads),
        head_dim=config.integer("head_dim", hidden // heads),
        ffn_size=config.integer("intermediate_size"),
        max_positions=longest(config, positions),
        norm_eps=config.number("rms_norm_eps", 1e-6),
        rope=positions,
        activation=activation(config, "hidden_act"),
        tied_head=config.flag("tie_word_embeddings", False) and HEAD not in tensors,
        qkv_bias=attention_bias or f"{first}self_attn.q_proj.bias" in tensors,
        out_bias=attention_bias or f"{first}self_attn.o_proj.bias" in tensors,
        mlp_bias=mlp_bias or f"{first}mlp.gate_proj.bias" in tensors,
    )


def _mistral_spec(config: Config, tensors: Tensors) -> ModelSpec:
    refuse_window(config, default=4096)  # MistralConfig's default where the key is absent
    return _spec(config, tensors)


BUFFERS = (r"rotary_emb\.inv_freq$",)
LLAMA = Family(_spec, TENSORS, BUFFERS)
MISTRAL = Family(_mistral_spec, TENSORS, BUFFERS)
