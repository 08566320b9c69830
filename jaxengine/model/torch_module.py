"""transformers' PyTorch module as a function of JAX arrays.

The module is built without weights. Its attention, masks and output embedding are replaced by functions of this file.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxengine.architecture.model import ModelSpec
from jaxengine.model.cache import LayerCaches
from jaxengine.ops import AttentionBias, AttentionSpec, Ops, StepBatch

NAME = "paged"  # registers our attention in transformers' interface


@dataclass
class TracedStep:
    """One step that is traced through the module: what its attention layers read, and the caches that they write."""

    spec: ModelSpec
    ops: Ops
    batch: StepBatch
    caches: LayerCaches
    attended: set[int] = field(default_factory=set)  # numbers of the layers that have attended

    def __call__(self, layer: int, q: Array, k: Array, v: Array, kind: AttentionSpec, sinks: Array | None) -> Array:
        """Attention of layer number `layer`: q [1, H, T, D], k [1, J, T, D] and v [1, J, T, E] → [1, T, H, E].

        The caches fit the layer with the most and widest key/value heads. Heads of other layers are repeated and padded
        with zeros.
        """
        spec, tokens, width = self.spec, q.shape[2], v.shape[-1]
        if q.shape[1] != spec.num_heads or spec.num_kv_heads % k.shape[1] or max(q.shape[-1], width) > spec.head_dim:
            raise ValueError(f"layer {layer} attends with {q.shape}, {k.shape}, {v.shape}, unlike others")
        if layer in self.attended or layer >= spec.num_layers:
            raise ValueError(f"layer {layer} of {spec.num_layers} attends twice, or there is no such layer")
        self.attended.add(layer)
        kind = replace(kind, scale=kind.scale_for(q.shape[-1]))
        q, k, v = (_filled(array[0].swapaxes(0, 1), spec.head_dim) for array in (q, k, v))  # [T, heads, D]
        k, v = (jnp.repeat(array, spec.num_kv_heads // array.shape[1], axis=1) for array in (k, v))
        grouped = q.reshape(tokens, spec.num_kv_heads, spec.group, spec.head_dim)
        qkv = jnp.concatenate([grouped, k[:, :, None], v[:, :, None]], axis=2)  # rotated already
        bias = AttentionBias(sinks=None if sinks is None else sinks.reshape(spec.num_kv_heads, spec.group))
        keys, values, number = self.caches.of_layer(layer)
        output, keys, values = self.ops.attend(qkv, None, keys, values, self.batch.of_layer(number), bias, kind)
        self.caches.replace(layer, keys, values)
        return output.reshape(1, tokens, spec.num_heads, spec.head_dim)[..., :width]


def _filled(array: Array, width: int) -> Array:
    """`array` padded with zeros to `width` elements of the last axis."""
    return jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, width - array.shape[-1])])


@dataclass(frozen=True)
class Mask:
    """Replaces a module's mask: it says only which window the module asked for, 0 for none."""

    window: int

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"its attention does more with a mask than pass it on: {name!r}")


@dataclass
class CurrentStep:
    """Where a module's attention finds the step that is traced: not every module passes extra arguments to it."""

    step: TracedStep | None = None


class TorchModule:
    """transformers' module without weights, which are arguments of a call. PyTorch swaps weights in place, so there is
    one call at a time.
    """

    def __init__(self, spec: ModelSpec) -> None:
        assert spec.traced is not None
        self.environment = _torchax()
        self.lock = threading.Lock()
        self.spec = spec
        try:
            self.module = _build(json.loads(spec.traced.config))
        except Exception as error:
            raise ValueError(f"transformers cannot build this model for us: {_first_line(error)}") from error
        self.buffers = {name: jnp.asarray(_numpy(buffer)) for name, buffer in self.module.named_buffers()}
        self.current = CurrentStep()
        for each in self.module.modules():
            each.current = self.current

    def __call__(self, arrays: dict[str, Array], ids: Array, position: Array, step: TracedStep) -> Array:
        import torch
        from torchax.interop import jax_view, torch_view

        with self.lock, self.environment:
            self.current.step = step
            weights = {name: torch_view(array) for name, array in (self.buffers | arrays).items()}
            inputs = {"input_ids": ids[None], "position_ids": position[None]}
            given = {name: torch_view(array) for name, array in inputs.items()}
            try:
                torch.func.functional_call(self.module, weights, (), {**given, "use_cache": False})
                self._check(step)
            except Exception as error:
                name = type(self.module).__name__
                raise ValueError(f"transformers' {name} cannot be traced: {_first_line(error)}") from error
            return jax_view(self.module.get_output_embeddings().hidden)[0]  # type: ignore[no-any-return]

    def _check(self, step: TracedStep) -> None:
        missed = set(range(self.spec.num_layers)) - step.attended
        if missed:
            raise ValueError(f"layers {sorted(missed)} of {self.spec.num_layers} do not attend through the interface")


