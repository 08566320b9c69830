"""Granite: a Llama whose embeddings, scores, branches and logits are each multiplied by a number."""

from dataclasses import replace

from convert.config.config import Config
from convert.families.family import Family
from convert.families.llama import BUFFERS, TENSORS, llama_spec
from jaxengine.architecture.model import Embedding, ModelSpec


def _granite(config: Config) -> ModelSpec:
    spec = llama_spec(config)
    divisor = config.number("logits_scaling", 1.0)
    if divisor == 0:
        raise config.error("logits_scaling", "must not be 0")
    return replace(
        spec,
        embedding=Embedding(scale=config.number("embedding_multiplier", 1.0)),
        kinds=(replace(spec.kinds[0], scale=config.number("attention_multiplier", 1.0)),),
        residual_scale=config.number("residual_multiplier", 1.0),
        head=replace(spec.head, scale=1 / divisor),
    )


GRANITE = Family(_granite, TENSORS, ignore=BUFFERS)
