"""Which of a request's tools the model may call, and whether it must: `tool_choice`, as any client writes it."""

from dataclasses import dataclass
from typing import Any, Literal

from gateway.errors import RequestError
from gateway.routes.openai.tools import MAX_NAME, NAME, Function

Mode = Literal["none", "auto", "required"]
MODES: tuple[Mode, ...] = ("none", "auto", "required")


@dataclass(frozen=True)
class ToolUse:
    """What a request says of tools.

    functions: all of them, which the prompt shows unless the mode is `none`.
    callable: those that the model may call.
    named: one function was asked for by its name.
    restricted: the model may not call all that it is shown.
    parallel: an answer may hold several calls.
    legacy: asked for, and answered, in OpenAI's older `functions` and `function_call`.
    """

    functions: tuple[Function, ...] = ()
    mode: Mode = "none"
    callable: tuple[Function, ...] = ()
    named: bool = False
    parallel: bool = True
    legacy: bool = False

    @property
    def restricted(self) -> bool:
        return len(self.callable) < len(self.functions)

    @property
    def on(self) -> bool:
        """Whether the answer may hold calls."""
        return self.mode != "none" and bool(self.callable)

    @property
    def tools_field(self) -> str:
        """The request's field that holds the functions."""
        return "functions" if self.legacy else "tools"

    def schema_field(self, function: Function) -> str:
        """The field that holds the schema of the function's arguments."""
        at = self.functions.index(function)
        return f"{self.tools_field}[{at}]{'' if self.legacy else '.function'}.{function.schema_field}"

    @property
    def shown(self) -> list[dict[str, Any]] | None:
        """The tools for the chat template."""
        return [{"type": "function", "function": each.shown} for each in self.functions] if self.on else None


NO_TOOLS = ToolUse()


def tool_use(functions: list[Function], choice: Any, *, field: str, legacy: bool, parallel: bool) -> ToolUse:
    """What `choice`, the request's `field`, makes of `functions`. Raises RequestError."""
    mode, names, named = _read(choice, field)
    if not functions:
        if mode == "required":
            tools = "functions" if legacy else "tools"
            raise RequestError.invalid(f"{field} asks for a call, which needs {tools}", field)
        return NO_TOOLS
    known = {each.name: each for each in functions}
    for name in names or ():
        if name not in known:
            shown = f" `{name}`" if len(name) <= MAX_NAME and NAME.fullmatch(name) else ""
            raise RequestError.invalid(f"{field} names a function{shown} that is not among the tools", field)
    chosen = functions if names is None else [each for each in functions if each.name in names]
    return ToolUse(tuple(functions), mode, tuple(chosen), named, parallel and not legacy and not named, legacy)


def _read(choice: Any, field: str) -> tuple[Mode, list[str] | None, bool]:
    """The mode, the names that it is restricted to, and whether one was named."""
    if choice is None:
        return "auto", None, False
    if isinstance(choice, str):
        return (choice, None, False) if choice in MODES else ("required", [choice], True)  # a bare name is TGI's
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return _allowed(choice.get("allowed_tools", choice), field)
    return "required", [_name(choice, field)], True


def _allowed(allowed: Any, field: str) -> tuple[Mode, list[str] | None, bool]:
    if not isinstance(allowed, dict) or not isinstance(allowed.get("tools"), list) or not allowed["tools"]:
        raise RequestError.invalid(f"{field} of type allowed_tools needs a list of tools, not empty", field)
    mode = allowed.get("mode", "auto")
    if mode not in ("auto", "required"):
        raise RequestError.invalid(f"{field}: the mode of allowed_tools must be 'auto' or 'required'", field)
    return mode, [_name(each, field) for each in allowed["tools"]], False


def _name(choice: Any, field: str) -> str:
    """The name in `{"type": "function", "function": {"name": …}}`, in `{"name": …}` or between the two."""
    if isinstance(choice, dict) and choice.get("type", "function") == "function":
        function = choice.get("function", choice)
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str):
            return name
    modes = ", ".join(f"'{mode}'" for mode in MODES)
    raise RequestError.invalid(f"{field} must be {modes} or name one function by type and name", field)
