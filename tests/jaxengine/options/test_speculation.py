"""What `--speculate` and `--speculative-config` mean: TGI's number, vLLM's JSON, and both together."""

import json

import pytest

from jaxengine.options.command_line import parse
from jaxengine.options.option import UsageError
from jaxengine.options.speculation import NOT_SERVED, Speculation, decide, without_effect
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
        (None, '{"num_speculative_tokens": 5, "method": "ngram"}', Speculation(5, "ngram")),
        (None, '{"num_speculative_tokens": 5, "model": "ngram"}', Speculation(5, "ngram")),
        (None, '{"num_speculative_tokens": 5, "model": "[ngram]", "method": null}', Speculation(5, "ngram")),
        (5, '{"num_speculative_tokens": 5, "prompt_lookup_min": 4}', Speculation(5, "ngram", 4, 16)),
        (None, '{"method": "medusa"}', Speculation(method="medusa")),
        (None, '{"model": "org/heads@v1"}', Speculation(model="org/heads@v1")),
        (2, '{"model": "org/heads"}', Speculation(2, model="org/heads")),
        (
            None,
            '{"method": "mlp_speculator", "model": "/speculator", "num_speculative_tokens": 3}',
            Speculation(3, "mlp_speculator", model="/speculator"),
        ),
        (
            None,
            '{"method": "draft_model", "model": "org/small", "num_speculative_tokens": 4}',
            Speculation(4, "draft_model", model="org/small"),
        ),
        (
            None,
            '{"method": "eagle3", "model": "org/eagle", "num_speculative_tokens": 3}',
            Speculation(3, "eagle3", model="org/eagle"),
        ),
        (None, '{"method": "eagle", "model": "org/eagle"}', Speculation(method="eagle", model="org/eagle")),
        (
            None,
            '{"method": "eagle", "model": "org/eagle", "draft_tensor_parallel_size": 1, "num_speculative_tokens": 2}',
            Speculation(2, "eagle", model="org/eagle"),
        ),
        (
            None,
            '{"method": "draft_model", "model": "org/small", "revision": "v1", "num_speculative_tokens": 4, '
            '"max_model_len": 2048, "enforce_eager": true, '
            '"parallel_drafting": false, "draft_sample_method": "greedy"}',
            Speculation(4, "draft_model", model="org/small@v1"),
        ),
        (None, '{"method": "ngram_gpu", "num_speculative_tokens": 4}', Speculation(4, "ngram")),
        (None, '{"method": "suffix"}', Speculation(24, "suffix")),
        (6, '{"method": "suffix"}', Speculation(6, "suffix")),
        (
            None,
            '{"method": "suffix", "num_speculative_tokens": 8, "enable_adaptive_verification": true}',
            Speculation(8, "suffix"),
        ),
        (None, '{"method": "suffix", "num_speculative_tokens": 32}', Speculation(32, "suffix")),
        (
            None,
            '{"method": "suffix", "suffix_decoding_max_tree_depth": 64}',
            Speculation(63, "suffix", suffix_decoding_max_tree_depth=64),
        ),
        (
            None,
            '{"method": "suffix", "num_speculative_tokens": 9, "suffix_decoding_max_cached_requests": 0, '
            '"suffix_decoding_max_spec_factor": 2, "suffix_decoding_min_token_prob": 0.25}',
            Speculation(
                9,
                "suffix",
                suffix_decoding_max_cached_requests=0,
                suffix_decoding_max_spec_factor=2.0,
                suffix_decoding_min_token_prob=0.25,
            ),
        ),
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


def test_defaults_of_suffix_decoding_are_vllms() -> None:
    """Of its release 0.11: https://docs.vllm.ai/en/v0.11.1/features/spec_decode.html#speculating-using-suffix-decoding"""
    read = Speculation.parse('{"method": "suffix"}')
    assert (read.suffix_decoding_max_tree_depth, read.suffix_decoding_max_cached_requests) == (24, 10_000)
    assert (read.suffix_decoding_max_spec_factor, read.suffix_decoding_min_token_prob) == (1.0, 0.1)


