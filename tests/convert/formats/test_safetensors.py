"""safetensors: what the reference library writes is read by slice; a file with a wrong header is refused at once."""

import json
import random
import struct
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from convert.errors import CheckpointError
from convert.formats.safetensors import MAX_HEADER, SafetensorsFile, encode_header
from convert.formats.shards import SAFETENSORS, has_tensors, open_tensors

PLAIN = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def test_slices_equal_the_whole(tmp_path: Path) -> None:
    whole = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    save_file({"a": whole, "b": whole[:, 0].copy()}, tmp_path / "x.safetensors")
    file = SafetensorsFile(tmp_path / "x.safetensors")
    np.testing.assert_array_equal(file.read("a", (6, 5), (slice(1, 4), slice(2, 5))), whole[1:4, 2:5])
    np.testing.assert_array_equal(file.read("a", (2, 3, 5), (slice(1, 2),)), whole.reshape(2, 3, 5)[1:2])
    np.testing.assert_array_equal(file.read("b", (6,), ()), whole[:, 0])


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"])
def test_every_element_type_keeps_its_bits(dtype: str, tmp_path: Path) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    values = np.random.default_rng(0).standard_normal((4, 4)).astype(kind)
    save_file({"a": values}, tmp_path / "x.safetensors")
    file = SafetensorsFile(tmp_path / "x.safetensors")
    assert file.dtype("a") == dtype
    assert file.read("a", (4, 4), ()).tobytes() == values.tobytes()


def test_our_header_is_read_by_the_reference_library(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    path = tmp_path / "x.safetensors"
    path.write_bytes(encode_header({"a": ("float32", (2, 3)), "b": ("float32", (2, 3))}) + values.tobytes() * 2)
    np.testing.assert_array_equal(load_file(path)["b"], values)


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"a": PLAIN}, 23, "tensor 'a' ends at byte .* truncated"),
        ({"a": PLAIN}, 25, "1 bytes after the last tensor"),
        ({"a": PLAIN, "b": {**PLAIN, "data_offsets": [12, 36]}}, 36, "tensor 'b' starts at byte"),
        ({"a": PLAIN, "b": {**PLAIN, "data_offsets": [32, 56]}}, 56, "tensor 'b' starts at byte"),
        ({"a": {**PLAIN, "shape": [2, 4]}}, 24, r"tensor 'a' of shape \(2, 4\) takes 32 bytes, has 24"),
        ({"a": {**PLAIN, "shape": [2**40, 2**40]}}, 24, "tensor 'a' of shape"),
        ({"a": {**PLAIN, "shape": [-2, -3]}}, 24, "out of range"),
        ({"a": {**PLAIN, "shape": [2.0, 3]}}, 24, "out of range"),
        ({"a": {**PLAIN, "shape": [1] * 9, "data_offsets": [0, 4]}}, 4, "out of range"),
        ({"a": {**PLAIN, "data_offsets": [24, 0]}}, 24, "tensor 'a'"),
        ({"a": {**PLAIN, "dtype": "F4"}}, 24, "tensor 'a' is badly described: KeyError 'F4'"),
        ({"a": {"dtype": "F32"}}, 24, "tensor 'a' is badly described"),
        ({"a": 7}, 24, "tensor 'a' is badly described"),
        ({"../a": PLAIN, "a b": PLAIN}, 24, "tensor name 'a b' is not allowed|starts"),
        ([1], 0, "must be a JSON object"),
        ('{"a": 1, "a": 1}', 0, "key 'a' appears twice"),
        ("{", 0, "not valid JSON"),
        ('{"a": ' + "[" * 100_000, 0, "not valid JSON"),
        (b"\xff\xfe", 0, "not valid JSON"),
    ],
)
def test_a_wrong_header_is_refused(header: Any, data: int, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        SafetensorsFile(write_raw(tmp_path, header, data))


@pytest.mark.parametrize("length", [MAX_HEADER + 1, 2**63, 10_000])
def test_a_header_longer_than_allowed_or_than_the_file_is_refused(length: int, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{}")
    with pytest.raises(CheckpointError, match=f"header of {length} bytes"):
        SafetensorsFile(path)


def test_an_empty_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"too short|cannot be read"):
        SafetensorsFile(tmp_path / "empty.safetensors")
    with pytest.raises(CheckpointError, match="No such file"):
        SafetensorsFile(tmp_path / "none.safetensors")


def test_a_million_empty_tensors_are_refused_quickly(tmp_path: Path) -> None:
    empty = '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    header = "{" + ",".join(f'"{i}":{empty}' for i in range(200_000)) + "}"
    path = write_raw(tmp_path, header, 0)
    start = time.process_time()
    with pytest.raises(CheckpointError, match="200000 tensors, at most 100000"):
        SafetensorsFile(path)
    assert time.process_time() - start < 5


def test_a_key_that_appears_twice_among_many_is_found_quickly(tmp_path: Path) -> None:
    """Counting each of so many among all of them would take hours."""
    header = "{" + ",".join(f'"{i}":0' for i in range(200_000)) + ',"199999":0}'
    path = write_raw(tmp_path, header, 0)
    start = time.process_time()
    with pytest.raises(CheckpointError, match="key '199999' appears twice"):
        SafetensorsFile(path)
    assert time.process_time() - start < 5


def test_mutants_raise_checkpoint_errors_or_read_the_same(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    save_file({"a": values, "b": values + 1}, tmp_path / "x.safetensors")
    data, drawn, path = (tmp_path / "x.safetensors").read_bytes(), random.Random(0), tmp_path / "mutant.safetensors"
    header_end = 8 + struct.unpack("<Q", data[:8])[0]
    for _ in range(1000):
        mutant = bytearray(data)
        mutant[drawn.randrange(header_end)] = drawn.randrange(256)
        path.write_bytes(mutant[: drawn.choice([len(mutant)] * 3 + [drawn.randrange(len(mutant))])])
        try:
            file = SafetensorsFile(path)
        except CheckpointError as error:
            assert "\n" not in str(error)
        else:
            assert sum(file.read(name, file.shape(name), ()).nbytes for name in file) == len(data) - header_end


def test_a_sharded_checkpoint_equals_the_single_file(tmp_path: Path) -> None:
    tensors = {name: np.full((2, 2), i, np.float32) for i, name in enumerate("abcd")}
    write_shards(tmp_path, tensors)
    sharded = open_tensors(tmp_path)
    assert set(sharded) == set(tensors)
    for name, values in tensors.items():
        np.testing.assert_array_equal(sharded.read(name, (2, 2), ()), values)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path, {name: np.zeros((2, 2), np.float32) for name in "ab"})
    (tmp_path / "shard-1.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"1 shard\(s\) missing: shard-1\.safetensors"):
        open_tensors(tmp_path)


def test_a_tensor_that_is_not_where_the_index_says_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path, {name: np.zeros((2, 2), np.float32) for name in "ab"})
    index = json.loads((tmp_path / SAFETENSORS.index).read_text())
    index["weight_map"]["c"] = "shard-0.safetensors"
    (tmp_path / SAFETENSORS.index).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"tensor 'c' is not in shard-0\.safetensors"):
        open_tensors(tmp_path)


