"""A Llama-architecture GGUF seen as the Hugging Face checkpoint it was made from.

llama.cpp renames the tensors, writes the configuration as metadata and reorders the rows of q and k so that rotary
pairs lie side by side. All three are undone here, so the Llama family file serves both formats.
"""

import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from convert.config import Config
from convert.errors import CheckpointError
from convert.formats.gguf import GgufFile
from convert.formats.tensors import Index

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_FACTORS = "rope_freqs.weight"
LLAMA3_BANDS = (1.0, 4.0, 8192)  # low and high frequency factor, trained length: the same in all of Llama 3.1 to 3.3


class GgufTensors:
    """`Tensors` under Hugging Face names, in Hugging Face row order, as f32."""

    def __init__(self, file: GgufFile, heads: int, kv_heads: int) -> None:
        self._file = file
        self._raw = {_hugging_face_name(raw): raw for raw in file.tensors if raw != ROPE_FACTORS}
        self._heads = {"q_proj": heads, "k_proj": kv_heads}

    def __contains__(self, name: object) -> bool:
        return name in self._raw

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file.tensors[self._raw[name]].shape

    def dtype(self, name: str) -> str:
        return "float32"

    def where(self, name: str) -> str:
        return self._file.path.name

    def read(self, name: str, view: tuple[int, ...], index: Index) -> np.ndarray:
        """Only the rows that `index` touches are dequantised."""
        shape = self.shape(name)
        if len(shape) == 1:
            return self._vector(name, shape).reshape(view)[index]
        outer = next(axes for axes in range(len(view)) if math.prod(view[:axes]) == shape[0])
        rows = self._row_order(name, shape[0]).reshape(view[:outer])[index[:outer]]
        values = self._file.rows(self._raw[name], rows.ravel())
        return values.reshape(*rows.shape, *view[outer:])[(*(slice(None) for _ in rows.shape), *index[outer:])]

    def _vector(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        (stored,) = self._file.rows(self._raw[name], np.arange(1))
        ordered: np.ndarray = stored[self._row_order(name, shape[0])]
        return ordered

    def _row_order(self, name: str, rows: int) -> np.ndarray:
        """`order[i]` is the stored row of row i. llama.cpp stores a head's rows as pairs (i, i + dim/2)."""
        heads = self._heads.get(name.rsplit(".", 2)[-2])
        order = np.arange(rows)
        if heads is None or rows % (2 * heads):
            return order  # a head count that does not fit is refused by the shape check
        return order.reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).ravel()


def llama_config(file: GgufFile) -> Config:
    """The metadata in config.json's spelling."""
    architecture = file.metadata.get("general.architecture")
    if architecture != "llama":
        raise CheckpointError(f"{file.path.name}: general.architecture must be llama, got {architecture!r}")
    metadata = Config(_prefixed(file.metadata, "llama."), f"{file.path.name}: llama")
    if metadata.get("expert_count"):
        raise metadata.error("expert_count", "is not supported yet")
    heads = metadata.integer("attention.head_count")
    hidden = metadata.integer("embedding_length")
    embedding = file.tensors.get("token_embd.weight")
    values = {
        "model_type": "mistral" if "attention.sliding_window" in metadata.values else "llama",
        "vocab_size": embedding.shape[0] if embedding else metadata.integer("vocab_size"),
        "hidden_size": hidden,
        "num_hidden_layers": metadata.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.integer("attention.head_count_kv", heads),
        "head_dim": metadata.integer("attention.key_length", metadata.integer("rope.dimension_count", hidden // heads)),
        "intermediate_size": metadata.integer("feed_forward_length"),
        "max_position_embeddings": metadata.integer("context_length"),
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "sliding_window": metadata.get("attention.sliding_window"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "rope_parameters": _rope(file, metadata),
    }
    rotated = metadata.integer("rope.dimension_count", values["head_dim"])
    if rotated != values["head_dim"]:
        raise metadata.error("rope.dimension_count", f"must be the head's size {values['head_dim']}")
    return Config(values, str(file.path))


def _prefixed(metadata: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}


def _hugging_face_name(raw: str) -> str:
    """A name we do not know stays as it is, and is then refused as unexpected."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", raw)
    if match is None or match[2] not in NAMES:
        return raw
    layer = f"model.layers.{match[1]}." if match[1] else ""
    return f"{layer}{NAMES[match[2]]}.{match[3]}"


def _rope(file: GgufFile, metadata: Config) -> dict[str, Any]:
    theta = metadata.number("rope.freq_base", 10000.0)
    kind = metadata.text("rope.scaling.type", "none")
    if ROPE_FACTORS in file.tensors:
        return {"rope_theta": theta, **_llama3(file, theta, metadata)}
    if kind == "none":
        return {"rope_type": "default", "rope_theta": theta}
    fields = {"rope_type": kind, "rope_theta": theta, "factor": metadata.number("rope.scaling.factor")}
    original = metadata.get("rope.scaling.original_context_length")
    return fields if original is None else {**fields, "original_max_position_embeddings": original}


def _llama3(file: GgufFile, theta: float, metadata: Config) -> dict[str, Any]:
    """llama.cpp stores llama3 scaling as one divisor per frequency; the parameters behind them are found again."""
    stored = file.rows(ROPE_FACTORS, np.arange(1))[0]
    low, high, original = LLAMA3_BANDS
    frequencies = theta ** (-np.arange(len(stored)) / len(stored))
    smooth = np.clip((original * frequencies / (2 * math.pi) - low) / (high - low), 0, 1)
    factor = round(float(stored.max()), 4)
    if not np.allclose(1 / ((1 - smooth) / factor + smooth), stored, rtol=1e-3):
        raise CheckpointError(f"{file.path.name}: {ROPE_FACTORS} is not the scaling of Llama 3.1 to 3.3")
    bands = {"low_freq_factor": low, "high_freq_factor": high, "original_max_position_embeddings": original}
    return {"rope_type": "llama3", "factor": factor, **bands}
