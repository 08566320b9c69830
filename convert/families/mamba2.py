"""What families with layers of Mamba 2 have in common: which layers those are, and their sizes, in Bamba's spelling."""

import math
from dataclasses import replace
from typing import Any

from convert.config.config import Config
from convert.config.rope import FULL
from jaxengine.architecture.model import LayerKind, ModelSpec
from jaxengine.architecture.model_checks import MAX_WIDTH
from jaxengine.architecture.recurrence import Mamba2

INFINITE, WRITTEN_INFINITY = math.inf, {"__float__": "Infinity"}  # as transformers 5 writes it
LINEAR = "linear_attention"
ATTENDS = {FULL: True, "attention": True, LINEAR: False, "mamba": False}


def mamba2_tensors(mixer: str) -> dict[str, tuple[str, ...]]:
    """Names of a mixer's tensors, which begin with `mixer`."""
    names = {
        **dict.fromkeys(("mamba_in", "mamba_shared", "mamba_rates"), "in_proj.weight"),
        **dict.fromkeys(("mamba_conv", "mamba_shared_conv"), "conv1d.weight"),
        "mamba_decay": "A_log",
        "mamba_step": "dt_bias",
        "mamba_skip": "D",
        "mamba_norm": "norm.weight",
        "mamba_out": "out_proj.weight",
    }
    return {f"layers.{{i}}.{name}": (mixer + stored,) for name, stored in names.items()}


def mamba2(config: Config, hidden: int, inner: int | None = None, **switches: Any) -> Mamba2:
    """In Bamba's spelling, but for `switches`, and `inner`, the width of all heads."""
    heads = config.integer("mamba_n_heads", 128)
    inner = inner or config.integer("mamba_expand", 2) * hidden
    if inner > MAX_WIDTH:
        raise config.error("mamba_expand", f"times hidden_size {hidden} must be at most {MAX_WIDTH}")
    if inner % heads:
        raise config.error("mamba_n_heads", f"must divide the width of all heads, {inner}")
    dim = inner // heads
    if config.get("mamba_d_head") != "auto" and config.integer("mamba_d_head", dim) != dim:
        raise config.error("mamba_d_head", f"must be {dim}, as {heads} heads are {inner} wide")
    least, most = time_steps(config)
    bias = config.flag("mamba_proj_bias", False)
    fields = {
        "heads": heads,
        "head_dim": dim,
        "groups": config.integer("mamba_n_groups", 1),
        "size": config.integer("mamba_d_state", 256),
        "kernel": config.integer("mamba_d_conv", 4),
        "least_step": least,
        "most_step": most,
        "bias": bias,
        "out_bias": bias,
        "conv_bias": config.flag("mamba_conv_bias", True),
    }
    return Mamba2(**{**fields, **switches})


def time_steps(config: Config) -> tuple[float, float | None]:
    """What `time_step_limit` clamps time steps to; None = to no upper limit."""
    key = config.spelled("time_step_limit", "mamba_dt_limit")
    limit = config.get(key)
    if limit is None:
        return 0.0, None
    steps = [INFINITE if each == WRITTEN_INFINITY else each for each in limit] if isinstance(limit, list) else []
    if len(steps) != 2 or not all(type(each) in (int, float) and each >= 0 for each in steps):
        raise config.error(key, "must be two numbers, not negative")
    least, most = map(float, steps)
    return least, None if most == INFINITE else most


def attending(config: Config, count: int) -> list[bool]:
    """Of each of `count` layers, whether it has attention, as the list of their types says."""
    key = config.spelled("layer_types", "layers_block_type")
    types = config.get(key)
    if not isinstance(types, list) or len(types) != count or not all(map(ATTENDS.__contains__, map(str, types))):
        raise config.error(key, f"must name {', '.join(ATTENDS)} for each of {count} layers")
    return [ATTENDS[each] for each in types]


def with_mamba2(spec: ModelSpec, attends: list[bool], mamba: Mamba2) -> ModelSpec:
    """`spec` with `mamba` in the layers that do not attend, if there are any."""
    if all(attends):
        return spec
    full, kept = spec.kinds[0], LayerKind(None, experts=spec.kinds[0].experts, mixer="recurrence")
    return replace(spec, mamba2=mamba, kinds=tuple(full if each else kept for each in attends))
