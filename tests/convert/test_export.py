"""`text-generation-server export`: a program that runs without this package, and gives transformers' logits."""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.export import Exported
from jax.extend import backend
from jaxlib import xla_client
from safetensors import safe_open
from safetensors.flax import load_file
from safetensors.numpy import load_file as load_numpy
from safetensors.numpy import save_file

from convert.cli import main
from convert.formats.shard_writer import ShardWriter
from jaxengine import export
from tests.conftest import Checkpoints
from tests.families.references import zoo_logits
from tests.tiny import TINY, VOCAB
from tests.tiny_quantized import write_quantized

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FAMILIES = {  # with what is special
    "llama3": "scaled rotary positions, one tensor for embedding and head",
    "gpt2": "learned positions, matrices stored [in, out]; weights in several files",
    "bloom": "ALiBi",
    "falcon_rw": "ALiBi of rounded positions",
    "gpt_neox": "parallel branches with a norm each",
    "opt": "positions that begin at 2",
    "mistral": "a window",
    "gemma2": "windows in turns, soft caps",
    "gpt_oss": "experts, attention sinks",
    "mixtral": "experts",
    "phi3_longrope": "rotary positions by the text's length",
}
TEXT = "The capital of France is"


def checkpoint(name: str, tiny: Checkpoints, zoo: Checkpoints) -> Path:
    return (tiny if name in TINY else zoo)(name)


def exported(source: Path, target: Path, *options: str) -> Path:
    assert main(["export", str(source), str(target), "--format", "stablehlo", *options]) == 0
    return target


def program(directory: Path) -> Exported:
    return jax.export.deserialize(bytearray((directory / "model.jax_export").read_bytes()))


def manifest(directory: Path) -> dict:
    return json.loads((directory / "program.json").read_text())  # type: ignore[no-any-return]


def readme_lines() -> str:
    """What convert/README.md says that runs a program; its model is in the directory `out`."""
    text = (ROOT / "convert/README.md").read_text()
    [block] = re.findall(r"```python\n(.*?deserialize.*?)```", text, re.DOTALL)
    return block  # type: ignore[no-any-return]


RUN = """
import os, sys
import numpy
for name in ("jaxengine", "convert", "gateway", "torch", "transformers", "flax"):
    sys.modules[name] = None  # any import of it raises
here = os.getcwd()
for name in sys.argv[2:]:
    os.chdir(os.path.join(here, name))
    found = {}
    exec(sys.argv[1], found)
    numpy.savez("found.npz", ids=found["ids"], logits=found["logits"])
"""


