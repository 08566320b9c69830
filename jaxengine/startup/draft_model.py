"""A draft model as the engine can run it beside the model, or why it cannot."""

from dataclasses import replace

from jaxengine.architecture.drafter import DraftModelSource
from jaxengine.architecture.layer_groups import LayerGroups
from jaxengine.architecture.model import ModelSpec
from jaxengine.device import DeviceTraits
from jaxengine.ops import choose_backend
from jaxengine.sharding import check_divisible
from jaxengine.weights.kv_heads import replicate_heads
from jaxengine.weights.wider_experts import widen_experts


def fitted(
    drafter: DraftModelSource, target: ModelSpec, attention: str, devices: int, device: DeviceTraits, dtype: str
) -> DraftModelSource:
    """`drafter` with the heads and experts that `devices` devices can share, computed in `dtype`.

    Raises:
        ValueError: it cannot draft for `target`, or cannot run there; the message begins with "draft model".
    """
    source = widen_experts(replicate_heads(drafter.source, devices), devices, device)
    spec = source.spec
    if problem := _problem(spec, target):
        raise ValueError(f"draft model: {problem}")
    try:
        check_divisible(spec, devices)
        choose_backend(attention, device, spec.head_dim, spec.group, dtype)
    except ValueError as error:
        raise ValueError(f"draft model: {error}") from error
    return replace(drafter, source=source)


def _problem(spec: ModelSpec, target: ModelSpec) -> str:
    """Why a model of `spec` cannot draft for `target`, or ""."""
    if spec.encoder or target.encoder:
        return "a model with an encoder cannot draft, and none can draft for it"
    if spec.state_space:
        return "its layers keep states, which cannot take a wrong guess back"
    if spec.traced:
        return "a model that runs as transformers' own module cannot draft"
    if LayerGroups.of(target).windows[0]:
        return "all layers of the model have windows, so it keeps no page for each token, which the draft model needs"
    if spec.vocab_size < target.tokens:
        return f"its vocabulary of {spec.vocab_size} lacks some of the model's {target.tokens} tokens"
    return ""
