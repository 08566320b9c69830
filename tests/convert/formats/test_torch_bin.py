"""PyTorch's files give the values that PyTorch wrote, and nothing in them is executed."""

import io
import json
import os
import pickle
import random
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from convert.errors import CheckpointError
from convert.formats.shards import TORCH, open_tensors
from convert.formats.torch_bin import LEGACY_MAGIC, LEGACY_PROTOCOL, TorchFile
from convert.source import open_model
from jaxengine.architecture.parameters import parameter_table

BOTH = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


def save(state: Any, path: Path, zipped: bool = True) -> Path:
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    return path


def test_a_list_of_storages_that_holds_lists_is_refused(tmp_path: Path) -> None:
    parts = (LEGACY_MAGIC, LEGACY_PROTOCOL, {"little_endian": True}, {}, [["a"]])
    path = tmp_path / "x.bin"
    path.write_bytes(b"".join(pickle.dumps(part, 2) for part in parts))
    with pytest.raises(CheckpointError, match=r"x\.bin: the list of storages does not fit the tensors"):
        TorchFile(path)


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64])
def test_values_and_types_are_torch_s(dtype: torch.dtype, zipped: bool, tmp_path: Path) -> None:
    values = torch.arange(24).reshape(2, 3, 4).to(dtype)
    file = TorchFile(save(OrderedDict(a=values, b=values[1]), tmp_path / "x.bin", zipped))
    assert (file.shape("a"), file.dtype("a")) == ((2, 3, 4), str(dtype).removeprefix("torch."))
    whole = file.read("a", (2, 3, 4), ()).astype(np.float64)
    np.testing.assert_array_equal(whole, values.double().numpy())
    np.testing.assert_array_equal(file.read("a", (6, 4), (slice(2, 4),)), whole.reshape(6, 4)[2:4])
    np.testing.assert_array_equal(file.read("b", (3, 4), (slice(1, 2), slice(1, 3))), whole[1, 1:2, 1:3])