@pytest.fixture(scope="module")
def told(tiny: Checkpoints, zoo: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for each family, with its program in `out`, and ids and logits in `found.npz`."""
    directory = tmp_path_factory.mktemp("programs")
    with pytest.MonkeyPatch.context() as patch:
        for name in FAMILIES:
            patch.setattr(export, "ShardWriter", partial(ShardWriter, limit=60_000) if name == "gpt2" else ShardWriter)
            exported(checkpoint(name, tiny, zoo), directory / name / "out")
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if Path(path) != ROOT]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-P", "-c", RUN, readme_lines(), *FAMILIES]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return directory


@pytest.mark.parametrize("name", FAMILIES)
def test_the_readme_s_lines_give_transformers_logits_without_this_package(
    name: str, told: Path, tiny: Checkpoints, zoo: Checkpoints
) -> None:
    found = np.load(told / name / "found.npz")
    expected = zoo_logits(checkpoint(name, tiny, zoo), found["ids"][0].tolist())
    assert found["logits"].shape == (1, found["ids"].shape[1], VOCAB) and found["ids"].size > 10
    np.testing.assert_allclose(found["logits"][0], expected, atol=1e-3)


def test_many_weights_are_several_files(told: Path) -> None:
    names = sorted(path.name for path in (told / "gpt2/out").glob("*.safetensors"))
    assert len(names) > 1 and names[0] == f"model-00001-of-{len(names):05}.safetensors"
    index = json.loads((told / "gpt2/out/model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == set(names)


@pytest.mark.parametrize("name", FAMILIES)
def test_texts_of_a_batch_are_padded_on_either_side(name: str, told: Path, tiny: Checkpoints, zoo: Checkpoints) -> None:
    """Longer than windows and trained lengths. Padding is id 9, lest 0 hides something."""
    long, short = (np.random.default_rng(n).integers(4, VOCAB, n) for n in (30, 19))
    ids, mask = np.full((3, 30), 9, np.int32), np.zeros((3, 30), np.int32)
    for row, (text, place) in enumerate([(long, slice(0, 30)), (short, slice(0, 19)), (short, slice(11, 30))]):
        ids[row, place], mask[row, place] = text, 1
    files = (told / name / "out").glob("*.safetensors")
    weights = {key: array for path in files for key, array in load_file(path).items()}
    logits = np.asarray(program(told / name / "out").call(weights, ids, mask))
    source = checkpoint(name, tiny, zoo)
    for got, text in ((logits[0], long), (logits[1, :19], short), (logits[2, 11:], short)):
        np.testing.assert_allclose(got, zoo_logits(source, text.tolist()), atol=1e-3)


def test_a_text_longer_than_the_model_s_positions_is_refused_by_the_program(told: Path) -> None:
    """Positions that are learned would be read beside the table, silently. JAX says the reason on stderr."""
    call = partial(program(told / "llama3/out").call, load_file(told / "llama3/out/model.safetensors"))
    assert call(*np.ones((2, 1, 128), np.int32)).shape == (1, 128, VOCAB)
    with pytest.raises(ValueError, match="refining shapes"):
        call(*np.ones((2, 1, 129), np.int32))


def test_weights_are_no_constants_and_sources_no_paths(told: Path) -> None:
    for name in ("model.jax_export", "model.stablehlo"):
        data = (told / "llama3/out" / name).read_bytes()
        assert len(data) < 60_000 < (told / "llama3/out/model.safetensors").stat().st_size
        assert b"decoder.py" in data and str(ROOT).encode() not in data


def test_the_manifest_says_what_goes_in_and_out(told: Path) -> None:
    found = manifest(told / "llama3/out")
    inputs = {each["name"]: (each["dtype"], each["shape"]) for each in found.pop("inputs")}
    assert [*inputs][:2] == ["platform", "embedding"] and [*inputs][-2:] == ["ids", "attention_mask"]
    assert inputs["platform"] == ("int32", []) and inputs["ids"] == ("int32", ["batch", "sequence"])
    assert inputs["layers.1.qkv"] == ("float32", [1, 6, 16, 64])
    with safe_open(told / "llama3/out/model.safetensors", "np") as weights:
        assert {*inputs} - {*weights.keys()} == {"platform", "ids", "attention_mask"}
    assert found.pop("outputs") == [{"name": "logits", "dtype": "float32", "shape": ["batch", "sequence", VOCAB]}]
    model = found.pop("model")
    assert (model["num_layers"], model["max_positions"], model["eos_token_ids"]) == (2, 128, [2])
    assert re.fullmatch(r"1\.\d+\.\d+", found.pop("stablehlo")) and found.pop("jax") == jax.__version__
    assert found.pop("calling_convention_version") >= 9
    assert found == {"version": 1, "format": "stablehlo", "platforms": ["cpu", "cuda"]}


def test_with_fixed_sizes_a_compiler_takes_the_bytecode_as_it_is(tiny: Checkpoints, tmp_path: Path) -> None:
    """Through PJRT's interface, of which no part of JAX's tracing or export is."""
    source = tiny("llama2_gqa")
    target = exported(source, tmp_path / "out", "--batch-size", "1", "--sequence-length", "8")
    client = backend.get_backend("cpu")
    devices = xla_client.DeviceList((client.local_devices()[0],))
    code = (target / "model.stablehlo").read_bytes()
    executable = client.compile_and_load(code, devices, xla_client.CompileOptions())
    ids = np.random.default_rng(0).integers(4, VOCAB, (1, 8)).astype(np.int32)
    arrays = {**load_file(target / "model.safetensors"), "platform": np.int32(0), "ids": ids}
    arrays["attention_mask"] = np.ones_like(ids)
    inputs = manifest(target)["inputs"]
    assert inputs[-1]["shape"] == [1, 8] and "custom_call" not in program(target).mlir_module()
    [logits] = executable.execute([jax.device_put(arrays[each["name"]]) for each in inputs])
    np.testing.assert_allclose(np.asarray(logits)[0], zoo_logits(source, ids[0].tolist()), atol=1e-3)


def test_in_bf16_weights_take_half_and_logits_stay_f32(told: Path, tiny: Checkpoints, tmp_path: Path) -> None:
    target = exported(tiny("llama3"), tmp_path / "out", "--dtype", "bfloat16")
    whole, half = ((each / "model.safetensors").stat().st_size for each in (told / "llama3/out", target))
    assert half < 0.6 * whole
    found = np.load(told / "llama3/found.npz")
    logits = program(target).call(load_file(target / "model.safetensors"), found["ids"], np.ones_like(found["ids"]))
    assert logits.dtype == np.float32
    error = np.linalg.norm(logits - found["logits"]) / np.linalg.norm(found["logits"])
    assert 0 < error < 0.05


def test_a_quantised_model_is_written_in_floats(tiny: Checkpoints, tmp_path: Path) -> None:
    both = write_quantized(tiny("llama2_gqa"), tmp_path, "gptq")
    ids = np.random.default_rng(0).integers(4, VOCAB, (1, 20)).astype(np.int32)
    target = exported(both / "gptq", tmp_path / "out", "--dtype", "float32")
    logits = program(target).call(load_file(target / "model.safetensors"), ids, np.ones_like(ids))
    np.testing.assert_allclose(logits[0], zoo_logits(both / "dense", ids[0].tolist()), atol=5e-3)


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("t5", (), "export: {} has an encoder, which is not supported"),
        ("mamba", (), "export: {} has a state space, which is not supported"),
        (
            "llama",
            ("--sequence-length", "129"),
            "--sequence-length must be at most 128, the model's positions, got 129",
        ),
        (
            "llama",
            ("--batch-size", "2147483648"),
            "--batch-size and --sequence-length must be at most 2147483647 tokens together, got 2147483648 x any",
        ),
        (
            "llama",
            ("--batch-size", "33554432", "--sequence-length", "64"),
            "--batch-size and --sequence-length must be at most 2147483647 tokens together, got 33554432 x 64",
        ),
        ("llama", ("--format", "tflite"), "--format must be stablehlo, got 'tflite'"),
        (
            "llama",
            ("--format", "onnx"),
            "--format must be stablehlo, got 'onnx'; no ONNX is written, but what XLA compiles",
        ),
    ],
)
def test_what_cannot_be_written_is_refused_in_one_line(
    name: str,
    options: tuple[str, ...],
    problem: str,
    tiny: Checkpoints,
    zoo: Checkpoints,
    seq2seq: Checkpoints,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = seq2seq(name) if name == "t5" else checkpoint(name, tiny, zoo)
    assert main(["export", str(source), str(tmp_path / "out"), *options]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {problem.format(source)}"
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_of_doubles_names_the_types_that_are_written(
    tiny: Checkpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "doubles"
    shutil.copytree(tiny("llama2_gqa"), source)
    weights = load_numpy(source / "model.safetensors")
    save_file({name: array.astype(np.float64) for name, array in weights.items()}, source / "model.safetensors")
    assert main(["export", str(source), str(tmp_path / "out")]) != 0
    problem = "error: dtype must be one of float32, bfloat16, float16, got 'float64'"
    assert capsys.readouterr().err.splitlines()[-1] == problem


def test_sizes_are_whole_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "default", str(tmp_path / "out"), "--batch-size", "0"]) == 2
    assert "--batch-size: must be a whole number of at least 1, got '0'" in capsys.readouterr().err
