"""The decoder a second time, in float64 NumPy, one token and one head at a time: slow, obvious, and of code of its own.

It takes a `ModelSpec` and parameters in the layout of `parameter_table`. It has no cache and no batch.
"""

import math
from collections.abc import Callable, Mapping

import ml_dtypes
import numpy as np

from jaxengine.architecture.latent import Latent
from jaxengine.architecture.model import Experts, LayerKind, ModelSpec, NormKind, Rope
from tests.families.numpy_recurrence import recurrent

Parameters = Mapping[str, np.ndarray]
Get = Callable[[str], np.ndarray | None]
Kept = dict[int, tuple[np.ndarray, np.ndarray]]  # keys and values [T, kv, dim] of each layer that makes them

erf = np.vectorize(math.erf)
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * (1 + erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
}


def logits(spec: ModelSpec, parameters: Parameters, ids: list[int]) -> np.ndarray:
    """Logits after every prefix of `ids`: [len(ids), vocab]."""
    get = parameters.get
    x = np.stack([_embedded(spec, get, token, position) for position, token in enumerate(ids)])
    further, kept = _layer_inputs(spec, get, ids, x), Kept()
    for i in range(spec.num_layers):
        of_layer: Get = lambda name, i=i: get(f"layers.{i}.{name}")  # type: ignore[misc]  # noqa: E731
        x = _layer(spec.sized(spec.kind(i)), spec.kind(i), of_layer, x, kept, i)
        if further is not None:
            x = x + _of_own_input(spec, of_layer, x, further[:, i])
        if (scale := of_layer("output_scale")) is not None:
            x = x * scale
    if spec.final_norm:
        x = _norm(spec, get, "final_norm", x)
    if spec.embedding_width != spec.hidden_size:
        x = _linear(get, "project_out", x)
    out = x @ parameters["embedding" if spec.head.tied else "head"].T
    out = out + parameters["head_bias"] if spec.head.bias else out
    out = out * spec.head.scale
    return spec.head.softcap * np.tanh(out / spec.head.softcap) if spec.head.softcap else out


def _embedded(spec: ModelSpec, get: Get, token: int, position: int) -> np.ndarray:
    rows, positions = get("embedding"), get("positions")
    assert rows is not None
    x = rows[token] * spec.embedding.scale
    if spec.embedding_width != spec.hidden_size:
        x = _linear(get, "project_in", x)
    x = x if positions is None else x + positions[position]
    return _norm(spec, get, "embedding_norm", x) if spec.embedding.norm else x


def _layer_inputs(spec: ModelSpec, get: Get, ids: list[int], x: np.ndarray) -> np.ndarray | None:
    """What each layer reads of each token beside the stream: [T, layers, width]."""
    if not (width := spec.embedding.layer_width):
        return None
    rows, weight = get("layer_embedding"), get("layer_input_norm")
    assert rows is not None and weight is not None
    looked_up = rows[ids].reshape(len(ids), spec.num_layers, width) * width**0.5
    made = _normalised(spec.norm.kind, spec.norm.eps, _linear(get, "layer_projection", x) / spec.hidden_size**0.5)
    return np.asarray((made * (weight + (spec.norm.kind == "rms_plus_one")) + looked_up) / 2**0.5)


