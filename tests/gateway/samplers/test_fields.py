"""Every sampling field, by each of its names and on every route: what the engine is sent, and what is refused."""

from typing import Any

import pytest

from gateway.samplers.fields import ALIASES, SamplerFields
from gateway.samplers.order import FILTERS
from gateway.samplers.ranges import Range
from jaxengine.request import samplers as engine
from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.fixtures import serve
from tests.gateway.samplers.asking import ROUTES, Ask, refused, sent, tgi

TOYS_BREAKERS = [2, 10, 26, 199]  # the bytes of ", *, : and a newline; none of the words has one
DRY = {"dry_multiplier": 0.5, "dry_breakers": TOYS_BREAKERS}
RANGE = {"repetition_range": 64}
ASKED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"top_a": 0.25}, {"top_a": 0.25}),
    ({"epsilon_cutoff": 0.25}, {"epsilon_cutoff": 0.25}),
    ({"eta_cutoff": 0.25}, {"eta_cutoff": 0.25}),
    ({"nsigma": 1.5}, {"top_n_sigma": 1.5}),
    ({"top_n_sigma": 1.5}, {"top_n_sigma": 1.5}),
    ({"top_n_sigma": 1.5, "nsigma": 1.5}, {"top_n_sigma": 1.5}),
    ({"smoothing_factor": 0.25}, {"smoothing_factor": 0.25}),
    ({"smoothing_factor": 0.25, "smoothing_curve": 2}, {"smoothing_factor": 0.25, "smoothing_curve": 2}),
    ({"dynatemp_range": 0.5}, {"dynatemp_range": 0.5}),
    ({"dynatemp_range": 0.5, "dynatemp_exponent": 2}, {"dynatemp_range": 0.5, "dynatemp_exponent": 2}),
    ({"dynatemp_range": 0.5, "dynatemp_min": 0, "dynatemp_max": 0}, {"dynatemp_range": 0.5}),
    ({"xtc_probability": 0.5}, {"xtc_probability": 0.5}),
    ({"xtc_probability": 0.5, "xtc_threshold": 0.25}, {"xtc_probability": 0.5, "xtc_threshold": 0.25}),
    ({"skew": -0.5}, {"skew": -0.5}),
    ({"mirostat_mode": 2}, {"mirostat_tau": 5, "mirostat_eta": 0.1}),
    ({"mirostat": 2, "mirostat_tau": 4, "mirostat_eta": 0.5}, {"mirostat_tau": 4, "mirostat_eta": 0.5}),
    ({"repetition_penalty": 1.5, "repetition_penalty_range": 64}, RANGE),
    ({"repetition_penalty": 1.5, "rep_pen_range": 64}, RANGE),
    ({"repeat_penalty": 1.5, "repeat_last_n": 64}, RANGE),
    ({"frequency_penalty": 0.5, "rep_pen_range": 64}, RANGE),
    ({"repetition_penalty": 1.5, "rep_pen_range": 64, "rep_pen_slope": 0.5}, {**RANGE, "repetition_slope": 0.5}),
    ({"repetition_penalty": 1.5, "rep_pen_slope": 0.5}, {"repetition_range": 8192, "repetition_slope": 0.5}),
    ({"repetition_penalty": 1.5, "rep_pen_range": 64, "rep_pen_slope": 0}, RANGE),
    ({"repetition_penalty": 1.5, "rep_pen_range": 64, "rep_pen_slope": 3.5}, RANGE),
    ({"no_repeat_ngram_size": 3}, {"no_repeat_ngram_size": 3}),
    ({"dry_multiplier": 0.5}, DRY),
    (
        {"dry_multiplier": 0.5, "dry_base": 2, "dry_allowed_length": 4, "dry_range": 64},
        {**DRY, "dry_base": 2, "dry_allowed_length": 4, "dry_range": 64},
    ),
    ({"dry_multiplier": 0.5, "dry_penalty_last_n": 64}, {**DRY, "dry_range": 64}),
    ({"dry_multiplier": 0.5, "dry_range": 0}, DRY),
    ({"dry_multiplier": 0.5, "dry_penalty_last_n": 0}, DRY),
    ({"dry_multiplier": 0.5, "dry_penalty_last_n": -1}, DRY),
    ({"dry_multiplier": 0.5, "dry_sequence_breakers": [":"]}, {"dry_multiplier": 0.5, "dry_breakers": [26]}),
    ({"dry_multiplier": 0.5, "dry_sequence_breakers": '["\\n", ":"]'}, {**DRY, "dry_breakers": [26, 199]}),
    ({"dry_multiplier": 0.5, "dry_sequence_breakers": ""}, DRY),
    ({"dry_multiplier": 0.5, "dry_sequence_breakers": []}, {"dry_multiplier": 0.5}),
    ({"dry_multiplier": 0.5, "dry_sequence_breaker_ids": [7, 5]}, {**DRY, "dry_breakers": [5, 7]}),
    (
        {"dry_multiplier": 0.5, "dry_sequence_breaker_ids": [7], "dry_sequence_breakers": [":"]},
        {**DRY, "dry_breakers": [7, 26]},
    ),
]


