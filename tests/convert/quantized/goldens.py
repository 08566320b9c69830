"""The goldens of tests/goldens/quantized: what libraries store of a matrix, and what they make of it again."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import safe_open

from convert.config.config import Config
from convert.formats.safetensors import SafetensorsFile
from convert.formats.tensors import Index, Tensors, whole
from convert.quantized.methods import method_of
from convert.quantized.tensors import QuantizedTensors, with_weights

FOLDER = Path(__file__).parents[2] / "goldens" / "quantized"
MODULE = "model.layers.0.self_attn.q_proj"
WEIGHT = f"{MODULE}.weight"
CODES = (".qweight", ".weight_packed", ".W_q", ".weight", "._weight_qdata")  # which are read last
STATE = ".weight.quant_state.bitsandbytes__nf4"
ATTENTION = {  # a group of compressed-tensors that has no weights
    "targets": ["LlamaAttention"],
    "weights": None,
    "input_activations": {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True},
}
CASES = [  # one of each layout
    *("auto_gptq-4bit_asym_act", "gptqmodel-3bit_v1", "gptqmodel-4bit_no_g_idx", "gptqmodel-8bit_odd_v1"),
    *("autoawq-g32", "autoawq-gemv_g32", "bitsandbytes-nf4_double", "bitsandbytes-nf4_double_bf16", "bitsandbytes-fp4"),
    *("bitsandbytes-int8", "hqq-4bit_32_float32", "hqq-2bit_32_bfloat16", "hqq-3bit_32_float32"),
    *("compressed_tensors-w4_group_asym", "compressed_tensors-w3_group", "compressed_tensors-w4_channel"),
    *("compressed_tensors-int8_channel_asym", "compressed_tensors-int8_tensor", "compressed_tensors-fp8_block_ragged"),
    *("compressed_tensors-fp8_group", "compressed_tensors-nvfp4", "compressed_tensors-mxfp4"),
    *("compressed_tensors-mxfp8", "modelopt-mxfp8"),
    *("compressed_tensors_0_9-w4_act", "modelopt-nvfp4", "modelopt-fp8", "transformers-fp8_block"),
    *("torchao-int8_rows", "torchao-int8_rows_asym", "torchao-int4_dynamic_asym", "torchao-fp8_tensor"),
    *("torchao-int4_bf16", "auto_round-4bit_plain"),
]


class Arrays(Tensors):
    """Arrays as a checkpoint's tensors."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.arrays = arrays
        self.reads: list[str] = []

    def __contains__(self, name: object) -> bool:
        return name in self.arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.arrays[name].shape

    def dtype(self, name: str) -> str:
        return self.arrays[name].dtype.name

    def where(self, name: str) -> str:
        assert name in self.arrays
        return "model.safetensors"

    def read(self, name: str, view: tuple[int, ...], index: Index) -> np.ndarray:
        self.reads.append(name)
        return self.arrays[name].reshape(view)[index]


@dataclass(frozen=True)
class Golden:
    """One case of a library's file."""

    library: str
    case: str
    config: dict[str, Any]  # of the quantisation

    @cached_property
    def _file(self) -> SafetensorsFile:
        return SafetensorsFile(FOLDER / f"{self.library}.safetensors")

    @cached_property
    def dense(self) -> np.ndarray:
        """What the library makes of the tensors, in the type it computes in."""
        return whole(self._file, f"{self.case}.dense")

    @cached_property
    def parts(self) -> dict[str, np.ndarray]:
        """The stored tensors by their suffixes, such as ".qweight"."""
        names = [name for name in self._file if name.startswith(f"{self.case}.") and name != f"{self.case}.dense"]
        return {name.removeprefix(self.case): np.asarray(whole(self._file, name)) for name in names}

    def tensors(self, **changes: np.ndarray | None) -> Arrays:
        """A checkpoint of this module alone. Of `changes`, None removes a part."""
        parts = {suffix: array for suffix, array in (self.parts | changes).items() if array is not None}
        return Arrays({f"{MODULE}{suffix}": array for suffix, array in parts.items()})

    def configuration(self, **changes: Any) -> Config:
        return Config({"quantization_config": self.config | changes}, "config.json")

    def opened(self) -> QuantizedTensors:
        method = method_of(self.configuration())
        assert method is not None
        return QuantizedTensors(self.tensors(), method)


def opened(golden: Golden, tensors: Arrays, **settings: Any) -> QuantizedTensors:
    found = with_weights(golden.configuration(**settings), tensors)
    assert isinstance(found, QuantizedTensors)
    return found


def goldens() -> list[Golden]:
    found = []
    for path in sorted(FOLDER.glob("*.safetensors")):
        with safe_open(path, "np") as file:
            configs = json.loads(file.metadata()["configs"])
        found += [Golden(path.stem, case, config) for case, config in configs.items()]
    return found


GOLDENS = {f"{each.library}-{each.case}": each for each in goldens()}
GPT_OSS = GOLDENS.pop("gpt_oss-experts")  # whose tensors are no module's: see test_mxfp4.py


def rounded(values: np.ndarray, like: np.ndarray) -> np.ndarray:
    """f32: `values` as the type of `like` can hold them."""
    return values.astype(like.dtype).astype(np.float32)


def spacing(values: np.ndarray, like: np.ndarray) -> np.ndarray:
    """How far apart numbers of the type of `like` lie at the largest of each row of `values`."""
    bits = ml_dtypes.finfo(like.dtype).nmant
    return np.abs(values.astype(np.float32)).max(1, keepdims=True) * np.float32(2.0**-bits)
