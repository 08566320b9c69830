"""The step loop: plan step n+1, launch it, then read the tokens of step n.

One thread calls `step`; `submit` and `cancel` may be called from any. Between the two stands an inbox, that of
`LiveRequests`, so scheduler and runner are only ever touched by the step thread.

When a step raises, its caches are gone. Every live request is requeued from host state. The requests of the failed step
are then run in halves, one step at a time, until the one that fails alone is found, see `fault_isolation`. That request
ends with an error. The others go on with the tokens they would have had, since tokens depend on (seed, position) only.
"""

import logging
import time
from collections.abc import Callable

import numpy as np

from jaxengine.engine.adapter_registry import AdapterRegistry
from jaxengine.engine.answers import Answers
from jaxengine.engine.constraints import Constraints, finish_of
from jaxengine.engine.fault_isolation import CulpritSearch
from jaxengine.engine.gauges import gauges
from jaxengine.engine.live_requests import LiveRequests
from jaxengine.engine.result_processor import ResultProcessor
from jaxengine.executor.compile_cache import COMPILES
from jaxengine.executor.runner import BackboneLaunch, Runner
from jaxengine.request.event import FinishReason
from jaxengine.request.interface import Description, ServedAdapter, Stats, StepResult
from jaxengine.request.plan import Plan
from jaxengine.request.sequence import Request
from jaxengine.scheduler.scheduler import Scheduler
from jaxengine.speculation.speculator import Speculator
from jaxengine.step.results import InFlight

logger = logging.getLogger(__name__)

MAX_LONE_FAILURES = 3  # requests in a row that fail alone with no good step between: then it is not the requests


class EngineFailure(RuntimeError):
    """The engine cannot go on: the process should end and be started anew."""


