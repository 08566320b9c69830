"""The parameters of one layer of a decoder, an encoder or a tower, by names without the layer's prefix. No JAX here."""

from jaxengine.architecture.model import Cross, Experts, LayerKind, ModelSpec, RelativePositions, StateSpace
from jaxengine.architecture.parameter import Parameter
from jaxengine.architecture.recurrence_parameters import recurrence_parameters


def norm_parameters(name: str, spec: ModelSpec) -> dict[str, Parameter]:
    vector = Parameter((spec.hidden_size,), ("embed",))
    present = {name: spec.norm.weight, f"{name}_bias": spec.norm.bias}
    return {key: vector for key, wanted in present.items() if wanted}


def relative_parameter(spec: ModelSpec, relative: RelativePositions) -> Parameter:
    return Parameter((relative.buckets, spec.num_kv_heads, spec.group), (None, "kv_heads", None))


def layer_parameters(spec: ModelSpec, kind: LayerKind) -> dict[str, Parameter]:
    if spec.state_space:
        return norm_parameters("mixer_norm", spec) | _state_space(spec.hidden_size, spec.state_space)
    block = spec.block_of(kind)
    table: dict[str, Parameter] = {}
    if kind.mixer != "none":
        table |= norm_parameters("attention_norm", spec) | _sequence_mixer(spec, kind)
        if block == "sandwich":
            table |= norm_parameters("attention_post_norm", spec)
    if spec.encoder:
        table |= norm_parameters("cross_norm", spec) | _cross_attention(spec)
    if kind.feed_forward:
        table |= {} if block == "parallel" else norm_parameters("mlp_norm", spec)
        table |= _experts(spec, spec.experts) if spec.experts and kind.experts else _mlp(spec)
    if kind.gates != "none":
        gate = Parameter((1,), (None,)) if kind.gates == "number" else Parameter((spec.hidden_size,), ("embed",))
        table |= {"attention_gate": gate, "mlp_gate": gate}
    if spec.layer_scale:
        table |= {name: Parameter((spec.hidden_size,), ("embed",)) for name in ("attention_scale", "mlp_scale")}
    if block == "sandwich" and kind.feed_forward:
        table |= norm_parameters("mlp_post_norm", spec)
    return table


def _sequence_mixer(spec: ModelSpec, kind: LayerKind) -> dict[str, Parameter]:
    """Of attention, or of what a layer has in its place."""
    if kind.cross is not None:
        return _of_pictures(spec, kind.cross)
    table = _attention(spec) if kind.attends else {}
    if kind.recurrent and spec.recurrence is not None:
        table |= recurrence_parameters(spec.hidden_size, spec.recurrence)
    return table


def _attention(spec: ModelSpec) -> dict[str, Parameter]:
    hidden, kv, group, dim = spec.hidden_size, spec.num_kv_heads, spec.group, spec.head_dim
    heads = ("kv_heads", None, None)
    norm, qk_norm = spec.attention.qk_norm, Parameter((kv, group + 1, dim), heads)
    relative = spec.attention.relative
    table = {
        "qkv": Parameter((kv, group + 2, dim, hidden), (*heads, "embed"), 1),
        "qkv_bias": Parameter((kv, group + 2, dim), heads) if spec.qkv_bias else None,
        "qk_norm": qk_norm if norm else None,
        "qk_norm_bias": qk_norm if norm and norm.bias else None,
        "relative": relative_parameter(spec, relative) if relative and relative.by_layer else None,
        "sinks": Parameter((kv, group), ("kv_heads", None)) if spec.attention.sinks else None,
        "head_gate": Parameter((kv, group, dim, hidden), (*heads, "embed"), 1) if spec.attention.output_gate else None,
        "out": Parameter((hidden, kv, group, dim), ("embed", *heads), 3),
        "out_bias": Parameter((hidden,), ("embed",)) if spec.out_bias else None,
    }
    return {name: parameter for name, parameter in table.items() if parameter}