def every_route(function: Any) -> Any:
    return pytest.mark.parametrize("ask", ROUTES.values(), ids=ROUTES)(function)


@every_route
async def test_a_field_is_a_sampler_of_the_engine(ask: Ask) -> None:
    async with serve() as app:
        for fields, expected in ASKED:
            sampling = await sent(app, ask, fields)
            assert sampling.samplers == pb.Samplers(**expected), fields


@every_route
async def test_fields_that_ask_for_nothing_change_no_request(ask: Ask) -> None:
    neutral: dict[str, Any] = {
        "top_a": 0,
        "min_p": 0,
        "tfs": 1,
        "epsilon_cutoff": 0,
        "eta_cutoff": 0.0,
        "nsigma": 0,
        "smoothing_factor": 0,
        "smoothing_curve": 1,
        "dynatemp_min": 0,
        "dynatemp_max": 0,
        "dynatemp_low": 0,
        "dynatemp_high": 0,
        "dynatemp_range": 0,
        "dynatemp_exponent": 1,
        "temperature_last": False,
        "xtc_threshold": 0.1,
        "xtc_probability": 0,
        "skew": 0,
        "mirostat_mode": 0,
        "mirostat": 0,
        "mirostat_tau": 5,
        "mirostat_eta": 0.1,
        "repeat_penalty": 1,
        "repetition_penalty_range": 0,
        "rep_pen_range": 0,
        "repeat_last_n": -1,
        "rep_pen_slope": 0.7,
        "no_repeat_ngram_size": 0,
        "dry_multiplier": 0,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "dry_range": 512,
        "dry_penalty_last_n": 512,
        "dry_sequence_breakers": ["\n"],
        "dry_sequence_breaker_ids": [1],
        "custom_token_bans": [],
        "sampler_priority": [],
        "samplers": "",
        "sampler_order": [],
        "top_n_sigma": -1,
    }
    assert neutral.keys() == SamplerFields.model_fields.keys()
    async with serve() as app:
        plain = (await sent(app, ask, {})).SerializeToString(deterministic=True)
        absent = dict.fromkeys(neutral)
        for fields in (neutral, absent, *({name: value} for name, value in neutral.items())):
            assert (await sent(app, ask, fields)).SerializeToString(deterministic=True) == plain, fields


@every_route
async def test_a_range_alone_does_nothing(ask: Ask) -> None:
    async with serve() as app:
        assert not (await sent(app, ask, {"rep_pen_range": 64, "rep_pen_slope": 0.5})).HasField("samplers")
        assert not (await sent(app, ask, {"repetition_penalty": 1.5, "rep_pen_range": -1})).HasField("samplers")


@every_route
async def test_a_penalty_by_its_other_name_is_the_penalty(ask: Ask) -> None:
    async with serve() as app:
        sampling = await sent(app, ask, {"repeat_penalty": 1.5})
    assert sampling.repetition_penalty == 1.5
    assert not sampling.HasField("samplers")


@every_route
async def test_the_range_0_of_llama_cpp_switches_the_penalties_off(ask: Ask) -> None:
    penalties = {"repetition_penalty": 1.5, "frequency_penalty": 0.5}
    async with serve() as app:
        off = await sent(app, ask, {**penalties, "repeat_last_n": 0})
        both = await sent(app, ask, {**penalties, "repeat_last_n": 0, "rep_pen_range": 0})
    assert (off.repetition_penalty, off.frequency_penalty) == (1, 0)
    assert (both.repetition_penalty, both.frequency_penalty) == (1.5, 0.5)


@every_route
async def test_a_dynamic_temperature_is_around_its_middle(ask: Ask) -> None:
    async with serve() as app:
        given = {"temperature": 0.8, "dynatemp_min": 0.5, "dynatemp_max": 1, "dynatemp_range": 0.25}
        sampling = await sent(app, ask, given)
        still = await sent(app, ask, {"dynatemp_low": 0.5, "dynatemp_high": 0.5})
    assert (sampling.temperature, sampling.samplers) == (0.75, pb.Samplers(dynatemp_range=0.25))
    assert (still.temperature, still.HasField("samplers")) == (0.5, False)


