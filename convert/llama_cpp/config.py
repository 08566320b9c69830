"""A GGUF file's metadata in the spelling of config.json, so that a family reads both alike."""

import math
from typing import Any

import numpy as np

from convert.config.config import Config
from convert.config.rope import FULL, SLIDING
from convert.errors import CheckpointError
from convert.formats.gguf import GgufFile
from convert.llama_cpp.architectures import ARCHITECTURES, COMMON, Architecture, architecture
from convert.llama_cpp.latents import latent_scaling

ROPE_FACTORS = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
LLAMA3_BANDS = (1.0, 4.0, 8192)  # low and high frequency factor, trained length: the same in all of Llama 3.1 to 3.3
GEMMA3_LOCAL_BASE = 10000.0  # older files do not say
PARTS = "split.count"  # of a model, of which a file holds one
YARN = {"beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow", "attention_factor": "yarn_attn_factor"}


def config_of(file: GgufFile) -> tuple[Config, Architecture]:
    """The configuration of the model in `file`, and how its architecture is stored.

    Raises:
        CheckpointError: an architecture we do not have, a part of a model, or metadata that is missing or malformed.
    """
    if (parts := file.metadata.get(PARTS, 1)) != 1:
        problem = f"is one of {parts!r:.40} parts; join them with llama.cpp's llama-gguf-split --merge"
        raise CheckpointError(f"{file.path.name}: {problem}")
    name = str(file.metadata.get("general.architecture"))
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise CheckpointError(f"{file.path.name}: general.architecture must be one of {known}, got {name[:80]!r}")
    own = {k.removeprefix(f"{name}."): v for k, v in file.metadata.items() if k.startswith(f"{name}.")}
    metadata = Config(own, f"{file.path.name}: {name}")
    if metadata.get("attention.causal") is False:
        raise metadata.error("attention.causal", "must be true: a model that reads in both directions is not supported")
    found = architecture(name, file, metadata)
    values = {**_sizes(file, metadata), **found.fixed, **_renamed(found, metadata), "model_type": found.model_type}
    values |= {key: value for key, value in found.fixed.items() if isinstance(values[key], list)}  # of each layer
    values |= {key: tensor in file.tensors for key, tensor in found.present.items()}
    drafting = metadata.integer("nextn_predict_layers", 0, least=0)  # the last layers, which only draft
    values["num_hidden_layers"] = metadata.integer("block_count") - drafting
    if "rope_parameters" not in found.fixed:
        values["rope_parameters"] = _ropes(name, file, metadata, values["head_dim"])
    return Config(values, str(file.path)), found


def _sizes(file: GgufFile, metadata: Config) -> dict[str, Any]:
    """Values that a family reads from config.json, and would miss or derive wrongly from the metadata's keys alone."""
    embedding = file.tensors.get("token_embd.weight")
    heads, hidden = metadata.integer("attention.head_count", least=0), metadata.integer("embedding_length")
    return {
        "vocab_size": embedding.shape[0] if embedding else metadata.integer("vocab_size"),
        "num_hidden_layers": metadata.integer("block_count"),
        "head_dim": metadata.integer("attention.key_length", max(1, hidden // max(1, heads))),
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }


def _renamed(found: Architecture, metadata: Config) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, theirs in {**COMMON, **found.keys}.items():
        value = metadata.get(theirs)
        if value is None or (key == "sliding_window" and value == 0):  # 0: an old way to say "none"
            continue
        if key == "sliding_window_pattern" and isinstance(value, list):
            values["layer_types"] = [SLIDING if slides else FULL for slides in value]
            continue
        section, _, last = key.rpartition(".")
        (values.setdefault(section, {}) if section else values)[last] = value
    return values


def _ropes(name: str, file: GgufFile, metadata: Config, head_dim: int) -> dict[str, Any]:
    rotated = metadata.integer("rope.dimension_count", head_dim)
    full = {**_rope(file, metadata), "rotary_dim": rotated}
    if name == "gpt-oss":  # as it was trained; llama.cpp rounds the ramp's ends
        full["truncate"] = False
    if name == "deepseek2":
        full |= latent_scaling(metadata)
    if name == "olmo2" and metadata.get("attention.sliding_window"):
        return {FULL: full, SLIDING: {"rope_type": "default", "rope_theta": full["rope_theta"]}}
    if name != "gemma3":
        return full
    local = metadata.number("rope.freq_base_swa", GEMMA3_LOCAL_BASE)
    return {FULL: full, SLIDING: {"rope_type": "default", "rope_theta": local}}


def _rope(file: GgufFile, metadata: Config) -> dict[str, Any]:
    theta = metadata.number("rope.freq_base", 10000.0)
    kind, factor = metadata.text("rope.scaling.type", "linear"), _factor(metadata)
    original = metadata.get("rope.scaling.original_context_length")
    trained = {} if original is None else {"original_max_position_embeddings": original}
    if ROPE_FACTORS in file.tensors:
        return {"rope_theta": theta, **_llama3(file, theta, metadata)}
    if LONG in file.tensors:
        return {"rope_theta": theta, **trained, **_longrope(file, metadata)}
    # Phi 3 for short texts is called longrope too, and has no factors.
    if kind in ("none", "longrope") or (kind == "linear" and factor in (0, 1)):
        return {"rope_type": "default", "rope_theta": theta}
    yarn = {key: metadata.get(f"rope.scaling.{theirs}") for key, theirs in YARN.items()}
    return {"rope_type": kind, "rope_theta": theta, "factor": factor, **trained, **yarn}


def _factor(metadata: Config) -> float:
    """1 where there is none. Before they told kinds apart, in 2023, files had only that of linear scaling."""
    return metadata.number(metadata.spelled("rope.scaling.factor", "rope.scale_linear"), 1.0)


def _longrope(file: GgufFile, metadata: Config) -> dict[str, Any]:
    if SHORT not in file.tensors:
        raise CheckpointError(f"{file.path.name}: has tensor {LONG!r} without {SHORT!r}")
    factors = {key: file.tensors[name].whole()[0].tolist() for key, name in (("long", LONG), ("short", SHORT))}
    attention = metadata.get("rope.scaling.attn_factor")
    return {
        "rope_type": "longrope",
        "long_factor": factors["long"],
        "short_factor": factors["short"],
        "attention_factor": attention,
    }


def _llama3(file: GgufFile, theta: float, metadata: Config) -> dict[str, Any]:
    """llama.cpp stores llama3 scaling as one divisor per frequency; this recovers the parameters of the scaling."""
    stored = file.tensors[ROPE_FACTORS].whole()[0]
    low, high, original = LLAMA3_BANDS
    frequencies = theta ** (-np.arange(len(stored)) / len(stored))
    smooth = np.clip((original * frequencies / (2 * math.pi) - low) / (high - low), 0, 1)
    factor = round(float(stored.max()), 4)
    if not np.allclose(1 / ((1 - smooth) / factor + smooth), stored, rtol=1e-3):
        raise CheckpointError(f"{file.path.name}: {ROPE_FACTORS} is not the scaling of Llama 3.1 to 3.3")
    bands = {"low_freq_factor": low, "high_freq_factor": high, "original_max_position_embeddings": original}
    return {"rope_type": "llama3", "factor": factor, **bands}
