"""Falcon-H1: each layer has attention and Mamba 2 side by side, with a dozen multipliers.

Keys are multiplied where scores are, which is the same.
"""

from dataclasses import replace

from convert.config.config import Config
from convert.families.family import Family, refuse
from convert.families.llama import BUFFERS, LAYER, TENSORS, llama_spec
from convert.families.mamba2 import mamba2, mamba2_tensors
from jaxengine.architecture.model import Beside, Embedding, Mamba2, ModelSpec

FALCON_TENSORS = {
    **TENSORS,
    **mamba2_tensors(LAYER + "mamba."),
    "layers.{i}.mlp_norm": (LAYER + "pre_ff_layernorm.weight",),
    "layers.{i}.gate_up": tuple(f"{LAYER}feed_forward.{x}_proj.weight" for x in ("gate", "up")),
    "layers.{i}.down": (LAYER + "feed_forward.down_proj.weight",),
    "final_norm": ("model.final_layernorm.weight",),
}


def _falcon_h1(config: Config) -> ModelSpec:
    refuse(config, hidden_act="silu")
    spec = llama_spec(config, eps=1e-5)
    gate, down = _numbers(config, "mlp_multipliers", 2)
    key = config.number("key_multiplier", 1.0)
    kind = replace(spec.kinds[0], mixer="both", scale=key * spec.head_dim**-0.5)
    return replace(
        spec,
        embedding=Embedding(scale=config.number("embedding_multiplier", 1.0)),
        head=replace(spec.head, scale=config.number("lm_head_multiplier", 1.0)),
        kinds=(kind,),
        mamba2=_mamba2(config, spec.hidden_size),
        beside=Beside(
            attention_in=config.number("attention_in_multiplier", 1.0),
            attention_out=config.number("attention_out_multiplier", 1.0),
            recurrence_in=config.number("ssm_in_multiplier", 1.0),
            recurrence_out=config.number("ssm_out_multiplier", 1.0),
        ),
        gate_scale=gate,
        mlp_scale=down,
    )


def _mamba2(config: Config, hidden: int) -> Mamba2:
    norm = "none"
    if config.flag("mamba_rms_norm", False):
        norm = "norm_first" if config.flag("mamba_norm_before_gate", True) else "gate_first"
    inner = None if "mamba_d_ssm" in config.values and config.get("mamba_d_ssm") is None else 1024
    return mamba2(
        config,
        hidden,
        inner=None if inner is None else config.integer("mamba_d_ssm", inner),
        norm=norm,
        out_bias=config.flag("projectors_bias", False),
        scales=_numbers(config, "ssm_multipliers", 5),
    )


def _numbers(config: Config, key: str, count: int) -> tuple[float, ...]:
    """A list of so many numbers; ones where there is none."""
    values = config.get(key)
    if values is None:
        return (1.0,) * count
    if not isinstance(values, list) or len(values) != count or not all(type(each) in (int, float) for each in values):
        raise config.error(key, f"must be {count} numbers")
    return tuple(map(float, values))


FALCON_H1 = Family(_falcon_h1, FALCON_TENSORS, ignore=BUFFERS)