@every_route
async def test_bans_are_biases_that_leave_no_chance(ask: Ask) -> None:
    async with serve() as app:
        for bans in ([3, 7], "3, 7"):
            sampling = await sent(app, ask, {"custom_token_bans": bans})
            assert dict(sampling.logit_bias) == {3: -10_000, 7: -10_000}
            assert not sampling.only_biased


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"tfs": 0.5}, "tfs", "must be 1, which is off"),
    ({"mirostat_mode": 1}, "mirostat_mode", "must be 0 or 2: only version 2 is served"),
    ({"mirostat": 1}, "mirostat", "must be 0 or 2: only version 2 is served"),
    ({"mirostat": 2, "mirostat_tau": 0}, "mirostat_tau", "must be above 0"),
    ({"nsigma": 1, "top_n_sigma": 2}, "top_n_sigma", "must be 1, as nsigma is"),
    ({"nsigma": 1, "top_n_sigma": -1}, "top_n_sigma", "must be 1, as nsigma is"),
    ({"dynatemp_min": 0.5, "dynatemp_max": 1, "dynatemp_low": 0.25}, "dynatemp_low", "must be 0.5, as dynatemp_min is"),
    ({"mirostat_mode": 0, "mirostat": 2}, "mirostat", "must be 0, as mirostat_mode is"),
    ({"repetition_penalty": 1.5, "repeat_penalty": 1.25}, "repeat_penalty", "must be 1.5, as repetition_penalty is"),
    ({"rep_pen_range": 8, "repeat_last_n": 9}, "repeat_last_n", "must be 8, as rep_pen_range is"),
    (
        {"repetition_penalty_range": 0, "rep_pen_range": 8},
        "rep_pen_range",
        "must be 0, as repetition_penalty_range is",
    ),
    ({"dry_range": 8, "dry_penalty_last_n": 0}, "dry_penalty_last_n", "must be 8, as dry_range is"),
    ({"dynatemp_min": 0.5}, "dynatemp_min", "needs dynatemp_max beside it"),
    ({"dynatemp_max": 0.5}, "dynatemp_max", "needs dynatemp_min beside it"),
    ({"dynatemp_min": 1, "dynatemp_max": 0.5}, "dynatemp_min", "must be at most dynatemp_max, 0.5"),
    ({"dynatemp_min": 0.5, "dynatemp_max": 1, "dynatemp_range": 0.5}, "dynatemp_range", "must be 0.25, half of"),
    ({"custom_token_bans": [600]}, "custom_token_bans", "must hold ids of tokens, which are 0..319"),
    ({"dry_sequence_breaker_ids": [600]}, "dry_sequence_breaker_ids", "must hold ids of tokens, which are 0..319"),
    ({"custom_token_bans": [*range(301)]}, "custom_token_bans", "name 301 tokens, at most 300"),
]


@every_route
async def test_a_refusal_names_field_and_reason(ask: Ask) -> None:
    async with serve() as app:
        for fields, name, reason in REFUSED:
            message = await refused(app, ask, fields)
            assert message.startswith(name), fields
            assert reason in message, fields


# What the fields of these samplers need to mean anything.
ON = {"smoothing_factor": 1, "dynatemp_range": 1, "xtc_probability": 1, "mirostat_mode": 2, "dry_multiplier": 1}


@every_route
async def test_a_value_beyond_a_range_is_refused_with_the_limit(ask: Ask) -> None:
    async with serve() as app:
        for name, low, high in ranges():
            below, above = {**ON, name: low - 1}, {**ON, name: high + 1}
            given = "Given: " if ask is tgi else "(given "
            assert f"{name} must be at least {low:g}" in (message := await refused(app, ask, below))
            assert f"{given}{low - 1:g}" in message
            assert f"{name} must be at most {high:g}" in await refused(app, ask, above)


@every_route
async def test_what_a_sampler_that_is_off_is_told_means_nothing(ask: Ask) -> None:
    nonsense = {"smoothing_curve": 0, "dry_base": 0, "dry_allowed_length": 0, "dry_range": 99999, "dry_multiplier": 0}
    nonsense |= {
        "xtc_threshold": -1,
        "mirostat_tau": -5,
        "mirostat_eta": 2,
        "dynatemp_exponent": -1,
        "mirostat_mode": 0,
    }
    async with serve() as app:
        assert not (await sent(app, ask, nonsense)).HasField("samplers")


