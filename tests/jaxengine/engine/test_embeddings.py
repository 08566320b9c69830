"""Embeddings are transformers' last hidden states, pooled: in chunks, behind prefixes, beside texts, after failures."""

import functools
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

from convert.errors import CheckpointError
from jaxengine.engine.rehearsal import rehearse
from jaxengine.grammar.grammar import Grammar
from jaxengine.options.pooling import POOLINGS, Pooling
from jaxengine.request.beam_search import BeamSearch
from jaxengine.request.event import FinishReason
from tests.jaxengine.engines import Answer, EngineOf, alone, ask, fail_once, load, prompt, serve

MODEL = "llama2_gqa"
LENGTHS = (1, 2, 15, 16, 17, 40, 64, 65, 100, 116)  # steps hold 64 tokens, pages 16


@functools.cache
def _reference(directory: Path) -> torch.nn.Module:
    model = transformers.AutoModel.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    return model.eval()  # type: ignore[no-any-return]


@torch.no_grad()
def pooled(directory: Path, ids: Sequence[int], pooling: Pooling) -> np.ndarray:
    """What sentence-transformers' module `Pooling` makes of transformers' hidden states."""
    hidden = _reference(directory)(torch.tensor([list(ids)])).last_hidden_state[0].numpy()
    return hidden[-1] if pooling == "last" else hidden.mean(0)  # type: ignore[no-any-return]


def vector(answer: Answer) -> np.ndarray:
    assert answer.finish in (FinishReason.LENGTH, FinishReason.EOS), answer.error
    return np.frombuffer(answer.embedding, "<f4")


def close(ours: np.ndarray, theirs: np.ndarray) -> bool:
    return bool(np.abs(ours - theirs).max() < 1e-4 * max(1.0, np.abs(theirs).max()))


@pytest.fixture(params=POOLINGS)
def pooling(request: pytest.FixtureRequest) -> Pooling:
    return request.param  # type: ignore[no-any-return]


def test_prompts_of_every_length_are_embedded_together_with_texts(
    engine_of: EngineOf, tiny: Callable[[str], Path], pooling: Pooling
) -> None:
    engine = engine_of(MODEL, pooling=pooling)
    prompts = [prompt(length, seed=length) for length in LENGTHS]
    embedded = [ask(number, ids, pooling=pooling, max_tokens=1) for number, ids in enumerate(prompts)]
    texts = [ask(100 + number, ids, max_tokens=12) for number, ids in enumerate(prompts)]
    expected = {each.id: alone(engine, each).ids for each in texts}
    answers = serve(engine, [each for pair in zip(embedded, texts, strict=True) for each in pair])
    for number, ids in enumerate(prompts):
        assert close(vector(answers[number]), pooled(tiny(MODEL), ids, pooling)), len(ids)
    assert {each.id: answers[each.id].ids for each in texts} == expected
    assert not any(answers[each.id].embedding for each in texts)
    assert engine.stats().compiles_after_warmup == 0


def test_a_cached_prefix_serves_the_last_token_and_a_mean_computes_all(
    engine_of: EngineOf, tiny: Callable[[str], Path], pooling: Pooling
) -> None:
    engine = engine_of(MODEL, pooling=pooling)
    ids = prompt(90, seed=7)
    serve(engine, [ask(1, ids, max_tokens=2)])
    answer = serve(engine, [ask(2, ids, pooling=pooling, max_tokens=1)])[2]
    assert answer.cached_tokens == (80 if pooling == "last" else 0)
    assert close(vector(answer), pooled(tiny(MODEL), ids, pooling))


