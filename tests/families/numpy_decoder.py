"""The decoder a second time, in float64 NumPy, one token and one head at a time: slow, obvious, and of code of its own.

It takes a `ModelSpec` and parameters in the layout of `parameter_table`. It has no cache and no batch.
"""

import math
from collections.abc import Callable, Mapping

import ml_dtypes
import numpy as np

from jaxengine.architecture.model import Experts, LayerKind, ModelSpec, NormKind, Rope
from tests.families.numpy_recurrence import recurrent

Parameters = Mapping[str, np.ndarray]
Get = Callable[[str], np.ndarray | None]

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
    for i in range(spec.num_layers):
        x = _layer(spec, spec.kind(i), lambda name, i=i: get(f"layers.{i}.{name}"), x)  # type: ignore[misc]
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


def _layer(spec: ModelSpec, kind: LayerKind, get: Get, x: np.ndarray) -> np.ndarray:
    def norm(name: str, y: np.ndarray) -> np.ndarray:
        return _norm(spec, get, name, y)

    def attention(y: np.ndarray) -> np.ndarray:
        return _times(_mixed(spec, kind, get, y), get("attention_scale"))

    def mlp(y: np.ndarray) -> np.ndarray:
        return _times(spec.mlp_scale * _feed_forward(spec, kind, get, y), get("mlp_scale"))

    factor, block = spec.residual_scale, spec.block_of(kind)
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
    x = x + factor * norm("attention_post_norm", attention(norm("attention_norm", x)))
    return x + factor * norm("mlp_post_norm", mlp(norm("mlp_norm", x)))


def _mixed(spec: ModelSpec, kind: LayerKind, get: Get, y: np.ndarray) -> np.ndarray:
    if kind.mixer == "attention":
        return _attention(spec, kind, get, y)
    if kind.mixer == "recurrence":
        return recurrent(spec, get, y)
    scales = spec.beside
    attended = scales.attention_out * _attention(spec, kind, get, scales.attention_in * y)
    return attended + scales.recurrence_out * recurrent(spec, get, scales.recurrence_in * y)


def _times(branch: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
    return branch if scale is None else branch * scale


def _alibi(spec: ModelSpec, slope: float, query: int, key: np.ndarray, scale: float) -> np.ndarray:
    if not spec.attention.alibi_rounded:
        return slope * (key - query)
    return scale * (slope * key).astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def _attention(spec: ModelSpec, kind: LayerKind, get: Get, x: np.ndarray) -> np.ndarray:
    qkv = _linear(get, "qkv", x)  # [T, kv, group + 2, dim]
    if spec.attention.clip:
        qkv = np.clip(qkv, -spec.attention.clip, spec.attention.clip)
    qk = _qk_norm(spec, get, qkv[:, :, :-1])
    if kind.rope is not None:
        qk = np.stack([_rotated(kind.rope, row, position, len(x)) for position, row in enumerate(qk)])
    if (further := spec.attention.query_scale) is not None:
        factors = [1 + further.beta * math.log(1 + position // further.length) for position in range(len(x))]
        qk[:, :, :-1] *= np.array(factors)[:, None, None, None]
    scale = spec.head_dim**-0.5 if kind.scale is None else kind.scale
    heads, sinks = np.zeros((len(x), spec.num_kv_heads, spec.group, spec.head_dim)), get("sinks")
    for j in range(spec.num_kv_heads):
        for g in range(spec.group):
            slope = spec.attention.alibi[j * spec.group + g] if spec.attention.alibi else 0.0
            for i in range(len(x)):
                first = max(0, i + 1 - kind.window) if kind.window else 0
                score = scale * qk[first : i + 1, j, -1] @ qk[i, j, g]
                if spec.attention.softcap:
                    score = spec.attention.softcap * np.tanh(score / spec.attention.softcap)
                score = score + _alibi(spec, slope, i, np.arange(first, i + 1), scale)
                weight = np.exp(score)
                sink = 0.0 if sinks is None else math.exp(sinks[j, g])
                heads[i, j, g] = weight / (weight.sum() + sink) @ qkv[first : i + 1, j, -1]
    out, bias = get("out"), get("out_bias")
    assert out is not None
    y = np.einsum("tkgd,hkgd->th", heads, out)
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
    assert rope.kind == "longrope"
    return plain / (rope.long_factors if length > rope.original_positions else rope.short_factors)[pair]


def _feed_forward(spec: ModelSpec, kind: LayerKind, get: Get, x: np.ndarray) -> np.ndarray:
    if not kind.experts:
        return _mlp(spec, get, x)
    assert spec.experts is not None
    scores, out = _linear(get, "router", x), np.zeros_like(x)
    parts = ("gate_up", "gate_up_bias", "down", "down_bias")
    stacks = {part: values for part in parts if (values := get(f"experts_{part}")) is not None}
    for token, row in enumerate(x):
        for expert, weight in _routed(spec.experts, scores[token], get("router_choice_bias")):
            one = {part: values[expert] for part, values in stacks.items()}.get
            out[token] += weight * _mlp(spec, one, row[None])[0]
    if spec.experts.shared_ffn_size:
        gate = _sigmoid(_linear(get, "shared_gate", x)) if spec.experts.shared_gate else 1.0
        out += gate * _mlp(spec, lambda name: get(f"shared_{name}"), x)
    return out


def _routed(experts: Experts, scores: np.ndarray, bias: np.ndarray | None) -> list[tuple[int, float]]:
    """The experts of one token and their weights."""
    if experts.routing != "sparse_mixer":
        weights = np.exp(scores) / np.exp(scores).sum() if experts.routing == "softmax" else _sigmoid(scores)
        judged = weights if bias is None else weights + bias
        groups = np.split(np.arange(len(scores)), experts.groups)
        groups.sort(key=lambda group: -np.sort(judged[group])[-2:].sum())
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
