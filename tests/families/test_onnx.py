"""What PyTorch exports to ONNX is the checkpoint that was exported, bit by bit, and is served as that is."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from convert.cli import main
from convert.formats.onnx import OnnxFile
from convert.formats.tensors import whole
from convert.source import open_model
from jaxengine.architecture.parameters import parameter_table
from jaxengine.llm import LLM, SamplingParams
from tests.families.forward import Forward
from tests.families.references import zoo_logits
from tests.families.test_families import PROMPT, prompt_of
from tests.onnx_exports import WEIGHTS, exported
from tests.tiny_adapter import write_adapter

Checkpoints = Callable[[str], Path]

FAMILIES = ("bloom", "gpt2", "gpt_neox", "llama2_gqa", "opt")  # with biases and without, tied and not
BOTH = pytest.mark.parametrize(
    "dynamo", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["torchscript", "dynamo"]
)
OTHER_NAMES = {"embed_out.weight": "lm_head.weight"}  # of GPT-NeoX' head, in transformers 5


@pytest.fixture
def checkpoint(tiny: Checkpoints, zoo: Checkpoints) -> Checkpoints:
    return lambda name: tiny(name) if name.startswith("llama") else zoo(name)


def assert_same_parameters(directory: Path, checkpoint: Path) -> None:
    ours, theirs = open_model(str(directory)).source, open_model(str(checkpoint)).source
    assert (ours.spec, ours.dtype) == (theirs.spec, theirs.dtype)
    for name in parameter_table(theirs.spec):
        np.testing.assert_array_equal(ours.read(name, ()), theirs.read(name, ()), name)


@BOTH
@pytest.mark.parametrize("name", FAMILIES)
def test_an_export_holds_the_tensors_of_its_checkpoint(name: str, dynamo: bool, checkpoint: Checkpoints) -> None:
    directory = exported(checkpoint(name), dynamo=dynamo)
    file = OnnxFile(directory / "model.onnx")
    for tensor, values in load_file(checkpoint(name) / WEIGHTS).items():
        found = OTHER_NAMES.get(tensor, tensor)
        assert file.dtype(found) == "float32"
        np.testing.assert_array_equal(whole(file, found), values.numpy(), tensor)
    assert_same_parameters(directory, checkpoint(name))


@BOTH
@pytest.mark.parametrize("name", ["bloom", "llama2_gqa"])
def test_an_export_computes_the_reference_s_logits(name: str, dynamo: bool, checkpoint: Checkpoints) -> None:
    ids = prompt_of(name)
    model = Forward(open_model(str(exported(checkpoint(name), dynamo=dynamo))).source)
    np.testing.assert_allclose(model.prefill(0, ids, 0, PROMPT), zoo_logits(checkpoint(name), ids), atol=1e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_floats_of_16_bits_stay_what_they_are(dtype: str, tiny: Checkpoints, tmp_path: Path) -> None:
    checkpoint = _in(dtype, tiny("llama2_gqa"), tmp_path / "checkpoint")
    directory = exported(checkpoint, dynamo=False, dtype=dtype)
    file = OnnxFile(directory / "model.onnx")
    assert file.dtype("model.layers.1.mlp.down_proj.weight") == dtype
    assert_same_parameters(directory, checkpoint)


def _in(dtype: str, source: Path, target: Path) -> Path:
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype))
    model.save_pretrained(target)
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(target)
    return target


@BOTH
def test_the_model_may_be_a_part_of_what_was_exported(dynamo: bool, checkpoint: Checkpoints) -> None:
    """A Galactica's nodes are `/inner/decoder/…` where its parameters are `inner.model.decoder.…`."""
    name = "galactica"
    directory = exported(checkpoint(name), dynamo=dynamo, around=True)
    assert "inner.lm_head.weight" in OnnxFile(directory / "model.onnx")
    assert_same_parameters(directory, checkpoint(name))


