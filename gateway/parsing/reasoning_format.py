"""How a family of models writes its reasoning, before the answer."""

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Marks around reasoning. The first of each is what the model writes.

    implicit: without a mark the text begins with reasoning, and all of it is reasoning if no end mark comes.
    ended_by_call: a call inside the reasoning ends it.
    noise: marks around the answer, which are dropped.
    inner: tokens that marks are made of.
    harmony: reasoning and answer are messages of harmony.py.
    """

    name: str
    begins: tuple[str, ...]
    ends: tuple[str, ...]
    implicit: bool = False
    ended_by_call: bool = False
    noise: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    harmony: bool = False

    @property
    def begin(self) -> str:
        return self.begins[0]

    @property
    def end(self) -> str:
        return self.ends[0]

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that, where they are special tokens, must stay in the text that a parser is given."""
        return (*self.begins, *self.ends, *self.noise, *self.inner)

    def open_after(self, prompt: str) -> bool:
        """Whether the text that follows `prompt` is reasoning from its first character."""
        prompt = prompt.rstrip()
        if prompt.endswith(tuple(mark.rstrip() for mark in self.begins)):
            return True
        return self.implicit and not self.closed_after(prompt)

    def closed_after(self, prompt: str) -> bool:
        """Whether reasoning is over, or switched off, with the end of `prompt`."""
        return prompt.rstrip().endswith(self.ends)

    def going_on(self, message: str) -> "ReasoningFormat":
        """The format of an answer that goes on with `message`: it begins with reasoning only if that was left open."""
        return replace(self, implicit=_last(self.begins, message) > _last(self.ends, message))


def _last(marks: Iterable[str], text: str) -> int:
    """Where the last of `marks` begins in `text`; -1 if it holds none."""
    return max(map(text.rfind, marks), default=-1)
