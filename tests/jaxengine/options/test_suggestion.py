"""The nearest name, or none."""

import pytest

from jaxengine.options.suggestion import suggestion


@pytest.mark.parametrize(
    ("word", "near"), [("FP8", "fp8"), ("float_16", "float-16"), ("int-8", "int8"), ("exl2", ""), ("", "")]
)
def test_what_is_near_is_suggested_and_nothing_else(word: str, near: str) -> None:
    assert suggestion(word, ["int8", "fp8", "float-16"]) == (f" (did you mean {near}?)" if near else "")
