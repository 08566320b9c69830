"""A tiny checkpoint as llama.cpp would convert it: renamed, with the rows of q and k in rotary pairs."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from convert.config import Config
from convert.formats.gguf_llama import NAMES
from tests.tiny import tokenizer

F32 = gguf.GGMLQuantizationType.F32


def write_tiny_gguf(
    checkpoint: Path,
    path: Path,
    *,
    kind: gguf.GGMLQuantizationType = F32,
    metadata: dict[str, int | float | str | bool] | None = None,
    extra: dict[str, np.ndarray] | None = None,
) -> Path:
    """Matrices are stored as `kind`, vectors as F32; `metadata` and `extra` add to or replace keys and tensors."""
    config = Config.load(checkpoint / "config.json")
    writer = gguf.GGUFWriter(path, "llama")
    heads, kv_heads = config.integer("num_attention_heads"), config.integer("num_key_value_heads", 4)
    _write_metadata(writer, config, {**tokenizer_metadata(), **(metadata or {})})
    for name, values in load_file(checkpoint / "model.safetensors").items():
        owner = name.rsplit(".", 2)[-2]
        count = {"q_proj": heads, "k_proj": kv_heads}.get(owner)
        stored = values if count is None else _paired(values, count)
        _add(writer, _llama_cpp_name(name), stored, kind if values.ndim == 2 else F32)
    for name, values in (extra or {}).items():
        _add(writer, name, values, F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _paired(values: np.ndarray, heads: int) -> np.ndarray:
    """Row i of a head's first half is followed by row i of its second half."""
    halves = values.reshape(heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(np.swapaxes(halves, 1, 2)).reshape(values.shape)


def _llama_cpp_name(name: str) -> str:
    stem, suffix = name.rsplit(".", 1)
    layer, _, owner = stem.removeprefix("model.layers.").partition(".")
    table = {ours: theirs for theirs, ours in NAMES.items()}
    return f"{table[stem]}.{suffix}" if stem in table else f"blk.{layer}.{table[owner]}.{suffix}"


def _add(writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: gguf.GGMLQuantizationType) -> None:
    if kind == F32:
        writer.add_tensor(name, values.astype(np.float32))
    else:
        writer.add_tensor(name, gguf.quants.quantize(values.astype(np.float32), kind), raw_dtype=kind)


def _write_metadata(writer: gguf.GGUFWriter, config: Config, more: dict[str, Any]) -> None:
    rope = config.section("rope_parameters")
    assert rope is not None
    heads = config.integer("num_attention_heads")
    dim = config.integer("head_dim", config.integer("hidden_size") // heads)
    values = {
        "llama.block_count": config.integer("num_hidden_layers"),
        "llama.context_length": config.integer("max_position_embeddings"),
        "llama.embedding_length": config.integer("hidden_size"),
        "llama.feed_forward_length": config.integer("intermediate_size"),
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": config.integer("num_key_value_heads", heads),
        "llama.attention.key_length": dim,
        "llama.attention.layer_norm_rms_epsilon": config.number("rms_norm_eps"),
        "llama.rope.dimension_count": dim,
        "llama.rope.freq_base": rope.number("rope_theta"),
        **more,
    }
    for key, value in values.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_array)(key, value)


def tokenizer_metadata() -> dict[str, Any]:
    """The tiny byte-level tokenizer in GGUF's spelling."""
    backend = tokenizer().backend_tokenizer
    tokens = [backend.id_to_token(id) for id in range(backend.get_vocab_size())]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 4 + [1] * (len(tokens) - 4),
        "tokenizer.ggml.merges": merges(),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": tokenizer().chat_template,
    }


def merges() -> list[str]:
    pairs = json.loads(tokenizer().backend_tokenizer.to_str())["model"]["merges"]
    return [" ".join(pair) for pair in pairs]