@pytest.mark.parametrize("depth", [1, 2, 30])
def test_the_depth_of_suffixes_is_that_of_matches_in_the_own_text_too(depth: int) -> None:
    assert Speculation(4, "suffix", suffix_decoding_max_tree_depth=depth).lookup == (min(2, depth), depth)
    assert Speculation(4, "ngram", 3, 9, suffix_decoding_max_tree_depth=depth).lookup == (3, 9)


@pytest.mark.parametrize("speculate", [0, 3])
def test_two_numbers_that_differ_are_refused_wherever_options_are_made(speculate: int) -> None:
    told = f"speculate {speculate} contradicts num_speculative_tokens 5 of speculative_config: give one of them"
    with pytest.raises(ValueError, match=told):
        EngineOptions(speculate=speculate, speculative_config=FIVE)
    with pytest.raises(UsageError, match=told):
        parse(["--uds-path=/s/engine.sock", f"--speculate={speculate}", f"--speculative-config={FIVE}"])


def test_no_tokens_contradict_a_drafter() -> None:
    with pytest.raises(ValueError, match="speculate 0 contradicts model 'org/heads' of speculative_config"):
        decide(0, '{"model": "org/heads"}')
    for method in ("medusa", "suffix"):
        with pytest.raises(ValueError, match=f"speculate 0 contradicts method '{method}' of speculative_config"):
            decide(0, json.dumps({"method": method}))


def test_no_tokens_are_told_from_none_that_are_named() -> None:
    """A model may bring a drafter, which drafts unless it is told not to."""
    assert (EngineOptions(speculate=0).speculate, EngineOptions().speculate) == (0, None)
    assert EngineOptions(speculate=0).speculation is EngineOptions().speculation is None


@pytest.mark.parametrize("method", ["mtp", "glm4_moe_mtp", "deepseek_mtp"])
def test_a_model_s_own_module_needs_no_other_word(method: str) -> None:
    assert Speculation.parse(json.dumps({"method": method})) == Speculation(method="mtp")
    with pytest.raises(ValueError, match="has model, which method mtp does not have"):
        Speculation.parse(json.dumps({"method": method, "model": "org/drafter"}))


