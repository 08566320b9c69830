"""`/api/v1/generate` and `/api/extra/generate/stream`: KoboldCpp's fields, defaults and answers."""

import asyncio
from typing import Any

import pytest

from gateway.routes.kobold.responses import Generated
from jaxengine.rpc import engine_pb2 as pb
from tests.engine_mock import EOS
from tests.gateway.asgi_client import Connection, pace
from tests.gateway.fixtures import HELLO, serve
from tests.gateway.routes.kobold.asking import GENERATE, STREAM, events, generated, ids_of, refused, sent

PIECES = ["hel", "lo", " w", "or", "ld"]
KINDS = pb.Samplers.Kind


@pytest.mark.parametrize("path", [GENERATE, "/api/latest/generate"])
async def test_an_answer_is_the_text_why_it_ended_and_the_counts_of_tokens(path: str) -> None:
    async with serve() as app:
        answer = (await app.post(path, prompt="lo")).json()
        Generated.model_validate(answer, strict=True)
        whole = {"text": "hello world", "finish_reason": "stop", "prompt_tokens": 2, "completion_tokens": 6}
        assert answer == {"results": [whole]}
        cut = {"text": "hello w", "finish_reason": "length", "prompt_tokens": 2, "completion_tokens": 3}
        assert await generated(app, max_length=3) == cut


async def test_a_stream_has_an_event_for_each_piece_and_no_mark_at_its_end() -> None:
    async with serve() as app:
        last = {"token": "", "finish_reason": "stop"}
        assert events(await app.post(STREAM, prompt="lo")) == [
            *({"token": piece, "finish_reason": "null"} for piece in PIECES),
            last,
        ]
        assert events(await app.post(STREAM, prompt="lo", max_length=2))[-1] == {
            "token": "lo",
            "finish_reason": "length",
        }


async def test_what_a_request_leaves_open_is_koboldcpps_default() -> None:
    async with serve(generation_config={"temperature": 0.1, "top_k": 3, "epsilon_cutoff": 0.1}) as app:
        request = await sent(app)
        sampling = request.sampling
        values = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.repetition_penalty)
        assert values == pytest.approx((0.75, 100, 0.92, 1))
        assert [KINDS.Name(each) for each in sampling.samplers.order] == ["TOP_K", "TOP_P", "TEMPERATURE"]
        assert not request.ignore_eos and not sampling.logit_bias and not sampling.bad_words


async def test_every_sampler_reaches_the_engine_under_its_own_name() -> None:
    fields = {
        "temperature": 1.5, "top_k": 5, "top_p": 0.5, "top_a": 0.25, "min_p": 0.125, "typical": 0.5, "nsigma": 2,
        "rep_pen": 1.25, "rep_pen_range": 64, "rep_pen_slope": 0.5, "presence_penalty": 3, "dynatemp_range": 0.5,
        "dynatemp_exponent": 2, "smoothing_factor": 0.5, "smoothing_curve": 2, "xtc_threshold": 0.25,
        "xtc_probability": 0.5, "dry_multiplier": 0.5, "dry_base": 2, "dry_allowed_length": 3,
        "dry_penalty_last_n": 32, "dry_sequence_breakers": '["lo"]', "sampler_seed": 7,
    }  # fmt: skip
    async with serve() as app:
        sampling = (await sent(app, **fields)).sampling
    plain = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.typical_p, sampling.seed)
    assert plain == (1.5, 5, 0.5, 0.125, 0.5, 7)
    assert (sampling.repetition_penalty, sampling.presence_penalty) == (1.25, 3)
    samplers = sampling.samplers
    assert (samplers.top_a, samplers.top_n_sigma, samplers.repetition_range) == (0.25, 2, 64)
    assert (samplers.dynatemp_range, samplers.smoothing_factor, samplers.xtc_probability) == (0.5, 0.5, 0.5)
    assert (samplers.dry_multiplier, samplers.dry_base, samplers.dry_allowed_length, samplers.dry_range) == (
        0.5, 2, 3, 32,
    )  # fmt: skip
    assert 260 in samplers.dry_breakers  # "lo"
    order = [KINDS.Name(each) for each in samplers.order]
    assert order.index("TOP_K") < order.index("TOP_A") < order.index("TOP_P") < order.index("TEMPERATURE")
    assert order[-1] == "XTC"


async def test_numbers_may_be_written_as_texts() -> None:
    async with serve() as app:
        request = await sent(
            app, temperature="0.5", top_k="5", max_length="3", sampler_order=["6", 0.0, "5"], logit_bias={"5": "-3.5"}
        )
        assert (request.sampling.temperature, request.sampling.top_k, request.max_new_tokens) == (0.5, 5, 3)
        assert dict(request.sampling.logit_bias) == {5: -3.5}
        assert [KINDS.Name(each) for each in request.sampling.samplers.order] == ["TOP_K", "TEMPERATURE"]
        whole = await sent(app, temperature="1", sampler_seed="123456789012345677")  # no double has so many digits
        assert (whole.sampling.temperature, whole.sampling.seed) == (1, 123456789012345677)


