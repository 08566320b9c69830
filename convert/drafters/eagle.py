"""EAGLE's layers, as their trainers store them (https://github.com/SafeAILab/EAGLE, SpecForge, ModelOpt, speculators).

    config.json         a Llama's, of the layers: itself, or as `model` (model_type eagle, as vLLM converts them), or as
                        `transformer_layer_config` (speculators_model_type eagle3)
    model.safetensors or pytorch_model.bin
        EAGLE           fc [hidden, 2 hidden], layers.{i} of a Llama, the first without input_layernorm; perhaps lm_head
        EAGLE-3         fc [hidden, taps · model hidden], midlayer or layers.0 with hidden_norm and projections of
                        2 hidden, norm, and perhaps lm_head, d2t (id of the model less id of the head), embed_tokens,
                        input_norm or fc_norm.{i}

"model." may be in front. EAGLE's embedding is a copy of the model's, which is used. Which layers of the model EAGLE-3
taps is told in two ways: `eagle_aux_hidden_state_layer_ids` counts the layers that were run before (vLLM, speculators);
within `eagle_config` it names the last of these (SGLang, SpecForge, ModelOpt), which is one less.
"""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from convert.config.config import Config
from convert.drafters.stored_drafter import StoredDrafter, check_fits, count
from convert.errors import CheckpointError
from convert.families.family import layer_kinds, window
from convert.families.llama import TENSORS, llama_spec
from convert.formats.shards import has_tensors, open_tensors
from convert.formats.tensors import Tensors, whole
from convert.mapping.recipes import Layout, recipes
from convert.mapping.renamed_tensors import RenamedTensors
from jaxengine.architecture.drafter import DRAFTER, Eagle
from jaxengine.architecture.model import Head, ModelSpec

MODEL_TYPE, SPECULATORS = "eagle", "speculators_model_type"
RENAMES = ((r"^model\.", ""), (r"^midlayer\.", "layers.0."))
NAMES = {
    **{name: tuple(each.removeprefix("model.") for each in tensors) for name, tensors in TENSORS.items()},
    "layers.{i}.feature_norm": ("layers.{i}.hidden_norm.weight",),
    "fusion": ("fc.weight",),
    "fusion_norm": ("input_norm.weight",),
    "fusion_norm.{i}": ("fc_norm.{i}.weight",),
}
OFFSETS, EMBEDDING, HEAD = "d2t", "embed_tokens.weight", "lm_head.weight"
IGNORED = (r"^t2d$", r"rotary_emb\.inv_freq$", rf"^{OFFSETS}$")
OWN_KEYS = (SPECULATORS, "draft_vocab_size")  # of no model's configuration
FEW_LAYERS = 4  # a model of more is not taken for EAGLE's layers, whatever its tensors are called
FEWEST_TAPPED = 6  # layers of a model for which those that are tapped need not be said
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
INTEGERS = ("int64", "int32")


def is_eagle(directory: Path, config: Config) -> bool:
    """Whether `directory` holds EAGLE's layers, of which the configuration may say that they are a Llama."""
    if config.get("model_type") == MODEL_TYPE or any(config.get(key) is not None for key in OWN_KEYS):
        return True
    layers = config.get("num_hidden_layers")
    if type(layers) is not int or layers > FEW_LAYERS or not has_tensors(directory):
        return False
    return any(name in ("fc.weight", "model.fc.weight") for name in open_tensors(directory))


def base_of_speculators(config: Config) -> str:
    """The model that a "speculators" configuration names; "" if it names none."""
    verifier = (config.section("speculators_config") or config).section("verifier")
    return verifier.text("name_or_path", "") if verifier else ""


