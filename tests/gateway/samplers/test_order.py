"""The order of samplers in the words of three servers, and the engine's own."""

from typing import Any

import pytest

from gateway.samplers.order import FIELDS
from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.fixtures import serve
from tests.gateway.samplers.asking import ROUTES, completion, refused, sent

ALL = {
    "temperature": 0.5,
    "top_k": 5,
    "top_p": 0.5,
    "min_p": 0.25,
    "typical_p": 0.5,
    "nsigma": 1,
    "top_a": 0.25,
    "epsilon_cutoff": 0.25,
    "eta_cutoff": 0.25,
    "smoothing_factor": 0.25,
    "xtc_probability": 0.5,
    "skew": 0.5,
    "mirostat": 2,
}
APHRODITES = (
    "dry penalties no_repeat_ngram temperature top_nsigma top_p_top_k top_a min_p tfs eta_cutoff epsilon_cutoff"
)
SILLY_TAVERNS = [*APHRODITES.split(), "typical_p", "quadratic", "xtc"]  # its default for Aphrodite
KOBOLDS = [6, 0, 1, 3, 4, 2, 5]
LLAMA_CPPS = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]


async def order_of(fields: dict[str, Any]) -> list[str]:
    async with serve() as app:
        sampling = await sent(app, completion, fields)
    return [pb.Samplers.Kind.Name(kind).lower() for kind in sampling.samplers.order]


async def test_without_an_order_the_engine_has_its_own() -> None:
    assert await order_of(ALL) == []


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (
            {"sampler_priority": SILLY_TAVERNS},
            "temperature top_n_sigma top_k top_p top_a min_p eta_cutoff epsilon_cutoff typical_p smoothing_factor xtc "
            "skew mirostat",
        ),
        (
            {"samplers": LLAMA_CPPS},
            "top_n_sigma top_k typical_p top_p min_p xtc temperature top_a epsilon_cutoff eta_cutoff smoothing_factor "
            "skew mirostat",
        ),
        (
            {"sampler_order": KOBOLDS},
            "top_k top_a typical_p top_p min_p temperature smoothing_factor top_n_sigma epsilon_cutoff eta_cutoff xtc "
            "skew mirostat",
        ),
        (
            {"temperature_last": True},
            "top_n_sigma top_a epsilon_cutoff eta_cutoff smoothing_factor xtc top_k top_p typical_p min_p skew "
            "mirostat temperature",
        ),
        (
            {"sampler_priority": SILLY_TAVERNS, "temperature_last": True},
            "top_n_sigma top_k top_p top_a min_p eta_cutoff epsilon_cutoff typical_p smoothing_factor xtc skew "
            "mirostat temperature",
        ),
    ],
    ids=["Aphrodite", "llama.cpp", "KoboldCpp", "temperature last", "both"],
)
async def test_a_servers_own_order_is_followed(order: dict[str, Any], expected: str) -> None:
    assert await order_of({**ALL, **order}) == expected.split()


async def test_llama_cpps_letters_are_its_names() -> None:
    assert await order_of({**ALL, "samplers": "edskypmxt"}) == await order_of({**ALL, "samplers": LLAMA_CPPS})


async def test_names_are_read_as_their_servers_read_them() -> None:
    fields = {"temperature": 0.5, "top_k": 5}
    llama_cpp, aphrodite = {"samplers": ["top-k", "temp"]}, {"sampler_priority": ["TOP_P_TOP_K", "TEMPERATURE"]}
    for order in (llama_cpp, aphrodite, {"sampler_priority": [0, 5]}):
        assert await order_of({**fields, **order}) == ["top_k", "temperature"]


@pytest.mark.parametrize("ask", ROUTES.values(), ids=ROUTES)
async def test_an_order_names_what_acts_and_nothing_else(ask: Any) -> None:
    async with serve() as app:
        fields = {"temperature": 0.5, "top_p": 0.5, "top_a": 0.25}
        sampling = await sent(app, ask, {**fields, "sampler_order": [1, 2, 5]})
        assert sampling.samplers == pb.Samplers(top_a=0.25, order=["TOP_A", "TOP_P", "TEMPERATURE"])
        sampling = await sent(app, ask, {"temperature": 0.5, "top_p": 0.5, "samplers": "pt"})
        assert sampling.samplers == pb.Samplers(order=["TOP_P", "TEMPERATURE"])
        sampling = await sent(app, ask, {"temperature": 0.5, "samplers": "pt"})
        assert not sampling.HasField("samplers")


