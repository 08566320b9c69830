"""Models without a family here, as transformers' own module: served by the same engine, or refused with the reason."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from convert.config.config import Config
from convert.errors import CheckpointError
from convert.families import FAMILIES
from convert.formats.tensors import Tensors
from convert.hf import traced_source
from convert.hf.conversion import Conversion
from convert.hf.probe import LOGITS, fit_head
from convert.source import open_model
from jaxengine.architecture.model import Head
from jaxengine.sharding import check_divisible
from tests.families.forward import Forward
from tests.jaxengine.engines import alone, ask, load, logprob_rows, prompt, serve
from tests.tiny import BASE, VOCAB, reference_logits, write_model

pytestmark = pytest.mark.slow

MODELS: dict[str, dict[str, Any]] = {
    "apertus": {"num_key_value_heads": 2, "hidden_act": "gelu"},
    "nemotron": {"num_key_value_heads": 4},
    "xglm": {"d_model": 64, "attention_heads": 4, "num_layers": 2, "ffn_dim": 96},
    "granitemoe_swa": {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2}
    | {"logits_scaling": 4.0, "tie_word_embeddings": True, "sliding_window": 7},
    "vaultgemma": {"num_key_value_heads": 2, "head_dim": 24, "sliding_window": 7, "query_pre_attn_scalar": 20}
    | {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0},
    "mimo_v2_flash": {"num_key_value_heads": 2, "head_dim": 24, "v_head_dim": 16, "n_routed_experts": 4}
    | {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "sliding_window": 7},
    "diffllama": {"num_key_value_heads": 2},
    "doge": {"num_key_value_heads": 2},
    "roberta": {"is_decoder": True},
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    root = tmp_path_factory.mktemp("traced")

    def write(name: str, **fields: Any) -> Path:
        target = root / name
        fields = {"model_type": name, **BASE, **MODELS.get(name, {}), **fields}
        return target if target.exists() else write_model(target, fields)

    return write


SERVED = ("granitemoe_swa", "mimo_v2_flash", "vaultgemma")


@pytest.mark.parametrize("name", SERVED)
def test_a_traced_model_computes_what_transformers_computes(name: str, written: Callable[..., Path]) -> None:
    """The models have values narrower than keys, sinks, windows, soft caps, a factor of logits, or merged experts."""
    directory, ids = written(name), prompt(24)
    model = Forward(open_model(str(directory)).source)
    rows = [*model.prefill(0, ids[:19], 0, 24), *model.prefill(0, ids[19:], 19, 24)]
    for position in range(24, 28):
        ids.append(int(rows[-1].argmax()))
        rows.append(model.decode(0, ids[-1], position, 24))
    np.testing.assert_allclose(np.stack(rows), reference_logits(directory, ids), atol=1e-3)


def test_experts_that_are_read_in_slices_are_merged_once(
    written: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of our own is written so: a chunk of a projection at a time."""
    source, name = open_model(str(written("mimo_v2_flash"))).source, "module.model.layers.1.mlp.experts.gate_up_proj"
    whole, merged, read = source.read(name, ()), [], Conversion.read
    monkeypatch.setattr(Conversion, "read", lambda one, name: merged.append(name) or read(one, name))
    slices = [source.read(name, (slice(expert, expert + 1),)) for expert in range(4)]
    np.testing.assert_array_equal(np.concatenate(slices), whole)
    assert len(merged) == 1


@pytest.mark.parametrize("sizes", [(56, 8), (8, 56), (53, 48)])
def test_a_model_s_size_near_the_probe_s_length_is_no_mixing_of_tokens(sizes: tuple[int, int], tmp_path: Path) -> None:
    heads, width = sizes
    fields = {"model_type": "nemotron", **BASE, "num_attention_heads": heads, "num_key_value_heads": heads}
    fields |= {"hidden_size": heads * width}
    spec = open_model(str(write_model(tmp_path / "nemotron", fields))).source.spec
    assert (spec.num_heads, spec.head_dim) == sizes


