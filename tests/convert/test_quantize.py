"""`text-generation-server quantize`: the checkpoint that it writes, and what it refuses.

`tests/jaxengine/gptq` shows that codes are those of the paper, and Hessians those of transformers' own inputs.
"""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from convert.cli import main
from convert.source import open_model
from convert.tokenizer.tokenizer import check_tokenizer
from jaxengine.architecture.parameters import parameter_table
from jaxengine.gptq.layers import PROJECTIONS
from tests.conftest import Checkpoints
from tests.convert.tiny_gguf import write_tiny_gguf
from tests.families.forward import Forward
from tests.in_floats import InFloats
from tests.tiny_quantized import write_quantized

TEXT = (Path(__file__).parents[2] / "jaxengine/gptq/calibration.txt").read_text()
GROUP = 16  # of `write_quantized`, which rounds to nearest
LENGTH = 64  # tokens
FAMILIES = {  # with what is special
    "gpt2": "fused rows, biases, matrices stored [in, out]",
    "codegen": "rows of q and k in another order, qkv in parts",
    "falcon_40b": "qkv interleaved by key/value head",
    "phi3": "qkv and gate_up in one tensor each",
}


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A part of our own text; `logits` reads another."""
    path = tmp_path_factory.mktemp("text") / "calibration.txt"
    path.write_text(TEXT[:6000])
    return path


def quantized(source: Path, target: Path, calibration: Path, *options: str) -> Path:
    command = ["quantize", str(source), str(target), "--groupsize", str(GROUP), "--calibration", str(calibration)]
    assert main([*command, *options]) == 0
    return target


def logits(directory: Path, tmp_path: Path) -> np.ndarray:
    """Of texts that did not calibrate, f32 [texts, LENGTH, vocab]."""
    model = open_model(str(directory), cache_dir=tmp_path / "cache")
    ids = check_tokenizer(model.directory, model.source.spec.vocab_size)[0].encode(TEXT[-3000:]).ids
    forward = Forward(InFloats(model.source), slots=1)
    texts = [ids[first : first + LENGTH] for first in range(0, 8 * LENGTH, LENGTH)]
    return np.stack([forward.prefill(0, text, 0, LENGTH) for text in texts])


@pytest.mark.slow
def test_logits_are_nearer_to_the_model_s_than_with_the_nearest_codes(
    tiny: Checkpoints, calibration: Path, tmp_path: Path
) -> None:
    source = tiny("llama2_gqa")
    exact = logits(source, tmp_path)

    def error(directory: Path) -> float:
        return float(((logits(directory, tmp_path) - exact) ** 2).mean())

    nearest = error(write_quantized(source, tmp_path, "gptq") / "gptq")
    assert error(quantized(source, tmp_path / "made", calibration)) < 0.7 * nearest
    assert error(quantized(source, tmp_path / "ordered", calibration, "--act-order")) < 0.7 * nearest


@pytest.mark.slow
def test_what_is_written_beside_the_codes(tiny: Checkpoints, calibration: Path, tmp_path: Path) -> None:
    source = tiny("llama_bias_hd")
    target = quantized(source, tmp_path / "made", calibration, "--act-order", "--bits", "8", "--percdamp", "0.02")
    config, before = (json.loads((each / "config.json").read_text()) for each in (target, source))
    described = config.pop("quantization_config")
    assert config == before
    assert described == json.loads((target / "quantize_config.json").read_text())
    expected = {"quant_method": "gptq", "bits": 8, "group_size": GROUP, "sym": True, "checkpoint_format": "gptq"}
    expected |= {"desc_act": True, "damp_percent": 0.02, "lm_head": False}
    assert described.items() >= expected.items()
    made, floats = load_file(target / "model.safetensors"), load_file(source / "model.safetensors")
    modules = {name.removesuffix(".qweight") for name in made if name.endswith(".qweight")}
    assert modules == {name.removesuffix(".weight") for name in floats if re.search(r"_proj\.weight", name)}
    for name in floats.keys() - {f"{module}.weight" for module in modules}:  # biases too
        np.testing.assert_array_equal(made.pop(name), floats[name])
    assert made.keys() == {
        f"{module}.{part}" for module in modules for part in ("qweight", "qzeros", "scales", "g_idx")
    }
    module = "model.layers.0.mlp.down_proj"
    outputs, inputs = floats[f"{module}.weight"].shape
    assert made[f"{module}.qweight"].shape == (inputs // 4, outputs)
    assert made[f"{module}.scales"].shape == (inputs // GROUP, outputs) and made[f"{module}.scales"].dtype == np.float16
    assert (made[f"{module}.qzeros"] == 0x7F7F7F7F).all()
    assert (np.bincount(made[f"{module}.g_idx"]) == GROUP).all() and (np.diff(made[f"{module}.g_idx"]) < 0).any()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        assert (target / name).read_bytes() == (source / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_a_weight_is_where_its_family_has_it(name: str, zoo: Checkpoints, calibration: Path, tmp_path: Path) -> None:
    target = quantized(zoo(name), tmp_path / "made", calibration)
    made, floats = (open_model(str(each), cache_dir=tmp_path).source for each in (target, zoo(name)))
    for parameter in parameter_table(floats.spec):
        ours, exact = made.read(parameter, ()), floats.read(parameter, ())
        if parameter.rpartition(".")[2] in PROJECTIONS:
            assert ((ours - exact) ** 2).mean() < 0.05 * exact.var(), parameter
            assert (ours != exact).any(), parameter
        else:
            np.testing.assert_array_equal(ours, exact)


@pytest.mark.slow
def test_a_llama_in_a_gguf_file_gets_the_names_of_its_checkpoint(
    tiny: Checkpoints, calibration: Path, tmp_path: Path
) -> None:
    source = tiny("llama2_gqa")
    file = write_tiny_gguf(source, tmp_path / "llama.gguf")
    target = quantized(file, tmp_path / "of_gguf", calibration)
    made, same = (
        load_file(each / "model.safetensors") for each in (target, quantized(source, tmp_path / "x", calibration))
    )
    assert made.keys() == same.keys()
    for name, tensor in same.items():
        expected = tensor.astype(np.float16) if tensor.dtype == np.float32 else tensor
        np.testing.assert_array_equal(made[name], expected, name)
    import transformers

    theirs, ours = (transformers.AutoConfig.from_pretrained(each) for each in (source, target))
    for key in ("hidden_size", "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_parameters"):
        assert getattr(ours, key) == pytest.approx(getattr(theirs, key)), key
    assert ours.eos_token_id == [theirs.eos_token_id]


@pytest.mark.slow
def test_an_adapter_is_merged_with_what_is_not_rounded_too(
    tiny: Checkpoints, calibration: Path, tmp_path: Path
) -> None:
    from tests.tiny_adapter import write_adapter  # imports torch

    base = tiny("llama2_gqa")
    write_adapter(tmp_path, base, target_modules=["q_proj"], modules_to_save=["lm_head", "norm"])
    (tmp_path / "adapter" / "tokenizer_config.json").write_text('{"chat_template": "its own"}')
    shutil.copyfile(base / "tokenizer.json", tmp_path / "adapter" / "tokenizer.json")
    target = quantized(tmp_path / "adapter", tmp_path / "made", calibration)
    made, expected, before = (load_file(each / "model.safetensors") for each in (target, tmp_path / "merged", base))
    for name in ("lm_head.weight", "model.norm.weight"):
        np.testing.assert_array_equal(made[name], expected[name])
        assert not np.array_equal(made[name], before[name])
    assert (target / "tokenizer_config.json").read_text() == '{"chat_template": "its own"}'
    assert not (target / "adapter_config.json").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mixtral", "quantize: a model with experts is not supported"),
        ("mamba", "quantize: a model with a state space is not supported"),
    ],
)
def test_other_architectures_are_refused_by_name(
    name: str, message: str, zoo: Checkpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", str(zoo(name)), str(tmp_path / "made")]) == 65
    assert capsys.readouterr().err == f"error: {message}\n"


def test_checkpoints_without_floats_or_names_are_refused(
    tiny: Checkpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    awq = write_quantized(tiny("llama"), tmp_path, "awq") / "awq"
    assert main(["quantize", str(awq), str(tmp_path / "made")]) == 65
    assert capsys.readouterr().err == f"error: {awq}: its weights are quantised already, by awq\n"
    own = tmp_path / "own"
    assert main(["convert", str(tiny("llama")), str(own)]) == 0
    assert main(["quantize", str(own), str(tmp_path / "made")]) == 65
    assert f"error: {own}: is in the engine's own layout; name what it was converted from\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--bits", "5"], "--bits must be one of 2, 3, 4, 8, got 5"),
        (["--groupsize", "100"], "--groupsize must be one of -1, 16, 32, 64, 128, 256, 512, 1024, got 100"),
        (["--percdamp", "2"], "--percdamp must be between 0 and 1, got 2.0"),
        (["--upload-to-model-id", "me/it"], "--upload-to-model-id is not supported: nothing is sent to the hub"),
        (["--trust-remote-code"], "--trust-remote-code is not supported: model code is never run"),
        (["--calibration", "/no/such"], "calibration /no/such: cannot be read: No such file or directory"),
        (["--calibration", "{short}"], "calibration: 4 tokens of text, at least 64 are needed"),
        (["--calibration", "{binary}"], "is not UTF-8 at byte 1"),
    ],
)
def test_bad_options_are_refused_before_anything_is_computed(
    options: list[str], message: str, tiny: Checkpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short").write_text("abcd")
    (tmp_path / "binary").write_bytes(b"a\xff")
    options = [each.format(short=tmp_path / "short", binary=tmp_path / "binary") for each in options]
    assert main(["quantize", str(tiny("llama")), str(tmp_path / "made"), *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_a_matrix_whose_sizes_do_not_fill_words_is_refused_by_name(
    tiny: Checkpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", str(tiny("llama_bias_hd")), str(tmp_path / "made"), "--bits", "3"]) == 65
    tensor = "'model.layers.0.self_attn.k_proj.weight' has 48 outputs and 64 inputs"
    assert f"quantize: tensor {tensor}, both must be multiples of 32" in capsys.readouterr().err


def test_nothing_is_written_over(tiny: Checkpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = Path(shutil.copytree(tiny("llama"), tmp_path / "made"))
    assert main(["quantize", str(tiny("llama")), str(target)]) == 2
    assert capsys.readouterr().err == f"error: output {target} exists and is not an empty directory\n"
