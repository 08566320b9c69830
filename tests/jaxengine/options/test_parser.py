"""What all commands' parser adds to argparse: an option of JSON may be given a field at a time, as vLLM takes it."""

import re

import pytest

from gateway.config.command_line import parse
from jaxengine.options.option import UsageError


def test_an_option_that_is_json_is_also_given_a_field_at_a_time() -> None:
    words = ["--speculative-config.method", "ngram", "--port=1", "--speculative-config.num_speculative_tokens=4"]
    options = parse(words, {})
    assert options.port == 1
    assert options.speculative_config == '{"method": "ngram", "num_speculative_tokens": 4}'


@pytest.mark.parametrize(
    "words, message",
    [
        (["--speculative-config.method=ngram", "--speculative-config={}"], "is given whole and by its fields"),
        (["--speculative-config.method"], "--speculative-config.method needs a value"),
        (["--speculative-config.methd=ngram"], "methd"),
        (["--model-id.method=ngram"], "--model-id.method is unknown"),
    ],
)
def test_fields_of_an_option_that_are_wrong_are_named(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        parse(words, {})