def test_a_traced_model_is_served_as_any_other(written: Callable[..., Path]) -> None:
    directory, ids = written("apertus"), prompt(40)
    engine = load(directory, max_batch_size=2, max_batch_prefill_tokens=32, max_total_tokens=64)
    answer = alone(engine, ask(1, ids, max_tokens=8, prompt_logprobs=True, logprobs=VOCAB))
    logits = reference_logits(directory, [*ids, *answer.ids]).astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    np.testing.assert_allclose(logprob_rows([*answer.prompt[1:], *answer.tokens]), expected[:-1], atol=1e-3)
    assert answer.ids == expected[len(ids) - 1 : -1].argmax(-1).tolist()
    serve(engine, [ask(2, ids[:33], max_tokens=1)])
    again = serve(engine, [ask(3, ids, max_tokens=8), ask(4, prompt(9, seed=1), max_tokens=8)])[3]
    assert (again.cached_tokens, again.ids) == (32, answer.ids)
    of_prompt = np.frombuffer(serve(engine, [ask(5, ids, logits="all", max_tokens=1)])[5].logits, "<f4")
    np.testing.assert_allclose(of_prompt.reshape(-1, VOCAB), logits[: len(ids)], atol=1e-3)


REFUSED = {
    "xglm": "XGLMForCausalLM cannot be served: its tokens see each other outside of the attention interface",
    "diffllama": r"DiffLlamaForCausalLM cannot be traced: .* attends twice",
    "doge": "DogeForCausalLM cannot be served: its tokens see each other outside of the attention interface",
    "roberta": "RobertaForCausalLM cannot be served: it counts positions in a way of its own",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_traced_is_refused_at_start_with_the_reason(name: str, written: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match=REFUSED[name]):
        load(written(name))


@pytest.mark.parametrize("head", [Head(), Head(scale=0.25), Head(softcap=30.0), Head(scale=4.0, softcap=2.0)])
def test_the_factor_and_soft_cap_of_logits_are_found(head: Head) -> None:
    logits = LOGITS * head.scale
    assert fit_head(head.softcap * np.tanh(logits / head.softcap) if head.softcap else logits) == head


@pytest.mark.parametrize("more", [lambda logits: logits + 1, lambda logits: logits[:-1], np.abs, np.sinh])
def test_other_changes_of_logits_are_refused(more: Callable[[np.ndarray], np.ndarray]) -> None:
    with np.errstate(over="ignore"), pytest.raises(ValueError, match="more of logits than a factor and a soft cap"):
        fit_head(more(LOGITS))


def test_a_decoder_is_not_served_without_its_encoder() -> None:
    """transformers would build the decoder alone, and the first tensor of the encoder would be called unexpected."""
    config = Config({"model_type": "bart", "d_model": 64, "vocab_size": VOCAB}, "config.json")
    with pytest.raises(CheckpointError, match=r"config.json: model_type is not supported; .*, got 'bart'"):
        traced_source.open_traced(config, cast(Tensors, {}), FAMILIES)


def test_without_the_extra_the_refusal_names_it(written: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    directory = written("nemotron")
    monkeypatch.setattr(traced_source, "find_spec", lambda name: None)
    with pytest.raises(
        CheckpointError, match=r"model_type is not supported; .* with the extra 'hf' .*, got 'nemotron'"
    ):
        open_model(str(directory))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"), "up_proj.weight' is missing"),
        (lambda tensors: tensors.update({"adapter.weight": np.ones(3, np.float32)}), "no place for .*'adapter.weight'"),
        (lambda tensors: tensors.update({"lm_head.weight": np.ones((3, 64), np.float32)}), r"has shape \[3, 64\]"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_by_the_tensor_s_name(
    change: Callable[[dict[str, np.ndarray]], Any], message: str, written: Callable[..., Path], tmp_path: Path
) -> None:
    directory = written("nemotron")
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        open_model(str(tmp_path))


def test_a_traced_model_runs_on_one_device(written: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match="runs on one device, not on 2"):
        check_divisible(open_model(str(written("nemotron"))).source.spec, 2)
