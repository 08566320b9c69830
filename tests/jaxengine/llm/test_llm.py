"""The engine in-process: text or ids in, completions out, in their order."""

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from convert.source import open_model
from gateway.request.output import Finish, OutputPolicy, OutputProcessor
from gateway.text.detokenizer import CONTEXT, MAX_BYTES, MAX_PENDING
from gateway.text.model_text import ModelText
from gateway.text.tokenizer import Tokenizer
from jaxengine.llm import LLM, BeamSearch, Completion, SamplingParams
from jaxengine.options.table import EngineOptions
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.startup.setup import Setup
from tests.jaxengine.beam_references import searched
from tests.jaxengine.engines import prompt
from tests.jaxengine.llm.greedy import GREEDY
from tests.tiny import EOS, VOCAB, load_reference, reference_greedy, tokenizer
from tests.tiny_adapter import adapted


def test_a_text_becomes_the_reference_s_ids_and_their_text(llm: LLM, directory: Path) -> None:
    (completion,) = llm.generate("The quick brown fox", GREEDY)
    ids = tokenizer().encode("The quick brown fox")
    assert completion.prompt_ids == ids
    assert completion.token_ids == reference_greedy(directory, ids, 6)
    assert completion.text == tokenizer().decode(completion.token_ids, skip_special_tokens=True)
    assert completion.finish_reason == "length"


def test_the_log_says_which_back_end_attends(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "jaxengine.startup.setup"):
        Setup.decide(open_model(str(directory)), EngineOptions()).log_decisions()
    assert "attention by reference" in caplog.text


@pytest.mark.parametrize(
    ("attention", "words"), [("triton", "triton needs an NVIDIA GPU"), ("flash", "one of auto, reference, triton")]
)
def test_a_back_end_that_cannot_run_here_is_refused_before_anything_is_loaded(
    directory: Path, attention: str, words: str
) -> None:
    with pytest.raises(ValueError, match=words) as refusal:
        Setup.decide(open_model(str(directory)), EngineOptions(attention=attention))
    assert "\n" not in str(refusal.value)


def test_prompts_may_be_texts_or_ids_and_are_answered_in_order(llm: LLM) -> None:
    ids = prompt(9)
    alone = [llm.generate(each, GREEDY)[0].token_ids for each in (ids, "def add(a", prompt(5))]
    together = llm.generate([ids, "def add(a", prompt(5)], GREEDY)
    assert [completion.token_ids for completion in together] == alone


@torch.no_grad()
def test_embeddings_are_the_reference_s_hidden_states(llm: LLM, directory: Path) -> None:
    model = transformers.AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
    ids = [tokenizer().encode("The quick brown fox"), prompt(50)]
    last = np.stack([model(torch.tensor([each])).last_hidden_state[0, -1].numpy() for each in ids])
    np.testing.assert_allclose(llm.embed(["The quick brown fox", prompt(50)], normalize=False), last, atol=1e-4)
    unit = last / np.linalg.norm(last, axis=1, keepdims=True)
    np.testing.assert_allclose(llm.embed(ids), unit, atol=1e-5)
    np.testing.assert_array_equal(llm.encode(ids, use_tqdm=False), llm.embed(ids))
    assert llm.embed([]).shape == (0, 64)
    with pytest.raises(ValueError, match="no tokens"):
        llm.embed([[5], []])


