"""The parameters of one layer of a decoder, an encoder or a tower, by names without the layer's prefix. No JAX here."""

from jaxengine.architecture.latent import Latent
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
    spec = spec.sized(kind)
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
        experts = spec.experts if kind.experts else None
        table |= _mlp(spec) if experts is None or experts.beside else {}
        table |= {} if experts is None else _experts(spec, experts)
    if kind.gates != "none":
        gate = Parameter((1,), (None,)) if kind.gates == "number" else Parameter((spec.hidden_size,), ("embed",))
        table |= {"attention_gate": gate, "mlp_gate": gate}
    if spec.layer_scale:
        table |= {name: Parameter((spec.hidden_size,), ("embed",)) for name in ("attention_scale", "mlp_scale")}
    if block == "sandwich" and kind.feed_forward:
        table |= norm_parameters("mlp_post_norm", spec)
    if width := spec.embedding.layer_width:
        table["input_gate"] = Parameter((width, spec.hidden_size), (None, "embed"), 1)
        table["input_out"] = Parameter((spec.hidden_size, width), ("embed", None), 1)
        table |= norm_parameters("input_norm", spec)
    if spec.output_scale:
        table["output_scale"] = Parameter((1,), (None,))
    return table


def _sequence_mixer(spec: ModelSpec, kind: LayerKind) -> dict[str, Parameter]:
    """Of attention, or of what a layer has in its place."""
    if kind.cross is not None:
        return _of_pictures(spec, kind.cross)
    table = _attention_of(spec, kind) if kind.attends else {}
    if kind.recurrent and spec.recurrence is not None:
        table |= recurrence_parameters(spec.hidden_size, spec.recurrence)
    return table


def _attention_of(spec: ModelSpec, kind: LayerKind) -> dict[str, Parameter]:
    if spec.attention.latent is not None:
        return _latent_attention(spec, spec.attention.latent)
    return _attention(spec) if kind.reads is None else _reading(spec)


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


def _reading(spec: ModelSpec) -> dict[str, Parameter]:
    """Of a layer that makes no keys and values: q [kv, group, dim, hidden], and one norm for all heads."""
    hidden, kv, group, dim = spec.hidden_size, spec.num_kv_heads, spec.group, spec.head_dim
    heads = ("kv_heads", None, None)
    table = {
        "q": Parameter((kv, group, dim, hidden), (*heads, "embed"), 1),
        "q_bias": Parameter((kv, group, dim), heads) if spec.qkv_bias else None,
        "q_norm": Parameter((dim,), (None,)) if spec.attention.qk_norm else None,
        "out": Parameter((hidden, kv, group, dim), ("embed", *heads), 3),
        "out_bias": Parameter((hidden,), ("embed",)) if spec.out_bias else None,
    }
    return {name: parameter for name, parameter in table.items() if parameter}


def _latent_attention(spec: ModelSpec, latent: Latent) -> dict[str, Parameter]:
    """`q_a` and `kv_a` make latents, the latter with the shared key behind it, and `q` makes queries, each head's part
    that turns behind the other. `k_up` and `v_up` would make keys and values of the latent: queries are multiplied by
    the one, and what is attended by the other.
    """
    hidden, kv, group = spec.hidden_size, spec.num_kv_heads, spec.group
    heads = ("kv_heads", None, None)
    table = {
        "q_a": Parameter((latent.query_rank, hidden), (None, "embed"), 1) if latent.query_rank else None,
        "q_a_bias": Parameter((latent.query_rank,), (None,)) if latent.query_rank and spec.qkv_bias else None,
        "q_a_norm": Parameter((latent.query_rank,), (None,)) if latent.query_rank else None,
        "q": Parameter((kv, group, spec.head_dim, latent.query_rank or hidden), (*heads, "embed"), 1),
        "kv_a": Parameter((latent.cached, hidden), (None, "embed"), 1),
        "kv_a_bias": Parameter((latent.cached,), (None,)) if spec.qkv_bias else None,
        "kv_a_norm": Parameter((latent.rank,), (None,)),
        "k_up": Parameter((kv, group, latent.plain_dim, latent.rank), (*heads, None)),
        "v_up": Parameter((kv, group, latent.value_dim, latent.rank), (*heads, None)),
        "sinks": Parameter((kv, group), ("kv_heads", None)) if spec.attention.sinks else None,
        "out": Parameter((hidden, kv, group, latent.value_dim), ("embed", *heads), 3),
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
    if experts.learned_scale:
        table["router_scale"] = Parameter((count,), (None,))
    if experts.beside:
        table["router_norm"] = Parameter((hidden,), ("embed",))
        for name in ("mlp_inner_norm", "experts_norm", "experts_post_norm"):
            table |= norm_parameters(name, spec)
    if shared and experts.shared_gate:
        table["shared_gate"] = Parameter((1, hidden), (None, "embed"), 1)
    if shared:
        table |= {
            "shared_gate_up": Parameter((inner, shared, hidden), (None, "ffn", "embed"), 1),
            "shared_down": Parameter((hidden, shared), ("embed", "ffn"), 1),
        }
    if experts.norm:
        table |= norm_parameters("experts_norm", spec)
    return table
