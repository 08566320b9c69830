"""What SillyTavern sends to a server that it takes for Aphrodite, of which most asks for nothing."""

from typing import Any

from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.fixtures import serve
from tests.gateway.samplers.asking import SEED, completion, refused, sent

BODY: dict[str, Any] = {
    "model": "",
    "max_new_tokens": 8,
    "max_tokens": 8,
    "temperature": 0.75,
    "top_p": 1,
    "typical_p": 1,
    "typical": 1,
    "sampler_seed": SEED,
    "min_p": 0.125,
    "repetition_penalty": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "top_k": 0,
    "skew": 0,
    "min_tokens": 0,
    "add_bos_token": True,
    "smoothing_factor": 0,
    "smoothing_curve": 1,
    "dry_allowed_length": 2,
    "dry_multiplier": 0,
    "dry_base": 1.75,
    "dry_sequence_breakers": '["\\n", ":", "\\"", "*"]',
    "dry_penalty_last_n": 0,
    "max_tokens_second": 0,
    "stopping_strings": [],
    "stop": [],
    "truncation_length": 2048,
    "ban_eos_token": False,
    "skip_special_tokens": True,
    "include_reasoning": True,
    "top_a": 0,
    "tfs": 1,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "mirostat_mode": 0,
    "mirostat_tau": 5,
    "mirostat_eta": 0.1,
    "custom_token_bans": [],
    "banned_strings": [],
    "api_type": "aphrodite",
    "api_server": "http://127.0.0.1:3000/",
    "xtc_threshold": 0.1,
    "xtc_probability": 0,
    "nsigma": 0,
    "top_n_sigma": 0,
    "min_keep": 0,
    "adaptive_target": -0.01,
    "adaptive_decay": 0.9,
    "n": 1,
    "temperature_last": False,
    "ignore_eos": False,
    "spaces_between_special_tokens": True,
    "early_stopping": False,
    "include_stop_str_in_output": False,
    "no_repeat_ngram_size": 0,
}


async def test_its_neutral_settings_are_a_plain_request() -> None:
    async with serve() as app:
        plain = await sent(app, completion, {"temperature": 0.75, "min_p": 0.125})
        assert await sent(app, completion, BODY) == plain


async def test_its_other_name_of_max_tokens_may_repeat_it_and_nothing_else() -> None:
    async with serve() as app:
        plain = await sent(app, completion, BODY | {"max_tokens": 7})
        assert await sent(app, completion, BODY | {"max_tokens": 7, "n_predict": 7}) == plain
    async with serve() as app:
        message = await refused(app, completion, BODY | {"max_tokens": 7, "n_predict": 8})
    assert message == "n_predict is not supported: use max_tokens"


async def test_its_dynamic_temperature_is_told_three_times() -> None:
    dynamic = {
        "temperature": 0.75,
        "dynamic_temperature": True,
        "dynatemp_low": 0.5,
        "dynatemp_high": 1,
        "dynatemp_range": 0.25,
        "dynatemp_exponent": 1,
        "dynatemp_min": 0.5,
        "dynatemp_max": 1,
    }
    async with serve() as app:
        sampling = await sent(app, completion, BODY | dynamic)
    assert (sampling.temperature, sampling.samplers) == (0.75, pb.Samplers(dynatemp_range=0.25, dynatemp_exponent=1))


async def test_its_penalty_by_six_names_is_one() -> None:
    names = {"repetition_penalty": 1.5, "repeat_penalty": 1.5, "repetition_penalty_range": 0, "rep_pen_range": 0}
    async with serve() as app:
        sampling = await sent(app, completion, {**BODY, **names, "repeat_last_n": 0, "rep_pen_slope": 1})
    assert (sampling.repetition_penalty, sampling.HasField("samplers")) == (1.5, False)
