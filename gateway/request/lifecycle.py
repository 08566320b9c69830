"""One request from its validated body to its last token: permits, clock, metrics and span.

Every request is counted once and ends in exactly one way: success, refusal, failure, or a client that left. Nothing
here knows a dialect.
"""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractContextManager, ExitStack, aclosing, contextmanager
from types import TracebackType

from gateway.engine.interface import EngineUnavailable
from gateway.errors import SHUTTING_DOWN, ClientGone, Kind, RequestError
from gateway.http.encoding import json_bytes, short_float
from gateway.observability.request_stats import RequestStats, Sequence
from gateway.observability.sink import Failure
from gateway.request.admission import Overloaded, Ticket
from gateway.request.gateway_state import Gateway
from gateway.request.info import RequestInfo
from gateway.request.output import Finish, OutputDelta, OutputProcessor, by_request, run_all
from gateway.text.model_text import ModelText
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.telemetry.tracing import Span

MIN_TIMEOUT = 1e-3  # 0 would mean none
COUNTED = re.compile(r"[a-z]+ \d+/\d+( MB)?")  # "compiling 3/8"

CAUSES: dict[Kind, Failure] = {
    Kind.TEMPLATE: "template",
    Kind.OVERLOADED: "overloaded",
    Kind.UNAVAILABLE: "unavailable",
    Kind.DEADLINE: "generation",
    Kind.GENERATION: "generation",
    Kind.INTERNAL: "generation",
}


def _cause(error: BaseException) -> Failure:
    if isinstance(error, asyncio.CancelledError | GeneratorExit | ClientGone):
        return "dropped"
    return CAUSES.get(error.kind, "validation") if isinstance(error, RequestError) else "generation"


def serving(gateway: Gateway) -> tuple[ModelText, pb.Description]:
    """The model being served. Raises EngineUnavailable when there is none, or the server is about to stop."""
    description, model = gateway.engine.description, gateway.text_loader.current
    if gateway.draining:
        raise EngineUnavailable(SHUTTING_DOWN, gateway.engine.retry_after)
    if not gateway.ready or description is None or model is None:
        raise EngineUnavailable(f"the model is not ready{_progress(description)}", gateway.engine.retry_after)
    return model, description


def _progress(description: pb.Description | None) -> str:
    """The engine's progress line if it is a count, as ": compiling 3/8". Other progress lines may name paths."""
    line = "" if description is None or description.state == pb.READY else description.progress
    return f": {line}" if COUNTED.fullmatch(line) else ""


def _parameters(request: pb.Generate) -> str:
    """The numeric parameters of a request, as JSON. Fields that hold the client's words or ids are left out."""
    listed = [*request.sampling.ListFields(), *request.sampling.samplers.ListFields()]
    fields = {each.name: value for each, value in listed if isinstance(value, int | float)}
    fields = {name: short_float(value) if isinstance(value, float) else value for name, value in fields.items()}
    fields.pop("seed", None)
    return json_bytes({"max_new_tokens": request.max_new_tokens, **fields}).decode()


def _seed(request: pb.Generate) -> str:
    """The seed as TGI logs it; "None" where tokens are chosen greedily."""
    return f"Some({request.sampling.seed})" if request.sampling.temperature else "None"


