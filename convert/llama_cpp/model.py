"""A GGUF file as the parameters of the checkpoint it was made from.

llama.cpp's converter renames the tensors and changes the layout of some: fused projections become q ‖ k ‖ v, experts
one tensor, matrices `[out, in]`; for some models the rows of q and k are put in rotary pairs, or 1 is added to norms.
A `Layout` of the same family describes all of it, so nothing here depends on a model, except two arrays of a state
space.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import gguf
import numpy as np

from convert.adapters.adapter import Adapter
from convert.adapters.adapter_reader import AdapterReader
from convert.compose import adapter_reader, compose_as
from convert.families import family_of
from convert.families.family import Family
from convert.formats.gguf import GgufFile
from convert.formats.quantized_matrix import QuantizedMatrix, read_view
from convert.formats.tensors import Index, Tensors
from convert.llama_cpp.architectures import Architecture
from convert.llama_cpp.config import LONG, ROPE_FACTORS, SHORT, config_of
from convert.mapping.composition import ComposedSource
from jaxengine.architecture.model import ModelSpec

CROSS_BUCKETS = "dec.blk.0.cross_attn_rel_b.weight"  # written by T5's first code, which never read them
ROW_VECTORS = ("ffn_gate_inp_shexp.weight",)  # matrices of one row, which files hold with one dimension or two
CONVOLUTIONS, STATE_MATRIX = (".ssm_conv1d.weight", ".shortconv.conv.weight"), ".ssm_a"
OF_EACH_HEAD = (".ssm_a", ".ssm_d")  # of Mamba 2, with an axis more than in a model
KEYS = ".attn_k_b.weight"  # what makes them of latents, turned
GATED_NORM = ".ssm_norm.weight"  # of linear attention, its weights begin at 1 in checkpoints too; of Mamba 2, in groups


def open_gguf(file: GgufFile) -> ComposedSource:
    """The parameters in a file. Floats are f32.

    Raises:
        CheckpointError: an unknown architecture, or tensors that do not fit the metadata.
    """
    config, found = config_of(file)
    family, name = family_of(config), file.metadata["general.architecture"]
    behind = range(config.integer("num_hidden_layers"), file.metadata[f"{name}.block_count"])
    stored = _as_stored(family, found, name, tuple(rf"^blk\.{layer}\." for layer in _layers(file) if layer in behind))
    return compose_as(config, stored, GgufTensors(file, found.plus_one))


def gguf_adapters(file: GgufFile, spec: ModelSpec, find: Callable[[str], Adapter]) -> AdapterReader | None:
    """What reads adapters, which `find` finds, of the checkpoint that `file` was made of; None where none would fit."""
    config, found = config_of(file)
    return None if found.multiplied else adapter_reader(config, spec, find)


def _layers(file: GgufFile) -> set[int]:
    """The numbers of the layers of which `file` has tensors."""
    return {int(found[1]) for name in file.tensors if (found := re.match(r"blk\.(\d{1,9})\.", name))}


def _as_stored(family: Family, found: Architecture, name: str, unread: tuple[str, ...]) -> Family:
    """`family` with the names and the layout that it has in a GGUF file, of which `unread` names no weights."""
    kind = next(arch for arch, known in gguf.MODEL_ARCH_NAMES.items() if known == name)
    names = gguf.get_tensor_name_map(kind, 1)
    tensors = {key: tuple(_named(names, each) for each in theirs) for key, theirs in family.tensors.items()}
    theirs: dict[str, Any] = {
        "transposed": False,
        "interleaved": family.layout.interleaved if found.interleaved is None else found.interleaved,
        "stacked_experts": True,
        "joint_experts": "",
        "bias_as_row": False,
        **found.layout,
    }
    layout = replace(family.layout, qkv="concat", **theirs)
    ignore = tuple(f"^{name}$" for name in (ROPE_FACTORS, LONG, SHORT, CROSS_BUCKETS))
    return Family(family.spec, {**tensors, **found.tensors}, layout, ignore=(*ignore, *found.unread, *unread))


def _named(names: gguf.TensorNameMap, theirs: str) -> str:
    """The name in a GGUF file of a tensor `theirs` of layer `{i}`; experts and heads are stacked there."""
    stem = theirs.replace("{i}", "0").replace(".{e}", "").replace(".norms.{h}", "").removesuffix(".weight")
    found = names.get_name(stem) or names.get_name(stem.removeprefix("transformer."))
    if found is None:
        return theirs
    found += ".weight" if theirs.endswith(".weight") else ""
    return found.replace("blk.0.", "blk.{i}.") if "{i}" in theirs else found


class GgufTensors(Tensors):
    """`Tensors` of a file under its own names; in floats they are f32. `plus_one`: norms are stored with 1 added.

    Of a state space the file holds the matrix A, where the checkpoint has log(-A), and the convolution without its axis
    of one input channel. Mamba 2's A and D have a second axis of one element, and its norm one of groups.
    """

    def __init__(self, file: GgufFile, plus_one: bool) -> None:
        self._file = file
        self._plus_one = plus_one

    def __contains__(self, name: object) -> bool:
        return name in self._file.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        shape = self._file.tensors[name].shape
        if name.endswith(CONVOLUTIONS):
            return (shape[0], 1, *shape[1:])
        if name.endswith(GATED_NORM) or (name.endswith(OF_EACH_HEAD) and shape[1:] == (1,)):
            return (math.prod(shape),)
        return (1, *shape) if len(shape) == 1 and name.endswith(ROW_VECTORS) else shape

    def dtype(self, name: str) -> str:
        return "float32"

    def where(self, name: str) -> str:
        return self._file.path.name

    def read(self, name: str, view: tuple[int, ...], index: Index) -> np.ndarray:
        tensor = self._file.tensors[name]
        values = read_view(tensor.shape, view, index, tensor.read)
        if self._plus_one and name.endswith("norm.weight") and not name.endswith(GATED_NORM):
            return values - 1
        return np.log(-values) if name.endswith(STATE_MATRIX) else values

    def quantized(self, name: str) -> QuantizedMatrix | None:
        """None too of tensors that a file holds otherwise than the model has them."""
        return None if name.endswith((*CONVOLUTIONS, STATE_MATRIX, KEYS)) else self._file.tensors[name].quantized()
