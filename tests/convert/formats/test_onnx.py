"""ONNX files give the values that were written, from where they lie, and nothing outside the checkpoint is read."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from convert.errors import CheckpointError
from convert.formats.onnx import OnnxFile, find_onnx
from convert.formats.shards import open_tensors
from convert.formats.tensors import whole
from tests.convert.formats.onnx_models import matrix, model, node, outside, write

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
LINEAR = node("MatMul", ["x", "val_1"], "y", "/fc/MatMul")
W = matrix(4, 6)


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "typed"])
@pytest.mark.parametrize("kind", FLOATS, ids=TensorProto.DataType.Name)
def test_values_and_types_are_the_library_s(kind: int, raw: bool, tmp_path: Path) -> None:
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    values = matrix(2, 3, 4, dtype=dtype)
    tensor = helper.make_tensor("a.weight", kind, values.shape, values.tobytes() if raw else values.flatten(), raw=raw)
    file = OnnxFile(write(tmp_path / "x.onnx", [], {"a.weight": tensor}))
    assert (file.shape("a.weight"), file.dtype("a.weight")) == ((2, 3, 4), dtype.name)
    np.testing.assert_array_equal(whole(file, "a.weight"), numpy_helper.to_array(tensor))
    np.testing.assert_array_equal(file.read("a.weight", (6, 4), (slice(2, 4),)), values.reshape(6, 4)[2:4])


def test_a_linear_layer_s_weight_is_a_view_of_the_file(tmp_path: Path) -> None:
    file = OnnxFile(write(tmp_path / "x.onnx", [LINEAR], {"val_1": W}))
    assert list(file) == ["fc.weight"] and "val_1" not in file
    assert (file.shape("fc.weight"), file.where("fc.weight")) == ((6, 4), "x.onnx")
    np.testing.assert_array_equal(file.read("fc.weight", (2, 3, 4), (slice(1, 2), 0)), W.T.reshape(2, 3, 4)[1:2, 0])
    read = file.read("fc.weight", (6, 4), ())
    assert np.shares_memory(read, file.read("fc.weight", (6, 4), (slice(2, 3),)))
    assert not read.flags.writeable


def external(directory: Path) -> Path:
    """A model whose weights are in two places of one file beside it, as the library writes it."""
    path = directory / "model.onnx"
    named = {"a.weight": matrix(300), "val_1": W}
    onnx.save_model(
        model([LINEAR], named), path, save_as_external_data=True, location="model.onnx_data", size_threshold=0
    )
    assert path.stat().st_size < 1000 < (directory / "model.onnx_data").stat().st_size
    return path


def test_external_data_is_read_where_it_lies(tmp_path: Path) -> None:
    file = OnnxFile(external(tmp_path))
    np.testing.assert_array_equal(whole(file, "a.weight"), matrix(300))
    np.testing.assert_array_equal(whole(file, "fc.weight"), W.T)


def test_a_link_in_the_hub_s_cache_may_lead_to_its_blobs(tmp_path: Path) -> None:
    made = external(tmp_path)
    for folder in ("blobs", "snapshots/0123/onnx"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("model.onnx", "model.onnx_data"):
        blob = (tmp_path / name).rename(tmp_path / "blobs" / name[::-1])
        (tmp_path / "snapshots/0123/onnx" / name).symlink_to(os.path.relpath(blob, tmp_path / "snapshots/0123/onnx"))
    file = OnnxFile(tmp_path / "snapshots/0123/onnx" / made.name)
    np.testing.assert_array_equal(whole(file, "a.weight"), matrix(300))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"location": "../secret"}, r"'\.\./secret', which is not beside it"),
        ({"location": "sub/../../secret"}, "which is not beside it"),
        ({"location": "sub/../data"}, "which is not beside it"),
        ({"location": "{tmp}/secret"}, "which is not beside it"),
        ({"location": "{tmp}/model/data"}, "which is not beside it"),
        ({"location": "/etc/passwd"}, "'/etc/passwd', which is not beside it"),
        ({"location": "link"}, "'link', which is not beside it"),
        ({"location": "folder/secret"}, "'folder/secret', which is not beside it"),
        ({"location": "loop"}, "'loop', which is missing"),
        ({"location": ""}, "'', which is not beside it"),
        ({}, "'', which is not beside it"),
        ({"location": "."}, r"'\.', which is missing"),
        ({"location": "pipe"}, "'pipe', which is missing"),
        ({"location": "none"}, "'none', which is missing"),
        ({"location": "a" * 300}, "a{80}', which is missing"),
        ({"location": "x" * 5000}, "a name has 5000 characters, at most 4096"),
        ({"location": "da\0ta", "offset": 8}, "24 bytes from 8 on"),
        ({"location": "data", "offset": 8}, "lies in 24 bytes from 8 on of 'data', which has 24"),
        ({"location": "data", "offset": -8}, "has offset '-8'"),
        ({"location": "data", "offset": "0x4"}, "has offset '0x4'"),
        ({"location": "data", "offset": "9" * 19}, "has offset '9999"),
        ({"location": "data", "offset": "9" * 18}, "bytes from 9{18} on"),
        ({"location": "data", "length": 20}, "takes 24 bytes, has 20"),
        ({"location": "data", "length": 10**15}, "lies in 10{15} bytes from 0 on"),
        ({"location": "data", "length": ""}, "has length ''"),
        ({"location": "empty"}, "cannot be read"),
    ],
)
def test_external_data_stays_in_the_checkpoint(entries: dict[str, Any], message: str, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    (directory / "sub").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(bytes(24))
    (directory / "data").write_bytes(bytes(24))
    (directory / "empty").touch()
    os.mkfifo(directory / "pipe")
    (directory / "link").symlink_to("../secret")
    (directory / "folder").symlink_to("..")
    (directory / "loop").symlink_to("loop")
    entries = {key: str(value).replace("{tmp}", str(tmp_path)) for key, value in entries.items()}
    tensor = outside("a.weight", (2, 3), **{"checksum": "", **entries})
    with pytest.raises(CheckpointError, match=message) as raised:
        OnnxFile(write(directory / "x.onnx", [], {"a.weight": tensor}))
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 300


def test_external_data_has_an_offset_and_a_length_if_it_needs_them(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(matrix(9).tobytes())
    tensors = {
        "a.weight": outside("a.weight", (2, 3), location="data"),
        "b.weight": outside("b.weight", (3,), location="./data", offset=24, length=12),
    }
    file = OnnxFile(write(tmp_path / "x.onnx", [], tensors))
    np.testing.assert_array_equal(whole(file, "a.weight"), matrix(2, 3))
    np.testing.assert_array_equal(whole(file, "b.weight"), [7, 8, 9])


def described(**fields: Any) -> TensorProto:
    return TensorProto(**{"name": "a.weight", "data_type": 1, "dims": [2], "raw_data": bytes(8), **fields})


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (described(dims=[3]), r"'a\.weight' of shape \[3\] takes 12 bytes, has 8"),
        (described(dims=[]), "takes 4 bytes, has 8"),
        (described(dims=[2**40, 2**40]), r"has shape \[1099511627776, 1099511627776\]"),
        (described(dims=[2**30, 2**20]), "takes 4503599627370496 bytes, has 8"),
        (described(dims=[-2, -1]), r"has shape \[-2, -1\]"),
        (described(dims=[1] * 9), "has shape"),
        (described(dims=[3, 0, 5], raw_data=b"1234"), "takes 0 bytes, has 4"),
        (described(dims=[2**62, 0, 2**62], raw_data=b""), r"'a\.weight' has shape \[4611686018427387904, 0, 46"),
        (described(data_type=TensorProto.STRING), "has a type that is not read"),
        (described(data_type=TensorProto.FLOAT8E4M3FN), "has a type that is not read"),
        (described(data_type=999), "has a type that is not read"),
        (described(float_data=[1.0, 2.0]), "is in pieces"),
        (described(raw_data=b"", int32_data=[1]), "takes 8 bytes, has 2"),
        (described(name="a.weight" * 600), "a name has 4800 characters"),
    ],
    ids=str,
)
def test_a_tensor_that_does_not_fit_its_description_is_refused(
    tensor: TensorProto, message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message) as raised:
        OnnxFile(write(tmp_path / "x.onnx", [], {"a.weight": tensor}))
    assert str(raised.value).startswith("x.onnx: ") and "\n" not in str(raised.value)


def nested(depth: int) -> Any:
    made = node("MatMul", ["x", "val_1"], "y", "/fc/MatMul")
    for _ in range(depth):
        made = node("If", ["c"], "y", then_branch=helper.make_graph([made], "g", [], []))
    return made


QUANTIZED = (
    *("MatMulInteger", "ConvInteger", "MatMulNBits", "MatMulBnb4", "MatMulFpQ4", "GatherBlockQuantized"),
    *("QLinearMatMul", "QOrderedMatMul", "QGemm", "QAttention", "QEmbedLayerNormalization", "QMoE"),
)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("DynamicQuantizeLinear", "x", "y")], "is quantised, by 'DynamicQuantizeLinear'; name the checkpoint"),
        ([node("DequantizeLinear", "x", "y"), node("QuantizeLinear", "x", "y")], "by 'DequantizeLinear', 'Quant"),
        *(([node(op, "x", "y", domain="com.microsoft")], f"is quantised, by '{op}'") for op in QUANTIZED),
        ([node("QLinear\nerror: all is well", "x", "y")], r"by 'QLinear\\nerror: all is well'"),
        (
            [node("MatMul", ["x", "val_1"], "y", "MatMul_3")],
            r"which parameters 1 of its matrices are: 'val_1' \[4, 6\]",
        ),
        ([nested(5)], "graphs lie more than 4 deep"),
        ([nested(15)], "graphs lie more than 4 deep"),
    ],
    ids=lambda given: str(given)[:40] if isinstance(given, str) else "",
)
def test_graphs_that_are_not_read_are_refused_in_one_line(nodes: list[Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message) as raised:
        OnnxFile(write(tmp_path / "x.onnx", nodes, {"val_1": W}))
    assert str(raised.value).startswith("x.onnx: ") and "\n" not in str(raised.value)


def test_graphs_may_lie_a_little_deep(tmp_path: Path) -> None:
    assert list(OnnxFile(write(tmp_path / "x.onnx", [nested(4)], {"val_1": W}))) == ["fc.weight"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b"PK\x03\x04" + bytes(100), "does not fit its message|there is no field"),
        (b"\x08\x07", "it has 0 graphs"),
        (b"\x3a\x00\x3a\x00", "it has 2 graphs"),
        (b"\x38\x07", "is a number where it should be text or a message"),
        (b"\x3a\x04\x0a\x02\x08\x01", "is a number where it should be text"),  # a node's input
        (b"\x3a\x04\x0a\x02\x0a\xff", "does not end"),
        (b"\x3a\x05\x0a\x03\x0a\x01\xff", "can't decode"),
    ],
)
def test_other_files_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        OnnxFile(tmp_path / "x.onnx")


def test_a_file_of_endless_small_parts_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convert.formats.onnx_graph.MAX_FIELDS", 1000)
    graph = b"\x0a\x00" * 1001  # nodes without anything
    (tmp_path / "x.onnx").write_bytes(b"\x3a" + bytes([len(graph) & 127 | 128, len(graph) >> 7]) + graph)
    with pytest.raises(CheckpointError, match="more than 1000 numbers and fields"):
        OnnxFile(tmp_path / "x.onnx")


def test_mutants_raise_checkpoint_errors_or_read_within_the_file(tmp_path: Path) -> None:
    nodes = [LINEAR, node("Add", ["y", "fc.bias"], "z"), node("Transpose", ["a.weight"], "t", perm=[1, 0])]
    nodes.append(node("If", ["c"], "d", then_branch=helper.make_graph([nested(1)], "g", [], [])))
    half = matrix(2, 3, dtype=ml_dtypes.bfloat16)
    data = model(nodes, {"val_1": W, "fc.bias": matrix(6), "a.weight": half}).SerializeToString()
    drawn, path = random.Random(0), tmp_path / "mutant.onnx"
    opened = 0
    for _ in range(1500):
        mutant = bytearray(data)
        mutant[drawn.randrange(len(mutant))] = drawn.randrange(256)
        path.write_bytes(mutant[: drawn.choice([len(mutant)] * 3 + [drawn.randrange(len(mutant))])])
        try:
            file = OnnxFile(path)
        except CheckpointError as error:
            assert "\n" not in str(error)
        else:
            opened += 1
            assert sum(whole(file, name).nbytes for name in file) <= 2 * len(data)
    assert 100 < opened < 1400


@pytest.mark.parametrize("folder", ["", "onnx"])
@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["model.onnx", "decoder_model.onnx", "model_fp16.onnx"], "model.onnx"),
        (["decoder_model.onnx", "decoder_with_past_model.onnx", "decoder_model_merged.onnx"], "decoder_model.onnx"),
        (["decoder_with_past_model.onnx", "decoder_model_merged.onnx"], "decoder_model_merged.onnx"),
        (["exported.onnx"], "exported.onnx"),
    ],
)
def test_the_file_is_found_by_optimum_s_names_or_because_it_is_the_only_one(
    names: list[str], found: str, folder: str, tmp_path: Path
) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    for name in names:
        (tmp_path / folder / name).touch()
    assert find_onnx(tmp_path) == tmp_path / folder / found


def test_of_several_files_with_other_names_none_is_chosen(tmp_path: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match=r"2 \.onnx files, none of them model\.onnx: a\.onnx, b\.onnx"):
        find_onnx(tmp_path)
    assert find_onnx(tmp_path / "none") is None


def test_pytorch_s_weights_are_preferred(copy_of: Callable[[str], Path]) -> None:
    directory = copy_of("llama")
    (directory / "model.onnx").write_bytes(b"never opened")
    assert open_tensors(directory).where("lm_head.weight") == "model.safetensors"
    (directory / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.onnx: .*cannot be read as an ONNX file of weights"):
        open_tensors(directory)
    (directory / "model.onnx").unlink()
    with pytest.raises(CheckpointError, match=r"or pytorch_model\.bin or its index or \.onnx file"):
        open_tensors(directory)
