"""The first table: what was asked for. Of an engine it is TGI's, row by row."""

from gateway.benchmark.options import BenchmarkOptions
from gateway.benchmark.prompts import PREFIX_GROUPS, PREFIX_TIMES


def engine_parameters(options: BenchmarkOptions, model: str) -> dict[str, str]:
    return {"Model": options.tokenizer_name or model, **_lengths(options), **_sampling(options)}


def server_parameters(options: BenchmarkOptions, api: str) -> dict[str, str]:
    """api: the route that was measured."""
    shared = {"Prefix Length": options.prefix_length or PREFIX_TIMES * options.sequence_length}
    shared["Prefix Groups"] = options.prefix_groups or PREFIX_GROUPS
    asked = {
        "Url": options.url,
        "Api": api,
        "Model": options.model or options.tokenizer_name,
        "Prompts": options.prompts,
        **(shared if options.prompts == "shared-prefix" else {}),
        "Requests of a Run": options.requests,
        "Seconds of a Run": options.duration,
        "Burstiness": (options.burstiness or 1.0) if options.rate else None,
        "SLO": options.slo,
    }
    given = {name: _shown(value) for name, value in asked.items() if value is not None}
    return {**given, **_lengths(options), **_sampling(options), "Seed": str(options.seed)}


def _lengths(options: BenchmarkOptions) -> dict[str, str]:
    return {
        "Sequence Length": _shown(options.sequence_length),
        "Decode Length": _shown(options.decode_length),
        "Top N Tokens": _shown(options.top_n_tokens),
        "N Runs": _shown(options.runs),
        "Warmups": _shown(options.warmups),
    }


def _sampling(options: BenchmarkOptions) -> dict[str, str]:
    return {
        "Temperature": _shown(options.temperature),
        "Top K": _shown(options.top_k),
        "Top P": _shown(options.top_p),
        "Typical P": _shown(options.typical_p),
        "Repetition Penalty": _shown(options.repetition_penalty),
        "Frequency Penalty": _shown(options.frequency_penalty),
        "Watermark": _shown(options.watermark),
        "Do Sample": _shown(options.do_sample),
    }


def _shown(value: object) -> str:
    """As TGI shows it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