def open_eagle(directory: Path, config: Config, model: ModelSpec) -> StoredDrafter:
    """Raises CheckpointError: the files are incomplete or not for `model`, or something in them is not supported."""
    tensors = RenamedTensors(open_tensors(directory), RENAMES)
    layers = _layers_config(config)
    taps = _taps(config, tensors, model)
    spec = _spec(config, layers, tensors, model, taps)
    _check_fits(spec, config, model, tensors)
    names = {name.removeprefix(DRAFTER): each for name, each in spec.parameters().items()}
    floats = {name: each for name, each in names.items() if each.dtype is None}
    made = {f"{DRAFTER}{name}": recipe for name, recipe in recipes(spec.spec, NAMES, Layout(), floats).items()}
    ignored = IGNORED if spec.own_embedding else (*IGNORED, rf"^{EMBEDDING}$")
    arrays = {f"{DRAFTER}offsets": _offsets(tensors, spec, model)} if spec.own_ids else {}
    return StoredDrafter(spec, tensors, made, directory, ignored, arrays)


def _layers_config(config: Config) -> Config:
    """That of the layers."""
    kind = config.get(SPECULATORS)
    if kind not in (None, "eagle3"):
        raise config.error(SPECULATORS, "must be eagle3")
    if kind is not None:
        layers = config.section("transformer_layer_config")
        if layers is None:
            raise CheckpointError(f"{config.where}: transformer_layer_config is missing")
        return layers
    nested = config.section("model") if config.get("model_type") == MODEL_TYPE else None
    return Config({**nested.values, **config.values}, nested.where) if nested else config