def test_an_embedding_outlives_preemptions_and_a_step_that_fails(
    tiny: Callable[[str], Path], compile_cache: None, pooling: Pooling, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load(tiny(MODEL), pooling=pooling, max_batch_total_tokens=192, max_batch_prefill_tokens=32)
    prompts = [prompt(110, seed=number) for number in range(3)]
    texts = [ask(100 + number, prompt(30, seed=50 + number), max_tokens=60) for number in range(3)]
    fail_once(engine, monkeypatch, at=4)
    answers = serve(engine, [*texts, *(ask(n, ids, pooling=pooling, max_tokens=1) for n, ids in enumerate(prompts))])
    assert engine.stats().step_failures == 1 and engine.stats().preemptions > 0
    for number, ids in enumerate(prompts):
        assert close(vector(answers[number]), pooled(tiny(MODEL), ids, pooling))


@pytest.mark.parametrize("name", ["gpt2", "mamba", "opt", "gemma2", "bloom"])
@pytest.mark.slow
def test_other_families(zoo: Callable[[str], Path], compile_cache: None, name: str, pooling: Pooling) -> None:
    engine = load(zoo(name), pooling=pooling)
    prompts = [prompt(length, seed=length) for length in (1, 20, 70, 90)]
    answers = serve(engine, [ask(n, ids, pooling=pooling, max_tokens=1) for n, ids in enumerate(prompts)])
    for number, ids in enumerate(prompts):
        assert close(vector(answers[number]), pooled(zoo(name), ids, pooling)), len(ids)


def test_a_checkpoint_without_a_head_makes_embeddings_only(
    tiny: Callable[[str], Path], tmp_path: Path, compile_cache: None
) -> None:
    """As e5-mistral and others are published: the head is neither tied nor there."""
    shutil.copytree(tiny(MODEL), tmp_path, dirs_exist_ok=True)
    _reference(tiny(MODEL)).save_pretrained(tmp_path)  # type: ignore[operator]
    engine = load(tmp_path)
    rehearse(engine)
    assert engine.description.embeds_only and not engine.description.logits
    ids = prompt(40)
    answer = serve(engine, [ask(1, ids, pooling="last", max_tokens=1)])[1]
    assert close(vector(answer), pooled(tiny(MODEL), ids, "last"))
    for asked in ({}, {"logits": "last", "max_tokens": 1}):
        with pytest.raises(ValueError, match="no head to generate text with"):
            engine.submit(ask(2, ids, **asked))
    with pytest.raises(ValueError, match="pools by cls"):
        (tmp_path / "modules.json").write_text('[{"type": "Pooling", "path": ""}]')
        (tmp_path / "config.json").write_text(_with(tmp_path / "config.json", pooling_mode="cls"))
        load(tmp_path)


def _with(path: Path, **fields: object) -> str:
    return json.dumps(json.loads(path.read_text()) | fields)


def test_a_checkpoint_whose_head_was_lost_is_refused(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    """Its class, LlamaForCausalLM, says that it ought to have one."""
    shutil.copytree(tiny(MODEL), tmp_path, dirs_exist_ok=True)
    stored = load_file(tmp_path / "model.safetensors")
    save_file({name: each for name, each in stored.items() if name != "lm_head.weight"}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="lm_head"):
        load(tmp_path)


def test_a_model_that_reads_in_both_directions_is_refused(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copytree(tiny(MODEL), tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.json").write_text(_with(tmp_path / "config.json", is_causal=False))
    with pytest.raises(CheckpointError, match="is_causal"):
        load(tmp_path)


@pytest.mark.parametrize(
    "asked, problem",
    [
        ({"max_tokens": 2}, "max_tokens above 1"),
        ({"prompt_logprobs": True}, "prompt_logprobs"),
        ({"grammar": Grammar("regex", "a+")}, "a grammar"),
        ({"beams": BeamSearch(width=2)}, "beam search"),
        ({"pooling": "mean"}, "'mean' is not this engine's, 'last'"),
    ],
)
def test_what_does_not_go_with_an_embedding_is_refused(
    engine_of: EngineOf, asked: dict[str, object], problem: str
) -> None:
    engine = engine_of(MODEL, pooling="last")
    with pytest.raises(ValueError, match=problem):
        engine.submit(ask(1, prompt(5), **{"pooling": "last", "max_tokens": 1, **asked}))


@pytest.mark.parametrize("name", ["t5", "opt_350m"])
@pytest.mark.slow
def test_models_that_make_no_embeddings(
    seq2seq: Callable[[str], Path], zoo: Callable[[str], Path], compile_cache: None, name: str
) -> None:
    """An encoder reads the prompt; or the hidden states are projected once more before they meet the vocabulary."""
    engine = load(seq2seq(name) if name == "t5" else zoo(name))
    assert engine.description.pooling == ""
    with pytest.raises(ValueError, match="not this engine's"):
        engine.submit(ask(1, prompt(5), pooling="last", max_tokens=1))
