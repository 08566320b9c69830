"""A plan as people read it: one screen, numbers in columns."""

from collections.abc import Iterator, Sequence

from jaxengine.capacity.advice import TYPICAL, Remedy, total_tokens_per_second
from jaxengine.capacity.fit import Fit
from jaxengine.capacity.report import Plan, Use, held
from jaxengine.startup.memory import gib

KIB, MIB = 1 << 10, 1 << 20
LIMITS = "speeds are the limits that memory and arithmetic set: at most so many tokens, the first no sooner"
SPECULATION = "; speculation, by which a step may give several, is not counted"


def text(plan: Plan) -> str:
    parts = (_heading(plan), _memory(plan), _uses(plan), _splits(plan), _remedies(plan), _command(plan))
    return "\n\n".join("\n".join(lines) for lines in map(list, parts) if lines)


def _heading(plan: Plan) -> Iterator[str]:
    over = f", each engine split over {plan.devices}" if plan.devices > 1 else ""
    yield f"{plan.model} on {plan.need.machine.name}{over}: {'fits' if plan.fit else 'DOES NOT FIT'}"
    if plan.problem:
        yield f"  {plan.problem}"
    yield f"  known from {plan.known_from}"


def _memory(plan: Plan) -> Iterator[str]:
    demand, machine, fit = plan.need.demand, plan.need.machine, plan.fit
    yield "memory of each GPU" if machine.gpu else "memory"
    yield _line("weights", demand.weights, ", ".join(held(plan)))
    if demand.drafter:
        yield _line("drafter", demand.drafter)
    if demand.adapters:
        yield _line("adapters", demand.adapters)
    if demand.images:
        yield _line("images", demand.images, _pictures(plan))
    if demand.slots:
        requests, prefixes = plan.need.limits.max_batch_size, plan.need.limits.snapshots
        yield _line("states", demand.slots, f"of {requests:,} requests at once, and behind {prefixes:,} prefixes")
    if machine.gpu:
        source = "XLA's own figure" if plan.compiled else "estimated; --compile asks XLA"
        yield _line("a step's temporaries", demand.temporaries, source)
        yield _line("to time products", demand.tuning, "while the rest is compiled")
    yield _line("sampler's state", demand.sampler)
    if machine.driver:
        yield _line("driver, CUDA graphs", machine.driver)
    if fit:
        yield _line("cache", fit.cache_bytes, _tokens_cached(fit))
        yield _line("left over", fit.unused)
    share = f"of {gib(machine.memory)}, by --cuda-memory-fraction" if machine.gpu else ""
    yield _line("there is", machine.usable, share)


def _pictures(plan: Plan) -> str:
    limits, fit = plan.need.limits, plan.fit
    seconds = fit.picture_seconds() if fit else None
    least = f", at least {1000 * seconds:,.1f} ms" if seconds else ""
    return f"{limits.image_rows:,} tokens encoded; the largest has {limits.image_patches:,} patches{least}"


def _tokens_cached(fit: Fit) -> str:
    if fit.setup.spec.state_space:
        return f"states of {fit.pages:,} requests, {fit.demand.page / MIB:,.1f} MiB each"
    tokens, page = fit.limits.tokens_of(fit.pages), fit.demand.page * len(fit.limits.windows)
    return f"{tokens:,} tokens in {fit.setup.cache_dtype}, {page / fit.limits.page_size / KIB:,.1f} KiB each"


def _uses(plan: Plan) -> list[str]:
    fit = plan.fit
    if fit is None:
        return []
    uses = [Use.of(fit, tokens) for tokens in fit.contexts]
    header = ("tokens of one", "at once", "tokens/s of one alone", "of all", "first token after")
    lines = [f"requests{' of each engine' if fit.replicas > 1 else ''}", *_table([header, *map(_use, uses)])]
    if fit.limits.max_total_tokens < fit.asked:
        by = "memory" if fit.setup.options.max_batch_total_tokens is None else "--max-batch-total-tokens"
        lines.append(f"  the model takes {fit.asked:,} tokens, {by} {fit.limits.max_total_tokens:,}")
    limits = f"  {LIMITS}{SPECULATION if fit.setup.speculation else ''}"
    return [*lines, limits] if uses[0].tokens_per_second else lines


def _use(use: Use) -> list[str]:
    first = use.first_token_seconds
    return [
        f"{use.tokens:,}",
        f"{use.requests:,}",
        _rate(use.tokens_per_second_alone),
        _rate(use.tokens_per_second),
        "?" if first is None else f"{1000 * first:,.1f} ms",
    ]


def _splits(plan: Plan) -> list[str]:
    if len(plan.splits) < 2:
        return []
    header = ("--num-shard", "--replicas", _requests_at_once(plan), "tokens/s of one alone", "of all")
    rows = [_split(devices, made, plan.need.machine.count) for devices, made in plan.splits.items()]
    return [f"ways to use {plan.need.machine.name}", *_table([header, *rows])]


def _requests_at_once(plan: Plan) -> str:
    return f"requests of {min(TYPICAL, plan.need.limits.max_total_tokens):,} at once"


def _split(devices: int, made: Fit | ValueError, count: int) -> list[str]:
    names = [str(devices), str(count // devices)]
    if isinstance(made, ValueError):
        return [*names, str(made)]
    use = Use.of(made, min(TYPICAL, made.limits.max_total_tokens))
    rate = total_tokens_per_second(made, TYPICAL)
    return [*names, f"{made.replicas * use.requests:,}", _rate(use.tokens_per_second_alone), _rate(rate)]


def _remedies(plan: Plan) -> list[str]:
    if plan.fit:
        return []
    if not plan.remedies:
        return ["nothing known here makes it fit: neither an option nor eight GPUs of a kind"]
    header = ("longest request", _requests_at_once(plan), "")
    return ["what would make it fit", *_table([header, *map(_remedy, plan.remedies)])]


def _remedy(remedy: Remedy) -> list[str]:
    longest = remedy.fit.limits.max_total_tokens
    return [f"{longest:,}", f"{remedy.fit.requests(min(TYPICAL, longest)):,}", remedy.change]


def _command(plan: Plan) -> list[str]:
    return [f"start it: {plan.command}"] if plan.fit else []


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of numbers, aligned to the right. A last cell without a heading, or of a shorter row, holds words."""
    heading = rows[0]
    widths = [max(len(row[column]) for row in rows if len(row) == len(heading)) for column in range(len(heading))]

    def cells(row: Sequence[str]) -> Iterator[str]:
        words = len(row) < len(heading) or not heading[-1]
        for column, cell in enumerate(row):
            yield cell if words and column == len(row) - 1 else cell.rjust(widths[column])

    return ["  " + "  ".join(cells(row)).rstrip() for row in rows]


def _line(name: str, size: int, note: str = "") -> str:
    return f"  {name:<21}{gib(size):>12}  {note}".rstrip()


def _rate(rate: float | None) -> str:
    return "?" if rate is None else f"{rate:,.0f}"
