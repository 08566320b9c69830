"""Mamba and Falcon-Mamba: selective state spaces instead of attention and MLP, no positions, texts of any length.

The checkpoints are those named `state-spaces/mamba-*-hf`; the original ones, without `-hf`, have another configuration.
"""

import math
from dataclasses import replace

from convert.config.config import Config
from convert.families.family import Family, refuse
from jaxengine.architecture.model import Head, LayerKind, ModelSpec, Norm, StateSpace
from jaxengine.architecture.model_checks import MAX_WIDTH

LAYER = "backbone.layers.{i}."
MIXER = LAYER + "mixer."
TENSORS = {
    "embedding": ("backbone.embeddings.weight",),
    "layers.{i}.mixer_norm": (LAYER + "norm.weight",),
    "layers.{i}.in_proj": (MIXER + "in_proj.weight",),
    "layers.{i}.conv": (MIXER + "conv1d.weight",),
    "layers.{i}.x_proj": (MIXER + "x_proj.weight",),
    "layers.{i}.dt_proj": (MIXER + "dt_proj.weight",),
    "layers.{i}.a_log": (MIXER + "A_log",),
    "layers.{i}.skip": (MIXER + "D",),
    "layers.{i}.out_proj": (MIXER + "out_proj.weight",),
    "final_norm": ("backbone.norm_f.weight",),
    "head": ("lm_head.weight",),
}
RENAMES = ((r"^backbone\.embedding\.", "backbone.embeddings."),)
POSITIONS = 2**20  # a state has no length: this bounds buffers, not the model


def _mamba(config: Config) -> ModelSpec:
    refuse(config, hidden_act="silu")
    hidden = config.integer("hidden_size")
    channels = config.number("expand", 2) * hidden
    if channels > MAX_WIDTH:
        raise config.error("expand", f"times hidden_size {hidden} must be at most {MAX_WIDTH}")
    auto = config.get("time_step_rank") in (None, "auto")
    space = StateSpace(
        channels=int(channels),
        size=config.integer("state_size", 16),
        rank=math.ceil(hidden / 16) if auto else config.integer("time_step_rank"),
        kernel=config.integer("conv_kernel", 4),
        wide_residual=config.flag("residual_in_fp32", True),
        bias=config.flag("use_bias", False),
        conv_bias=config.flag("use_conv_bias", True),
    )
    return ModelSpec(
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden,
        num_layers=config.integer("num_hidden_layers"),
        num_heads=0,
        num_kv_heads=0,
        head_dim=0,
        ffn_size=0,
        max_positions=POSITIONS,
        kinds=(LayerKind(rope=None),),
        norm=Norm(eps=config.number("layer_norm_epsilon", 1e-5)),
        state_space=space,
        head=Head(tied=config.flag("tie_word_embeddings", True)),
    )


def _falcon_mamba(config: Config) -> ModelSpec:
    spec = _mamba(config)
    assert spec.state_space is not None
    return replace(spec, state_space=replace(spec.state_space, eps=config.number("mixer_rms_eps", 1e-6)))


MAMBA = Family(_mamba, TENSORS, renames=RENAMES)
FALCON_MAMBA = Family(_falcon_mamba, TENSORS, renames=RENAMES)