async def test_null_means_absent_and_unknown_fields_are_ignored() -> None:
    async with serve() as app:
        request = await sent(app, temperature=None, max_length=None, stop_sequence=None, quiet=True, use_story=False)
        assert request.sampling.temperature == 0.75
        assert request.max_new_tokens == 64 - 16  # the default is longer than there is room for


async def test_what_asks_for_nothing_is_accepted() -> None:
    neutral = {
        "images": [], "audio": [], "tfs": 1, "top_a": 0, "mirostat": 0, "mirostat_tau": 5, "mirostat_eta": 0.1,
        "negative_prompt": "", "guidance_scale": "1.0", "grammar": "", "grammar_retain_state": False,
        "adaptive_target": -1, "adaptive_decay": 0.9, "xtc_probability": "0", "banned_tokens": [],
        "custom_token_bans": "", "logit_bias": {}, "stop_sequence": ["", None], "memory": "", "genkey": "",
        "ban_eos_token": False, "bypass_eos": False, "dry_sequence_breakers": [], "n": 1, "render_special": False,
    }  # fmt: skip
    async with serve() as app:
        with_all, without = await sent(app, **neutral, sampler_seed=1), await sent(app, sampler_seed=1)
        assert with_all.sampling == without.sampling and with_all.prompt == without.prompt
        assert (with_all.max_new_tokens, with_all.ignore_eos) == (without.max_new_tokens, without.ignore_eos)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"images": ["aGk="]}, "images[0]: this model reads no images"),
        ({"tfs": 0.9}, "tfs must be 1, which is off"),
        ({"mirostat": 1}, "mirostat must be 0 or 2"),
        ({"sampler_order": [0, 1, 2, 3, 4, 5, 6], "rep_pen": 1.1}, "sampler_order puts penalties behind top_k"),
        ({"sampler_order": [7]}, "sampler_order must name each sampler once"),
        ({"negative_prompt": "a"}, "negative_prompt is not supported"),
        ({"grammar_retain_state": True}, "grammar_retain_state is not supported"),
        ({"rep_pen": 1000}, "rep_pen: must be at most 100"),
        ({"typical": 0}, "typical: must be above 0"),
        ({"temperature": -1}, "temperature: must be at least 0"),
        ({"temperature": "hot"}, "temperature: must be a number"),
        ({"top_k": 1.5}, "top_k: must be a whole number"),
        ({"max_length": 0}, "max_length: must be at least 1"),
        ({"max_context_length": 4}, "max_context_length: must be at least 8"),
        ({"prompt": 5}, "prompt: must be a string"),
        ({"logit_bias": {"a": 1}}, "logit_bias: every key must be a token id"),
        ({"logit_bias": {"320": 1}}, "logit_bias holds the token id 320"),
        ({"custom_token_bans": "320"}, "custom_token_bans must hold ids of tokens"),
        ({"banned_tokens": ["a" * 65]}, "banned_tokens[0]: must have at most 64 characters"),
        ({"stop_sequence": ["a" * 257]}, "stop_sequence[0]: must have at most 256 characters"),
        ({"stop_sequence": ["a"] * 257}, "stop_sequence: must have at most 256 entries"),
        ({"grammar": '{"type": "nothing"}'}, "grammar"),
        ({"bypass_eos": True, "grammar": 'root ::= "a"'}, "bypass_eos is not supported with grammar"),
        ({"genkey": "a" * 129}, "genkey: must have at most 128 characters"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_koboldcpps_name_of_it(fields: dict[str, Any], said: str) -> None:
    async with serve() as app:
        for path in (GENERATE, STREAM):
            assert (await refused(app, path, **fields)).startswith(said)
        assert not app.engine.requests


async def test_koboldcpps_clamps() -> None:
    async with serve() as app:
        sampling = (await sent(app, top_p=1.5, typical=2, top_k=-5, rep_pen=1.5, rep_pen_range=0)).sampling
        assert (sampling.top_p, sampling.typical_p, sampling.top_k) == (1, 1, 0)
        assert sampling.samplers.repetition_range == 1
        assert (await sent(app, rep_pen=1.5, rep_pen_range=100_000)).sampling.samplers.repetition_range == 8192
        assert dict((await sent(app, logit_bias={"5": 1e4, "6": -1e4})).sampling.logit_bias) == {5: 100, 6: -100}


async def test_of_the_names_of_the_penalty_the_highest_value_counts() -> None:
    async with serve() as app:
        assert (await sent(app, rep_pen=1.25, repeat_penalty=1.5)).sampling.repetition_penalty == 1.5
        assert (await sent(app, rep_pen=0.5)).sampling.repetition_penalty == 0.5
        assert (await sent(app, repetition_penalty="1.75")).sampling.repetition_penalty == 1.75


async def test_stop_sequences_are_trimmed_unless_they_are_to_stay() -> None:
    async with serve() as app:
        stopped = await generated(app, stop_sequence=["o w", ""])
        assert (stopped["text"], stopped["finish_reason"]) == ("hell", "stop")
        assert (await generated(app, stop_sequence=["o w"], trim_stop=False))["text"] == "hello w"
        streamed = events(await app.post(STREAM, prompt="lo", stop_sequence=["o w"]))
        assert "".join(each["token"] for each in streamed) == "hell"


async def test_more_stop_sequences_are_taken_than_by_the_other_protocols() -> None:
    async with serve(max_stop_sequences=4) as app:
        assert (await generated(app, stop_sequence=["x"] * 63 + [" w"]))["text"] == "hello"


async def test_the_end_may_be_banned_or_passed() -> None:
    async with serve() as app:
        assert (await sent(app, ban_eos_token=True)).sampling.logit_bias[EOS] == -10_000
        assert (await sent(app, use_default_badwordsids=True)).sampling.logit_bias[EOS] == -10_000
        assert not (await sent(app, ban_eos_token=False, use_default_badwordsids=True)).sampling.logit_bias
        assert (await generated(app, bypass_eos=True, max_length=8))["text"] == "hello worldhello"


async def test_bans_of_words_and_tokens() -> None:
    async with serve() as app:
        request = await sent(app, banned_tokens=["lo", ""], banned_strings=[None], custom_token_bans="5, 6")
        spellings = [ids_of("lo"), ids_of(" lo")]
        assert [list(each.ids) for each in request.sampling.bad_words] == spellings
        assert dict(request.sampling.logit_bias) == {5: -10_000, 6: -10_000}
        assert len((await sent(app, banned_strings=["lo"])).sampling.bad_words) == 2


async def test_a_grammar_is_gbnf_or_a_json_schema() -> None:
    async with serve() as app:
        assert (await sent(app, grammar='root ::= "a"')).grammar.WhichOneof("kind") == "gbnf"
        assert (await sent(app, grammar='{"type": "boolean"}')).grammar.WhichOneof("kind") == "json_schema"


@pytest.mark.parametrize("seed", [-1, 0, "-1", 2**32 - 1])
async def test_a_seed_that_is_none_is_drawn(seed: Any) -> None:
    async with serve() as app:
        assert (await sent(app, sampler_seed=seed)).sampling.seed != (await sent(app, sampler_seed=seed)).sampling.seed


async def test_several_texts_of_one_prompt() -> None:
    async with serve() as app:
        results = (await app.post(GENERATE, prompt="lo", n=2)).json()["results"]
        assert [each["text"] for each in results] == ["hello world"] * 2
        assert await refused(app, STREAM, n=2) == "n must be 1 where the text is streamed"
        assert (await refused(app, n=9)).startswith("n: must be at most 8")


async def test_special_tokens_show_where_they_are_asked_for() -> None:
    async with serve([*HELLO[:1], 317, EOS]) as app:  # 317 is <|im_start|>
        assert (await generated(app))["text"] == "hel"
        assert (await generated(app, render_special=True))["text"] == "hel<|im_start|>"


@pytest.mark.parametrize("path", [GENERATE, STREAM])
async def test_a_full_or_restarting_server_is_busy_and_says_when_to_come_again(path: str) -> None:
    async with serve() as app:
        with app.gateway.admission.request(16):
            full = await app.post(path, prompt="lo")
        app.engine.unavailable = "the engine restarts"
        restarting = await app.post(path, prompt="lo")
        for busy, message in ((full, "Model is overloaded"), (restarting, "the engine restarts")):
            assert (busy.status_code, int(busy.headers["retry-after"]) > 0) == (503, True)
            assert busy.json() == {"detail": {"msg": message, "type": "service_unavailable"}}


async def test_a_failure_within_a_stream_is_its_last_event() -> None:
    async with serve() as app:
        app.engine.unavailable, app.engine.die_after = "the engine stopped", 2
        found = events(await app.post(STREAM, prompt="lo"))
        assert [each.get("token") for each in found] == ["hel", "lo", None]
        assert found[-1] == {"detail": {"msg": "the engine stopped", "type": "service_unavailable"}}


@pytest.mark.parametrize("path", [GENERATE, STREAM])
async def test_a_client_that_leaves_ends_its_generation_named_or_not(path: str) -> None:
    for fields in ({}, {"genkey": "KCPP1234"}):
        async with serve(HELLO * 8) as app:
            came = asyncio.Event()

            async def wait(count: int, came: asyncio.Event = came) -> None:
                if count == 2:
                    came.set()
                    await asyncio.Event().wait()

            pace(app, wait)
            client = Connection(app, path, {"prompt": "lo", **fields})
            running = asyncio.create_task(client.run())
            await came.wait()
            client.leave()
            await running
            assert (len(app.engine.cancelled), app.engine.open, app.gateway.admission.active) == (1, 0, 0)