@pytest.mark.parametrize("method", NOT_SERVED)
def test_a_method_of_vllms_that_is_not_served_is_refused_saying_which_is(method: str) -> None:
    config = {"method": method, "model": "org/drafter", "num_speculative_tokens": 5, "draft_tensor_parallel_size": 1}
    with pytest.raises(ValueError, match=f"method '{method}' is not served; served are ngram, medusa, mlp_speculator"):
        Speculation.parse(json.dumps(config))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("{", "must be a JSON object"),
        ("[1]", "must be a JSON object"),
        ("3", "must be a JSON object"),
        ("{}", "must have num_speculative_tokens"),
        ('{"method": "guess", "num_speculative_tokens": 5}', "method 'guess' is not known; served are ngram, medusa"),
        ('{"num_speculative_tokens": null}', "must have num_speculative_tokens"),
        ('{"method": "draft_model", "model": "org/small"}', "must have num_speculative_tokens"),
        ('{"method": "draft_model", "num_speculative_tokens": 4}', "must have model with method draft_model"),
        ('{"method": "ngram"}', "must have num_speculative_tokens"),
        ('{"prompt_lookup_min": 2}', "must have num_speculative_tokens"),
        (
            '{"method": "ngram", "model": "ngram", "num_speculative_tokens": 5}',
            "has model, which method ngram does not",
        ),
        ('{"method": ["medusa"]}', r"method \['medusa'\] is not known"),
        ('{"model": ""}', "model must be a directory or an id on the hub, at most 4096 characters, got ''"),
        ('{"model": 7}', "model must be a directory or an id on the hub, at most 4096 characters, got 7"),
        ('{"model": "a\\nb"}', "model must be a directory or an id on the hub"),
        (json.dumps({"model": "a" * 4097}), "model must be a directory or an id on the hub"),
        ('{"model": "org/small@v1", "revision": "v2"}', "has revision, which goes with a model that has no @revision"),
        ('{"method": "suffix", "revision": "v2"}', "has revision, which goes with a model"),
        ('{"model": "org/small", "revision": 2}', "revision must be a branch, a tag or a commit, got 2"),
        ('{"model": "org/small", "parallel_drafting": true}', "parallel_drafting True is not served; served is false"),
        (
            '{"model": "org/small", "rejection_sample_method": "synthetic"}',
            "rejection_sample_method 'synthetic' is not served; served is",
        ),
        ('{"model": "org/heads", "prompt_lookup_min": 2}', "has prompt_lookup_min, which only method ngram has"),
        ('{"method": "medusa", "prompt_lookup_max": 2}', "has prompt_lookup_max, which only method ngram has"),
        (
            '{"method": "mlp_speculator", "prompt_lookup_min": 2, "prompt_lookup_max": 2}',
            "has prompt_lookup_min and prompt_lookup_max, which only method ngram has",
        ),
        ('{"model": "org/heads", "num_speculative_tokens": 64}', "num_speculative_tokens must be a whole number betw"),
        ('{"num_speculative_tokens": 5, "disable": true}', "has disable, which is not known; known are num_spec"),
        ('{"num_speculative_tokens": 0}', "num_speculative_tokens must be a whole number between 1 and 63, got 0"),
        ('{"num_speculative_tokens": true}', "num_speculative_tokens must be a whole number between 1 and 63"),
        ('{"num_speculative_tokens": 2.5}', "num_speculative_tokens must be a whole number between 1 and 63"),
        ('{"num_speculative_tokens": 1, "prompt_lookup_min": "2"}', "prompt_lookup_min must be a whole number between"),
        ('{"num_speculative_tokens": 1, "prompt_lookup_min": 5, "prompt_lookup_max": 4}', "prompt_lookup_max must be"),
        ('{"method": "suffix", "model": "org/small"}', "has model, which method suffix does not have"),
        ('{"method": "suffix", "prompt_lookup_min": 2}', "has prompt_lookup_min, which only method ngram has"),
        (
            '{"num_speculative_tokens": 5, "suffix_decoding_max_tree_depth": 9}',
            "has suffix_decoding_max_tree_depth, which only method suffix has",
        ),
        (
            '{"method": "medusa", "suffix_decoding_max_spec_factor": 1, "suffix_decoding_min_token_prob": 0}',
            "has suffix_decoding_max_spec_factor and suffix_decoding_min_token_prob, which only method suffix has",
        ),
        ('{"method": "suffix", "num_speculative_tokens": 64}', "num_speculative_tokens must be a whole number between"),
        *(
            (f'{{"method": "suffix", "suffix_decoding_{name}": {value}}}', f"suffix_decoding_{name} must be a {bounds}")
            for name, values, bounds in (
                ("max_tree_depth", ("0", "1025", "2.5", "true"), "whole number between 1 and 1024"),
                ("max_cached_requests", ("-1", "1000001", '"9"'), "whole number between 0 and 1000000"),
                ("max_spec_factor", ("-0.1", "NaN", "Infinity", '"1"', "true"), "number between 0 and 1024"),
                ("min_token_prob", ("-0.1", "1.1", "NaN", "[]"), "number between 0 and 1, got"),
            )
            for value in values
        ),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(config: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Speculation.parse(config)


def test_fields_that_change_no_answer_are_told_by_name() -> None:
    config = {"model": "org/small", "draft_tensor_parallel_size": 1, "enforce_eager": None, "max_model_len": 9}
    assert without_effect(None) == []
    assert without_effect(json.dumps(config)) == ["draft_tensor_parallel_size", "max_model_len"]


def test_in_python_the_json_may_be_a_dict() -> None:
    config = {"method": "ngram", "num_speculative_tokens": 5}
    assert EngineOptions(speculative_config=config).speculation == Speculation(5, "ngram")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="speculative_config must have num_speculative_tokens"):
        EngineOptions(speculative_config={})  # type: ignore[arg-type]
