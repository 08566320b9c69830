"""Our own checkpoint: what was written is read back, and an incomplete or altered checkpoint is refused."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from convert import checkpoint
from convert.checkpoint import MANIFEST, open_checkpoint, origin, write_checkpoint
from convert.cli import main
from convert.config.pooling import pooling_of
from convert.errors import IO, CheckpointError
from convert.formats.safetensors import SafetensorsFile
from convert.hub_checkpoint import written as written_for_others
from convert.mapping.composition import ComposedSource
from convert.original import original_of
from convert.source import open_model
from jaxengine.architecture.model import (
    Attention,
    Experts,
    LayerKind,
    LinearAttention,
    Mamba2,
    ModelSpec,
    ShortConvolution,
)
from jaxengine.architecture.parameters import parameter_table
from jaxengine.architecture.weight_format import StoredWeight

FILES = {"model.safetensors", "spec.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}


# The layout of a version. Whoever changes either raises VERSION: caches hold checkpoints of the old one.
LAYOUT_OF_VERSION = {18: "5fcaf340cab6a0ad"}


def test_a_version_has_one_layout() -> None:
    experts = Experts(4, 2, 8, shared_ffn_size=8, bias=True, choice_bias=True)
    biases = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}
    plain = ModelSpec(8, 8, 2, 2, 1, 4, 8, 16, kinds=(LayerKind(), LayerKind(experts=True)), experts=experts, **biases)
    kinds = (LayerKind(), LayerKind(None, experts=True, mixer="recurrence"))
    specs = (
        replace(
            plain, kinds=kinds, attention=Attention(output_gate=True), linear_attention=LinearAttention(4, 2, 6, 4)
        ),
        replace(plain, kinds=kinds, mamba2=Mamba2(4, 6, 2, 4, bias=True, out_bias=True)),
        replace(plain, kinds=kinds, short_convolution=ShortConvolution(8, bias=True)),
    )
    shapes = [{name: parameter.shape for name, parameter in parameter_table(spec).items()} for spec in specs]
    layout = "".join(spec.to_json() + repr(each) for spec, each in zip(specs, shapes, strict=True))
    assert hashlib.sha256(layout.encode()).hexdigest()[:16] == LAYOUT_OF_VERSION[checkpoint.VERSION]


@pytest.fixture
def written(tiny: Callable[[str], Path], tmp_path: Path) -> Path:
    model = open_model(str(tiny("llama_bias_hd")))
    write_checkpoint(model.source, model.directory, tmp_path / "out", origin={"model_id": "a/b", "revision": "abc"})
    return tmp_path / "out"


def test_a_round_trip_keeps_every_parameter(written: Path, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    original, back = open_model(str(tiny("llama_bias_hd"))), open_model(str(written), cache_dir=tmp_path)
    assert back.source.spec == original.source.spec
    assert back.source.dtype == "float32"
    assert back.eos_token_ids == original.eos_token_ids == (2,)
    assert back.revision == "abc"
    for name in parameter_table(original.source.spec):
        np.testing.assert_array_equal(back.source.read(name, ()), original.source.read(name, ()))


def test_pooling_is_kept(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    """In our own layout by the manifest, in others by the files that say it."""
    embedder = tmp_path / "embedder"
    shutil.copytree(tiny("llama2_gqa"), embedder)
    (embedder / "1_Pooling").mkdir()
    (embedder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    (embedder / "modules.json").write_text('[{"type": "Pooling", "path": "1_Pooling"}]')
    assert open_model(str(embedder)).pooling == "mean"
    assert main(["convert", str(embedder), str(tmp_path / "ours")]) == 0
    assert open_model(str(tmp_path / "ours"), cache_dir=tmp_path).pooling == "mean"
    with written_for_others(original_of(open_model(str(embedder))), tmp_path / "hub", 0, {}, {}):
        pass
    assert pooling_of(tmp_path / "hub") == "mean"


def test_others_may_read_it_where_the_umask_lets_them(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    target, model = tmp_path / "made", tiny("llama2_gqa")
    before = os.umask(0o022)
    try:
        assert main(["convert", str(model), str(target)]) == 0
    finally:
        os.umask(before)
    assert target.stat().st_mode & 0o777 == 0o755
    assert {path.stat().st_mode & 0o777 for path in target.iterdir()} == {0o644}


def test_the_manifest_names_every_file(written: Path) -> None:
    manifest = json.loads((written / MANIFEST).read_text())
    assert set(manifest["files"]) == {path.name for path in written.iterdir()} - {MANIFEST}
    assert set(manifest["files"]) >= FILES
    assert all(entry["size"] == (written / name).stat().st_size for name, entry in manifest["files"].items())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_another_dtype_is_rounded_as_numpy_does(dtype: str, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    model = open_model(str(tiny("llama")))
    write_checkpoint(model.source, model.directory, tmp_path / "out", dtype=dtype)
    back = open_checkpoint(tmp_path / "out", tmp_path / "verified")
    assert back.dtype == dtype
    expected = model.source.read("layers.1.qkv", ()).astype(getattr(ml_dtypes, dtype, dtype))
    np.testing.assert_array_equal(back.read("layers.1.qkv", ()), expected)


def test_a_large_parameter_is_written_in_chunks(
    tiny: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "CHUNK", 1000)
    sizes: list[int] = []
    read = ComposedSource.read

    def measured(self: ComposedSource, name: str, index: tuple[slice, ...]) -> np.ndarray:
        values = read(self, name, index)
        sizes.append(values.nbytes // values.shape[0] if values.shape[0] == 1 else values.nbytes)
        return values

    model = open_model(str(tiny("llama")))
    monkeypatch.setattr(ComposedSource, "read", measured)
    write_checkpoint(model.source, model.directory, tmp_path / "out")
    rows = [np.prod(p.shape[1:]) * 4 for p in parameter_table(model.source.spec).values()]
    assert max(sizes) <= max(1000, *rows)
    monkeypatch.undo()
    back = open_checkpoint(tmp_path / "out", tmp_path / "verified")
    np.testing.assert_array_equal(back.read("embedding", ()), model.source.read("embedding", ()))


def test_values_beyond_float16_are_refused(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    class Huge:
        def __init__(self, source: ComposedSource) -> None:
            self.spec, self.dtype = source.spec, "float32"

        def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
            shape = parameter_table(self.spec)[name].shape
            return np.full(shape, 1e5, np.float32)[index]

        def stored(self, name: str) -> StoredWeight | None:
            return None

    model = open_model(str(tiny("llama")))
    assert isinstance(model.source, ComposedSource)
    with pytest.raises(CheckpointError, match=r"'embedding' has values beyond float16's 65504"):
        write_checkpoint(Huge(model.source), model.directory, tmp_path / "out", dtype="float16")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_flipped_bit_is_found_at_the_next_start(name: str, written: Path, tmp_path: Path) -> None:
    open_checkpoint(written, tmp_path / "verified")
    data = bytearray((written / name).read_bytes())
    data[-1] ^= 1
    (written / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"{name}: contents differ from the sha256 in manifest\.json"):
        open_checkpoint(written, tmp_path / "verified")


def test_a_truncated_file_is_found_by_its_size(written: Path, tmp_path: Path) -> None:
    os.truncate(written / "model.safetensors", 1000)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: has 1000 bytes, manifest\.json says"):
        open_checkpoint(written, tmp_path / "verified")


def test_a_missing_file_is_named(written: Path, tmp_path: Path) -> None:
    (written / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: named in manifest\.json but cannot be read"):
        open_checkpoint(written, tmp_path / "verified")


def test_contents_are_compared_once(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_checkpoint(written, tmp_path / "verified")
    monkeypatch.setattr(checkpoint, "sha256", lambda path: pytest.fail(f"{path} hashed again"))
    open_checkpoint(written, tmp_path / "verified")


def listing(*files: tuple[str, object]) -> str:
    """A manifest of this version, with the last of `files` first: it is refused before another file is read."""
    return json.dumps({"version": checkpoint.VERSION, "files": dict(reversed(files))})


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ("{}", f"version must be {checkpoint.VERSION}, got None"),
        ('{"version": 0, "files": {}}', f"version must be {checkpoint.VERSION}, got 0"),
        (listing(), "does not list model.safetensors, spec.json"),
        (listing(("spec.json", {}), ("model.safetensors", {}), ("../x", {})), "'../x' is not the name of a file"),
        (listing(("model.safetensors", {}), ("spec.json", 3)), "entry of 'spec.json' is malformed"),
        ("", "not valid JSON"),
    ],
)
def test_a_malformed_manifest_is_refused(manifest: str, message: str, written: Path, tmp_path: Path) -> None:
    (written / MANIFEST).write_text(manifest)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(written, tmp_path / "verified")


@pytest.mark.parametrize("spec", ["[]", '{"norm": [1]}', "[" * 100_000, "{"])
def test_a_malformed_specification_is_refused(spec: str, written: Path, tmp_path: Path) -> None:
    (written / "spec.json").write_text(spec)
    manifest = json.loads((written / MANIFEST).read_text())
    manifest["files"]["spec.json"] = {"size": len(spec), "sha256": hashlib.sha256(spec.encode()).hexdigest()}
    (written / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"spec\.json: not a model specification"):
        open_checkpoint(written, tmp_path / "verified")


def test_an_origin_that_is_no_object_is_refused(written: Path) -> None:
    manifest = json.loads((written / MANIFEST).read_text())
    (written / MANIFEST).write_text(json.dumps({**manifest, "origin": ["a/b"]}))
    with pytest.raises(CheckpointError, match=r"manifest\.json: origin must be an object"):
        origin(written)


def test_too_small_a_disk_is_refused_before_the_work(
    tiny: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = open_model(str(tiny("llama")))
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 100_000}))
    with pytest.raises(CheckpointError, match=r"needs 0 MB of free disk, has 0 MB") as raised:
        write_checkpoint(model.source, model.directory, tmp_path / "out")
    assert raised.value.exit_code == IO
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_an_ordinary_safetensors(written: Path) -> None:
    file = SafetensorsFile(written / "model.safetensors")
    assert "layers.0.qkv" in file and file.shape("layers.0.qkv") == (2, 4, 24, 64)


def test_what_has_a_dtype_of_its_own_keeps_it(zoo: Callable[[str], Path], tmp_path: Path) -> None:
    """What helps to choose experts would choose others if it were rounded."""
    model = open_model(str(zoo("glm4_moe")))
    write_checkpoint(model.source, model.directory, tmp_path / "out", dtype="bfloat16")
    back = open_model(str(tmp_path / "out"), cache_dir=tmp_path).source
    name = "layers.1.router_choice_bias"
    assert (back.dtype, back.read(name, ()).dtype) == ("bfloat16", np.float32)
    np.testing.assert_array_equal(back.read(name, ()), model.source.read(name, ()))