class RequestLifecycle:
    """A `with` block around everything that is done for one request.

    The order is `admit`, `span`, then `run` or `collect`, and `stats` once the last token has come. Moments are in
    seconds of time.perf_counter.
    """

    def __init__(self, gateway: Gateway, info: RequestInfo) -> None:
        self._gateway, self._info = gateway, info
        self._stack = ExitStack()
        self._ticket: Ticket | None = None
        self._outputs: list[OutputProcessor] = []
        self._span = Span("")
        self.arrival = info.arrival
        self.submitted = self.arrival
        self.ended = self.arrival
        self.first_token = self.arrival

    def __enter__(self) -> "RequestLifecycle":
        self._gateway.metrics.request_received()
        ago = time.perf_counter() - self.arrival
        self._span = self._gateway.tracing.start(self._info.name, self._info.traceparent, ago=ago)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()
        if error is not None:
            self._gateway.metrics.request_failed(_cause(error))
            if isinstance(error, Overloaded):
                self._gateway.metrics.request_refused(error.bound)
        elif self._outputs:
            stats = self.stats()
            self._gateway.metrics.request_succeeded(stats)
            self._gateway.last_answer = stats
            self._record(stats)
        self._span.end("" if error is None else _cause(error))

    @property
    def salt(self) -> bytes:
        """What callers must share to share what the engine keeps."""
        return self._info.caller.salt

    def admit(self, copies: int) -> None:
        """Take one permit per sequence, or beam, until the block ends. Raises as `Admission.request`."""
        self._ticket = self._stack.enter_context(self._gateway.admission.request(copies, self._info.caller.number))

    def keep(self, held: AbstractContextManager[None]) -> None:
        """Enter `held`, and leave it when the block ends. Raises as it does."""
        self._stack.enter_context(held)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """A child span around part of the work."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._gateway.tracing.past(name, self._span.traceparent, began, time.perf_counter())

    async def run(
        self, outputs: list[OutputProcessor], at_once: int | None = None
    ) -> AsyncGenerator[tuple[int, OutputDelta], None]:
        """The deltas of all sequences as they come, each with its sequence's index. `admit` must have been called.

        Args:
            at_once: sequences that the engine has at once; all if not given.
        """
        assert self._ticket is not None, "run before admit"
        self._outputs = outputs
        requests = [sequences[0][1].request for sequences in by_request(outputs)]
        self._ticket.queue(sum(len(each.prompt) for each in requests[:at_once]))
        self.submitted = time.perf_counter()
        self._gateway.tracing.past("validate", self._span.traceparent, self.arrival, self.submitted)
        for each in requests:
            self._add_server_fields(each)
        metrics = self._gateway.metrics
        last: dict[int, float] = {}  # when the latest delta of each sequence came
        try:
            async with aclosing(run_all(self._gateway.engine, outputs, self._gateway.options, at_once)) as deltas:
                async for index, delta in deltas:
                    now = time.perf_counter()
                    if not last:
                        self._ticket.started()
                        self.first_token = now
                        if delta.tokens:  # an embedding has none
                            metrics.first_token(now - self.arrival)
                    elif index in last:
                        for _ in delta.tokens:  # they share the time since those before
                            metrics.next_token((now - last[index]) / len(delta.tokens))
                    last[index] = now
                    yield index, delta
        finally:  # also where the caller wants no more
            self.ended = time.perf_counter()

    def _add_server_fields(self, request: pb.Generate) -> None:
        """Add what the server decides and not the body: the caller, the cache's salt, the trace and the time limits."""
        request.caller = self._info.caller.number
        request.cache_salt = self.salt + request.cache_salt
        request.traceparent = self._span.traceparent
        request.queue_timeout_seconds = self._gateway.options.queue_timeout
        request.timeout_seconds = self.time_left() or 0.0

    def time_left(self) -> float | None:
        """Seconds that the server and the client still give the request; None without a limit."""
        limits = [limit for limit in (self._gateway.options.request_timeout, self._info.timeout) if limit]
        return max(MIN_TIMEOUT, self.arrival + min(limits) - time.perf_counter()) if limits else None

    def _record(self, stats: RequestStats) -> None:
        """Put on the span and the log line what TGI's carry, and the numbers of tokens; nothing of their content."""
        seconds = {"total_time": stats.total, "validation_time": stats.validation, "queue_time": stats.queue}
        seconds |= {"inference_time": stats.inference, "time_per_token": stats.per_token}
        asked = {"parameters": _parameters(self._outputs[0].request), "seed": _seed(self._outputs[0].request)}
        if adapter := self._outputs[0].request.adapter:
            asked["adapter"] = adapter
        counts: dict[str, float] = {"prompt_tokens": stats.input_tokens, "generated_tokens": stats.generated_tokens}
        description = self._gateway.engine.description
        if description is not None and description.max_draft_tokens:
            counts["tokens_per_step"] = round(stats.tokens_per_step, 2)
        self._span.set(**counts, **seconds, **asked)
        self._info.log_fields.update({name: f"{1000 * value:.3f}ms" for name, value in seconds.items()}, **asked)
        self._info.log_fields.update({name: str(value) for name, value in counts.items()})

    async def collect(self, outputs: list[OutputProcessor]) -> list[list[OutputDelta]]:
        """Run to the end; all deltas, by sequence."""
        collected: list[list[OutputDelta]] = [[] for _ in outputs]
        async with aclosing(self.run(outputs)) as deltas:
            async for index, delta in deltas:
                collected[index].append(delta)
        return collected

    def stats(self) -> RequestStats:
        """The request's sequences and times. The queue time is that of the first sequence."""
        total = self.ended - self.arrival
        validation = self.submitted - self.arrival
        queue = min(self._outputs[0].prompt.queue_seconds, max(0.0, total - validation))
        return RequestStats(
            sequences=tuple(map(_sequence, self._outputs)),
            validation=validation,
            queue=queue,
            inference=max(0.0, total - validation - queue),
            total=total,
            first_token=self.first_token - self.arrival,
            at_once=self._outputs[0].request.HasField("beam_search"),
        )


def _sequence(output: OutputProcessor) -> Sequence:
    return Sequence(
        input_tokens=len(output.prompt_ids),
        cached_tokens=output.prompt.cached_tokens,
        generated_tokens=output.generated,
        max_new_tokens=output.request.max_new_tokens,
        preemptions=output.preemptions,
        accepted_draft_tokens=output.accepted_draft_tokens,
        finish="length" if output.finish is Finish.LENGTH else "stop",
    )
