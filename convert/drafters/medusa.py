"""Medusa heads, as two programs store them.

Medusa's own (https://github.com/FasterDecoding/Medusa), which TGI serves:

    config.json         medusa_num_heads, medusa_num_layers, base_model_name_or_path
    medusa_lm_head.safetensors or medusa_lm_head.pt
                        {h}.{l}.linear.{weight,bias}, and {h}.{layers}.weight [vocab, hidden] unless all heads share the
                        model's; some tools put "medusa_head." in front

vLLM's:

    config.json         model_type medusa: num_heads, num_hidden_layers, original_lm_head, medusa_fc_bias
    model.safetensors   blocks.{h}.layers.{l}.{weight,bias}, and lm_heads.{h}.weight or, with original_lm_head, a single
                        lm_head.weight or lm_heads.0.weight; "medusa_heads." may be in front

The tensors say how many heads there are: Medusa's own checkpoints for Vicuna 1.3 have 5, of which config.json knows 2.
"""

import itertools
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from convert.announce import announce
from convert.config.config import Config
from convert.drafters.stored_drafter import MOST, StoredDrafter, check_fits, count
from convert.errors import CheckpointError
from convert.formats.safetensors import SINGLE_FILE, SafetensorsFile
from convert.formats.shards import has_tensors, open_tensors
from convert.formats.tensors import Tensors
from convert.formats.torch_bin import TorchFile
from convert.mapping.part import Part, Recipe
from jaxengine.architecture.drafter import DRAFTER, Medusa
from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import Parameter

MODEL_TYPE = "medusa"
HEADS, LAYERS = ("medusa_num_heads", "num_heads"), ("medusa_num_layers", "num_hidden_layers")
WEIGHTS = {"medusa_lm_head.safetensors": SafetensorsFile, "medusa_lm_head.pt": TorchFile}


@dataclass(frozen=True)
class Names:
    """What tensors are called: `block` without its ending, of head {h} and layer {l}, and `head`, the matrix of {h}."""

    block: str
    head: str

    def block_of(self, head: int, layer: int, ending: str) -> str:
        return f"{self.block.format(h=head, l=layer)}.{ending}"

    def head_of(self, head: int) -> str:
        return self.head.format(h=head)


def open_medusa(directory: Path, config: Config, model: ModelSpec) -> StoredDrafter:
    """Raises CheckpointError: the files are incomplete or not for `model`, or something in them is not supported."""
    layers = count(config, config.spelled(*LAYERS), 1)
    file = next(filter(Path.is_file, (directory / name for name in WEIGHTS)), None)
    if file:
        tensors: Tensors = WEIGHTS[file.name](file)
        names = _own_names(tensors, layers)
    elif has_tensors(directory):
        tensors = open_tensors(directory)
        names = _vllm_names(config, tensors)
    else:
        raise CheckpointError(f"{directory}: no {', '.join(WEIGHTS)} or {SINGLE_FILE}")
    spec = _spec(config, tensors, names, layers, model, own_heads=file is None)
    recipes = {name: _recipe(name, each, names, spec) for name, each in spec.parameters().items()}
    return StoredDrafter(spec, tensors, recipes, directory)


def _own_names(tensors: Tensors, layers: int) -> Names:
    prefix = _prefix(tensors, "medusa_head.")
    return Names(f"{prefix}{{h}}.{{l}}.linear", f"{prefix}{{h}}.{layers}.weight")


def _vllm_names(config: Config, tensors: Tensors) -> Names:
    prefix, head = _prefix(tensors, "medusa_heads."), "lm_heads.{h}.weight"
    if config.flag("original_lm_head", False):
        head = "lm_head.weight" if f"{prefix}lm_head.weight" in tensors else "lm_heads.0.weight"
    vocab = config.integer("vocab_size")
    if config.integer("truncated_vocab_size", vocab) != vocab:
        raise config.error("truncated_vocab_size", f"is not supported where it is not vocab_size {vocab}")
    if (name := f"{prefix}token_map") in tensors:
        raise CheckpointError(f"{tensors.where(name)}: tensor {name!r} is not supported: heads of a part of the tokens")
    return Names(f"{prefix}blocks.{{h}}.layers.{{l}}", f"{prefix}{head}")


def _prefix(tensors: Tensors, prefix: str) -> str:
    """`prefix` if the tensors have it."""
    return prefix if any(name.startswith(prefix) for name in tensors) else ""


def _spec(config: Config, tensors: Tensors, names: Names, layers: int, model: ModelSpec, *, own_heads: bool) -> Medusa:
    """What the heads are. Unless `own_heads`, all may share the model's."""
    guesses = _guesses(config, tensors, names)
    own_heads = own_heads or any(names.head_of(head) in tensors for head in range(guesses))
    hidden = _shape(tensors, names.block_of(0, 0, "weight"), (model.hidden_size, model.hidden_size))[1]
    vocab = _shape(tensors, names.head_of(0), (model.vocab_size, hidden))[0] if own_heads else model.vocab_size
    check_fits(config.where, model, hidden, vocab)
    bias = config.flag("medusa_fc_bias", False) or names.block_of(0, 0, "bias") in tensors
    return Medusa(guesses, layers, hidden, vocab, bias, own_heads)


def _guesses(config: Config, tensors: Tensors, names: Names) -> int:
    """How many heads are there, or ought to be."""
    key = config.spelled(*HEADS)
    said = count(config, key)
    held = next(head for head in itertools.count() if names.block_of(head, 0, "weight") not in tensors)
    if held > MOST:
        raise CheckpointError(f"{tensors.where(names.block_of(0, 0, 'weight'))}: {held} heads, at most {MOST}")
    if held > said:
        announce(f"{config.where}: {key} is {said}, but there are {held} heads, and all of them are used")
    return max(said, held)


def _shape(tensors: Tensors, name: str, default: tuple[int, int]) -> tuple[int, ...]:
    """Of a matrix; `default` where it is missing or none, which is refused later."""
    found = tensors.shape(name) if name in tensors else default
    return found if len(found) == 2 else default


def _recipe(name: str, parameter: Parameter, names: Names, spec: Medusa) -> Recipe:
    """Of `blocks`, a box for each head; of any other parameter, a single one."""
    match = re.fullmatch(r"(?:(\d+)\.)?(blocks|head)(?:\.(\d+))?(_bias)?", name.removeprefix(DRAFTER))
    assert match is not None  # these are the names of `Medusa.parameters`
    head, kind, layer, bias = match.groups()
    shape, behind = parameter.shape, (0,) * (len(parameter.shape) - 1)
    if kind == "head":
        return Recipe((Part(names.head_of(int(head)), shape, (0, *behind), shape),))
    tensor = partial(names.block_of, layer=int(layer or 0), ending="bias" if bias else "weight")
    if head is not None:
        return Recipe((Part(tensor(int(head)), shape, (0, *behind), shape),))
    return Recipe(tuple(Part(tensor(i), shape[1:], (i, *behind), (1, *shape[1:])) for i in range(spec.guesses)))
