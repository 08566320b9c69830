"""One sample of the feed: its fields and their units, which are documented here and nowhere else."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from gateway.observability.feed.window import Percentiles

DIGITS = 4  # significant ones, of measured values


@dataclass(frozen=True)
class ReplicaSample:
    """One engine.

    index: its number.
    state: "starting", "ready", "draining" or "lost"; None where it is not known.
    running, waiting: requests.
    pages_used, pages_cached, pages_total: KV cache pages held by running requests, free but with a prefix still in
        them, and in all.
    prompt_tokens_per_second, generated_tokens_per_second: since the previous sample.
    prompt_tokens, cached_tokens, generated_tokens: since the engine started: tokens of prompts, those of them found in
        the prefix cache, and new tokens.
    step_age_seconds: since its step loop last showed life; None while it is not there.
    compiles: step functions compiled after the warm-up, since the engine started.
    restarts: of the engine, since the server started.
    """

    index: int
    state: str | None
    running: int
    waiting: int
    pages_used: int
    pages_cached: int
    pages_total: int
    prompt_tokens_per_second: float | None
    generated_tokens_per_second: float | None
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    step_age_seconds: float | None
    compiles: int
    restarts: int


@dataclass(frozen=True)
class Sample:
    """The whole server at one moment. What is None has no value then: nothing to measure, or no previous sample.

    time: Unix time in seconds.
    requests, answered: received, and answered to their end, since the server started.
    rejected, invalid, failed, dropped: requests that ended otherwise, since the server started: refused by a 429 or a
        503, which a client may try again; the client's mistake; a failure of the server; a client that left. In the
        words of `tgi_request_failure`: `overloaded` and `unavailable`; `validation` and `template`; `generation` and
        `incomplete`; `dropped`.
    moves: times that a request went on elsewhere, as its engine was lost or drained.
    running, waiting: requests, in all engines.
    pages_used, pages_cached, pages_total: as of a replica, in all engines.
    prompt_tokens, cached_tokens, generated_tokens, compiles, restarts: as of a replica, the sum; those that engines
        count fall when one restarts.
    requests_per_second, prompt_tokens_per_second, generated_tokens_per_second: since the previous sample.
    prefix_hits: share of the last 30 seconds' prompt tokens that were found in the prefix cache, 0 to 1.
    first_token_seconds: 50th, 95th and 99th percentile over the last 30 seconds: arrival to first token.
    inter_token_seconds: the same, between two tokens of a sequence.
    queue_seconds: the same, handed to the engine to first scheduled, of requests that have been answered.
    step_seconds: the same, of the engines' steps.
    step_age_seconds: the largest of the replicas'.
    replicas: each engine, in the order of their numbers.
    """

    time: float
    requests: int
    answered: int
    rejected: int
    invalid: int
    failed: int
    dropped: int
    moves: int
    running: int
    waiting: int
    pages_used: int
    pages_cached: int
    pages_total: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    compiles: int
    restarts: int
    requests_per_second: float | None
    prompt_tokens_per_second: float | None
    generated_tokens_per_second: float | None
    prefix_hits: float | None
    first_token_seconds: Percentiles | None
    inter_token_seconds: Percentiles | None
    queue_seconds: Percentiles | None
    step_seconds: Percentiles | None
    step_age_seconds: float | None
    replicas: tuple[ReplicaSample, ...]


FIELDS = tuple(field.name for field in fields(Sample))
REPLICA_FIELDS = tuple(field.name for field in fields(ReplicaSample))


def as_row(sample: Sample) -> bytes:
    """The values of `FIELDS` as a JSON list, in which each replica is a list of the values of `REPLICA_FIELDS`."""
    return json_bytes([*_row(sample, FIELDS[:-1]), [_row(each, REPLICA_FIELDS) for each in sample.replicas]])


def as_object(sample: Sample) -> bytes:
    """The fields by their names, as JSON."""
    replicas = [_named(each, REPLICA_FIELDS) for each in sample.replicas]
    return json_bytes(_named(sample, FIELDS[:-1]) | {"replicas": replicas})


def rounded(value: float) -> float:
    """To as many digits as are worth sending."""
    return float(f"{value:.{DIGITS}g}")


def json_bytes(value: Any) -> bytes:
    """Compact JSON of plain values. Raises ValueError for a number that is not finite, which JSON has no word for."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def _row(values: object, names: Iterable[str]) -> list[Any]:
    return [getattr(values, name) for name in names]


def _named(values: object, names: Sequence[str]) -> dict[str, Any]:
    return dict(zip(names, _row(values, names), strict=True))