@pytest.mark.parametrize("ask", ROUTES.values(), ids=ROUTES)
async def test_what_an_order_leaves_out_does_not_act(ask: Any) -> None:
    fields = {
        "temperature": 0.5,
        "top_k": 5,
        "top_p": 0.5,
        "typical_p": 0.5,
        "top_a": 0.25,
        "repetition_penalty": 1.5,
        "frequency_penalty": 0.5,
        "dry_multiplier": 1,
        "no_repeat_ngram_size": 3,
        "xtc_probability": 0.5,
    }
    async with serve() as app:
        sampling = await sent(app, ask, {**fields, "sampler_priority": ["min_p"]})
        assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.typical_p) == (1, 0, 1, 1)
        assert (sampling.repetition_penalty, sampling.frequency_penalty) == (1, 0)
        assert not sampling.HasField("samplers")
        kept = await sent(app, ask, {**fields, "sampler_order": [0]})
    assert (kept.top_k, kept.repetition_penalty) == (5, 1)
    has_no_number = {"no_repeat_ngram_size": 3, "dry_multiplier": 1, "xtc_probability": 0.5}
    breakers, order = [2, 10, 26, 199], ["TOP_K", "XTC"]
    assert kept.samplers == pb.Samplers(**has_no_number, dry_breakers=breakers, order=order)


DRY, PENALTY = {"dry_multiplier": 1}, {"repetition_penalty": 1.5}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({**DRY, "top_k": 5, "samplers": ["top_k", "dry"]}, "samplers puts dry behind top_k"),
        ({**PENALTY, "temperature": 0.5, "sampler_order": [5, 6]}, "sampler_order puts penalties behind temperature"),
        ({**DRY, "top_k": 5, "sampler_priority": ["top_p_top_k", "dry"]}, "sampler_priority puts dry behind top_k"),
        (
            {"no_repeat_ngram_size": 3, "top_k": 5, "sampler_priority": ["top_p_top_k", "no_repeat_ngram"]},
            "sampler_priority puts no_repeat_ngram_size behind top_k",
        ),
    ],
)
async def test_what_acts_first_here_cannot_be_put_behind(fields: dict[str, Any], said: str) -> None:
    async with serve() as app:
        for ask in ROUTES.values():
            message = await refused(app, ask, fields)
            assert said in message
            assert "no_repeat_ngram_size, dry and penalties act first here" in message


async def test_the_penalties_act_before_dry_where_an_order_says_so() -> None:
    async with serve() as app:
        for ask in ROUTES.values():
            for order, expected in (
                ({"samplers": LLAMA_CPPS}, True),
                ({"samplers": "de"}, False),
                ({"sampler_priority": ["penalties", "no_repeat_ngram", "dry"]}, True),
                ({"sampler_priority": SILLY_TAVERNS}, False),
                ({"sampler_order": KOBOLDS}, False),
                ({}, False),
            ):
                sent_now = await sent(app, ask, {**DRY, **PENALTY, **order})
                assert sent_now.samplers.penalties_first is expected
            assert not (await sent(app, ask, {**DRY, "samplers": LLAMA_CPPS})).samplers.penalties_first


async def test_an_order_of_what_does_not_act_is_no_order() -> None:
    async with serve() as app:
        for fields in (
            {**DRY, "samplers": LLAMA_CPPS},
            {**PENALTY, "samplers": LLAMA_CPPS},
            {**PENALTY, "sampler_order": [0, 1, 2, 3, 4, 5, 6]},
            {**DRY, **PENALTY, "sampler_order": KOBOLDS},
            {**DRY, **PENALTY, "no_repeat_ngram_size": 3, "sampler_priority": SILLY_TAVERNS},
            {**PENALTY, "temperature": 0, "top_k": 5, "sampler_order": [0, 6]},
        ):
            assert not (await sent(app, completion, fields)).samplers.order


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"samplers": ["top_k", "infill"]},
            f"must name each sampler once, of {', '.join(FIELDS['samplers'])}",
        ),
        ({"samplers": "ekz"}, "samplers must name each sampler once, of penalties, dry, "),
        ({"samplers": "kk"}, "samplers must name each sampler once"),
        ({"sampler_order": [7]}, "sampler_order must name each sampler once, of 0, 1, 2, 3, 4, 5, 6"),
        ({"sampler_order": [0, 0]}, "sampler_order must name each sampler once"),
        ({"sampler_priority": ["top_k"]}, "sampler_priority must name each sampler once, of dry, penalties, "),
        (
            {"sampler_priority": ["dry"], "samplers": "k"},
            "samplers is an order of the samplers, as sampler_priority is: give one of them",
        ),
    ],
)
async def test_an_order_that_nobody_knows_is_refused(fields: dict[str, Any], said: str) -> None:
    async with serve() as app:
        for ask in ROUTES.values():
            assert said in await refused(app, ask, fields)
