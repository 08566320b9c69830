"""Refusals of a completion in the words of another protocol, whose requests are made into one."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from gateway.errors import RequestError

_WORD = re.compile(r"(?<![\w-])[A-Za-z_]+(?![\w-])")  # no part of an option's name


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """A refusal in the block names fields as `names` does, by what a completion calls them."""
    try:
        yield
    except RequestError as error:
        error.message = _WORD.sub(lambda word: names.get(word[0], word[0]), error.message)
        raise
