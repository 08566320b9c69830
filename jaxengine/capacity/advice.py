"""What would make a model fit that does not, and how to split one that does: every answer is a plan of its own."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxengine.capacity.fit import Fit
from jaxengine.capacity.gpus import GPUS
from jaxengine.capacity.machine import Machine
from jaxengine.options.plan import PlanOptions

Try = Callable[[PlanOptions, Machine, int], Fit]  # on so many devices; raises ValueError where it does not fit
TYPICAL = 4096  # tokens of a request, where splits are compared
SHARDS = (2, 4, 8)
WORTH = 1.25  # times the tokens
SMALL_STEP = {"max_batch_prefill_tokens": 2048, "max_batch_size": 64}


@dataclass(frozen=True)
class Remedy:
    """`change` is as a user would write it."""

    change: str
    fit: Fit


def remedies(options: PlanOptions, machine: Machine, devices: int, attempt: Try) -> list[Remedy]:
    """What makes it fit, the least change first: other options, more of the same GPUs, another GPU."""
    found = [*_by_options(options, machine, devices, attempt), *_by_splitting(options, machine, devices, attempt)]
    return found + _by_another_gpu(options, machine, attempt)


def _by_options(options: PlanOptions, machine: Machine, devices: int, attempt: Try) -> Iterator[Remedy]:
    for change in _changes(options, machine):
        if all(getattr(options, name) == value for name, value in change.items()):
            continue
        if fit := _tried(attempt, dataclasses.replace(options, **change), machine, devices):
            yield Remedy(_written(change, fit), fit)


def _changes(options: PlanOptions, machine: Machine) -> Iterator[dict[str, Any]]:
    """Of options that were set, those that ask for much; then what takes less room, at a price."""
    yield from ({name: None} for name in ("max_batch_total_tokens", "max_total_tokens") if getattr(options, name))
    if machine.gpu is None:
        yield {"quantize": "int8"}
        return
    yield {"kv_cache_dtype": "fp8_e4m3fn"}
    yield SMALL_STEP
    yield from ({"quantize": name} for name in ("fp8", "int8", "int4"))


def _by_splitting(options: PlanOptions, machine: Machine, devices: int, attempt: Try) -> Iterator[Remedy]:
    """Over as few more devices as it takes."""
    if machine.gpu is None:
        return
    for count in (count for count in SHARDS if count > devices):
        larger = dataclasses.replace(machine, count=max(count, machine.count))
        if fit := _tried(attempt, options, larger, count):
            yield Remedy(f"--num-shard {count} on {count} of these GPUs", fit)
            return


def _by_another_gpu(options: PlanOptions, machine: Machine, attempt: Try) -> list[Remedy]:
    """The smallest of the larger GPUs that holds it, on as few of them as it takes; and a smaller one, on more."""
    least = machine.memory if machine.gpu else 0
    larger = sorted((gpu for gpu in GPUS.values() if gpu.memory > least), key=lambda gpu: gpu.memory)
    found: dict[str, Remedy] = {}
    for count in (1, *SHARDS):
        split = f", --num-shard {count}" if count > 1 else ""
        tried = (
            (gpu, _tried(attempt, options, Machine.of(gpu, count, options.cuda_memory_fraction), count))
            for gpu in larger
        )
        gpu, fit = next((each for each in tried if each[1]), (None, None))
        if gpu and fit:
            found.setdefault(gpu.name, Remedy(f"{count} x {gpu.name}{split}", fit))
    return [*found.values()][:2]


def _tried(attempt: Try, options: PlanOptions, machine: Machine, devices: int) -> Fit | None:
    try:
        return attempt(options, machine, devices)
    except ValueError:  # DoesNotFit, or options that this model or device cannot have
        return None


def _written(change: dict[str, Any], fit: Fit) -> str:
    """A change of options; one that is left out says what follows."""
    if None in change.values():
        (name,) = change
        value = fit.limits.max_total_tokens if name == "max_total_tokens" else fit.limits.tokens_of(fit.pages)
        return f"--{name.replace('_', '-')} {value}"
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in change.items())


def best(fits: Sequence[Fit]) -> Fit:
    """The one that makes most tokens of typical requests, but for a little more none that is split over more devices.

    What adding up between devices costs beyond its limits is not counted, and engines that are not split lose none.
    """
    chosen, *others = sorted(fits, key=lambda fit: fit.devices)
    for other in others:
        if _rate(other) > WORTH * _rate(chosen):
            chosen = other
    return chosen


def _rate(fit: Fit) -> float:
    return total_tokens_per_second(fit, TYPICAL) or 0.0


def total_tokens_per_second(fit: Fit, tokens: int) -> float | None:
    """Of all replicas together, at requests of `tokens`, or the longest there can be; None if not known."""
    length = min(tokens, fit.limits.max_total_tokens)
    rows = fit.requests(length)
    seconds = fit.decode_seconds(rows, length)
    return fit.replicas * rows / seconds if seconds else None
