"""A GGUF of a Llama model gives the parameters of the checkpoint it was made from."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from convert.compose import compose
from convert.config.config import Config
from convert.errors import CheckpointError
from convert.formats.gguf import GgufFile
from convert.formats.shards import open_tensors
from convert.llama_cpp.model import open_gguf
from convert.mapping.composition import ComposedSource
from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import parameter_table
from tests.convert.quantized.test_models import multiplied_out
from tests.convert.tiny_gguf import llama3_factors, write_tiny_gguf

Q8_0 = gguf.GGMLQuantizationType.Q8_0


def open_file(path: Path) -> ComposedSource:
    return open_gguf(GgufFile(path))


def open_original(directory: Path) -> ComposedSource:
    return compose(Config.load(directory / "config.json"), open_tensors(directory))


@pytest.mark.parametrize("name", ["llama", "llama2_gqa", "llama_bias_hd", "code_llama", "mistral_full"])
def test_parameters_equal_the_original_checkpoints(name: str, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    """The order of rows of q and k is restored, for weights and biases."""
    converted, original = open_file(write_tiny_gguf(tiny(name), tmp_path / "x.gguf")), open_original(tiny(name))
    for parameter in parameter_table(original.spec):
        np.testing.assert_array_equal(converted.read(parameter, ()), original.read(parameter, ()), parameter)
    assert converted.spec == with_f32_eps(original)


def test_slices_equal_the_whole(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    source = open_file(write_tiny_gguf(tiny("llama2_gqa"), tmp_path / "x.gguf", kind=Q8_0))
    for name, parameter in parameter_table(source.spec).items():
        whole = source.read(name, ())
        for axis, extent in enumerate(parameter.shape):
            cut = (*[slice(None)] * axis, slice(extent // 2, extent))
            np.testing.assert_array_equal(source.read(name, cut), whole[cut])


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16"])
def test_quantised_parameters_are_close_to_the_original(kind: str, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    path = write_tiny_gguf(tiny("llama2_gqa"), tmp_path / "x.gguf", kind=gguf.GGMLQuantizationType[kind])
    converted, original = open_file(path), open_original(tiny("llama2_gqa"))
    for parameter in ("embedding", "layers.0.qkv", "layers.1.gate_up", "layers.1.down"):
        expected = original.read(parameter, ())
        error = np.abs(converted.read(parameter, ()) - expected).mean() / np.abs(expected).mean()
        assert error < 0.1, parameter


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_matrices_of_blocks_stay_as_they_are(kind: str, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    """The rows of q and k in the model's order, q, k and v in one, gate and up in one, the embedding too."""
    path = write_tiny_gguf(tiny("llama2_gqa"), tmp_path / "x.gguf", kind=gguf.GGMLQuantizationType[kind])
    source = open_file(path)
    table = parameter_table(source.spec)
    kept = {name for name in table if source.stored(name)}
    assert kept == {"embedding", "head"} | {
        f"layers.{i}.{name}" for i in range(source.spec.num_layers) for name in ("qkv", "out", "gate_up", "down")
    }
    for name in kept:
        stored = source.stored(name)
        assert stored is not None and (stored.format.name, stored.format.group) == ("gguf", 32)
        restored = multiplied_out(stored, table[name].shape, table[name].inputs)
        np.testing.assert_allclose(restored, source.read(name, ()), rtol=0, atol=1e-6)


