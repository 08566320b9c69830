"""What requests wait for before they are scheduled: the adapter that they name lies in host memory, and their grammar
is compiled. Both are done at once, or on other threads.
"""

from collections.abc import Callable
from typing import Protocol

from jaxengine.architecture.adaptation import LoadedAdapter
from jaxengine.engine.adapter_registry import AdapterRegistry
from jaxengine.engine.constraints import Constraints, finish_of
from jaxengine.grammar.grammar import GrammarError
from jaxengine.request.event import Event, FinishReason
from jaxengine.request.sequence import Sequence


class Refuse(Protocol):
    """Ends the request of that id."""

    def __call__(self, request_id: int, reason: FinishReason, error: str, /) -> Event | None: ...


class Preparation:
    """Of one engine. Its methods are for the step thread.

    Args:
        adapters, constraints: what requests wait for.
        put: has work done by the step thread; called from any.
        schedule: takes a request that is ready.
    """

    def __init__(
        self,
        adapters: AdapterRegistry,
        constraints: Constraints,
        put: Callable[[Callable[[], Event | None]], None],
        schedule: Callable[[Sequence], None],
        refuse: Refuse,
    ) -> None:
        self._adapters, self._constraints = adapters, constraints
        self._put, self._schedule, self._refuse = put, schedule, refuse
        self.waiting: dict[int, Sequence] = {}  # by id of the request

    def begin(self, sequence: Sequence) -> None:
        """A request has arrived."""
        request = sequence.request
        self.waiting[request.id] = sequence
        if not request.adapter:
            self._constrain(sequence)
            return
        self._adapters.fetch(
            request.adapter, lambda adapter, problem: self._put(lambda: self._adapted(sequence, adapter, problem))
        )

    def forget(self, request_id: int) -> bool:
        """The request has ended; whether it was waiting here."""
        return self.waiting.pop(request_id, None) is not None

    def _adapted(self, sequence: Sequence, adapter: LoadedAdapter | None, problem: str) -> Event | None:
        if not self._wanted(sequence):
            return None
        if adapter is None:
            return self._refuse(sequence.request.id, FinishReason.INVALID, problem)
        sequence.adapter = adapter
        self._constrain(sequence)
        return None

    def _constrain(self, sequence: Sequence) -> None:
        if not sequence.request.constrained:
            self._ready(sequence)
            return
        self._constraints.attach(
            sequence,
            wanted=lambda: self._wanted(sequence),
            done=lambda refusal: self._put(lambda: self._constrained(sequence, refusal)),
        )

    def _constrained(self, sequence: Sequence, refusal: GrammarError | None) -> Event | None:
        if not self._wanted(sequence):
            return None
        if refusal is not None:
            return self._refuse(sequence.request.id, finish_of(refusal), str(refusal))
        self._ready(sequence)
        return None

    def _ready(self, sequence: Sequence) -> None:
        del self.waiting[sequence.request.id]
        self._schedule(sequence)

    def _wanted(self, sequence: Sequence) -> bool:
        """Whether the request has not ended meanwhile."""
        return self.waiting.get(sequence.request.id) is sequence