def _taps(config: Config, tensors: Tensors, model: ModelSpec) -> tuple[int, ...]:
    """In front of which of the model's layers EAGLE-3 reads; none if this is EAGLE."""
    if "layers.0.hidden_norm.weight" not in tensors:
        return ()
    nested = _nested(config)
    if not nested.flag("use_aux_hidden_state", True):
        raise nested.error("use_aux_hidden_state", "other than true is not supported")
    last = model.num_layers
    where, shift = (nested, 1) if config.get(LAYER_IDS) is None else (config, 0)
    given = where.get(LAYER_IDS)
    if given in (None, []):
        if last < FEWEST_TAPPED:
            raise where.error(LAYER_IDS, f"must be given for a model of {last} layers")
        return (2, last // 2, last - 3)
    found = [each + shift if type(each) is int else -1 for each in given] if isinstance(given, list) else [-1]
    if found != sorted(set(found)) or not 0 <= min(found) <= max(found) <= last:
        raise where.error(LAYER_IDS, f"must be ascending numbers of the model's {last} layers")
    return tuple(found)


def _spec(config: Config, layers: Config, tensors: Tensors, model: ModelSpec, taps: tuple[int, ...]) -> Eagle:
    nested = _nested(config)
    own_head = HEAD in tensors
    ids = _size(tensors, HEAD, 0) if own_head else model.vocab_size
    joined = nested.flag("norm_before_fc", config.flag("norm_before_fc", "input_norm.weight" in tensors))
    each = nested.flag("fc_norm", config.flag("fc_norm", "fc_norm.0.weight" in tensors))
    norms: Literal["", "joined", "each"] = "joined" if joined else "each" if each else ""
    return Eagle(
        _llama(layers, tensors, model, ids),
        model_hidden_size=model.hidden_size,
        model_vocab_size=_size(tensors, EMBEDDING, 0),
        usual=_usual(config),
        taps=taps,
        own_embedding=bool(taps) and EMBEDDING in tensors,
        own_head=own_head,
        own_ids=OFFSETS in tensors and own_head and ids != model.vocab_size,
        bias="fc.bias" in tensors,
        fusion_norms=norms if taps else "",
        norm_before_residual=config.flag("norm_before_residual", config.get(SPECULATORS) is not None),
        norm_output=config.flag("norm_output", False),
    )


def _llama(config: Config, tensors: Tensors, model: ModelSpec, vocab: int) -> ModelSpec:
    """The layers as a model with a head of `vocab` ids. The tensors tell what has a bias."""
    config = Config({**config.values, "vocab_size": vocab}, config.where)
    try:
        spec = llama_spec(
            config,
            head=Head(),
            final_norm="norm.weight" in tensors,
            qkv_bias="layers.0.self_attn.q_proj.bias" in tensors,
            out_bias="layers.0.self_attn.o_proj.bias" in tensors,
            mlp_bias="layers.0.mlp.gate_proj.bias" in tensors,
        )
        full = spec.kinds[0]
        sliding = replace(full, window=window(config, model.max_positions))
        kinds = layer_kinds(_own_types(config, spec.num_layers), spec.num_layers, full, sliding, lambda _: False)
        return replace(spec, kinds=kinds, max_positions=model.max_positions)
    except CheckpointError:
        raise
    except ValueError as error:  # the checks of ModelSpec name field, value and limit
        raise CheckpointError(f"{config.where}: {error}") from error


def _own_types(config: Config, layers: int) -> Config:
    """`config` without the `layer_types` of further layers: it may have been copied from the model's."""
    types = config.get("layer_types")
    return Config({**config.values, "layer_types": types[:layers]}, config.where) if isinstance(types, list) else config


def _usual(config: Config) -> int | None:
    """How many guesses a "speculators" configuration proposes, if it does."""
    methods = (config.section("speculators_config") or config).get("proposal_methods")
    first = methods[0] if isinstance(methods, list) and methods else None
    if not isinstance(first, dict) or first.get("speculative_tokens") is None:
        return None
    return count(Config(first, f"{config.where}: proposal_methods"), "speculative_tokens")


def _check_fits(spec: Eagle, config: Config, model: ModelSpec, tensors: Tensors) -> None:
    """Raises CheckpointError where the layers read states or embeddings of another size than the model's, or guess ids
    of which it is not known what they stand for.
    """
    hidden, ids = spec.spec.hidden_size, spec.spec.vocab_size
    read = _size(tensors, "fc.weight", 1) // len(spec.taps) if spec.taps and "fc.weight" in tensors else hidden
    check_fits(config.where, model, read, model.vocab_size)
    if not spec.own_embedding and hidden != model.hidden_size:
        message = f"has no {EMBEDDING} of {hidden} numbers, and the model's has {model.hidden_size}"
        raise CheckpointError(f"{config.where}: the drafter {message}")
    if not spec.own_head and hidden != model.hidden_size:
        message = f"has no {HEAD} that reads {hidden} numbers, and the model's reads {model.hidden_size}"
        raise CheckpointError(f"{config.where}: the drafter {message}")
    if not spec.own_ids and ids < model.tokens:
        message = f"guesses {ids} ids and has no {OFFSETS!r}, the model has {model.tokens} tokens"
        raise CheckpointError(f"{tensors.where(HEAD)}: the drafter {message}")
    if spec.own_embedding and spec.model_vocab_size < model.tokens:
        message = f"embeds {spec.model_vocab_size} ids, the model has {model.tokens} tokens"
        raise CheckpointError(f"{tensors.where(EMBEDDING)}: the drafter {message}")


def _offsets(tensors: Tensors, spec: Eagle, model: ModelSpec) -> np.ndarray:
    """i32 [ids of the head]: the model's id less the head's. Raises CheckpointError where one is not of the model."""
    where = f"{tensors.where(OFFSETS)}: tensor {OFFSETS!r}"
    size = spec.spec.vocab_size
    if tensors.dtype(OFFSETS) not in INTEGERS or tensors.shape(OFFSETS) != (size,):
        found = f"{tensors.dtype(OFFSETS)} {list(tensors.shape(OFFSETS))}"
        raise CheckpointError(f"{where} is {found}, must be one of {', '.join(INTEGERS)} with shape [{size}]")
    offsets = whole(tensors, OFFSETS).astype(np.int64)
    ids = offsets + np.arange(size)
    if ids.min() < 0 or ids.max() >= model.vocab_size:
        wrong = ids.min() if ids.min() < 0 else ids.max()
        raise CheckpointError(f"{where} names id {wrong}, the model's vocabulary has {model.vocab_size}")
    return offsets.astype(np.int32)


def _size(tensors: Tensors, name: str, axis: int) -> int:
    """Of a matrix; 0 where it is missing or none, which is refused later."""
    return tensors.shape(name)[axis] if name in tensors and len(tensors.shape(name)) == 2 else 0


def _nested(config: Config) -> Config:
    """What is said within `eagle_config`."""
    return config.section("eagle_config") or Config({}, config.where)