class Engine:
    """Requests in, tokens out, step by step.

    Args:
        constraints: of requests that carry a grammar or bound their reasoning.
        adapters: that requests may name.
    """

    def __init__(
        self,
        description: Description,
        runner: Runner,
        scheduler: Scheduler,
        constraints: Constraints,
        adapters: AdapterRegistry,
    ) -> None:
        self.description = description
        self.runner = runner
        self.scheduler = scheduler
        self.constraints = constraints
        self.adapter_registry = adapters
        self.answers = Answers(description.eos_token_ids)
        vision = runner.shapes.spec.vision
        self.requests = LiveRequests(description, vision, scheduler, self.answers, constraints, adapters)
        self.result_processor = ResultProcessor(self.answers, self.requests, scheduler)
        self.flight: InFlight | None = None
        self.launched = 0.0
        self.culprit_search = CulpritSearch()
        self.lone_failures = 0
        self.start_counting()

    def start_counting(self) -> None:
        """Set the counters of `stats` to zero."""
        self.steps = self.step_failures = 0
        self.answers.start_counting()
        self.scheduler.images.start_counting()
        self.compiles_at_start = COMPILES.unexpected
        if self.speculator:
            self.speculator.start_counting()

    @property
    def speculator(self) -> Speculator | None:
        return self.scheduler.speculator

    @property
    def steps_on_host(self) -> bool:
        return self.runner.device.on_host

    # --- called from any thread ---------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue `request`.

        Raises:
            ValueError: it can never be served; the message names the field and the limit.
        """
        self.requests.submit(request)

    def cancel(self, request_id: int) -> None:
        """End a request; unknown and finished ones are ignored."""
        self.requests.cancel(request_id)

    def notify(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, from any thread, whenever `step` has something new to do."""
        self.requests.notify(wake)

    @property
    def preparing(self) -> int:
        """How many live requests are not scheduled yet: their adapter is being read, or their grammar compiled."""
        return self.requests.preparing

    def is_queued(self, request_id: int) -> bool:
        """Whether a submitted request has not been taken up by a step yet."""
        return self.requests.is_queued(request_id)

    def finish_compiling(self) -> None:
        """Wait until every bucket is compiled and has run. Measurements need this, serving does not."""
        self.runner.executables.finish()
        while self.runner.warm_next():
            pass

    def close(self) -> None:
        """Stop compiling. Call it for an engine that is thrown away before its process ends."""
        self.runner.executables.close()
        self.constraints.close()
        self.adapter_registry.close()

    @property
    def idle(self) -> bool:
        """Whether `step` has nothing to do."""
        return self.requests.idle and self.flight is None

    def stats(self) -> Stats:
        return Stats(
            preemptions=self.scheduler.preemptions,
            prompt_tokens=self.answers.prompt_tokens,
            cached_prompt_tokens=self.answers.cached_prompt_tokens,
            generated_tokens=self.answers.generated_tokens,
            step_failures=self.step_failures,
            compiles_after_warmup=COMPILES.unexpected - self.compiles_at_start,
            steps=self.steps,
            **gauges(self.scheduler, self.requests.preparation.waiting.values()),
            **self.scheduler.images.stats(),
            **self.constraints.stats(),
            **(self.speculator.stats() if self.speculator else {}),
        )

    def load_adapter(self, name: str, path: str, *, in_place: bool = False) -> ServedAdapter:
        return self.adapter_registry.load(name, path, in_place=in_place)

    def unload_adapter(self, name: str) -> None:
        self.adapter_registry.unload(name)

    def adapters(self) -> tuple[ServedAdapter, ...]:
        return self.adapter_registry.served()

    def check(self, request: Request) -> None:
        """Raises ValueError if `request` can never be served."""
        self.requests.check(request)

    # --- the step thread ----------------------------------------------------------------------------------------

    def step(self) -> StepResult | None:
        """One turn of the loop; None if there was nothing to do.

        Raises:
            EngineFailure: failures that no single request explains.
        """
        result = StepResult(self.requests.read_inbox())
        try:
            self._turn(result)
        except Exception as error:
            self._recover(error, result)
        if not (result.events or result.seconds):
            return None
        tables = self.scheduler.tables
        result.pages = tables.pool.take_changes() if tables.prefix_cache else None
        return result

    def _turn(self, result: StepResult) -> None:
        """Launch the next step, then complete the one before. While a culprit is searched, steps run one at a time.

        Where a grammar decides what may be sampled next, the step before is completed between the next one's backbone
        and its samples: the device computes the backbone meanwhile. Where the next step may verify drafts, or this one
        does, it is completed first.
        """
        previous, self.flight = self.flight, None
        busy = previous is not None
        if previous is not None and self.scheduler.needs_tokens(previous.plan):
            self._complete(previous, result)
            previous = None
        plan = self._plan(previous)
        if plan.rows:
            now = time.monotonic()
            self.requests.note_scheduled(plan, now)
            self.launched = self.launched if busy else now
            launch = self.runner.launch_backbone(plan)
            if any(row.sequence.matcher for row in launch.samples.rows):
                if previous is not None:
                    self._complete(previous, result)
                    previous = None
                self._mask(launch, result)
            self.flight = self.runner.launch_sample(launch)
        elif previous is None and not self.requests.live:
            self._warm_next()
        if previous is not None:
            self._complete(previous, result)
        if self.culprit_search and self.flight is not None:
            flight, self.flight = self.flight, None
            self._complete(flight, result)

    def _mask(self, launch: BackboneLaunch, result: StepResult) -> None:
        """Send the masks of the samples whose sequences have grammars. One that cannot go on ends with an error."""
        rows = [row for row in launch.plan.rows if row.samples and row.sequence.matcher]
        rows = [row for row in rows if self.requests.is_live(row.sequence)]
        masks, broken = self.constraints.masks([row.sequence for row in rows])
        for sequence, error in broken:
            if event := self.requests.end_early(sequence.request.id, finish_of(error), str(error)):
                result.events.append(event)
        behind = [self.constraints.masks_behind(row.sequence, row.draft) for row in rows if row.draft]
        self.runner.write_masks(launch.samples, rows, np.concatenate([masks, *behind]))

    def _warm_next(self) -> None:
        """First run of a new step shape, while nobody waits. If it fails, it is never used and the cache is lost."""
        try:
            self.runner.warm_next()
        except Exception as error:
            logger.error("the first run of a step failed", exc_info=error)
            self._start_over()

    def _plan(self, previous: InFlight | None) -> Plan:
        """The next step; of the suspected group alone while a culprit is searched."""
        group = self.culprit_search.current(self.requests.live)
        if group is None:
            return self.scheduler.plan()
        return Plan() if previous else self.scheduler.plan(lambda sequence: sequence.request.id in group)

    def _complete(self, flight: InFlight, result: StepResult) -> None:
        results = self.runner.fetch(flight)
        self.answers.note(results, flight.scored_samples)
        now, launched, generated = time.monotonic(), self.launched, self.answers.generated_tokens
        result.seconds += now - launched
        self.launched = now
        self.steps += 1
        self.lone_failures = 0
        self.result_processor.process(flight.plan, results, now, result)
        for beams, forks in self.result_processor.grow_beams(flight.plan, now, result):
            self.runner.regrow(beams, forks)
        if self.speculator and not flight.plan.grows_beams and self.runner.buckets.last_first_run < launched:
            answered = self.answers.generated_tokens - generated
            self.speculator.note(flight.plan, flight.shape.tokens, now - launched, answered)
        if self.culprit_search:
            sampled = [row.sequence for row in flight.samples.rows]
            self.culprit_search.step_succeeded([each.request.id for each in sampled if not each.waits_for_beams])

    # --- failure ------------------------------------------------------------------------------------------------

    def _recover(self, error: Exception, result: StepResult) -> None:
        """Make fresh caches, requeue every request, and search on for the culprit; end it if it is found."""
        self.step_failures += 1
        failed = self._failed()
        logger.error("a step of %d requests failed", len(failed), exc_info=error)
        self._start_over()
        culprit = self.culprit_search.step_failed(failed)
        if failed and culprit is None:
            return
        self.lone_failures += 1
        if self.lone_failures >= MAX_LONE_FAILURES:
            raise EngineFailure(f"{self.lone_failures} steps in a row failed, whoever was in them") from error
        if culprit is None:  # all requests of the step had been cancelled
            return
        if event := self.requests.end_early(culprit, FinishReason.ERROR, "the request failed inside the engine"):
            result.events.append(event)

    def _start_over(self) -> None:
        self.flight = None
        self.scheduler.reset()
        try:
            self.runner.reset()
        except Exception as error:
            raise EngineFailure(f"the cache cannot be rebuilt: {error}") from error

    def _failed(self) -> list[int]:
        """Ids of the live requests that may have been in the failed step, in order of arrival."""
        group = self.culprit_search.current(self.requests.live)
        running = [sequence.request.id for sequence in self.scheduler.batch.running if sequence.first]
        return [request for request in running if group is None or request in group]
