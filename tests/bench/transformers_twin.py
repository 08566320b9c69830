"""transformers' own Llama, given the very parameters our engine reads."""

from typing import Any

import numpy as np
import torch
import transformers

from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import ParameterSource, parameter_table


def twin(source: ParameterSource) -> Any:
    """A LlamaForCausalLM in f32 with sdpa attention. Only for specs with default rope and no biases."""
    return of_tensors(source.spec, tensors(source))


def of_tensors(spec: ModelSpec, state: dict[str, torch.Tensor]) -> Any:
    """As `twin`, of tensors by transformers' names."""
    rope = spec.kind(0).rope
    assert rope is not None
    config = transformers.LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.ffn_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        max_position_embeddings=spec.max_positions,
        rms_norm_eps=spec.norm.eps,
        rope_parameters={"rope_type": "default", "rope_theta": rope.theta},
        tie_word_embeddings=spec.head.tied,
    )
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="sdpa").eval()
    missing = model.load_state_dict(state, strict=False).missing_keys
    assert not set(missing) - {"lm_head.weight"}, missing
    model.tie_weights()
    return model


def tensors(source: ParameterSource) -> dict[str, torch.Tensor]:
    """The parameters of `source` by transformers' names."""
    state: dict[str, np.ndarray] = {}
    hidden = source.spec.hidden_size
    for name in parameter_table(source.spec):
        array = source.read(name, ()).astype(np.float32)
        layer, _, part = name.rpartition(".")
        prefix = f"model.{layer}."
        if part == "qkv":
            state[prefix + "self_attn.q_proj.weight"] = array[:, :-2].reshape(-1, hidden)
            state[prefix + "self_attn.k_proj.weight"] = array[:, -2].reshape(-1, hidden)
            state[prefix + "self_attn.v_proj.weight"] = array[:, -1].reshape(-1, hidden)
        elif part == "gate_up":
            state[prefix + "mlp.gate_proj.weight"], state[prefix + "mlp.up_proj.weight"] = array
        else:
            state[_NAMES[part].format(prefix)] = array.reshape(hidden, -1) if part == "out" else array
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in state.items()}


_NAMES = {
    "embedding": "model.embed_tokens.weight",
    "attention_norm": "{}input_layernorm.weight",
    "out": "{}self_attn.o_proj.weight",
    "mlp_norm": "{}post_attention_layernorm.weight",
    "down": "{}mlp.down_proj.weight",
    "final_norm": "model.norm.weight",
    "head": "lm_head.weight",
}