def _of_own_input(spec: ModelSpec, get: Get, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    gate = ACTIVATIONS[spec.activation](_linear(get, "input_gate", x))
    return _norm(spec, get, "input_norm", _linear(get, "input_out", gate * rows))


def _layer(spec: ModelSpec, kind: LayerKind, get: Get, x: np.ndarray, kept: Kept, number: int) -> np.ndarray:
    def norm(name: str, y: np.ndarray) -> np.ndarray:
        return _norm(spec, get, name, y)

    def attention(y: np.ndarray) -> np.ndarray:
        def attend(y: np.ndarray) -> np.ndarray:
            q, kept[number] = _projected(spec, kind, get, y, kept.get(kind.reads if kind.reads is not None else -1))
            return _attention(spec, kind, get, q, *kept[number])

        return _times(_mixed(spec, kind, get, y, attend), get("attention_scale"))

    def mlp(y: np.ndarray) -> np.ndarray:
        return _times(spec.mlp_scale * _feed_forward(spec, kind, get, y, stream), get("mlp_scale"))

    factor, block, stream = spec.residual_scale, spec.block_of(kind), x  # what experts beside an MLP read, see the last
    if not kind.feed_forward or kind.mixer == "none":
        assert block == "sequential"
        name, branch = ("attention_norm", attention) if kind.mixer != "none" else ("mlp_norm", mlp)
        return x + factor * branch(norm(name, x))
    if block == "parallel":
        y = norm("attention_norm", x)
        return x + factor * (attention(y) + mlp(y))
    if block == "parallel_norms":
        return x + factor * (attention(norm("attention_norm", x)) + mlp(norm("mlp_norm", x)))
    if block == "sequential":
        x = x + factor * attention(norm("attention_norm", x))
        return x + factor * mlp(norm("mlp_norm", x))
    if block == "post_norm":
        x = norm("attention_norm", x + factor * attention(x))
        return norm("mlp_norm", x + factor * mlp(x))
    if block == "branch_norm":
        x = x + factor * norm("attention_norm", attention(x))
        return x + factor * norm("mlp_norm", mlp(x))
    x = stream = x + factor * norm("attention_post_norm", attention(norm("attention_norm", x)))
    return x + factor * norm("mlp_post_norm", mlp(norm("mlp_norm", x)))


def _mixed(
    spec: ModelSpec, kind: LayerKind, get: Get, y: np.ndarray, attend: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    if kind.mixer == "attention":
        return attend(y)
    if kind.mixer == "recurrence":
        return recurrent(spec, get, y)
    scales = spec.beside
    attended = scales.attention_out * attend(scales.attention_in * y)
    return attended + scales.recurrence_out * recurrent(spec, get, scales.recurrence_in * y)


def _times(branch: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
    return branch if scale is None else branch * scale


def _alibi(spec: ModelSpec, slope: float, query: int, key: np.ndarray, scale: float) -> np.ndarray:
    if not spec.attention.alibi_rounded:
        return slope * (key - query)
    return scale * (slope * key).astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def _of_latents(latent: Latent, kind: LayerKind, get: Get, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A query and a key, and a value, of each head: [T, heads, 2, dim] and [T, heads, dim of values]."""

    def normed(name: str, y: np.ndarray) -> np.ndarray:
        weight = get(name)
        assert weight is not None
        return _normalised("rms", latent.eps, y) * weight

    def turned(part: np.ndarray) -> np.ndarray:
        if kind.rope is None:
            return part
        return np.stack([_rotated(kind.rope, row, position, len(x)) for position, row in enumerate(part)])

    k_up, v_up = get("k_up"), get("v_up")
    assert k_up is not None and v_up is not None
    made = _linear(get, "kv_a", x)
    q = _linear(get, "q", normed("q_a_norm", _linear(get, "q_a", x)) if latent.query_rank else x)[:, 0]
    low = normed("kv_a_norm", made[:, : latent.rank])
    shared = np.broadcast_to(turned(made[:, None, latent.rank :]), (len(x), q.shape[1], latent.rope_dim))
    queries = np.concatenate([q[..., : latent.plain_dim], turned(q[..., latent.plain_dim :])], axis=-1)
    keys = np.concatenate([np.einsum("gnr,tr->tgn", k_up[0], low), shared], axis=-1)
    return np.stack([queries, keys], axis=2), np.einsum("gvr,tr->tgv", v_up[0], low)


def _projected(
    spec: ModelSpec, kind: LayerKind, get: Get, x: np.ndarray, read: tuple[np.ndarray, np.ndarray] | None
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Queries [T, kv, group, dim], rotated, and the keys and values that they see, or those that are `read`."""
    if read is not None:
        q, weight, norm = _linear(get, "q", x), get("q_norm"), spec.attention.qk_norm
        if norm is not None and weight is not None:
            q = _normalised(norm.kind, spec.norm.eps, q) * (weight + (norm.kind == "rms_plus_one"))
        if kind.rope is not None:
            q = np.stack([_rotated(kind.rope, row, position, len(x)) for position, row in enumerate(q)])
        return q, read
    if (latent := spec.attention.latent) is not None:
        qk, values = _of_latents(latent, kind, get, x)
        return qk[:, :, :-1], (qk[:, :, -1], values)
    qkv = _linear(get, "qkv", x)  # [T, kv, group + 2, dim]
    if spec.attention.clip:
        qkv = np.clip(qkv, -spec.attention.clip, spec.attention.clip)
    qk = _qk_norm(spec, get, qkv[:, :, :-1])
    if kind.rope is not None:
        qk = np.stack([_rotated(kind.rope, row, position, len(x)) for position, row in enumerate(qk)])
    if (further := spec.attention.query_scale) is not None:
        factors = [1 + further.beta * math.log(1 + position // further.length) for position in range(len(x))]
        qk[:, :, :-1] *= np.array(factors)[:, None, None, None]
    values = qkv[:, :, -1]
    if spec.attention.value_norm:
        values = _normalised("rms", spec.norm.eps, values)
    return qk[:, :, :-1], (qk[:, :, -1], values)


def _attention(
    spec: ModelSpec, kind: LayerKind, get: Get, q: np.ndarray, keys: np.ndarray, values: np.ndarray
) -> np.ndarray:
    scale = spec.head_dim**-0.5 if kind.scale is None else kind.scale
    heads, sinks = np.zeros((*q.shape[:3], values.shape[-1])), get("sinks")
    for j in range(q.shape[1]):
        for g in range(q.shape[2]):
            head = j * q.shape[2] + g
            slope = spec.attention.alibi[head] if spec.attention.alibi else 0.0
            for i in range(len(q)):
                first = max(0, i + 1 - kind.window) if kind.window else 0
                score = scale * keys[first : i + 1, j] @ q[i, j, g]
                if spec.attention.softcap:
                    score = spec.attention.softcap * np.tanh(score / spec.attention.softcap)
                score = score + _alibi(spec, slope, i, np.arange(first, i + 1), scale)
                weight = np.exp(score)
                sink = 0.0 if sinks is None else math.exp(sinks.flat[head])
                heads[i, j, g] = weight / (weight.sum() + sink) @ values[first : i + 1, j]
    out, bias = get("out"), get("out_bias")
    assert out is not None
    y = heads.reshape(len(q), -1) @ out.reshape(len(out), -1).T
    return y if bias is None else y + bias


def _qk_norm(spec: ModelSpec, get: Get, qk: np.ndarray) -> np.ndarray:
    norm, weight, bias = spec.attention.qk_norm, get("qk_norm"), get("qk_norm_bias")
    if norm is None:
        return qk
    out = np.empty_like(qk)
    for row, made in zip(qk, out, strict=True):  # [kv, group + 1, dim]
        if norm.over == "projection":
            made[:, :-1] = _normalised(norm.kind, spec.norm.eps, row[:, :-1].ravel()).reshape(row[:, :-1].shape)
            made[:, -1] = _normalised(norm.kind, spec.norm.eps, row[:, -1].ravel()).reshape(row[:, -1].shape)
        else:
            made[:] = _normalised(norm.kind, spec.norm.eps, row)
    assert weight is not None
    out = out * (weight + (norm.kind == "rms_plus_one"))
    return out if bias is None else out + bias


def _rotated(rope: Rope, heads: np.ndarray, position: int, length: int) -> np.ndarray:
    """The heads [kv, group + 1, dim] of one token, rotated; the text has `length` tokens."""
    dim = rope.dim or heads.shape[-1]
    out = heads.copy()
    for pair in range(dim // 2):
        angle = position * _frequency(rope, dim, pair, length)
        low, high = heads[..., pair], heads[..., pair + dim // 2]
        out[..., pair] = low * math.cos(angle) - high * math.sin(angle)
        out[..., pair + dim // 2] = high * math.cos(angle) + low * math.sin(angle)
    if rope.kind == "longrope":
        short = rope.short_attention_factor is not None and length <= rope.original_positions
        derived = math.sqrt(1 + math.log(rope.factor) / math.log(rope.original_positions))
        out[..., :dim] *= rope.short_attention_factor if short else derived
    return out


def _frequency(rope: Rope, dim: int, pair: int, length: int) -> float:
    """Of the kinds that random specs draw; the other kinds are compared with transformers."""
    plain = rope.theta ** (-2 * pair / dim)
    if rope.kind == "default":
        return plain
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "proportional":
        return plain / rope.factor if pair < rope.turning else 0.0
    assert rope.kind == "longrope"
    return plain / (rope.long_factors if length > rope.original_positions else rope.short_factors)[pair]


def _feed_forward(spec: ModelSpec, kind: LayerKind, get: Get, x: np.ndarray, stream: np.ndarray) -> np.ndarray:
    if not kind.experts:
        return _mlp(spec, get, x)
    assert spec.experts is not None
    if not spec.experts.beside:
        return _mixture(spec, get, x, x)
    weight = get("router_norm")
    assert weight is not None
    judged = _normalised("rms", spec.norm.eps, stream) * weight / spec.hidden_size**0.5
    mixed = _mixture(spec, get, _norm(spec, get, "experts_norm", stream), judged)
    inner = _norm(spec, get, "mlp_inner_norm", _mlp(spec, get, x))
    return inner + _norm(spec, get, "experts_post_norm", mixed)


def _mixture(spec: ModelSpec, get: Get, x: np.ndarray, judged: np.ndarray) -> np.ndarray:
    assert spec.experts is not None
    scores, out = _linear(get, "router", judged), np.zeros_like(x)
    parts = ("gate_up", "gate_up_bias", "down", "down_bias")
    stacks = {part: values for part in parts if (values := get(f"experts_{part}")) is not None}
    for token, row in enumerate(x):
        for expert, weight in _routed(spec.experts, scores[token], get("router_choice_bias")):
            one = {part: values[expert] for part, values in stacks.items()}.get
            learned = get("router_scale")
            weight = weight if learned is None else weight * learned[expert]
            out[token] += weight * _mlp(spec, one, row[None])[0]
    if spec.experts.shared_ffn_size:
        gate = _sigmoid(_linear(get, "shared_gate", x)) if spec.experts.shared_gate else 1.0
        out += gate * _mlp(spec, lambda name: get(f"shared_{name}"), x)
    return _norm(spec, get, "experts_norm", out) if spec.experts.norm else out


def _routed(experts: Experts, scores: np.ndarray, bias: np.ndarray | None) -> list[tuple[int, float]]:
    """The experts of one token and their weights."""
    if experts.routing != "sparse_mixer":
        weights = np.exp(scores) / np.exp(scores).sum() if experts.routing == "softmax" else _sigmoid(scores)
        judged = weights if bias is None else weights + bias
        groups = np.split(np.arange(len(scores)), experts.groups)
        groups.sort(key=lambda group: -np.sort(judged[group])[-experts.judges :].sum())
        open_to = np.concatenate(groups[: experts.used_groups])
        best = open_to[np.argsort(-judged[open_to])[: experts.used]]
        total = weights[best].sum() if experts.renormalise else 1.0
        return [(int(e), experts.scale * weights[e] / total) for e in best]
    chosen: list[tuple[int, float]] = []
    for _ in range(2):
        left = [e for e in range(len(scores)) if e not in [taken for taken, _ in chosen]]
        best = max(left, key=lambda e: scores[e])
        near = [e for e in left if scores[best] - scores[e] <= 2 * experts.jitter * max(abs(scores[e]), scores[best])]
        chosen.append((best, 1 / sum(math.exp(scores[e] - scores[best]) for e in near)))
    return chosen


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def _mlp(spec: ModelSpec, get: Get, x: np.ndarray) -> np.ndarray:
    inner = _linear(get, "gate_up", x)  # [T, 1 or 2, ffn]
    if spec.clamped_gate is not None:
        limit = spec.clamped_gate.limit
        gate, up = np.minimum(spec.gate_scale * inner[:, 0], limit), np.maximum(np.minimum(inner[:, 1], limit), -limit)
        return _linear(get, "down", (1 + up) * gate / (1 + np.exp(-spec.clamped_gate.alpha * gate)))
    active = ACTIVATIONS[spec.activation](spec.gate_scale * inner[:, 0])
    return _linear(get, "down", active * inner[:, 1] if spec.gated else active)


def _linear(get: Get, name: str, x: np.ndarray) -> np.ndarray:
    weight, bias = get(name), get(f"{name}_bias")
    assert weight is not None
    y = np.tensordot(x, weight, axes=(-1, -1))
    return y if bias is None else y + bias


def _norm(spec: ModelSpec, get: Get, name: str, x: np.ndarray) -> np.ndarray:
    weight, bias = get(name), get(f"{name}_bias")
    y = _normalised(spec.norm.kind, spec.norm.eps, x)
    y = y if weight is None else y * (weight + (spec.norm.kind == "rms_plus_one"))
    return y if bias is None else y + bias


def _normalised(kind: NormKind, eps: float, x: np.ndarray) -> np.ndarray:
    if kind == "layer":
        x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
