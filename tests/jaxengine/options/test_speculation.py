"""What `--speculate` and `--speculative-config` mean: TGI's number, vLLM's JSON, and both together."""

import json

import pytest

from jaxengine.options.command_line import parse
from jaxengine.options.option import UsageError
from jaxengine.options.speculation import NOT_SERVED, Speculation, decide
from jaxengine.options.table import EngineOptions

FIVE = '{"num_speculative_tokens": 5}'


@pytest.mark.parametrize(
    ("speculate", "config", "meant"),
    [
        (None, None, None),
        (0, None, None),
        (3, None, Speculation(3)),
        (None, FIVE, Speculation(5)),
        (5, FIVE, Speculation(5)),
        (None, '{"num_speculative_tokens": 5, "method": "ngram"}', Speculation(5)),
        (None, '{"num_speculative_tokens": 5, "model": "ngram"}', Speculation(5)),
        (None, '{"num_speculative_tokens": 5, "model": "[ngram]", "method": null}', Speculation(5)),
        (5, '{"num_speculative_tokens": 5, "prompt_lookup_min": 4}', Speculation(5, "ngram", 4, 16)),
    ],
)
def test_a_number_and_vllms_json_mean_the_same(
    speculate: int | None, config: str | None, meant: Speculation | None
) -> None:
    assert decide(speculate, config) == meant
    assert EngineOptions(speculate=speculate, speculative_config=config).speculation == meant


@pytest.mark.parametrize(("lowest", "highest"), [(20, 20), (1, 16)])
def test_a_bound_that_is_not_given_makes_room_for_the_one_that_is(lowest: int, highest: int) -> None:
    read = Speculation.parse(json.dumps({"num_speculative_tokens": 1, "prompt_lookup_min": lowest}))
    assert (read.prompt_lookup_min, read.prompt_lookup_max) == (lowest, highest)
    read = Speculation.parse(json.dumps({"num_speculative_tokens": 1, "prompt_lookup_max": 1}))
    assert (read.prompt_lookup_min, read.prompt_lookup_max) == (1, 1)


@pytest.mark.parametrize("speculate", [0, 3])
def test_two_numbers_that_differ_are_refused_wherever_options_are_made(speculate: int) -> None:
    told = f"speculate {speculate} contradicts num_speculative_tokens 5 of speculative_config: give one of them"
    with pytest.raises(ValueError, match=told):
        EngineOptions(speculate=speculate, speculative_config=FIVE)
    with pytest.raises(UsageError, match=told):
        parse(["--uds-path=/s/engine.sock", f"--speculate={speculate}", f"--speculative-config={FIVE}"])


@pytest.mark.parametrize("method", NOT_SERVED)
def test_a_method_of_vllms_that_is_not_served_is_refused_saying_which_is(method: str) -> None:
    config = {"method": method, "model": "org/drafter", "num_speculative_tokens": 5, "draft_tensor_parallel_size": 1}
    with pytest.raises(ValueError, match=f"method '{method}' is not served; served is ngram"):
        Speculation.parse(json.dumps(config))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("{", "must be a JSON object"),
        ("[1]", "must be a JSON object"),
        ("3", "must be a JSON object"),
        ("{}", "must have num_speculative_tokens"),
        ('{"method": "guess", "num_speculative_tokens": 5}', "method 'guess' is not known; served is ngram"),
        ('{"num_speculative_tokens": null}', "must have num_speculative_tokens"),
        ('{"model": "org/drafter", "num_speculative_tokens": 5}', "model 'org/drafter' cannot be served as a drafter"),
        ('{"method": "ngram", "model": "ngram", "num_speculative_tokens": 5}', "has model, which is not known"),
        ('{"num_speculative_tokens": 5, "disable": true}', "has disable, which is not known; known are num_spec"),
        ('{"num_speculative_tokens": 0}', "num_speculative_tokens must be a whole number between 1 and 63, got 0"),
        ('{"num_speculative_tokens": true}', "num_speculative_tokens must be a whole number between 1 and 63"),
        ('{"num_speculative_tokens": 2.5}', "num_speculative_tokens must be a whole number between 1 and 63"),
        ('{"num_speculative_tokens": 1, "prompt_lookup_min": "2"}', "prompt_lookup_min must be a whole number between"),
        ('{"num_speculative_tokens": 1, "prompt_lookup_min": 5, "prompt_lookup_max": 4}', "prompt_lookup_max must be"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(config: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Speculation.parse(config)


def test_in_python_the_json_may_be_a_dict() -> None:
    config = {"method": "ngram", "num_speculative_tokens": 5}
    assert EngineOptions(speculative_config=config).speculation == Speculation(5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="speculative_config must have num_speculative_tokens"):
        EngineOptions(speculative_config={})  # type: ignore[arg-type]