def _build(values: dict[str, Any]) -> Any:
    import torch
    from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _mask)
    config = AutoConfig.for_model(**values)
    config._experts_implementation = "batched_mm"  # its default has no lowering
    with _without_weights():
        module = AutoModelForCausalLM.from_config(config, attn_implementation=NAME, dtype=torch.float32)
    module.set_output_embeddings(_identity_head())
    return module.eval()


def _numpy(buffer: Any) -> np.ndarray:
    """A buffer that the module computed when it was built; bf16 as f32, since NumPy has no bf16."""
    return (buffer.float() if buffer.is_floating_point() else buffer).numpy()  # type: ignore[no-any-return]


def _identity_head() -> Any:
    import torch

    class IdentityHead(torch.nn.Module):
        """Replaces the output embedding and keeps its input, the hidden states."""

        hidden: Any = None
        weight = bias = None

        def forward(self, hidden: Any) -> Any:
            self.hidden = hidden
            return hidden

    return IdentityHead()


def _mask(
    *_: Any, use_vmap: bool = False, allow_is_bidirectional_skip: Any = None, local_size: int | None = None, **__: Any
) -> Mask:
    """transformers calls this instead of its masks: our pages and positions decide what a query sees."""
    if use_vmap or allow_is_bidirectional_skip is not None:
        raise ValueError("its attention is not causal, or has a mask of its own")
    return Mask(local_size or 0)


def _attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Any = None,
    **others: Any,
) -> tuple[Any, None]:
    """transformers calls this instead of attention, once per layer."""
    from torchax.interop import jax_view, torch_view

    step, layer = module.current.step, module.layer_idx
    if not isinstance(attention_mask, Mask | None) or others.get("position_bias") is not None:
        raise ValueError("its attention is more than causal: a mask or a bias of its own")
    if not getattr(module, "is_causal", True):
        raise ValueError("its attention is not causal")
    window = sliding_window or 0
    if attention_mask is not None and attention_mask.window != window:
        raise ValueError(f"layer {layer} has a mask of {attention_mask.window} positions, its attention says {window}")
    kind = AttentionSpec(scaling, window, softcap or 0.0)
    q, k, v, sinks = (None if array is None else jax_view(array) for array in (query, key, value, s_aux))
    return torch_view(step(layer, q, k, v, kind, sinks)), None


@contextmanager
def _without_weights() -> Iterator[None]:
    """Modules built inside have parameters without data, but real buffers, which they compute themselves."""
    import torch

    register = torch.nn.Module.register_parameter

    def without_data(module: Any, name: str, parameter: Any) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = torch.nn.Parameter(parameter.to("meta"), requires_grad=False)
        register(module, name, parameter)

    torch.nn.Module.register_parameter = without_data  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]


def _torchax() -> Any:
    """torchax's environment. Its tables (0.0.13) name overloads that PyTorch 2.13 dropped; none is ever called."""
    from torch._ops import OpOverloadPacket

    found = OpOverloadPacket.__getattr__

    def or_nothing(packet: Any, name: str) -> Any:
        try:
            return found(packet, name)
        except AttributeError:
            if "imname" not in name and "names" not in name:
                raise
            return (str(packet), name)

    OpOverloadPacket.__getattr__ = or_nothing  # type: ignore[method-assign]
    try:
        import torchax

        return torchax.default_env()
    finally:
        OpOverloadPacket.__getattr__ = found  # type: ignore[method-assign]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no reason given'}"