@pytest.mark.parametrize("name", ["opt", "llama2_gqa"])
def test_matrices_that_are_transposed_in_the_graph_keep_their_names(name: str, checkpoint: Checkpoints) -> None:
    assert_same_parameters(
        exported(checkpoint(name), dynamo=False, do_constant_folding=False, file="onnx/model.onnx"), checkpoint(name)
    )


@BOTH
def test_parameters_that_are_equal_are_found_where_they_were_stored_once(
    dynamo: bool, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    """A new model's norms are all ones and zeros. Both exporters store what is equal once."""
    original = checkpoint("bloom")
    tensors = load_file(original / WEIGHTS)
    ends = {".weight": 1.5, ".bias": 0.25}
    equal = {
        name: torch.full_like(values, ends[name[name.rindex(".") :]])
        for name, values in tensors.items()
        if values.ndim == 1
    }
    made = tmp_path / "equal"
    made.mkdir()
    for path in original.iterdir():
        (made / path.name).write_bytes(path.read_bytes())
    save_file({**tensors, **equal}, made / WEIGHTS, {"format": "pt"})
    assert_same_parameters(exported(made, dynamo=dynamo), made)


@pytest.mark.parametrize("name", ["galactica", "llama2_gqa"])
def test_weights_that_both_branches_of_a_merged_decoder_use_are_found(
    name: str, checkpoint: Checkpoints, tmp_path: Path
) -> None:
    """As optimum merges two decoders: initializers at the top, nodes in the branches of an `If`."""
    directory = Path(shutil.copytree(exported(checkpoint(name), dynamo=False), tmp_path / "merged"))
    model = onnx.load(directory / "model.onnx")
    branch = onnx.helper.make_graph(model.graph.node, "branch", [], model.graph.output)
    del model.graph.node[:]
    model.graph.node.append(
        onnx.helper.make_node("If", ["use_cache"], ["logits"], then_branch=branch, else_branch=branch)
    )
    onnx.save_model(model, directory / "decoder_model_merged.onnx")
    (directory / "model.onnx").unlink()
    assert_same_parameters(directory, checkpoint(name))


def test_other_families_come_along(checkpoint: Checkpoints) -> None:
    for name in ("galactica", "mpt", "phi3", "gpt_bigcode", "qwen3"):
        assert_same_parameters(exported(checkpoint(name), dynamo=False), checkpoint(name))


def test_an_export_is_converted_and_adapted_as_its_checkpoint_is(tiny: Checkpoints, tmp_path: Path) -> None:
    checkpoint = tiny("llama2_gqa")
    directory = exported(checkpoint, dynamo=False)
    assert main(["convert", str(directory), str(tmp_path / "flax")]) == 0
    assert_same_parameters(tmp_path / "flax", checkpoint)
    adapter = str(write_adapter(tmp_path, checkpoint) / "adapter")
    ours, theirs = (open_model(str(each), adapter=adapter).source for each in (directory, checkpoint))
    np.testing.assert_array_equal(ours.read("layers.1.down", ()), theirs.read("layers.1.down", ()))


@pytest.mark.slow
def test_an_export_is_quantised_as_its_checkpoint_is(tiny: Checkpoints, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("The quick brown fox jumps over the lazy dog. " * 40)
    written = []
    for source in (exported(tiny("llama2_gqa"), dynamo=False), tiny("llama2_gqa")):
        written.append(tmp_path / str(len(written)))
        options = ["--groupsize", "32", "--calibration", str(tmp_path / "text")]
        assert main(["quantize", str(source), str(written[-1]), *options]) == 0
    assert_same_parameters(*written)


@pytest.mark.slow
def test_the_engine_answers_as_from_safetensors(tiny: Checkpoints) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    answers = []
    for directory in (tiny("llama2_gqa"), exported(tiny("llama2_gqa"), dynamo=False)):
        llm = LLM(directory, max_batch_size=1, max_batch_prefill_tokens=32, max_batch_total_tokens=64)
        answers.append(llm.generate("The quick brown fox", greedy)[0].token_ids)
    assert answers[0] == answers[1]
    assert len(set(answers[0])) > 2
