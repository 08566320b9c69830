"""What one request asks: a text to continue or a chat to answer, and for how long."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """text: to continue; empty where there are `messages`.
    tools: of a chat, as OpenAI's.
    tokens: of the answer.
    fixed: whether the answer shall have exactly so many, whatever the model says.
    """

    text: str = ""
    messages: Sequence[Message] = ()
    tools: Sequence[Mapping[str, Any]] = ()
    tokens: int = 8
    fixed: bool = True

    @property
    def is_chat(self) -> bool:
        return bool(self.messages)
