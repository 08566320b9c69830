"""A request while the mock answers it."""

import time
from dataclasses import dataclass, field

from jaxengine.request.sequence import Request


@dataclass
class Live:
    """A request that runs. What it was answered before counts as if it had been answered here."""

    request: Request
    adapter: str = ""  # the path of its adapter
    arrived: float = field(default_factory=time.monotonic)
    ids: list[int] = field(default_factory=list)  # its prompt's, and those that it has been answered
    generated: int = 0
    begun: bool = False  # it has had an event
    cached_tokens: int = 0
    sampling_steps: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0

    def __post_init__(self) -> None:
        answered = self.request.resume.generated if self.request.resume else ()
        self.ids, self.generated = [*self.request.prompt, *answered], len(answered)

    @property
    def waits(self) -> bool:
        """Whether it has had what it gets while requests are held."""
        return self.begun or self.request.beam_search is not None
