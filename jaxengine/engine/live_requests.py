"""The requests of an engine, from their arrival to their end: prepared, then queued by the scheduler, then gone.

`check`, `submit`, `cancel`, `notify` and `is_queued` may be called from any thread, the rest from the one that steps.
Between them stands an inbox, so the scheduler is only ever touched by the step thread.
"""

import time
from collections import deque
from collections.abc import Callable

from jaxengine.architecture.vision import Vision
from jaxengine.engine.adapter_registry import AdapterRegistry
from jaxengine.engine.answers import Answers
from jaxengine.engine.constraints import Constraints
from jaxengine.engine.preparation import Preparation
from jaxengine.request.checks import check_request
from jaxengine.request.event import Event, FinishReason
from jaxengine.request.image_checks import check_images
from jaxengine.request.interface import Description
from jaxengine.request.plan import Plan
from jaxengine.request.sequence import Request, Sequence
from jaxengine.scheduler.scheduler import Scheduler


class LiveRequests:
    """
    Args:
        vision: of the model; None of one that does not see.
        answers: begins beam searches.
        constraints, adapters: what requests wait for before they are scheduled.
    """

    def __init__(
        self,
        description: Description,
        vision: Vision | None,
        scheduler: Scheduler,
        answers: Answers,
        constraints: Constraints,
        adapters: AdapterRegistry,
    ) -> None:
        self.description = description
        self.vision = vision
        self.scheduler = scheduler
        self.answers = answers
        self.constraints = constraints
        self.adapters = adapters
        self.live: dict[int, Sequence] = {}  # by id of the request
        self.never_scheduled: set[int] = set()  # ids of requests that no step has taken up, nor a prefix they share
        self.inbox: deque[Callable[[], Event | None]] = deque()
        self.wake: Callable[[], None] = lambda: None
        self.arrivals = 0
        self.preparation = Preparation(adapters, constraints, self._put, self._schedule, self.end_early)

    # --- called from any thread ---------------------------------------------------------------------------------

    def check(self, request: Request) -> None:
        """Raises ValueError if `request` can never be served; the message names the field and the limit."""
        check_request(request, self.description)
        check_images(request, self.description, self.vision)
        self.scheduler.check(request)
        self.adapters.check(request.adapter)
        self.constraints.check(request)

    def submit(self, request: Request) -> None:
        """Queue `request`. Raises ValueError as `check` does."""
        self.check(request)
        self.never_scheduled.add(request.id)
        self._put(lambda: self._arrive(request))

    def cancel(self, request_id: int) -> None:
        """End a request; unknown and finished ones are ignored."""
        self._put(lambda: self.end_early(request_id, FinishReason.CANCELLED))

    def notify(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, from any thread, whenever the step thread has something new to do."""
        self.wake = wake

    def is_queued(self, request_id: int) -> bool:
        """Whether a submitted request has not been taken up by a step yet."""
        return request_id in self.never_scheduled

    def _put(self, work: Callable[[], Event | None]) -> None:
        self.inbox.append(work)
        self.wake()

    # --- the step thread ----------------------------------------------------------------------------------------

    @property
    def preparing(self) -> int:
        """How many live requests are not scheduled yet: their adapter is being read, or their grammar compiled."""
        return len(self.preparation.waiting)

    @property
    def idle(self) -> bool:
        """Whether a step would find nothing to do for any of them."""
        return not self.inbox and len(self.live) == self.preparing

    def read_inbox(self) -> list[Event]:
        """Take up what other threads have put there, and end the requests whose deadline has passed."""
        events = []
        while self.inbox:
            events.append(self.inbox.popleft()())
        now = time.monotonic()
        for sequence in [each for each in self.live.values() if now > each.earliest_deadline]:
            if reason := sequence.expired(now):
                events.append(self.end_early(sequence.request.id, reason))
        return [event for event in events if event is not None]

    def note_scheduled(self, plan: Plan, now: float) -> None:
        """The step of `plan`, launched at `now`, takes up requests, or leaves them waiting for a prefix they share."""
        for sequence in (*plan.admitted, *plan.waiting_for_prefix):
            sequence.admitted_at = sequence.admitted_at or now
            self.never_scheduled.discard(sequence.request.id)

    def is_live(self, sequence: Sequence) -> bool:
        """Whether the request of `sequence` has not ended. Its id may be another's meanwhile, which began while the
        last step of this one was on its way.
        """
        return self.live.get(sequence.request.id) is sequence.representative

    def end(self, sequence: Sequence, reason: FinishReason) -> None:
        """The request of `sequence`, which is live and scheduled, has its last token."""
        del self.live[sequence.request.id]
        self.scheduler.finish(sequence, reason)

    def end_early(self, request_id: int, reason: FinishReason, error: str = "") -> Event | None:
        """End a request wherever it is; None if it is unknown or has ended."""
        sequence = self.live.pop(request_id, None)
        if sequence is None:
            return None
        self.never_scheduled.discard(request_id)
        if not self.preparation.forget(request_id):
            self.scheduler.finish(sequence, reason)
        return Event(request_id, finish=reason, error=error)

    def _arrive(self, request: Request) -> None:
        self.arrivals += 1
        start_token, image_token = self.description.decoder_start_token_id, self.description.image_token_id
        cross, forgets = (self.vision.cross, self.vision.forgets) if self.vision is not None else (False, -1)
        sequence = Sequence(request, self.arrivals, start_token, image_token=image_token, cross=cross, forgets=forgets)
        self.live[request.id] = sequence
        self.preparation.begin(sequence)

    def _schedule(self, sequence: Sequence) -> None:
        if sequence.request.beam_search:
            sequence.fan_out(self.answers.beams_of(sequence.request.beam_search, sequence.params))
        self.scheduler.add(sequence)
