"""argparse, with errors that are raised, name what is wrong, and say what is near to it. All our commands use it."""

import argparse
import json
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from jaxengine.options.option import UsageError
from jaxengine.options.suggestion import suggestion
from jaxengine.options.values import JSON

CHOICE = "CHOICE"  # the value of an option of which `--help` lists all that there are
DASHES = "-\u2013\u2014"  # pages and mails make two hyphens a dash
NO_VALUE = re.compile(r"argument (?P<names>\S+): expected (one|at least one) argument")


class Parser(argparse.ArgumentParser):
    """Raises UsageError where argparse would exit. An option has to be written out.

    Args:
        stray: what to say of a word that is no option.
    """

    def __init__(self, *args: Any, stray: str = "options begin with --", **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **options})
        self._stray = stray

    def error(self, message: str) -> NoReturn:
        if found := NO_VALUE.fullmatch(message):
            name = found["names"].split("/")[0]
            kind = self._option_string_actions[name].metavar
            message = f"{name} needs a value, {'which --help lists' if kind == CHOICE else kind}"
        raise UsageError(message)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Unknown options are named before missing ones: the one may be the other, misspelt."""
        if args is not None and self._subparsers is None:
            args = self._joined(args)
            self._refuse_unknown(args)
        made, rest = super().parse_known_args(args, namespace)
        if rest:
            raise UsageError(f"{_stray(rest[0], args or ())} is not expected: {self._stray}")
        return made, rest

    def _joined(self, args: Sequence[str]) -> list[str]:
        """`args` with all `--option.field value` of an option that is JSON as one value of it. vLLM's form."""
        end = args.index("--") if "--" in args else len(args)
        fields: dict[str, dict[str, Any]] = {}
        others = []
        words = iter(args[:end])
        for word in words:
            name, equals, value = word.partition("=")
            option, _, field = name.partition(".")
            if not field or not self._is_json(option):
                others.append(word)
                continue
            if not equals and (value := next(words, "")) == "":
                raise UsageError(f"{name} needs a value")
            fields.setdefault(option, {})[field] = _literal(value)
        for option in fields:
            if any(word.partition("=")[0] == option for word in others):
                raise UsageError(f"{option} is given whole and by its fields: give one of them")
        return [*others, *(f"{option}={json.dumps(given)}" for option, given in fields.items()), *args[end:]]

    def _is_json(self, option: str) -> bool:
        action = self._option_string_actions.get(option)
        return action is not None and action.metavar == JSON

    def _refuse_unknown(self, args: Sequence[str]) -> None:
        for word in args:
            if word == "--":
                return
            name = word.partition("=")[0]
            if name.startswith("--") and name not in self._option_string_actions:
                known = [each for each in self._option_string_actions if each.startswith("--")]
                raise UsageError(f"{name} is unknown{suggestion(name, known)}")


def _literal(text: str) -> Any:
    """What `text` is in JSON; what is none is a string."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _stray(word: str, args: Sequence[str]) -> str:
    """What to call a word that is no option, without its value, which may be a secret."""
    if word[0] in DASHES:
        return repr(word.partition("=")[0])
    before = [each.partition("=")[0] for each in args[: args.index(word)] if each.startswith("--")]
    return f"a further word behind {before[-1]}" if before else repr(word)
