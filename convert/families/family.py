"""A family of checkpoints: how its configuration becomes a `ModelSpec` and its tensor names parameters.

Families share the reading of sizes under their various names, sliding windows, and what only the tensors of a
checkpoint tell (biases, a tied head).
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from convert.config.config import Config
from convert.config.rope import FULL, SLIDING
from convert.errors import CheckpointError
from convert.formats.tensors import Tensors, equal
from convert.mapping.recipes import Layout, checkpoint_names
from convert.mapping.renamed_tensors import RenamedTensors
from jaxengine.architecture.model import Activation, Experts, LayerKind, ModelSpec
from jaxengine.architecture.model_checks import MAX_WIDTH

ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu2",
}
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length")
NO_PREFIX = r"^(?!(lm_head|embed_out|final_logits_bias)\b)"  # in front of all names but the head's
FFN = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")


@dataclass(frozen=True)
class Family:
    """`tensors[parameter]` are the checkpoint tensors of a parameter of `parameter_table`, `{i}` the layer's number.

    The bias of a weight has the weight's name with `.bias` for `.weight`. Each of `renames`, a pattern and its
    replacement, first changes its first match in a name. Tensors whose names then match `ignore` are no weights but
    buffers, which older libraries saved. Those that match `copies` repeat the embedding. `apart` names the experts of
    a joint layout where a checkpoint has a module for each, as tools that quantise modules write it. `drafting` is the
    configuration's key for how many modules stand behind the layers, numbered on, which only draft. `module`
    tells whether one may stand beside the model.
    """

    spec: Callable[[Config], ModelSpec]
    tensors: Mapping[str, tuple[str, ...]]
    layout: Layout = field(default_factory=Layout)
    renames: tuple[tuple[str, str], ...] = ()
    ignore: tuple[str, ...] = ()
    copies: str = "$^"
    apart: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    drafting: str = ""
    module: bool = False


def drafting_layers(family: Family, config: Config) -> range:
    """The numbers of the layers that only draft, see `convert/drafters/mtp.py`."""
    if not family.drafting:
        return range(0)
    layers = config.integer("num_hidden_layers")
    return range(layers, layers + config.integer(family.drafting, 1, least=0))


def with_family_names(family: Family, tensors: Tensors) -> Tensors:
    """`tensors` under the names of `family`, whichever of the usual names the checkpoint has.

    Files of the bare model lack its prefix, and those of a module around it have one more, as in an export to ONNX.
    Some tools keep one name of a tensor that has several, so where the embedding is missing, a tensor known to repeat
    it is used instead.
    """
    (embedding,) = family.tensors["embedding"]
    prefix, _, rest = embedding.partition(".")
    bare = "." in rest and not any(name.startswith(f"{prefix}.") for name in tensors)
    changes = [(NO_PREFIX, f"{prefix}.")] if bare else []
    if outer := _outer_prefix(tensors, (embedding, *family.tensors["head"])):
        changes = [(f"^{re.escape(outer)}", "")]
    renamed = RenamedTensors(tensors, (*changes, *family.renames))
    if embedding in renamed:
        return renamed
    others = [*filter(re.compile(family.copies).search, renamed), *filter(renamed.__contains__, family.tensors["head"])]
    return RenamedTensors(renamed, ((f"^{re.escape(others[0])}$", embedding),)) if others else renamed


def _outer_prefix(tensors: Tensors, known: tuple[str, ...]) -> str:
    """What stands in front of a name in `known`, if none of them is there as it is."""
    if any(name in tensors for name in known):
        return ""
    return next((name.removesuffix(each) for each in known for name in tensors if name.endswith(f".{each}")), "")


def as_stored(family: Family, spec: ModelSpec, tensors: Tensors, layers: range) -> Family:
    """`family` as the checkpoint has the experts of `layers`: apart, or joint. Qwen3-VL's are turned on the hub, and
    not where transformers 5 has saved them, which reads either, by the shape.
    """
    layout = family.layout
    if not layout.joint_experts or spec.experts is None:
        return family
    if any(name.format(i=i, e=0) in tensors for names in family.apart.values() for name in names for i in layers):
        return replace(family, tensors={**family.tensors, **family.apart}, layout=replace(layout, joint_experts=""))
    straight = spec.experts.count, spec.hidden_size, spec.experts.ffn_size
    names = (checkpoint_names(family.tensors, f"layers.{i}.experts_down")[0] for i in layers)
    saved = any(name in tensors and tensors.shape(name) == straight for name in names)
    if layout.joint_experts == "turned" and saved:
        return replace(family, layout=replace(layout, joint_experts="straight"))
    return family


def check_copies(family: Family, tensors: Tensors) -> None:
    """Raise CheckpointError where a copy of the embedding differs from it: these models have only one."""
    (embedding,) = family.tensors["embedding"]
    for name in tensors:
        if re.search(family.copies, name) and not equal(tensors, embedding, name):
            raise CheckpointError(f"{tensors.where(name)}: tensor {name!r} differs from {embedding!r}, and must not")


def complete_spec(spec: ModelSpec, family: Family, tensors: Tensors) -> ModelSpec:
    """`spec` with the biases and the head that the checkpoint has.

    Configurations do not mention most biases. One that a configuration does promise must be there: loading fails
    without it.
    """

    def stored(name: str) -> bool:
        found = checkpoint_names(family.tensors, name)
        return bool(found) and found[0].replace("{h}", "0") in tensors

    (head,), (embedding,) = family.tensors["head"], family.tensors["embedding"]
    tied = spec.head.tied and (head not in tensors or equal(tensors, head, embedding))
    qk_norm = spec.attention.qk_norm
    return replace(
        spec,
        norm=replace(spec.norm, bias=spec.norm.bias or stored("layers.0.attention_norm_bias")),
        attention=replace(
            spec.attention, qk_norm=qk_norm and replace(qk_norm, bias=qk_norm.bias or stored("layers.0.qk_norm_bias"))
        ),
        head=replace(spec.head, tied=tied, bias=spec.head.bias or stored("head_bias")),
        qkv_bias=spec.qkv_bias or stored("layers.0.qkv_bias"),
        out_bias=spec.out_bias or stored("layers.0.out_bias"),
        mlp_bias=spec.mlp_bias or stored("layers.0.gate_up_bias"),
    )


@contextmanager
def named(config: Config) -> Iterator[None]:
    """Turn what a check of `ModelSpec` or its switches raises, which names field, value and limit, into an error of
    `config`.
    """
    try:
        yield
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{config.where}: {error}") from error


def sizes(config: Config, *, head_dim: int | None = None, positions: int | None = None, **fixed: int) -> dict[str, Any]:
    """`ModelSpec`'s sizes, whatever the configuration calls them.

    Args:
        head_dim, positions: the family's own, where the configuration has none.
        fixed: sizes that the caller sets.
    """
    width_key = config.spelled("hidden_size", "n_embd", "d_model", "n_embed")
    hidden = config.integer(width_key)
    heads_key = config.spelled("num_attention_heads", "n_head", "n_heads", "num_heads")
    heads = config.integer(heads_key)
    if heads > MAX_WIDTH:  # before as many slopes are computed
        raise config.error(heads_key, f"must be at most {MAX_WIDTH}")
    if head_dim is None and config.get("head_dim") is None and hidden % heads:
        raise config.error(width_key, f"must be a multiple of num_attention_heads {heads}")
    return {
        "vocab_size": config.integer("vocab_size"),
        "hidden_size": hidden,
        "num_layers": config.integer(config.spelled("num_hidden_layers", "n_layer", "n_layers", "num_layers")),
        "num_heads": heads,
        "num_kv_heads": config.integer(config.spelled("num_key_value_heads", "num_kv_heads", "n_head_kv"), heads),
        "head_dim": config.integer("head_dim", head_dim or hidden // heads),
        "ffn_size": config.integer(config.spelled(*FFN), 4 * hidden),
        "max_positions": config.integer(config.spelled(*POSITIONS), positions),
        **fixed,
    }


def activation(config: Config, default: str = "silu") -> Activation:
    key = config.spelled("hidden_act", "activation_function", "activation")
    return activation_named(config, key, config.text(key, default))


def activation_named(config: Config, key: str, name: str) -> Activation:
    if name not in ACTIVATIONS:
        raise config.error(key, f"must be one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def window(config: Config, positions: int, default: int | None = None, key: str = "sliding_window") -> int:
    """The sliding window; 0 where there is none, or where a text of `positions` tokens never exceeds it."""
    if config.values.get(key, default) is None:
        return 0
    size = config.integer(key, default)
    return size if size < positions else 0


def layer_kinds(
    config: Config, count: int, full: LayerKind, sliding: LayerKind, slides: Callable[[int], bool]
) -> tuple[LayerKind, ...]:
    """The kind of each layer: as `layer_types` says, else `sliding` where `slides(layer)`. Equal kinds: just one."""
    types = config.get("layer_types")
    if types is None:
        types = [SLIDING if slides(layer) else FULL for layer in range(count)]
    if not isinstance(types, list) or len(types) != count or not all(each in (FULL, SLIDING) for each in types):
        raise config.error("layer_types", f"must name {FULL} or {SLIDING} for each of {count} layers")
    kinds = tuple(sliding if kind == SLIDING else full for kind in types)
    return kinds[:1] if len(set(kinds)) == 1 else kinds


def with_experts(spec: ModelSpec, experts: Experts, sparse: Callable[[int], bool] = lambda _: True) -> ModelSpec:
    """`spec` with experts instead of an MLP in the layers that are `sparse`."""
    kinds = tuple(replace(spec.kind(layer), experts=sparse(layer)) for layer in range(spec.num_layers))
    return replace(spec, experts=experts, kinds=kinds[:1] if len(set(kinds)) == 1 else kinds)


def alibi_slopes(heads: int, max_bias: float = 8.0) -> tuple[float, ...]:
    """One slope per head (Press et al. 2021, arXiv 2108.12409), a second series where heads are no power of two."""
    whole = 2 ** math.floor(math.log2(heads))
    first = [2 ** (-max_bias * (i + 1) / whole) for i in range(whole)]
    second = [2 ** (-max_bias * (2 * i + 1) / (2 * whole)) for i in range(heads - whole)]
    return tuple(float(np.float32(slope)) for slope in first + second)


def refuse(config: Config, **wanted: Any) -> None:
    """Raise CheckpointError where one of these keys has another value."""
    for key, value in wanted.items():
        if config.get(key) not in (None, value):
            raise config.error(key, f"other than {value} is not supported")