def test_tensors_in_floats_are_not_quantised(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    path = write_tiny_gguf(tiny("llama2_gqa"), tmp_path / "x.gguf", kind=gguf.GGMLQuantizationType.BF16)
    source = open_file(path)
    assert not any(source.stored(name) for name in parameter_table(source.spec))


def test_llama3_scaling_is_recovered_from_its_factors(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    path = write_tiny_gguf(tiny("llama"), tmp_path / "x.gguf", extra={"rope_freqs.weight": llama3_factors(32.0)})
    rope = open_file(path).spec.kinds[0].rope
    assert (rope.kind, rope.factor, rope.original_positions) == ("llama3", 32.0, 8192)
    assert (rope.low_freq_factor, rope.high_freq_factor) == (1.0, 4.0)


def test_other_rope_factors_are_refused(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    path = write_tiny_gguf(tiny("llama"), tmp_path / "x.gguf", extra={"rope_freqs.weight": factors})
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight is not the scaling of Llama 3\.1"):
        open_file(path)


def test_linear_and_yarn_scaling_are_read(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    yarn = {**linear, "llama.rope.scaling.type": "yarn", "llama.rope.scaling.original_context_length": 32}
    for metadata, expected in ((linear, ("linear", 4.0, 0)), (yarn, ("yarn", 4.0, 32))):
        rope = open_file(write_tiny_gguf(tiny("llama"), tmp_path / "x.gguf", metadata=metadata)).spec.kinds[0].rope
        assert (rope.kind, rope.factor, rope.original_positions) == expected


@pytest.mark.parametrize("key", ["rope.scale_linear", "rope.scaling.factor"])
def test_scaling_without_a_kind_is_linear_as_in_files_of_2023(
    key: str, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    def rope_of(factor: float) -> tuple[str, float]:
        path = write_tiny_gguf(tiny("llama"), tmp_path / "x.gguf", metadata={f"llama.{key}": factor})
        rope = open_file(path).spec.kinds[0].rope
        assert rope is not None
        return rope.kind, rope.factor

    assert rope_of(8.0) == ("linear", 8.0)
    assert rope_of(1.0) == rope_of(0.0) == ("default", 1.0)


def test_a_part_of_a_model_is_refused_with_what_joins_it(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    """Not as a model that lacks tensors."""
    path = write_tiny_gguf(tiny("llama"), tmp_path / "x.gguf", metadata={"split.no": 0, "split.count": 3})
    with pytest.raises(CheckpointError, match=r"x\.gguf: is one of 3 parts; join them with .*llama-gguf-split"):
        open_file(path)


def test_long_factors_without_short_ones_are_refused(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    extra = {"rope_factors_long.weight": np.ones(8, np.float32)}
    path = write_tiny_gguf(tiny("llama"), tmp_path / "x.gguf", extra=extra)
    with pytest.raises(CheckpointError, match=r"has tensor 'rope_factors_long\.weight' without 'rope_factors_short"):
        open_file(path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.rope.scaling.type": "ntk", "llama.rope.scaling.factor": 2.0}, "rope_type must be one of"),
        ({"llama.block_count": 0}, "block_count must be a positive integer"),
        ({"llama.attention.head_count": "four"}, "attention.head_count must be an integer, not negative, got 'four'"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(
    metadata: dict[str, Any], message: str, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    path = write_tiny_gguf(tiny("llama"), tmp_path / "x.gguf", metadata=metadata)
    with pytest.raises(CheckpointError, match=rf"x\.gguf.*{message}"):
        open_file(path)


def test_an_unknown_tensor_is_refused(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    extra = {"blk.0.attn_q_norm.weight": np.ones(16, np.float32)}
    path = write_tiny_gguf(tiny("llama"), tmp_path / "x.gguf", extra=extra)
    with pytest.raises(CheckpointError, match=r"no place for tensor 'blk\.0\.attn_q_norm\.weight'"):
        open_file(path)


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "rwkv7")
    writer.add_tensor("token_embd.weight", np.zeros((2, 2), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=r"general\.architecture must be one of arcee, .*, got 'rwkv7'"):
        open_file(tmp_path / "x.gguf")


def with_f32_eps(source: ComposedSource) -> ModelSpec:
    """GGUF keeps floats in 32 bits."""
    norm = dataclasses.replace(source.spec.norm, eps=float(np.float32(source.spec.norm.eps)))
    return dataclasses.replace(source.spec, norm=norm)
