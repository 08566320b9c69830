"""Models of no family of ours, as transformers' own module: served by the same engine, or refused with the reason."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from convert import traced
from convert.config import Config
from convert.errors import CheckpointError
from convert.families import FAMILIES
from convert.formats.tensors import Tensors
from convert.source import open_model
from jaxengine.sharding import check_divisible
from tests.jaxengine.engines import alone, ask, load, logprob_rows, prompt, serve
from tests.tiny import BASE, VOCAB, reference_logits, write_model

MODELS: dict[str, dict[str, Any]] = {
    "smollm3": {"num_key_value_heads": 2, "num_hidden_layers": 2, "no_rope_layers": [1, 0]},
    "nemotron": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "olmo": {},
    "xglm": {"d_model": 64, "attention_heads": 4, "num_layers": 2, "ffn_dim": 96},
    "granite": {"logits_scaling": 4.0},
    "deepseek_v3": {"num_key_value_heads": 4},
    "gpt_oss": {"num_key_value_heads": 2},
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    root = tmp_path_factory.mktemp("traced")

    def write(name: str, **fields: Any) -> Path:
        target = root / name
        fields = {"model_type": name, **BASE, **MODELS.get(name, {}), **fields}
        return target if target.exists() else write_model(target, fields)

    return write


@pytest.mark.parametrize("name", ["smollm3", "nemotron"])
def test_a_model_of_transformers_is_served_as_transformers_computes_it(name: str, written: Callable[..., Path]) -> None:
    directory, ids = written(name), prompt(40)
    engine = load(directory, max_batch_size=2, max_batch_prefill_tokens=32, max_total_tokens=64)
    answer = alone(engine, ask(1, ids, max_tokens=8, prompt_logprobs=True, logprobs=VOCAB))
    logits = reference_logits(directory, [*ids, *answer.ids]).astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    np.testing.assert_allclose(logprob_rows([*answer.prompt[1:], *answer.tokens]), expected[:-1], atol=1e-3)
    assert answer.ids == expected[len(ids) - 1 : -1].argmax(-1).tolist()
    serve(engine, [ask(2, ids[:33], max_tokens=1)])
    again = serve(engine, [ask(3, ids, max_tokens=8), ask(4, prompt(9, seed=1), max_tokens=8)])[3]
    assert (again.cached_tokens, again.ids) == (32, answer.ids)


REFUSED = {
    "xglm": r"XGLMForCausalLM cannot be traced: .* layers \[0, 1\] of 2 do not attend through the interface",
    "deepseek_v3": "DeepseekV3ForCausalLM cannot be traced: .* unlike its configuration",  # values of another width
    "gpt_oss": "GptOssForCausalLM cannot be traced: .* a mask, a bias or sinks of its own",
    "granite": "GraniteForCausalLM cannot be traced: .* more than the product with its output embedding",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_traced_is_refused_at_start_with_the_reason(
    name: str, written: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(FAMILIES, name, raising=False)
    with pytest.raises(ValueError, match=REFUSED[name]):
        load(written(name))


def test_a_decoder_is_not_served_without_its_encoder() -> None:
    """transformers builds it alone; the checkpoint's first tensor too many would be a poor reason."""
    config = Config({"model_type": "bart", "d_model": 64, "vocab_size": VOCAB}, "config.json")
    with pytest.raises(CheckpointError, match=r"config.json: model_type is not supported; .*, got 'bart'"):
        traced.traced(config, cast(Tensors, {}), FAMILIES)


def test_without_the_extra_its_name_is_said(written: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    directory = written("olmo")
    monkeypatch.setattr(traced, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match=r"model_type is not supported; .* with the extra 'hf' .*, got 'olmo'"):
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
    directory = written("olmo")
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        open_model(str(tmp_path))


def test_it_runs_on_one_device(written: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match="runs on one device, not on 2"):
        check_divisible(open_model(str(written("olmo"))).source.spec, 2)