@pytest.mark.parametrize("shard", ["../x.safetensors", "/etc/passwd", "sub/x.safetensors", "weights.bin", 7])
def test_an_index_cannot_point_outside_its_directory(shard: Any, tmp_path: Path) -> None:
    (tmp_path / SAFETENSORS.index).write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(CheckpointError, match="weight_map"):
        open_tensors(tmp_path)


def test_the_only_file_may_have_any_name(tmp_path: Path) -> None:
    """AutoGPTQ's have that of their format. One of two could be either's, and an adapter is no model."""
    save_file({"a": np.zeros(3, np.float32)}, tmp_path / "gptq_model-4bit-128g.safetensors")
    save_file({"b": np.zeros(3, np.float32)}, tmp_path / "adapter_model.safetensors")
    assert has_tensors(tmp_path)
    assert list(open_tensors(tmp_path)) == ["a"]
    save_file({"c": np.zeros(3, np.float32)}, tmp_path / "other.safetensors")
    assert not has_tensors(tmp_path)
    with pytest.raises(CheckpointError, match=r"no model\.safetensors or its index"):
        open_tensors(tmp_path)


def write_raw(directory: Path, header: Any, data: int) -> Path:
    text = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header)).encode()
    path = directory / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(data))
    return path


def write_shards(directory: Path, tensors: dict[str, np.ndarray]) -> None:
    """Write two shards that hold the tensors in turn."""
    placed = {name: f"shard-{i % 2}.safetensors" for i, name in enumerate(tensors)}
    for shard in set(placed.values()):
        save_file({name: values for name, values in tensors.items() if placed[name] == shard}, directory / shard)
    (directory / SAFETENSORS.index).write_text(json.dumps({"metadata": {}, "weight_map": placed}))
