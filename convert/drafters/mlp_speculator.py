"""MLP speculators, as IBM's fms-extras saves them: https://huggingface.co/ibm-ai-platform.

    config.json         model_type mlp_speculator: n_predict, emb_dim, inner_dim, vocab_size, tie_weights, scale_input
    model.safetensors   speculator.{emb,proj,head}.{i}.weight, speculator.ln.{i}.{weight,bias}, or without "speculator."

emb_dim is the size of the model's hidden states, and inner_dim 0 means the same. A tied speculator uses number 0 of all
but the projections, and of those 0 and 1. Its files may have the others, which must be the same.
"""

import re
from pathlib import Path

from convert.config.config import Config
from convert.drafters.stored_drafter import StoredDrafter, check_fits, count
from convert.errors import CheckpointError
from convert.formats.shards import open_tensors
from convert.formats.tensors import Tensors, equal
from convert.mapping.part import Part, Recipe
from jaxengine.architecture.drafter import DRAFTER, MLPSpeculator
from jaxengine.architecture.model import ModelSpec

MODEL_TYPE = "mlp_speculator"
PREFIX = "speculator."
NAMES = {
    "embedding": "emb.{i}.weight",
    "project": "proj.{i}.weight",
    "norm": "ln.{i}.weight",
    "norm_bias": "ln.{i}.bias",
    "head": "head.{i}.weight",
}


def open_mlp_speculator(directory: Path, config: Config, model: ModelSpec) -> StoredDrafter:
    """Raises CheckpointError: the files are incomplete, or not for `model`."""
    spec = _spec(config)
    check_fits(config.where, model, spec.hidden_size, spec.vocab_size)
    tensors = open_tensors(directory)
    prefix = PREFIX if any(name.startswith(PREFIX) for name in tensors) else ""
    recipes = {}
    for name, parameter in spec.parameters().items():
        number, kind = name.removeprefix(DRAFTER).split(".")
        shape = parameter.shape
        recipes[name] = Recipe((Part(prefix + NAMES[kind].format(i=number), shape, (0,) * len(shape), shape),))
    copies = _copies(tensors, prefix, spec.guesses) if spec.tied else {}
    drafter = StoredDrafter(spec, tensors, recipes, directory, [rf"^{re.escape(name)}$" for name in copies])
    for name, first in copies.items():
        if not equal(tensors, name, first):
            where = tensors.where(name)
            raise CheckpointError(f"{where}: tensor {name!r} differs from {first!r}, and with tie_weights must not")
    return drafter


def _spec(config: Config) -> MLPSpeculator:
    hidden = config.integer("emb_dim")
    return MLPSpeculator(
        guesses=count(config, "n_predict"),
        inner_size=config.integer("inner_dim", 0, least=0) or hidden,
        hidden_size=hidden,
        vocab_size=config.integer("vocab_size"),
        tied=config.flag("tie_weights", False),
        scale_input=config.flag("scale_input", False),
    )


def _copies(tensors: Tensors, prefix: str, guesses: int) -> dict[str, str]:
    """Of a tied speculator's tensors, those of further guesses, and the one that each is a copy of."""
    found = {}
    for kind, each in NAMES.items():
        first = 1 if kind == "project" else 0
        for name in (prefix + each.format(i=i) for i in range(first + 1, guesses)):
            if name in tensors:
                found[name] = prefix + each.format(i=first)
    return found
