"""A PEFT adapter in a directory: what it changes of a model, as data.

    adapter_config.json                              LoraConfig
    adapter_model.safetensors or adapter_model.bin   base_model.model.<module>.lora_A.weight, .lora_B.weight, …

What is in the file says which modules have an adapter; the configuration gives scales, and is read for what would
change the meaning of the tensors. Formulas are those of PEFT 0.21 (`peft/tuners/lora`).
"""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import regex

from convert.cache import stamp
from convert.config.config import Config
from convert.errors import CheckpointError
from convert.formats.safetensors import SafetensorsFile
from convert.formats.shards import has_tensors
from convert.formats.tensors import Tensors, whole
from convert.formats.torch_bin import TorchFile

CONFIG = "adapter_config.json"
WEIGHTS = {"adapter_model.safetensors": SafetensorsFile, "adapter_model.bin": TorchFile}
PREFIX = "base_model.model."
MOST = 2**14  # rank of any module
MATCH_SECONDS = 1.0  # for a pattern and a module's name; other threads go on meanwhile, as they do not with `re`
FLOATING = ("float32", "bfloat16", "float16")
# Suffixes that PEFT gives a module's tensors, longest first, and what they are here.
SUFFIXES = {
    ".lora_magnitude_vector.weight": "magnitude",
    ".lora_magnitude_vector": "magnitude",
    ".lora_A.weight": "a",
    ".lora_B.weight": "b",
    ".lora_B.bias": "bias",
    ".lora_embedding_A": "a",
    ".lora_embedding_B": "b",
}
# What a configuration may not have: it changes what the tensors mean, or the model around them.
UNSUPPORTED = (
    *("use_qalora", "use_bdlora", "alora_invocation_tokens", "layer_replication", "target_parameters"),
    *("trainable_token_indices", "arrow_config", "kasa_config", "velora_config", "monteclora_config"),
    *("megatron_config",),
)
CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")  # ways to begin that also changed the base's weights
KEEPS_BASE = ("none", "true", "false", "gaussian", "eva", "orthogonal", "mica")  # all others of PEFT 0.21


@dataclass(frozen=True)
class Delta:
    """What is added to the matrix of one module: scale · b · a.

    name: the module's, as the model it was trained on had it.
    a, b: f32 [rank, in] and [out, rank].
    magnitude: f32 [out]: the length that each row of the sum is given (DoRA, Liu et al. 2024, arXiv 2402.09353).
    bias: f32 [out], added to the module's, scaled.
    embedding: the module looks up rows: each token is an input, so its matrix is stored [in, out].
    """

    name: str
    a: np.ndarray
    b: np.ndarray
    scale: float
    magnitude: np.ndarray | None = None
    bias: np.ndarray | None = None
    embedding: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return self.b.shape[0], self.a.shape[1]


@dataclass(frozen=True)
class Adapter:
    """
    directory: where it lies.
    base, revision: the model it was trained on, as its configuration says; may be empty, and None.
    deltas: of each module that has one.
    replaced: tensors that the adapter has whole: biases and `modules_to_save`, by the names of the model, as stored.
    """

    directory: Path
    base: str
    revision: str | None
    deltas: tuple[Delta, ...]
    replaced: dict[str, np.ndarray] = field(default_factory=dict)


def is_adapter(directory: Path) -> bool:
    """Whether `directory` holds an adapter and no model. Some tools write the base's config.json beside it."""
    return (directory / CONFIG).is_file() and not has_tensors(directory)


def open_adapter(directory: Path) -> Adapter:
    """
    Raises:
        CheckpointError: a file is missing or malformed, or changes meanwhile; tensors do not belong together, or
            something is not supported.
    """
    if not (directory / CONFIG).is_file():
        raise CheckpointError(f"{directory}: no {CONFIG}")
    stamps = _stamps(directory)
    adapter = _open(directory)
    if _stamps(directory) != stamps:
        raise CheckpointError(f"{directory}: changed while it was read; try again when it is written")
    return adapter


def _stamps(directory: Path) -> list[str]:
    """Other ones when a file is written, or another directory takes this one's place."""
    return [stamp(path) for path in (directory / name for name in (CONFIG, *WEIGHTS)) if path.is_file()]


def _open(directory: Path) -> Adapter:
    config = Config.load(directory / CONFIG)
    _check(config)
    tensors = _tensors(directory)
    modules: dict[str, dict[str, str]] = {}
    replaced: dict[str, np.ndarray] = {}
    for name in tensors:
        if not name.startswith(PREFIX):
            raise CheckpointError(f"{tensors.where(name)}: tensor {name!r} must begin with {PREFIX!r}")
        own = name.removeprefix(PREFIX)
        suffix = next(filter(own.endswith, SUFFIXES), None)
        if suffix:
            parts = modules.setdefault(own.removesuffix(suffix), {})
            if (part := SUFFIXES[suffix]) in parts:
                raise CheckpointError(f"{tensors.where(name)}: tensor {name!r} is there as {parts[part]!r} too")
            parts[part] = name
        elif ".lora_" in own:
            raise CheckpointError(f"{tensors.where(name)}: tensor {name!r} is not supported")
        else:
            plain = re.sub(r"\.(base_layer|modules_to_save)\b", "", own)
            if plain in replaced:
                raise CheckpointError(f"{tensors.where(name)}: tensor {plain!r} is there twice, once as {name!r}")
            replaced[plain] = _stored(tensors, name)
    if not modules and not replaced:
        raise CheckpointError(f"{directory}: the adapter has no tensors")
    deltas = tuple(_delta(config, tensors, module, parts) for module, parts in sorted(modules.items()))
    base, revision = config.text("base_model_name_or_path", ""), config.text("revision", "")
    return Adapter(directory, base, revision or None, deltas, replaced)


