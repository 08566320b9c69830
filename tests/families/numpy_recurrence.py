"""Layers that keep states a second time, in float64 NumPy, one token and one head at a time, see `numpy_decoder`."""

import math
from collections.abc import Callable

import numpy as np

from jaxengine.architecture.model import LinearAttention, Mamba2, ModelSpec, ShortConvolution

Get = Callable[[str], np.ndarray | None]


def recurrent(spec: ModelSpec, get: Get, x: np.ndarray) -> np.ndarray:
    """What the recurrence of `spec` makes of x [T, hidden]."""
    sizes = spec.recurrence
    if isinstance(sizes, LinearAttention):
        made = _linear_attention(spec, sizes, get, x)
    elif isinstance(sizes, Mamba2):
        made = _mamba2(spec, sizes, get, x)
    else:
        assert isinstance(sizes, ShortConvolution)
        b, c, inner = _product(get, "short_in", x).swapaxes(0, 1)
        made = c * _convolved(get, "short_conv", b * inner)
    name = next(f"{kind}_out" for kind in ("linear", "mamba", "short") if get(f"{kind}_out") is not None)
    out, bias = get(name), get(f"{name}_bias")
    assert out is not None
    return made.reshape(len(x), -1) @ out.reshape(len(out), -1).T + (0.0 if bias is None else bias)


def _linear_attention(spec: ModelSpec, sizes: LinearAttention, get: Get, x: np.ndarray) -> np.ndarray:
    projected, rates = _product(get, "linear_in", x), _product(get, "linear_rates", x)
    gates, convolved = _silu(_product(get, "linear_gate", x)), _silu(_convolved(get, "linear_conv", projected))
    decay, step, weight = get("linear_decay"), get("linear_step"), get("linear_norm")
    assert decay is not None and step is not None and weight is not None
    made = np.zeros((len(x), sizes.key_heads, sizes.group, sizes.value_dim))
    for head, i in np.ndindex(sizes.key_heads, sizes.group):
        states = np.zeros((sizes.key_dim, sizes.value_dim))
        for t, (channels, rate) in enumerate(zip(convolved[:, head], rates[:, head], strict=True)):
            q, k, values = np.split(channels, (sizes.key_dim, 2 * sizes.key_dim))
            q, k = (each / math.sqrt((each**2).sum() + 1e-6) for each in (q, k))
            states *= math.exp(-math.exp(decay[head, i]) * _softplus(rate[sizes.group + i] + step[head, i]))
            v = values.reshape(sizes.group, -1)[i]
            states += sizes.most_rate / (1 + math.exp(-rate[i])) * np.outer(k, v - k @ states)
            y = q @ states / math.sqrt(sizes.key_dim)
            eps = spec.norm.eps if sizes.eps is None else sizes.eps
            made[t, head, i] = weight * y / math.sqrt((y**2).mean() + eps) * gates[t, head, i]
    return made


def _mamba2(spec: ModelSpec, sizes: Mamba2, get: Get, x: np.ndarray) -> np.ndarray:
    scales = sizes.scales or (1.0,) * 5
    gates, inner = _product(get, "mamba_in", x).swapaxes(0, 1)
    shared = _product(get, "mamba_shared", x) * np.array(scales[2:4])[:, None, None]
    b, c = _silu(_convolved(get, "mamba_shared_conv", shared)).swapaxes(0, 1)
    inner, gates = _silu(_convolved(get, "mamba_conv", scales[1] * inner)), _silu(scales[0] * gates)
    decay, step, skip = (get(f"mamba_{name}") for name in ("decay", "step", "skip"))
    assert decay is not None and step is not None and skip is not None
    steps = np.vectorize(_softplus)(scales[4] * _product(get, "mamba_rates", x) + step)
    steps = np.clip(steps, sizes.least_step, sizes.most_step)
    made = np.zeros(inner.shape)
    for head in range(sizes.heads):
        states, group = np.zeros((sizes.size, sizes.head_dim)), head * sizes.groups // sizes.heads
        for t in range(len(x)):
            delta = steps[t, head]
            states = math.exp(-delta * math.exp(decay[head])) * states + delta * np.outer(b[t, group], inner[t, head])
            made[t, head] = c[t, group] @ states + skip[head] * inner[t, head]
    return _normed(spec, sizes, get("mamba_norm"), made, gates)


def _normed(spec: ModelSpec, sizes: Mamba2, weight: np.ndarray | None, y: np.ndarray, gates: np.ndarray) -> np.ndarray:
    if weight is None:
        return y * gates
    first = sizes.norm == "gate_first"
    grouped = (y * gates if first else y).reshape(len(y), sizes.groups, -1)
    grouped = grouped / np.sqrt((grouped**2).mean(-1, keepdims=True) + spec.norm.eps)
    return weight * grouped.reshape(y.shape) * (1.0 if first else gates)


def _product(get: Get, name: str, x: np.ndarray) -> np.ndarray:
    weight, bias = get(name), get(f"{name}_bias")
    assert weight is not None
    return np.asarray(np.tensordot(x, weight, axes=(-1, -1)) + (0.0 if bias is None else bias))


def _convolved(get: Get, name: str, u: np.ndarray) -> np.ndarray:
    """u [T, …] over the last tokens."""
    taps, bias = get(name), get(f"{name}_bias")
    assert taps is not None
    y = np.zeros(u.shape) + (0.0 if bias is None else bias)
    for t in range(len(u)):
        for back in range(min(t + 1, taps.shape[-1])):
            y[t] += taps[..., -1 - back] * u[t - back]
    return y


def _silu(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / (1 + np.exp(-x)))


def _softplus(x: float) -> float:
    return math.log1p(math.exp(x))