@BOTH
def test_transposed_and_shared_views_are_followed(zipped: bool, tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    state = {"turned": base.t(), "column": base[:, 1], "parameter": torch.nn.Parameter(base), "scalar": base[2, 3]}
    file = TorchFile(save(state, tmp_path / "x.bin", zipped))
    np.testing.assert_array_equal(file.read("turned", (4, 3), (slice(1, 3),)), base.t()[1:3].numpy())
    np.testing.assert_array_equal(file.read("turned", (12,), ()), base.t().reshape(-1).numpy())
    np.testing.assert_array_equal(file.read("column", (3,), ()), base[:, 1].numpy())
    np.testing.assert_array_equal(file.read("parameter", (3, 4), ()), base.numpy())
    assert file.read("scalar", (), ()) == 11
    assert np.shares_memory(file.read("turned", (4, 3), ()), file.read("parameter", (3, 4), ()))


@BOTH
@pytest.mark.parametrize("name", ["llama_bias_hd", "llama3"])
def test_a_checkpoint_gives_the_parameters_of_its_safetensors(
    name: str, zipped: bool, copy_of: Callable[[str], Path], tiny: Callable[[str], Path]
) -> None:
    """Two shards. A tied head is written too, as PyTorch does."""
    directory, expected = copy_of(name), open_model(str(tiny(name))).source
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    if expected.spec.head.tied:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    write_shards(directory, tensors, zipped)
    source = open_model(str(directory)).source
    assert source.spec == expected.spec
    for parameter in parameter_table(source.spec):
        np.testing.assert_array_equal(source.read(parameter, ()), expected.read(parameter, ()))


def write_shards(directory: Path, tensors: dict[str, torch.Tensor], zipped: bool) -> None:
    ends = {"model.embed_tokens.weight", "lm_head.weight"}  # one storage, if tied
    placed = {name: f"pytorch_model-{2 if name in ends else 1}.bin" for name in tensors}
    for shard in set(placed.values()):
        save({name: t for name, t in tensors.items() if placed[name] == shard}, directory / shard, zipped)
    (directory / TORCH.index).write_text(json.dumps({"metadata": {}, "weight_map": placed}))


class Call:
    """A pickle that calls `function`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.what = function, arguments

    def __reduce__(self) -> Any:
        return self.what


class Attribute:
    """A pickle of an object whose state is set on loading."""


@BOTH
@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Call(os.system, "touch owned"), r"posix\.system"),
        (Call(getattr, "x", "upper"), r"__builtin__\.getattr"),
        (Call(eval, "1"), r"__builtin__\.eval"),
        (Call(np.zeros, 3), r"numpy\.zeros"),
        (Call(torch.zeros, 3), r"__builtin__\.getattr"),
        (Call(torch.load, "x"), r"torch\.serialization\.load"),
        (Call(OrderedDict, [("a", 1)]), "TypeError"),
        (Call(torch.FloatStorage, 10**12), r"torch\.FloatStorage, which is only a name"),
        (Attribute(), "test_torch_bin.Attribute|copyreg"),
        ({(("a",), "b"): 1}, "keys of text or numbers"),
        (os.system, r"posix\.system"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_pickle_that_calls_is_refused_and_calls_nothing(
    value: Any, named: str, zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save({"a": torch.zeros(2), "b": value}, tmp_path / "x.bin", zipped)
    with pytest.raises(CheckpointError, match=named):
        TorchFile(tmp_path / "x.bin")
    assert not (tmp_path / "owned").exists()


def test_names_with_dots_are_refused(tmp_path: Path) -> None:
    """The second part of a name may be a path of attributes, which Python's unpickler would follow."""
    names = (b"collections", b"OrderedDict.__init__.__globals__")
    body = b"\x80\x04" + b"".join(b"\x8c" + bytes([len(name)]) + name for name in names) + b"\x93."
    with pytest.raises(CheckpointError, match=r"names 'collections\.OrderedDict\.__init__\.__globals"):
        TorchFile(archive(tmp_path, body))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            b"\x80\x02}r\xff\xff\xff\xff.",
            "holds no dictionary of tensors",
        ),  # memo place four billion
        (b"\x80\x02\x8b\xff\xff\xff\x7f.", "malformed pickle"),  # a number of two billion bytes
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.", "malformed pickle"),  # a string longer than any file
        (b"\x80\x02))))", "pickle without an end|malformed"),
        (b"\x80\x02\x85\x85.", "malformed pickle"),
        (b"\x80\x02" + b")" + b"\x85" * 200_000 + b"\x85h\x00.", "malformed pickle"),
        (b"\x80\x02}" + b")" + b"\x85" * 200_000 + b"Ns.", "keys of text or numbers"),  # hashing would end the process
        (b"\x80\x02\x82\x01.", "opcode EXT1 is not allowed"),
        (b"\x80\x02ios\nsystem\n.", "opcode INST is not allowed|malformed"),
        (b"", "pickle without an end|malformed"),
        (b"\x80\x02]X\x01\x00\x00\x00aK\x01s.", "keys of text or numbers"),
        (b"\x80\x02}X\x01\x00\x00\x00aK\x01s.", "'a' is a int, not a tensor"),
        (b"\x80\x02}X\x03\x00\x00\x00../K\x01s.", "'a' is a int|tensor"),
    ],
)
def test_malformed_pickles_are_one_line(body: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message) as raised:
        TorchFile(archive(tmp_path, body))
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 300


def archive(directory: Path, body: bytes, compression: int = zipfile.ZIP_STORED, **members: bytes) -> Path:
    with zipfile.ZipFile(directory / "x.bin", "w", compression) as file:
        file.writestr("x/data.pkl", body)
        for name, data in members.items():
            file.writestr(f"x/{name}", data)
    return directory / "x.bin"


class Tensor:
    """A pickle of a `torch.float32` tensor over one storage, with any shape and strides."""

    def __init__(self, offset: Any, shape: Any, strides: Any) -> None:
        self.arguments = (offset, shape, strides, False, OrderedDict())

    def __reduce__(self) -> Any:
        return torch._utils._rebuild_tensor_v2, (STORAGE, *self.arguments)


STORAGE = object()


