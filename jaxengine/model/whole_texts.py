"""A model as one function of whole texts: ids in, logits of every token out, nothing kept in between.

The layers, embedding and head are those that serve. Weights are arguments, in the parameter table's order of axes; the
numbers of texts and of tokens may be symbols.

Legend: b texts of s tokens.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxengine.architecture.layer_groups import LayerGroups
from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import parameter_table
from jaxengine.device import DeviceTraits
from jaxengine.model.decoder import Decoder
from jaxengine.model.embedding import Head
from jaxengine.model.linear import weight_layout
from jaxengine.ops import StepBatch
from jaxengine.ops.weight import Weight
from jaxengine.ops.whole_texts import WholeTextOps

# Of no device in particular. Products of rank 2 are the only fast ones on a CPU, and the same to a GPU.
ANY_DEVICE = DeviceTraits("any", "any", kernels=False, flat_products=True)


def unsupported(spec: ModelSpec) -> str:
    """What a model has that keeps it from being such a function, or ""."""
    present = {
        "a module of transformers": spec.traced,
        "a state space": spec.state_space,
        "layers that keep states": spec.recurrent_layers,
        "an encoder": spec.encoder,
        "no head": spec.head.missing,
        "layers that read the keys of others": any(kind.reads is not None for kind in spec.kinds),
    }
    return next((what for what, found in present.items() if found), "")


def abstract_weights(spec: ModelSpec, dtype: str) -> dict[str, jax.ShapeDtypeStruct]:
    """The arguments `weights` of `text_logits`, without data."""
    table = parameter_table(spec)
    return {name: jax.ShapeDtypeStruct(each.shape, jnp.dtype(each.dtype or dtype)) for name, each in table.items()}


def text_logits(spec: ModelSpec, weights: Mapping[str, Array], ids: Array, mask: Array) -> Array:
    """Logits f32 [b, s, tokens] of `ids`, i32 [b, s].

    Args:
        mask: i32 [b, s], 1 for a token and 0 for padding, on either side of a text; what padding gets has no meaning.
    """
    parameters = _parameters(spec, weights)
    decoder = Decoder(spec, parameters, ANY_DEVICE, WholeTextOps(), LayerGroups.undivided(spec))
    no_cache = jnp.zeros((1, 0))
    hidden, _ = decoder(ids.reshape(-1), (no_cache, no_cache), [_batch(mask)])
    logits = Head(spec, parameters.get)(hidden)[:, : spec.tokens]
    return logits.reshape(*ids.shape, spec.tokens)


def _parameters(spec: ModelSpec, weights: Mapping[str, Array]) -> dict[str, Any]:
    """As `abstract_parameters` has them."""
    made: dict[str, Any] = {}
    for name, parameter in parameter_table(spec).items():
        array = weights[name]
        layout = weight_layout(parameter, ANY_DEVICE)
        made[name] = Weight(array, layout) if parameter.inputs else array
    made.setdefault("head", made["embedding"])
    return made


def _batch(mask: Array) -> StepBatch:
    """All tokens, padding too, as a step without pages. Of b rows, a text's first token has position 0."""
    texts, length = mask.shape
    real = mask > 0
    position = jnp.maximum(jnp.cumsum(mask, 1) - 1, 0)  # [b, s]
    lengths = jnp.broadcast_to(mask.sum(1, keepdims=True), mask.shape)
    row = jnp.where(real, jnp.arange(texts)[:, None], texts)
    nowhere = jnp.zeros(texts * length, jnp.int32)
    return StepBatch(
        position=position.reshape(-1).astype(jnp.int32),
        rope_length=lengths.reshape(-1).astype(jnp.int32),
        row=row.reshape(-1).astype(jnp.int32),
        page=nowhere,
        offset=nowhere,
        tables=jnp.zeros((texts, 0), jnp.int32),
        tokens=jnp.asarray(texts * length, jnp.int32),
        ragged=True,
    )