def test_a_beam_search_finds_what_transformers_finds_and_says_it_in_words(llm: LLM, directory: Path) -> None:
    search, params = BeamSearch(width=3, answers=2), SamplingParams(temperature=0, max_tokens=8)
    found = llm.beam_search(["The quick brown fox", prompt(9)], search, params)
    model = load_reference(directory)
    for ids, answers in zip([tokenizer().encode("The quick brown fox"), prompt(9)], found, strict=True):
        expected = searched(model, ids, search, 8, [EOS])
        assert [answer.token_ids for answer in answers] == [ids for ids, _ in expected]
        assert [answer.score for answer in answers] == pytest.approx([score for _, score in expected], rel=1e-4)
        for answer in answers:
            assert answer.text == tokenizer().decode(answer.token_ids, skip_special_tokens=True)
            assert answer.finish_reason == ("eos" if answer.token_ids[-1] == EOS else "length")
    with pytest.raises(ValueError, match="does not go with stop"):
        llm.beam_search("The", search, SamplingParams(temperature=0, stop="x"))
    with pytest.raises(ValueError, match="does not go with a temperature"):
        llm.beam_search("The", search, SamplingParams())
    assert [len(answers) for answers in llm.beam_search("The", BeamSearch(width=4))] == [4]


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    short, eos = SamplingParams(temperature=0, max_tokens=1), SamplingParams(max_tokens=4, logit_bias={EOS: 1000.0})
    completions = llm.generate([prompt(5)] * 2, [short, eos])
    assert [completion.finish_reason for completion in completions] == ["length", "eos"]
    assert [len(completion.tokens) for completion in completions] == [1, 1]


def test_no_prompts_no_completions(llm: LLM) -> None:
    assert llm.generate([], GREEDY) == []


def test_without_a_seed_every_call_draws_anew(llm: LLM) -> None:
    hot = SamplingParams(temperature=1.5, max_tokens=16, ignore_eos=True)
    assert len({tuple(completion.token_ids) for completion in llm.generate([prompt(5)] * 4, hot)}) == 4


def test_several_answers_have_seeds_of_their_own(llm: LLM) -> None:
    hot = SamplingParams(temperature=1.5, max_tokens=16, ignore_eos=True, n=3, seed=5)
    (one, two) = llm.generate([prompt(5), prompt(9)], hot)
    assert [len(each.outputs) for each in (one, two)] == [3, 3]
    assert [each.index for each in one.outputs] == [0, 1, 2] and len({each.text for each in one.outputs}) == 3
    alone = llm.generate([prompt(5)] * 3, [dataclasses.replace(hot, n=1, seed=seed) for seed in (5, 6, 7)])
    assert [each.token_ids for each in one.outputs] == [each.token_ids for each in alone]
    with pytest.raises(ValueError, match="n must be between 1 and 1024, got 0"):
        SamplingParams(n=0)