def described(offset: Any, shape: Any, strides: Any) -> bytes:
    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            return ("storage", torch.FloatStorage, "0", "cpu", 4) if value is STORAGE else None

    file = io.BytesIO()
    Pickler(file, protocol=2).dump({"a": Tensor(offset, shape, strides)})
    return file.getvalue()


@pytest.mark.parametrize(
    ("offset", "shape", "strides", "message"),
    [
        (0, (5,), (1,), "needs 5 elements, its storage has 4"),
        (1, (2, 2), (2, 1), "needs 5 elements"),
        (5, (0,), (1,), "storage has 4"),
        (0, (2**62,), (0,), "elements that overlap"),
        (0, (3, 2), (1, 1), "elements that overlap"),
        (0, (2**40, 2**40), (0, 0), "elements that overlap"),
        (0, (4,), (-1,), "out of range"),
        (-1, (4,), (1,), "out of range"),
        (0, (2.0,), (1,), "out of range"),
        (0, (2, 2), (1,), "badly described"),
        (0, (1,) * 9, (1,) * 9, "badly described"),
        (0, None, (1,), "malformed pickle"),
    ],
)
def test_a_view_beyond_its_storage_is_refused(
    offset: Any, shape: Any, strides: Any, message: str, tmp_path: Path
) -> None:
    body = described(offset, shape, strides)
    with pytest.raises(CheckpointError, match=message):
        TorchFile(archive(tmp_path, body, **{"data/0": bytes(16)}))


def test_archives_that_are_not_plain_are_refused(tmp_path: Path) -> None:
    body, data = described(0, (4,), (1,)), {"data/0": bytes(16)}
    assert TorchFile(archive(tmp_path, body, **data)).shape("a") == (4,)
    for compression, members, message in (
        (zipfile.ZIP_DEFLATED, data, "compressed"),
        (zipfile.ZIP_STORED, {}, "storage '0', which is missing"),
        (zipfile.ZIP_STORED, {**data, "byteorder": b"big"}, "not little-endian"),
    ):
        with pytest.raises(CheckpointError, match=message):
            TorchFile(archive(tmp_path, body, compression, **members))


def test_a_tar_file_of_pytorch_0_1_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"././@LongLink" + bytes(1000))
    with pytest.raises(CheckpointError, match="not a PyTorch file of weights"):
        TorchFile(tmp_path / "x.bin")


class Wrapped(torch.Tensor):
    """A tensor around another, as torchao's."""

    def __new__(cls, inner: torch.Tensor) -> "Wrapped":
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape)  # type: ignore[attr-defined, no-any-return]

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function: Any, *_: Any) -> Any:
        raise NotImplementedError(function)


@BOTH
def test_tensors_of_a_class_of_their_own_are_refused_with_what_to_do(zipped: bool, tmp_path: Path) -> None:
    path = save({"a": Wrapped(torch.ones(2))}, tmp_path / "x.bin", zipped)
    with pytest.raises(CheckpointError, match="of a class of their own, as torchao's, which are read of safetensors"):
        TorchFile(path)


@BOTH
def test_mutants_raise_checkpoint_errors_or_read_within_the_file(zipped: bool, tmp_path: Path) -> None:
    values = torch.arange(6.0).reshape(2, 3)
    data = save({"a": values, "b": values.t()}, tmp_path / "x.bin", zipped).read_bytes()
    drawn, path = random.Random(0), tmp_path / "mutant.bin"
    for _ in range(500):
        mutant = bytearray(data)
        mutant[drawn.randrange(len(mutant))] = drawn.randrange(256)
        path.write_bytes(mutant[: drawn.choice([len(mutant)] * 3 + [drawn.randrange(len(mutant))])])
        try:
            file = TorchFile(path)
        except CheckpointError as error:
            assert "\n" not in str(error)
        else:
            assert sum(file.read(name, file.shape(name), ()).nbytes for name in file) <= len(data)


def test_safetensors_are_preferred(copy_of: Callable[[str], Path]) -> None:
    directory = copy_of("llama")
    (directory / TORCH.single).write_bytes(b"never opened")
    assert open_tensors(directory).where("lm_head.weight") == "model.safetensors"
