"""From the answers of runs to the numbers of a level, by the definitions of `vllm bench serve`.

Rates are over the duration of the benchmark, from its start to the end of its last answer. Only complete answers count:
in rates, in tokens and in times.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.benchmark.answer import Answer, Outcome
from gateway.benchmark.distribution import Distribution
from gateway.benchmark.report import Level, Load
from gateway.benchmark.slo import Slo


@dataclass(frozen=True)
class Run:
    """seconds: from its start to its last answer's end."""

    answers: Sequence[Answer]
    seconds: float


def level(load: Load, runs: Sequence[Run], slo: Slo | None) -> Level:
    answers = [answer for run in runs for answer in run.answers]
    together = Run(answers, sum(run.seconds for run in runs))
    failed = [answer for answer in answers if not answer.complete]
    return Level(
        load,
        runs=[_of_run(run, slo) for run in runs],
        spread=_spread(answers),
        totals=_totals(together, slo),
        failures=dict(Counter(str(answer.outcome) for answer in failed)),
        examples={str(answer.outcome): answer.detail for answer in reversed(failed)},
    )


def rates(run: Run, slo: Slo | None) -> dict[str, float]:
    """Requests, output tokens and all tokens a second; with an SLO the goodput: good answers a second."""
    complete = [answer for answer in run.answers if answer.complete]
    output = sum(answer.output_tokens for answer in complete)
    prompts = sum(answer.prompt_tokens for answer in complete)
    counts = {
        "requests_per_second": len(complete),
        "output_tokens_per_second": output,
        "total_tokens_per_second": output + prompts,
    }
    if slo is not None:
        counts["good_requests_per_second"] = sum(map(slo.met, complete))
    return {name: count / run.seconds if run.seconds else 0.0 for name, count in counts.items()}


def _of_run(run: Run, slo: Slo | None) -> dict[str, float]:
    return rates(run, slo) | {name: each.mean for name, each in _spread(run.answers).items()}


def _spread(answers: Sequence[Answer]) -> dict[str, Distribution]:
    complete = [answer for answer in answers if answer.complete]
    streams = [answer for answer in complete if answer.streamed]
    seconds = {
        "ttft_ms": [answer.ttft for answer in complete],
        "tpot_ms": [answer.tpot for answer in streams if answer.tpot is not None],
        "itl_ms": [gap for answer in streams for gap in answer.gaps],
        "e2e_ms": [answer.e2e for answer in complete],
        "sent_late_ms": [answer.late for answer in complete if answer.late],
    }
    found = {name: Distribution.of(1e3 * each for each in times) for name, times in seconds.items()}
    return {name: each for name, each in found.items() if each is not None}


def _totals(run: Run, slo: Slo | None) -> dict[str, float]:
    complete = [answer for answer in run.answers if answer.complete]
    totals: dict[str, float] = {
        "requests": len(run.answers),
        "complete": len(complete),
        "rejected": sum(answer.outcome is Outcome.REJECTED for answer in run.answers),
        "seconds": run.seconds,
        "prompt_tokens": sum(answer.prompt_tokens for answer in complete),
        "output_tokens": sum(answer.output_tokens for answer in complete),
        "cached_tokens": sum(answer.cached_tokens for answer in complete),
        **rates(run, slo),
    }
    if slo is not None:
        totals["good_share"] = sum(map(slo.met, complete)) / len(run.answers) if run.answers else 0.0
    return totals
