"""What the results of a completed step do to its requests: they are told their tokens, and those that end are let go.

`Answers` knows what tokens mean for a request, the scheduler what they mean for its pages. Nothing is launched here:
what the device must do for beams is yielded.
"""

from collections.abc import Iterator

import numpy as np

from jaxengine.cache.page_tables import Fork
from jaxengine.engine.answers import Answers
from jaxengine.engine.live_requests import LiveRequests
from jaxengine.request.event import NOT_FINISHED, Event, FinishReason, Token
from jaxengine.request.interface import StepResult
from jaxengine.request.plan import Plan, Row
from jaxengine.request.sequence import Sequence
from jaxengine.scheduler.scheduler import Scheduler
from jaxengine.speculation.speculator import Speculator
from jaxengine.step.results import Results


class ResultProcessor:
    """Of one engine. `now` is on the monotonic clock; events go into the step's `StepResult`."""

    def __init__(self, answers: Answers, requests: LiveRequests, scheduler: Scheduler) -> None:
        self.answers = answers
        self.requests = requests
        self.scheduler = scheduler

    def process(self, plan: Plan, results: Results, now: float, result: StepResult) -> None:
        """The step of `plan` has left `results`."""
        self.answers.count(plan, result)
        for row, logits in results.logits:
            if not np.isfinite(logits).all():
                self._give_up(row.sequence, result)
        for row, tokens, finite in results.sampled.by_row(plan.rows):
            if tokens and self.requests.is_live(row.sequence):
                self._accept(row, tokens, now, result)
            if not finite:
                self._give_up(row.sequence, result)
        self.scheduler.complete(plan)

    def grow_beams(self, plan: Plan, now: float, result: StepResult) -> Iterator[tuple[list[Sequence], list[Fork]]]:
        """Go on with the searches all of whose beams have been sampled, and let those go that are done. Of each that
        goes on, its beams and the forks that the device must follow before the next.
        """
        for first in dict.fromkeys(row.sequence.representative for row in plan.rows if row.sequence.beams):
            if first.beams is None or not first.beams.ready or not self.requests.is_live(first):
                continue
            moves = first.beams.advance()
            if first.beams.done:
                event = self.answers.conclude(first, first.beams.answers, now, result)
                self.requests.end(first, event.finish)
                result.events.append(event)
            else:
                yield first.members, self.scheduler.grow_beams(first, moves)

    def _give_up(self, sequence: Sequence, result: StepResult) -> None:
        """A row was not finite. Its pages must not be shared, even if its request has ended meanwhile."""
        self.scheduler.finish(sequence, FinishReason.ERROR)
        if self.requests.is_live(sequence):
            del self.requests.live[sequence.request.id]
            error = "the model's logits are not finite"
            result.events.append(Event(sequence.request.id, finish=FinishReason.ERROR, error=error))

    def _accept(self, row: Row, tokens: list[Token], now: float, result: StepResult) -> None:
        """Tell a row's request its new tokens, and let it go if they end it. Those of a beam are only noted."""
        sequence = row.sequence
        if sequence.beams is not None:
            sequence.beams.note(sequence.members.index(sequence), tokens[0].top)
            return
        event = self.answers.extend(sequence, tokens, now, result)
        if self.scheduler.speculator is not None:
            _count_draft(row, event, self.scheduler.speculator)
        if event.finish is not NOT_FINISHED:
            self.requests.end(sequence, event.finish)
        result.events.append(event)


def _count_draft(row: Row, event: Event, speculator: Speculator) -> None:
    sequence = row.sequence
    sequence.sampling_steps += 1
    speculator.learn(sequence, row.draft, len(event.tokens) - 1)
    event.sampling_steps = sequence.sampling_steps
    event.draft_tokens, event.accepted_draft_tokens = sequence.draft_tokens, sequence.accepted_draft_tokens