def test_a_stream_is_the_text_in_pieces(llm: LLM) -> None:
    long = dataclasses.replace(GREEDY, max_tokens=24)
    (whole,) = llm.generate(prompt(9), long)
    stream = llm.stream(prompt(9), long)
    pieces = [*stream]
    assert "".join(pieces) == whole.text == stream.completion.text and len(pieces) > 3
    assert (stream.completion.token_ids, stream.completion.finish_reason) == (whole.token_ids, "length")
    stop = whole.text[len(whole.text) // 2 :][:3]
    stopped = llm.stream(prompt(9), dataclasses.replace(long, stop=stop))
    assert "".join(stopped) == whole.text[: whole.text.index(stop)]
    assert (stopped.completion.finish_reason, stopped.completion.stop_reason) == ("stop", stop)
    with pytest.raises(ValueError, match="a stream has one answer"):
        llm.stream("a", SamplingParams(n=2))


def test_other_calls_may_come_between_two_pieces(llm: LLM) -> None:
    long = dataclasses.replace(GREEDY, max_tokens=24)
    whole, other = (llm.generate(ids, long)[0].text for ids in (prompt(9), prompt(5)))
    stream, second = llm.stream(prompt(9), long), llm.stream(prompt(5), long)
    begin = next(stream)
    assert llm.generate(prompt(5), long)[0].text == other == "".join(second)
    assert begin + "".join(stream) == whole


def test_who_breaks_out_of_a_stream_ends_its_request(llm: LLM) -> None:
    with llm.stream(prompt(9), dataclasses.replace(GREEDY, max_tokens=100)) as stream:
        next(stream)
    assert llm.generate(prompt(5), GREEDY)[0].finish_reason == "length"
    assert llm.engine.idle and len(stream.completion.tokens) < 100 and [*stream] == []


def test_prompt_logprobs_come_with_the_completion(llm: LLM) -> None:
    ids = prompt(9)
    (completion,) = llm.generate(ids, SamplingParams(max_tokens=1, prompt_logprobs=True))
    assert [token.id for token in completion.prompt_tokens] == ids


@pytest.mark.parametrize(
    "prompts, params, message",
    [
        ([[1], [VOCAB]], GREEDY, "prompt has the id 320"),
        ([[1], []], GREEDY, "prompt has no tokens"),
        ([[1], [1, 2.5]], GREEDY, r"a prompt is a text or a list of token ids, got \[1, 2.5\]"),
        (["1", None], GREEDY, "a prompt is a text or a list of token ids, got None"),
        ([prompt(127)], GREEDY, "more than max_total_tokens 128"),
        ([[1], [1]], [GREEDY], "2 prompts but 1 sampling parameters"),
        ([[1], [1]], [], "2 prompts but 0 sampling parameters"),
    ],
    ids=["id", "empty", "fraction", "nothing", "long", "one for two", "none for two"],
)
def test_what_cannot_be_served_is_refused_before_anything_runs(
    llm: LLM, prompts: list[list[int]], params: SamplingParams | list[SamplingParams], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        llm.generate(prompts, params)
    assert llm.engine.idle


def test_a_request_that_fails_says_so_and_takes_nothing_from_the_others(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = llm.generate(prompt(9), GREEDY)[0].token_ids
    with monkeypatch.context() as broken:
        launch = llm.engine.runner.launch_backbone

        def failing(plan: object) -> object:
            if any(row.sequence.params.top_k == 3 for row in plan.rows):  # type: ignore[attr-defined]
                raise RuntimeError("device")
            return launch(plan)  # type: ignore[arg-type]

        broken.setattr(llm.engine.runner, "launch_backbone", failing)
        well, ill = llm.generate([prompt(9), prompt(5)], [GREEDY, SamplingParams(top_k=3)])
    assert (well.token_ids, well.finish_reason, well.error) == (expected, "length", "")
    assert (ill.finish_reason, ill.error) == ("error", "the request failed inside the engine")
    assert llm.generate(prompt(9), GREEDY)[0].token_ids == expected


@pytest.mark.parametrize("stop", [[5], "", ["a", ""], [None]])
def test_stop_is_a_string_or_several_before_anything_runs(llm: LLM, stop: Any) -> None:
    with pytest.raises(ValueError, match="stop must be a string or several"):
        llm.generate("a", SamplingParams(stop=stop))
    assert llm.generate("a", SamplingParams(stop=None, max_tokens=2))[0].finish_reason == "length"


def test_a_stream_that_is_closed_early_has_the_text_that_was_taken(llm: LLM) -> None:
    stream = llm.stream(prompt(9), SamplingParams(temperature=0, max_tokens=50))
    taken = next(stream) + next(stream)
    assert stream.completion.text == taken
    stream.close()
    assert stream.completion.text == taken and not stream.completion.finished


def test_a_stop_string_ends_the_text_wherever_tokens_end(llm: LLM) -> None:
    long = dataclasses.replace(GREEDY, max_tokens=24)
    (whole,) = llm.generate(prompt(9), long)
    middle = len(whole.text) // 2
    stop = whole.text[middle : middle + 3]
    first = whole.text.index(stop)
    bare, kept, other = llm.generate(
        [prompt(9)] * 3,
        [
            dataclasses.replace(long, stop=stop),
            dataclasses.replace(long, stop=["never there", stop], include_stop_str_in_output=True),
            dataclasses.replace(long, stop=["never there"]),
        ],
    )
    assert (bare.text, bare.finish_reason, bare.stop_reason) == (whole.text[:first], "stop", stop)
    assert kept.text == whole.text[: first + len(stop)]
    assert len(bare.tokens) < 24 and bare.token_ids == whole.token_ids[: len(bare.tokens)]
    assert (other.text, other.finish_reason, other.stop_reason) == (whole.text, "length", None)
    assert llm.engine.idle


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("skip_special", [False, True])
def test_text_and_stops_are_the_servers(llm: LLM, directory: Path, keep: bool, skip_special: bool) -> None:
    long = dataclasses.replace(GREEDY, max_tokens=24, skip_special_tokens=skip_special, include_stop_str_in_output=keep)
    (whole,) = llm.generate(prompt(9), long)
    for stops in ([whole.text[-4:-1]], [whole.text[2:5], whole.text[3:5]], ["never there"], [whole.text[-1:] + "?"]):
        for least in (0, 12):
            (one,) = llm.generate(prompt(9), dataclasses.replace(long, stop=stops, min_tokens=least))
            text, finish = by_the_server(directory, whole, stops, keep, skip_special, least)
            assert (one.text, one.finish_reason == "stop") == (text, finish == Finish.STOP)


def by_the_server(
    directory: Path, whole: Completion, stops: list[str], keep: bool, skip_special: bool, least: int
) -> tuple[str, Finish | None]:
    """What the gateway makes of the same tokens."""
    with ThreadPoolExecutor(1) as executor:
        model = ModelText(directory, 128, executor, payload_limit=1 << 20)
        request = pb.Generate(max_new_tokens=24, min_new_tokens=least)
        policy = OutputPolicy(keep_stop=keep, show_end=True, skip_special=skip_special, length_first=False)
        output = OutputProcessor(model, request, whole.prompt_ids, stops, policy)
        for number, id in enumerate(whole.token_ids, 1):
            finish = pb.LENGTH if number == len(whole.tokens) else pb.NOT_FINISHED
            output.push(pb.RequestEvent(tokens=[pb.Token(id=id)], finish=finish))
            if output.finish is not None:
                break
        return output.text, output.finish


def test_text_with_stops_is_decoded_in_linear_work(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    decode = Tokenizer.decode

    def counted(self: Tokenizer, ids: list[int], *, skip_special_tokens: bool) -> str:
        decoded.append(len(ids))
        return decode(self, ids, skip_special_tokens=skip_special_tokens)

    monkeypatch.setattr(Tokenizer, "decode", counted)
    long = dataclasses.replace(GREEDY, max_tokens=110)
    (stopless,) = llm.generate(prompt(9), long)
    assert len(decoded) < 10  # once at the end, and the context before the first token
    decoded.clear()
    (watched,) = llm.generate(prompt(9), dataclasses.replace(long, stop="never there"))
    assert watched.text == stopless.text
    assert len(decoded) <= 2 * 110 + 10
    assert max(decoded) <= 2 * MAX_PENDING + CONTEXT + MAX_BYTES  # a window, however long the text is


def test_bad_words_are_avoided_as_transformers_avoids_them(llm: LLM, directory: Path) -> None:
    ids = prompt(9)
    free = reference_greedy(directory, ids, 12)
    words = [[free[2]], free[4:6], free[7:11], [1, 2, 3, 4, 5, 6, 7, free[0]]]
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    expected = model.generate(
        torch.tensor([ids]), bad_words_ids=words, max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0
    )[0, len(ids) :].tolist()
    params = dataclasses.replace(GREEDY, max_tokens=24, bad_words=tuple(map(tuple, words)))
    avoiding, unaware = llm.generate([ids, ids], [params, dataclasses.replace(GREEDY, max_tokens=12)])
    assert avoiding.token_ids == expected != free
    assert unaware.token_ids == free


def test_the_text_ends_before_a_token_that_ends_it_or_behind_it_if_asked(llm: LLM) -> None:
    """As vLLM's and as that of `/v1`, however it is read: at once, with stop strings, in pieces or as a beam's."""
    end = tokenizer().encode("z", add_special_tokens=False)[0]
    bare = SamplingParams(temperature=0, min_tokens=3, max_tokens=8, stop_token_ids=(end,), logit_bias={end: 1000.0})
    for params in (bare, dataclasses.replace(bare, include_stop_str_in_output=True)):
        plain, stops = llm.generate([prompt(9)] * 2, [params, dataclasses.replace(params, stop="never there")])
        ((beam,),) = llm.beam_search(prompt(9), BeamSearch(width=1), params)
        assert plain.token_ids[3:] == [end] and beam.token_ids == plain.token_ids
        shown = plain.token_ids if params.include_stop_str_in_output else plain.token_ids[:3]
        assert plain.text == stops.text == beam.text == tokenizer().decode(shown, skip_special_tokens=True)
        assert plain.text == "".join(llm.stream(prompt(9), params))
        assert plain.outputs[0].stop_reason == end


def test_special_tokens_show_where_asked(llm: LLM) -> None:
    params = SamplingParams(max_tokens=1, logit_bias={EOS: 1000.0})
    shown = dataclasses.replace(params, skip_special_tokens=False)
    assert [each.text for each in llm.generate([prompt(5)] * 2, [params, shown])] == ["", "</s>"]


def test_the_bar_counts_prompts_and_can_be_left_out(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate([prompt(5)] * 2, GREEDY)
    assert "2/2" in capsys.readouterr().err
    llm.generate([prompt(5)] * 2, GREEDY, use_tqdm=False)
    assert capsys.readouterr().err == ""


def test_a_call_that_is_interrupted_does_not_disturb_the_next(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = llm.generate(prompt(9), GREEDY)[0].token_ids
    steps = iter(range(100))
    step = llm.engine.step
    with monkeypatch.context() as impatient:

        def interrupted() -> object:
            if next(steps) == 3:
                raise KeyboardInterrupt
            return step()

        impatient.setattr(llm.engine, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate([prompt(9), prompt(5)], GREEDY)
    assert llm.generate(prompt(9), GREEDY)[0].token_ids == expected
    assert llm.engine.idle


def test_each_prompt_may_have_its_own_adapter(directory: Path, tmp_path: Path) -> None:
    for seed, name in enumerate(("one", "two")):
        model = adapted(directory, seed=seed)
        model.save_pretrained(tmp_path / name)
        model.merge_and_unload().save_pretrained(tmp_path / f"{name}-merged")
    llm = LLM(directory, lora_adapters={"one": tmp_path / "one"}, enable_lora=True, max_batch_size=4)
    llm.load_adapter("two", tmp_path / "two")
    names, ids = ["two", "", "one", "two"], [5, 6, 7, 8]
    made = llm.generate([ids] * 4, GREEDY, adapter=names)
    for name, completion in zip(names, made, strict=True):
        assert completion.token_ids == reference_greedy(
            tmp_path / f"{name}-merged" if name else directory, ids, len(completion.token_ids)
        )
    assert llm.generate([ids], GREEDY, adapter="one")[0].token_ids == made[2].token_ids
    llm.unload_adapter("two")
    for wrong, problem in (("two", "no adapter is called 'two'"), (["one"] * 2, "1 prompts but 2 adapters")):
        with pytest.raises(ValueError, match=problem):
            llm.generate([ids], GREEDY, adapter=wrong)
    with pytest.raises(ValueError, match="is called 'one' already"):
        llm.load_adapter("one", tmp_path / "two")


def test_adapters_that_no_option_made_room_for_are_refused(llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--enable-lora"):
        llm.load_adapter("one", tmp_path)
    with pytest.raises(ValueError, match="--enable-lora"):
        llm.generate([[5]], GREEDY, adapter="one")


def test_a_draft_model_changes_no_answer(llm: LLM, directory: Path, tiny: Callable[[str], Path]) -> None:
    config = {"method": "draft_model", "model": tiny("llama3"), "num_speculative_tokens": 3}
    drafting = LLM(directory, speculative_config=config, max_batch_size=1, max_batch_total_tokens=128)
    assert drafting.engine.runner.draft is not None and drafting.engine.description.max_draft_tokens == 3
    prompts = ["The quick brown fox", "def add"]
    expected = llm.generate(prompts, GREEDY)
    assert [each.token_ids for each in drafting.generate(prompts, GREEDY)] == [each.token_ids for each in expected]
