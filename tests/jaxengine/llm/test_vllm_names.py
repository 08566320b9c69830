"""What vLLM's callers write and read, by its names."""

from typing import Any

import pytest

from jaxengine.llm import LLM, SamplingParams
from tests.jaxengine.engines import prompt
from tests.jaxengine.llm.greedy import GREEDY
from tests.tiny import EOS, tokenizer


def test_a_completion_has_vllms_names_too(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=2, ignore_eos=True)
    text, ended, stopped = llm.generate(
        ["The quick brown fox", "def", "def"],
        [
            params,
            SamplingParams(max_tokens=4, logit_bias={EOS: 1000.0}),
            SamplingParams(max_tokens=4, stop_token_ids=(7,), logit_bias={7: 1000.0}),
        ],
    )
    (output,) = text.outputs
    assert (text.prompt, text.prompt_token_ids, text.finished) == ("The quick brown fox", text.prompt_ids, True)
    assert (output.text, output.token_ids, output.finish_reason) == (text.text, text.token_ids, "length")
    assert output.cumulative_logprob == pytest.approx(sum(token.logprob for token in text.tokens))
    assert output.logprobs is not None
    for token, listed in zip(text.tokens, output.logprobs, strict=True):
        assert len(listed) == 2 and listed[token.id].rank == 1
        assert listed[token.id].logprob == pytest.approx(token.logprob)
        assert listed[token.id].decoded_token == tokenizer().decode([token.id])
    assert (ended.outputs[0].finish_reason, ended.outputs[0].stop_reason, ended.outputs[0].logprobs) == (
        "stop",
        None,
        None,
    )
    assert (stopped.outputs[0].finish_reason, stopped.outputs[0].stop_reason) == ("stop", 7)


def test_vllm_s_words_for_nothing_are_taken(llm: LLM) -> None:
    nothing: dict[str, Any] = dict.fromkeys(("logprobs", "prompt_logprobs", "logit_bias", "stop_token_ids"))
    params = SamplingParams(temperature=0, max_tokens=4, top_k=-1, **nothing)
    assert params == SamplingParams(temperature=0, max_tokens=4)
    assert llm.generate(prompt(9), params)[0].token_ids == llm.generate(prompt(9), GREEDY)[0].token_ids[:4]


def test_without_max_tokens_an_answer_takes_the_room_there_is(llm: LLM) -> None:
    room = llm.engine.description.max_total_tokens - 9
    without: Any = None
    [made] = llm.generate(prompt(9), SamplingParams(temperature=0, max_tokens=without, ignore_eos=True))
    assert (len(made.token_ids), made.finish_reason) == (room, "length")
