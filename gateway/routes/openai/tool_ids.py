"""Ids of calls, by which a client says to which call a result belongs."""

import secrets
import string

from gateway.parsing.tool_format import ToolFormat

_CHARACTERS = string.ascii_letters + string.digits


def new_id(tool_format: ToolFormat) -> str:
    """A new id, as OpenAI's; for Mistral's models as their templates want it back: of nine characters."""
    length, prefix = (9, "") if "mistral" in tool_format.name else (24, "call_")
    return prefix + "".join(secrets.choice(_CHARACTERS) for _ in range(length))
