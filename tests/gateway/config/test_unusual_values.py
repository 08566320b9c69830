"""Values that a shell passes without a word: bytes that are no text, and variables that a script forgot to set."""

import os

import pytest

from gateway.config.command_line import parse
from jaxengine.options.option import UsageError

NOT_UTF_8 = os.fsdecode(b"/models/mod\xe8le")


@pytest.mark.parametrize("name", ["model-id", "served-model-name", "huggingface-hub-cache"])
def test_bytes_that_are_no_text_are_refused_with_what_to_do(name: str) -> None:
    with pytest.raises(UsageError, match=rf"^--{name} '/models/mod\\udce8le' must be text in utf-8: .*LC_ALL=C.UTF-8"):
        parse([f"--{name}", NOT_UTF_8], {})


@pytest.mark.parametrize(
    "name", ["huggingface-hub-cache", "shard-uds-path", "weights-cache-override", "tokenizer-config-path"]
)
def test_a_path_that_is_empty_is_not_the_working_directory(name: str) -> None:
    with pytest.raises(UsageError, match=f"^--{name} '' must not be empty$"):
        parse([f"--{name}="], {})
