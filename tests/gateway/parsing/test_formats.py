"""Which formats a server reads: those that its options name, else those that the chat template tells."""

import pytest

from gateway.config.options import Options
from gateway.launcher import launch
from gateway.parsing.formats import check_parsers, formats_of
from gateway.parsing.reasoning_formats import REASONING_FORMATS
from gateway.parsing.tool_formats import GENERIC, TOOL_FORMATS
from jaxengine.options.option import UsageError
from jaxengine.telemetry import logs

TEMPLATE = "<tool_call>{{ tools | tojson }}</tool_call> <think></think>"


def names(template: str | None = TEMPLATE, **options: str) -> dict[str, str]:
    return formats_of(template, lambda token: False, Options(**options)).names


def test_the_template_tells_unless_an_option_names_a_parser() -> None:
    assert names() == {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
    assert names("{{ messages }}") == {"tool_call_parser": GENERIC.name, "reasoning_parser": "none"}
    named = names(None, tool_call_parser="hermes", reasoning_parser="deepseek_r1")
    assert named == {"tool_call_parser": "hermes", "reasoning_parser": "deepseek_r1"}


def test_none_switches_parsers_off() -> None:
    assert set(names(tool_call_parser="none", reasoning_parser="none").values()) == {"none"}
    assert formats_of(None, lambda token: False, Options(tool_call_parser="none")).forced is GENERIC


@pytest.mark.parametrize(
    ("option", "known"), [("tool_call_parser", TOOL_FORMATS), ("reasoning_parser", REASONING_FORMATS)]
)
def test_an_unknown_parser_is_a_usage_error_that_lists_those_there_are(option: str, known: tuple[str, ...]) -> None:
    for name in (*known, "none"):
        check_parsers(Options(**{option: name}))
    with pytest.raises(UsageError) as wrong:
        check_parsers(Options(**{option: "mine"}))
    assert "'mine'" in str(wrong.value) and all(name in str(wrong.value) for name in ("none", *known))


def test_the_launcher_refuses_an_unknown_parser(capfd: pytest.CaptureFixture[str]) -> None:
    assert launch(["--reasoning-parser=mine"], {}) == logs.USAGE
    assert "--reasoning-parser 'mine' must be none or one of" in capfd.readouterr().err