@every_route
async def test_a_number_of_many_digits_is_not_repeated(ask: Ask) -> None:
    async with serve() as app:
        assert (await refused(app, ask, {"rep_pen_range": 10**400})) == "rep_pen_range must be at most 8192"
        assert "1234567" in await refused(app, ask, {"rep_pen_range": 1234567})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"top_a": "much"}, "top_a: must be a number"),
        ({"no_repeat_ngram_size": 2.5}, "no_repeat_ngram_size: must be a whole number"),
        ({"temperature_last": 1}, "temperature_last: must be true or false"),
        ({"dry_sequence_breakers": "a"}, "dry_sequence_breakers: must be a list of texts, or a text that is such"),
        ({"dry_sequence_breakers": "[1]"}, "dry_sequence_breakers[0]: must be a string"),
        ({"dry_sequence_breakers": [""]}, "dry_sequence_breakers[0]: must not be empty"),
        ({"dry_sequence_breakers": ["a" * 65]}, "dry_sequence_breakers[0]: must have at most 64 characters (given 65)"),
        ({"dry_sequence_breakers": ["a"] * 65}, "dry_sequence_breakers: must have at most 64 entries (given 65)"),
        ({"dry_sequence_breaker_ids": [-1]}, "dry_sequence_breaker_ids[0]: must be at least 0 (given -1)"),
        ({"custom_token_bans": "1;2"}, "custom_token_bans: must be a list, or a text, of at most 1024 token ids"),
        ({"custom_token_bans": [*range(1025)]}, "custom_token_bans: must have at most 1024 entries"),
        ({"sampler_order": ["a"]}, "sampler_order[0]: must be a whole number"),
    ],
)
async def test_a_wrong_type_is_refused_by_name(fields: dict[str, Any], said: str) -> None:
    async with serve() as app:
        for ask in ROUTES.values():
            assert said in await refused(app, ask, fields)


def ranges() -> list[tuple[str, float, float]]:
    fields = SamplerFields.model_fields.items()
    return [(name, each.low, each.high) for name, field in fields for each in field.metadata if isinstance(each, Range)]


def test_ranges_are_documented() -> None:
    documented = SamplerFields.model_json_schema()["properties"]
    for name, low, high in ranges():
        assert documented[name]["anyOf"][0].items() >= {"minimum": low, "maximum": high}.items()


def test_every_value_allowed_is_one_of_the_engines() -> None:
    limits = {name: (low, high) for name, low, high in engine.LIMITS}
    ours = {
        "nsigma": "top_n_sigma",
        "top_n_sigma": "top_n_sigma",
        **dict.fromkeys(("repetition_penalty_range", "rep_pen_range", "repeat_last_n"), "repetition_range"),
        "dry_penalty_last_n": "dry_range",
    }
    compared = set()
    for name, low, high in ranges():
        if (theirs := ours.get(name, name)) in limits:
            assert (max(low, 0) if theirs != "skew" else low, high) == limits[theirs], name
            compared.add(theirs)
    assert limits.keys() - compared == {"repetition_slope"}  # whose field also takes what means 1


ACTIVE = {  # by field, what it needs beside it to be sent
    "smoothing_curve": {"smoothing_factor": 1},
    "xtc_threshold": {"xtc_probability": 1},
    "dynatemp_exponent": {"dynatemp_range": 1},
    "dynatemp_min": {"dynatemp_max": 100},
    "dynatemp_low": {"dynatemp_max": 100},
    "dynatemp_max": {"dynatemp_min": 0},
    "dynatemp_high": {"dynatemp_min": 0},
    "mirostat_eta": {"mirostat": 2},
    "dry_base": {"dry_multiplier": 1},
    "dry_allowed_length": {"dry_multiplier": 1},
    "dry_range": {"dry_multiplier": 1},
}


@pytest.mark.parametrize(("name", "low", "high"), ranges())
async def test_the_engine_takes_the_limits_as_they_arrive(name: str, low: float, high: float) -> None:
    """In float32."""
    async with serve() as app:
        for value in (low, high):
            if name != "mirostat_tau":  # 0 of which is no target
                sampling = await sent(app, tgi, {**ACTIVE.get(name, {}), name: value})
                listed = {field.name: value for field, value in sampling.samplers.ListFields()}
                listed["dry_breakers"] = tuple(listed.get("dry_breakers", ()))
                engine.Samplers(**listed)


def test_filters_have_the_engines_names() -> None:
    assert FILTERS == engine.ORDER
    assert [name.lower() for name in pb.Samplers.Kind.keys()[1:]] == list(FILTERS)


def test_other_names_are_fields() -> None:
    others = [name for names in ALIASES.values() for name in names]
    assert set(others) <= SamplerFields.model_fields.keys()