def _check(config: Config) -> None:
    if config.text("peft_type") != "LORA":
        raise config.error("peft_type", "must be LORA")
    for key in UNSUPPORTED:
        if config.get(key):
            raise config.error(key, "is not supported")
    began = str(config.get("init_lora_weights")).lower()
    if began.startswith(CHANGES_BASE):
        raise config.error("init_lora_weights", "is not supported: the base's own weights were changed with it")
    if began not in KEEPS_BASE:
        raise config.error("init_lora_weights", "is not known, so it may have changed the base's own weights")


def _tensors(directory: Path) -> Tensors:
    """Of a file that messages name by its whole path: there may be several adapters."""
    for name, open_file in WEIGHTS.items():
        if (path := directory / name).is_file():
            return open_file(path, copied=True, called=str(path))
    raise CheckpointError(f"{directory}: no {' or '.join(WEIGHTS)}")


def _delta(config: Config, tensors: Tensors, module: str, parts: dict[str, str]) -> Delta:
    where = tensors.where(next(iter(parts.values())))
    if missing := {"a", "b"} - parts.keys():
        raise CheckpointError(f"{where}: module {module!r} has no lora_{missing.pop().upper()}")
    a, b = (_floats(tensors, parts[part]) for part in ("a", "b"))
    if a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1]:
        shapes = f"{list(a.shape)} and {list(b.shape)}"
        raise CheckpointError(f"{where}: module {module!r} has shapes {shapes}, must be [rank, in] and [out, rank]")
    rank = len(a)
    if rank > MOST:
        raise CheckpointError(f"{where}: module {module!r} has rank {rank}, at most {MOST}")
    vectors: dict[str, Any] = dict.fromkeys(("magnitude", "bias"))
    for name in vectors.keys() & parts.keys():
        vectors[name] = _floats(tensors, parts[name]).reshape(-1)
        if len(vectors[name]) != len(b):
            raise CheckpointError(
                f"{where}: tensor {parts[name]!r} has {vectors[name].size} numbers, must have {len(b)}"
            )
    embedding = parts["a"].endswith(".lora_embedding_A")
    if embedding and vectors["magnitude"] is not None:
        raise CheckpointError(f"{where}: module {module!r}: use_dora of an embedding is not supported")
    if config.flag("use_dora", False) != (vectors["magnitude"] is not None):
        has = "no" if vectors["magnitude"] is None else "a"
        raise config.error("use_dora", f"contradicts module {module!r}, which has {has} lora_magnitude_vector")
    return Delta(module, a, b, _scale(config, module, rank), **vectors, embedding=embedding)


def _scale(config: Config, module: str, rank: int) -> float:
    """lora_alpha / rank, or / sqrt(rank) with rank-stabilised scales (Kalajdzievski 2023, arXiv 2312.03732)."""
    alpha = _by_module(config, "alpha_pattern", module, config.number("lora_alpha", 8.0))
    declared = _by_module(config, "rank_pattern", module, config.integer("r", 8))
    if declared != rank:
        raise config.error("r", f"says rank {declared:g} of module {module!r}, its tensors have {rank}")
    return alpha / (math.sqrt(rank) if config.flag("use_rslora", False) else rank)


def _by_module(config: Config, key: str, module: str, default: float) -> float:
    """The value of the first pattern that matches the end of `module`'s name, as in PEFT's `get_pattern_key`."""
    patterns = config.section(key)
    for pattern in patterns.values if patterns else ():
        try:
            if regex.match(rf"(.*\.)?({pattern})$", module, timeout=MATCH_SECONDS):
                return patterns.number(pattern)  # type: ignore[union-attr]  # there are patterns
        except (regex.error, TimeoutError, OverflowError, RecursionError) as error:
            problem = f"has a pattern {pattern[:80]!r} that cannot be matched ({type(error).__name__} {error})"
            raise config.error(key, problem) from error
    return default


def _floats(tensors: Tensors, name: str) -> np.ndarray:
    """f32, otherwise as `_stored`."""
    return _stored(tensors, name).astype(np.float32)


def _stored(tensors: Tensors, name: str) -> np.ndarray:
    """The file's own memory. Raises CheckpointError for another type than floats, no numbers, or some not finite."""
    if tensors.dtype(name) not in FLOATING:
        raise CheckpointError(f"{tensors.where(name)}: tensor {name!r} has type {tensors.dtype(name)}")
    values = whole(tensors, name)
    if not values.size:
        raise CheckpointError(f"{tensors.where(name)}: tensor {name!r} has shape {list(values.shape)}, so no numbers")
    if not (np.isfinite(values.max()) and np.isfinite(values.min())):
        raise CheckpointError(f"{tensors.where(name)}: tensor {name!r} has numbers that are not finite")
    return values
