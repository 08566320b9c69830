"""What `Stats` says of the requests and the pages of this moment."""

from collections.abc import Collection
from typing import Any

from jaxengine.request.sequence import Sequence
from jaxengine.scheduler.scheduler import Scheduler


def gauges(scheduler: Scheduler, preparing: Collection[Sequence]) -> dict[str, Any]:
    """Fields of `Stats`.

    Args:
        preparing: requests that `scheduler` does not know yet.
    """
    pool, running, waiting = scheduler.pool, scheduler.batch.running, scheduler.queue.waiting
    return {
        "waiting": len(waiting) + len(preparing),
        "running": sum(sequence.first for sequence in running),
        "pages_total": pool.total - 1,
        "pages_used": pool.used,
        "pages_cached": pool.cached,
        "running_adapters": _adapters_of(running),
        "waiting_adapters": _adapters_of(waiting),
        "queued_prefill_tokens": _left(running) + _whole(preparing) + _whole(waiting),
    }


def _whole(sequences: Collection[Sequence]) -> int:
    """Tokens of their prompts. Of 2,000 sequences a sum takes 0.08 ms: no running total has to be kept right."""
    return sum(sequence.prompt_tokens for sequence in sequences)


def _left(running: Collection[Sequence]) -> int:
    """Tokens of their prompts that no step has computed, or is computing. An encoder reads its input at once."""
    return sum(max(0, each.prompt_length - each.computed) for each in running if each.first)


def _adapters_of(sequences: Collection[Sequence]) -> tuple[str, ...]:
    """The names of their adapters, each once."""
    return tuple(sorted({sequence.request.adapter for sequence in sequences} - {""}))
