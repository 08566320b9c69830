"""A plan, and what it says in numbers: to programs as JSON, to people by `text`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jaxengine.capacity.advice import TYPICAL, Remedy, total_tokens_per_second
from jaxengine.capacity.fit import Fit, Need


@dataclass(frozen=True)
class Plan:
    """
    known_from: what the model is known from.
    compiled: whether the temporaries are XLA's own figures.
    need: of the engine that the plan is about. `fit` is None where it does not fit, and `problem` says why.
    splits: over how many devices an engine could be split, and how that fits, or why it does not.
    remedies: what would make it fit.
    command: what starts it.
    """

    model: str
    known_from: str
    compiled: bool
    need: Need
    fit: Fit | None
    problem: str
    splits: Mapping[int, Fit | ValueError]
    remedies: Sequence[Remedy]
    command: str

    @property
    def devices(self) -> int:
        return self.need.setup.mesh.size


@dataclass(frozen=True)
class Use:
    """How requests of `tokens` tokens fare in one engine; speeds are None where they are not known.

    requests: how many run at once.
    tokens_per_second_alone, tokens_per_second: the most, of one that is alone and of so many together.
    first_token_seconds: the least, behind a prompt of all but the last token.
    """

    tokens: int
    requests: int
    tokens_per_second_alone: float | None
    tokens_per_second: float | None
    first_token_seconds: float | None

    @classmethod
    def of(cls, fit: Fit, tokens: int) -> "Use":
        rows = fit.requests(tokens)
        alone, together = fit.decode_seconds(1, tokens), fit.decode_seconds(rows, tokens)
        return cls(
            tokens,
            rows,
            1 / alone if alone else None,
            rows / together if together else None,
            fit.prefill_seconds(tokens - 1),
        )


def held(plan: Plan) -> list[str]:
    """The formats of weights that devices hold quantised; else the type of all."""
    setup = plan.need.setup
    return sorted({format.name for format in setup.formats.values()}) or [setup.dtype]


def facts(plan: Plan) -> dict[str, Any]:
    need, fit = plan.need, plan.fit
    machine, setup, limits = need.machine, need.setup, need.limits
    return {
        "model": plan.model,
        "known_from": plan.known_from,
        "device": machine.gpu.name if machine.gpu else "cpu",
        "devices": machine.count,
        "num_shard": plan.devices,
        "replicas": machine.count // plan.devices,
        "fits": fit is not None,
        "problem": plan.problem or None,
        "dtype": setup.dtype,
        "weight_formats": held(plan),
        "cache_dtype": setup.cache_dtype,
        "bytes_of_a_device": _bytes(plan),
        "bytes_of_a_page": need.demand.page,
        "temporaries_compiled": plan.compiled,
        "page_size": limits.page_size,
        "max_batch_size": limits.max_batch_size,
        "state_snapshots": limits.snapshots,
        "pages": fit.pages if fit else None,
        "max_total_tokens": fit.limits.max_total_tokens if fit else None,
        "max_batch_total_tokens": fit.limits.tokens_of(fit.pages) if fit else None,
        "max_image_patches": need.limits.image_patches,
        "image_seconds": fit.picture_seconds() if fit else None,
        "contexts": [asdict(Use.of(fit, tokens)) for tokens in fit.contexts] if fit else [],
        "splits": [_split(count, made, machine.count) for count, made in plan.splits.items()],
        "remedies": list(map(_remedy, plan.remedies)),
        "command": plan.command if fit else None,
    }


def _bytes(plan: Plan) -> dict[str, int]:
    """What there is on each device, and of that what goes where."""
    machine, fit = plan.need.machine, plan.fit
    parts = {name: size for name, size in asdict(plan.need.demand).items() if name != "page"}
    pool = {"cache": fit.cache_bytes, "unused": fit.unused} if fit else {}
    return {"usable": machine.usable, **parts, "driver": machine.driver, **pool}


def _remedy(remedy: Remedy) -> dict[str, Any]:
    fit, gpu = remedy.fit, remedy.fit.machine.gpu
    return {
        "change": remedy.change,
        "device": gpu.name if gpu else "cpu",
        "devices": fit.machine.count,
        "num_shard": fit.devices,
        "max_total_tokens": fit.limits.max_total_tokens,
    }


def _split(devices: int, made: Fit | ValueError, count: int) -> dict[str, Any]:
    found: dict[str, Any] = {"num_shard": devices, "replicas": count // devices}
    if isinstance(made, ValueError):
        return {**found, "fits": False, "problem": str(made)}
    rate = total_tokens_per_second(made, TYPICAL)
    return {**found, "fits": True, "max_total_tokens": made.limits.max_total_tokens, "tokens_per_second": rate}