def _state_space(hidden: int, space: StateSpace) -> dict[str, Parameter]:
    """`in_proj` is [2, channels, hidden]: 0 feeds the convolution, 1 is the gate. `x_proj` makes time step, B and C."""
    channels, out = space.channels, space.rank + 2 * space.size
    vector = Parameter((channels,), ("channels",))
    table = {
        "in_proj": Parameter((2, channels, hidden), (None, "channels", "embed"), 1),
        "in_proj_bias": Parameter((2, channels), (None, "channels")) if space.bias else None,
        "conv": Parameter((channels, space.kernel), ("channels", None)),
        "conv_bias": vector if space.conv_bias else None,
        "x_proj": Parameter((out, channels), (None, "channels"), 1),
        "dt_proj": Parameter((channels, space.rank), ("channels", None), 1),
        "dt_proj_bias": vector,
        "a_log": Parameter((channels, space.size), ("channels", None)),
        "skip": vector,
        "out_proj": Parameter((hidden, channels), ("embed", "channels"), 1),
        "out_proj_bias": Parameter((hidden,), ("embed",)) if space.bias else None,
    }
    return {name: parameter for name, parameter in table.items() if parameter}


def _cross_attention(spec: ModelSpec, width: int = 0) -> dict[str, Parameter]:
    """`width`: of what is attended to, if not the model's."""
    hidden, kv, group, dim = spec.hidden_size, spec.num_kv_heads, spec.group, spec.head_dim
    heads = ("kv_heads", None, None)
    table = {
        "cross_q": Parameter((kv, group, dim, hidden), (*heads, "embed"), 1),
        "cross_q_bias": Parameter((kv, group, dim), heads) if spec.qkv_bias else None,
        "cross_kv": Parameter((2, kv, dim, width or hidden), (None, "kv_heads", None, "embed"), 1),
        "cross_kv_bias": Parameter((2, kv, dim), (None, "kv_heads", None)) if spec.qkv_bias else None,
        "cross_out": Parameter((hidden, kv, group, dim), ("embed", *heads), 3),
        "cross_out_bias": Parameter((hidden,), ("embed",)) if spec.out_bias else None,
    }
    return {name: parameter for name, parameter in table.items() if parameter}


def _of_pictures(spec: ModelSpec, cross: Cross) -> dict[str, Parameter]:
    """Of a layer that attends to pictures: as behind an encoder, and norms of queries and keys."""
    norm = Parameter((spec.head_dim,), (None,))
    names = ("cross_q_norm", "cross_k_norm") if cross.norm else ()
    return _cross_attention(spec, cross.width) | dict.fromkeys(names, norm)


def _mlp(spec: ModelSpec) -> dict[str, Parameter]:
    hidden, ffn, inner = spec.hidden_size, spec.ffn_size, 2 if spec.gated else 1
    table = {
        "gate_up": Parameter((inner, ffn, hidden), (None, "ffn", "embed"), 1),
        "gate_up_bias": Parameter((inner, ffn), (None, "ffn")) if spec.mlp_bias else None,
        "down": Parameter((hidden, ffn), ("embed", "ffn"), 1),
        "down_bias": Parameter((hidden,), ("embed",)) if spec.mlp_bias else None,
    }
    return {name: parameter for name, parameter in table.items() if parameter}


def _experts(spec: ModelSpec, experts: Experts) -> dict[str, Parameter]:
    hidden, count, ffn, shared = spec.hidden_size, experts.count, experts.ffn_size, experts.shared_ffn_size
    inner = 2 if spec.gated else 1
    table = {
        "router": Parameter((count, hidden), (None, "embed"), 1),
        "experts_gate_up": Parameter((count, inner, ffn, hidden), (None, None, "ffn", "embed"), 1, stacked=1),
        "experts_down": Parameter((count, hidden, ffn), (None, "embed", "ffn"), 1, stacked=1),
    }
    if experts.bias:
        table |= {
            "router_bias": Parameter((count,), (None,)),
            "experts_gate_up_bias": Parameter((count, inner, ffn), (None, None, "ffn")),
            "experts_down_bias": Parameter((count, hidden), (None, "embed")),
        }
    if experts.choice_bias:
        table["router_choice_bias"] = Parameter((count,), (None,), dtype="float32")
    if shared and experts.shared_gate:
        table["shared_gate"] = Parameter((1, hidden), (None, "embed"), 1)
    if shared:
        table |= {
            "shared_gate_up": Parameter((inner, shared, hidden), (None, "ffn", "embed"), 1),
            "shared_down": Parameter((hidden, shared), ("embed", "ffn"), 1),
        }
    return table
