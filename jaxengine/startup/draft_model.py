"""A draft model or EAGLE's layers as the engine can run them beside the model, or why it cannot."""

from dataclasses import replace

from jaxengine.architecture.drafter import DrafterSource, DraftModelSource, Eagle
from jaxengine.architecture.layer_groups import LayerGroups
from jaxengine.architecture.model import ModelSpec
from jaxengine.device import DeviceTraits
from jaxengine.sharding import check_divisible
from jaxengine.startup.attention import choose_for_layers
from jaxengine.weights.kv_heads import replicate_heads
from jaxengine.weights.wider_experts import widen_experts


def fitted(
    drafter: DrafterSource, target: ModelSpec, attention: str, devices: int, device: DeviceTraits, dtype: str
) -> DrafterSource:
    """`drafter`, computed in `dtype`; a draft model with the heads and experts that `devices` devices can share.

    Raises:
        ValueError: it cannot draft for `target`, or cannot run there; the message begins with what it is.
    """
    name, drafted = "draft model", drafter.spec
    if isinstance(drafter, DraftModelSource):
        source = widen_experts(replicate_heads(drafter.source, devices), devices, device)
        drafter, spec = replace(drafter, source=source), source.spec
        problem = _problem(spec, target)
    elif isinstance(drafted, Eagle):
        name, spec = drafted.method, drafted.spec
        problem = _problem_of_target(target)
    else:
        return drafter
    if problem:
        raise ValueError(f"{name}: {problem}")
    try:
        check_divisible(spec, devices)
        choose_for_layers(attention, device, spec, dtype)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return drafter


def _problem(spec: ModelSpec, target: ModelSpec) -> str:
    """Why a model of `spec` cannot draft for `target`, or ""."""
    if spec.encoder or target.encoder:
        return "a model with an encoder cannot draft, and none can draft for it"
    if spec.keeps_states:
        return "its layers keep states, which cannot take a wrong guess back"
    if spec.traced:
        return "a model that runs as transformers' own module cannot draft"
    if lacking := _lacks_pages(target):
        return f"{lacking}, so it keeps no page for each token, which the draft model needs"
    if spec.vocab_size < target.tokens:
        return f"its vocabulary of {spec.vocab_size} lacks some of the model's {target.tokens} tokens"
    return ""


def _problem_of_target(target: ModelSpec) -> str:
    """Why EAGLE's layers cannot draft for `target`, or ""."""
    if target.encoder:
        return "for a model with an encoder none can draft"
    if target.traced:
        return "the model runs as transformers' own module, of which no hidden states are read"
    if lacking := _lacks_pages(target):
        return f"{lacking}, so it keeps no page for each token, where features could lie"
    return ""


def _lacks_pages(target: ModelSpec) -> str:
    """Why not every token of a sequence has a page, or ""."""
    if target.state_space:
        return "no layer of the model attends"
    return "all layers of the model have windows" if LayerGroups.of(target).windows[0] else ""
