"""Where the likeliest tokens are chosen: what acts all the same, what does not, and which requests are such."""

from typing import Any

import pytest

from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.fixtures import serve
from tests.gateway.samplers.asking import SEED, V1, Ask, chat, completion, refused, sent, tgi
from tests.gateway.toys import EOS

FILTERS: list[tuple[str, Any]] = [
    *(("top_a", 0.5), ("epsilon_cutoff", 0.5), ("eta_cutoff", 0.5), ("nsigma", 1), ("top_n_sigma", 1)),
    *(("smoothing_factor", 0.5), ("dynatemp_range", 0.5), ("xtc_probability", 0.5), ("skew", 0.5)),
    *(("mirostat_mode", 2), ("mirostat", 2)),
]
BEFORE = {"dry_multiplier": 1, "dry_sequence_breakers": [], "no_repeat_ngram_size": 3}
PENALTY = {"repetition_penalty": 1.5, "rep_pen_range": 64}
LEFT = pb.Samplers(dry_multiplier=1, no_repeat_ngram_size=3, repetition_range=64)
BEAMS = {"use_beam_search": True, "n": 2, "temperature": 0}


@pytest.mark.parametrize("ask", V1.values(), ids=V1)
async def test_temperature_0_leaves_what_depends_on_the_ids_so_far(ask: Ask) -> None:
    async with serve() as app:
        dynamic = {"dynatemp_min": 0.5, "dynatemp_max": 1}
        fields = {**dict(FILTERS), **dynamic, "dynatemp_range": 0.25, **BEFORE, **PENALTY, "temperature_last": True}
        sampling = await sent(app, ask, {**fields, "temperature": 0})
    assert (sampling.temperature, sampling.samplers) == (0, LEFT)


@pytest.mark.parametrize(("name", "value"), FILTERS)
async def test_a_filter_makes_a_request_of_tgi_sample(name: str, value: Any) -> None:
    async with serve(max_best_of=2) as app:
        sampling = await sent(app, tgi, {name: value})
        assert (sampling.temperature, sampling.seed) == (1, SEED)
        several = await app.post("/generate", {"inputs": "lo", "parameters": {name: value, "best_of": 2}})
        assert several.status_code == 200


async def test_a_request_of_tgi_stays_greedy_without_a_filter() -> None:
    async with serve() as app:
        sampling = await sent(app, tgi, {**BEFORE, **PENALTY, "temperature_last": True, "sampler_order": [6, 5]})
    assert (sampling.temperature, sampling.samplers) == (0, LEFT)


async def test_a_filter_makes_a_request_of_tensorrt_llms_clients_sample() -> None:
    async with serve() as app:
        for fields, temperature in (
            ({"top_a": 0.5}, 1),
            ({"min_p": 0.5}, 1),
            ({"top_a": 0}, 0),
            ({"no_repeat_ngram_size": 3}, 0),
        ):
            answer = await app.post("/v2/models/mock/model/generate", {"text_input": "lo", **fields})
            assert answer.status_code == 200
            assert app.engine.requests[-1].sampling.temperature == temperature


@pytest.mark.parametrize("ask", [completion, chat])
@pytest.mark.parametrize(("name", "value"), FILTERS)
async def test_a_filter_is_refused_beside_beams(ask: Ask, name: str, value: Any) -> None:
    async with serve() as app:
        message = await refused(app, ask, {**BEAMS, name: value})
    assert message.startswith(f"{name} other than 0")
    assert message.endswith("is not supported with use_beam_search")


@pytest.mark.parametrize("ask", [completion, chat])
async def test_what_depends_on_the_ids_so_far_goes_with_beams(ask: Ask) -> None:
    async with serve() as app:
        neutral = {name: 0 for name, _ in FILTERS}
        answer = await ask(app, {**BEAMS, **neutral, **BEFORE, **PENALTY})
        assert answer.status_code == 200, answer.text
        [request] = app.engine.requests
    assert request.HasField("beam_search")
    assert request.sampling.samplers == LEFT


RECOMMENDED = {"no_repeat_ngram_size": 3, "epsilon_cutoff": 0.25, "eta_cutoff": 0.5}


@pytest.mark.parametrize("ask", V1.values(), ids=V1)
async def test_recommended_values_are_defaults(ask: Ask) -> None:
    async with serve(generation_config=RECOMMENDED) as app:
        assert (await sent(app, ask, {})).samplers == pb.Samplers(**RECOMMENDED)
        given = await sent(app, ask, {"no_repeat_ngram_size": 0, "epsilon_cutoff": 0, "eta_cutoff": 0.125})
        assert given.samplers == pb.Samplers(eta_cutoff=0.125)
        assert (await sent(app, ask, {"temperature": 0})).samplers == pb.Samplers(no_repeat_ngram_size=3)


async def test_a_recommended_ban_of_n_grams_goes_with_beams_as_in_bart() -> None:
    async with serve(generation_config=RECOMMENDED) as app:
        assert (await completion(app, BEAMS)).status_code == 200
        assert app.engine.requests[0].sampling.samplers == pb.Samplers(no_repeat_ngram_size=3)


async def test_tgi_knows_no_recommended_values() -> None:
    async with serve(generation_config=RECOMMENDED) as app:
        assert not (await sent(app, tgi, {})).HasField("samplers")


async def test_bans_narrow_the_allowed_tokens() -> None:
    async with serve() as app:
        sampling = await sent(app, completion, {"allowed_token_ids": [3, 4], "custom_token_bans": [4, 5]})
        assert (dict(sampling.logit_bias), sampling.only_biased) == ({3: 0}, True)
    async with serve() as app:
        message = await refused(app, completion, {"allowed_token_ids": [3], "custom_token_bans": [3]})
        assert message == "custom_token_bans bans every one of allowed_token_ids"
        only_ends = {"allowed_token_ids": [EOS, 3], "custom_token_bans": [3], "min_tokens": 1}
        assert "only tokens that end the text" in await refused(app, completion, only_ends)


async def test_a_ban_counts_before_a_bias_of_the_same_token() -> None:
    async with serve() as app:
        sampling = await sent(app, completion, {"logit_bias": {"3": 5, "4": 5}, "custom_token_bans": [3]})
    assert dict(sampling.logit_bias) == {3: -10_000, 4: 5}
