"""Bamba: layers of Mamba 2 among a few with attention, of whose heads half rotate."""

from convert.config.config import Config
from convert.families.family import Family, refuse
from convert.families.llama import BUFFERS, LAYER, TENSORS, llama_spec
from convert.families.mamba2 import mamba2, mamba2_tensors, with_mamba2
from jaxengine.architecture.model import ModelSpec

BAMBA_TENSORS = {
    **TENSORS,
    **mamba2_tensors(LAYER + "mamba."),
    "layers.{i}.mlp_norm": (LAYER + "pre_ff_layernorm.weight",),
    "layers.{i}.gate_up": tuple(f"{LAYER}feed_forward.{x}_proj.weight" for x in ("gate", "up")),
    "layers.{i}.down": (LAYER + "feed_forward.down_proj.weight",),
    "final_norm": ("model.final_layernorm.weight",),
}


def _bamba(config: Config) -> ModelSpec:
    refuse(config, hidden_act="silu", partial_rotary_factor=0.5)
    spec, attend = llama_spec(config, part=0.5, eps=1e-5), config.get("attn_layer_indices") or []
    if not isinstance(attend, list):
        raise config.error("attn_layer_indices", "must be a list of layer numbers")
    attends = [layer in attend for layer in range(spec.num_layers)]
    return with_mamba2(spec, attends, mamba2(config, spec.hidden_size))


BAMBA = Family(_bamba, BAMBA_TENSORS, ignore=BUFFERS)
