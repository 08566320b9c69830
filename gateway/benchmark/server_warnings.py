"""What a reader of the numbers should know: where they do not say what they seem to say."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from gateway.benchmark.answer import Answer
from gateway.benchmark.distribution import Distribution
from gateway.benchmark.options import BenchmarkOptions
from gateway.benchmark.report import Report

LATE_MS = 5.0  # of the client's event loop, in one of a hundred looks
OFF = 0.2  # share by which prompts may be longer or shorter than asked for


def warnings(options: BenchmarkOptions, report: Report, answers: Sequence[Answer], lag: Sequence[float]) -> list[str]:
    complete = [answer for answer in answers if answer.complete]
    return [
        *_of_client(lag),
        *_of_failures(answers),
        *(_of_form(options, complete) if complete else ()),
        *_of_server(options, report),
    ]


def _of_client(lag: Sequence[float]) -> Iterator[str]:
    late = Distribution.of(1e3 * each for each in lag)
    if late is not None and late.p99 > LATE_MS:
        yield (
            f"this client's own event loop lagged (1 in 100 looks came {late.p99:.1f} ms late, the worst "
            f"{late.highest:.1f} ms): times are too long by as much; use a machine with a free core, or less load"
        )


def _of_failures(answers: Sequence[Answer]) -> Iterator[str]:
    failed = [answer for answer in answers if not answer.complete]
    if failed:
        yield f"{len(failed)} of {len(answers)} requests failed; the first: {failed[0].outcome}, {failed[0].detail}"


def _of_form(options: BenchmarkOptions, complete: Sequence[Answer]) -> Iterator[str]:
    if any(not answer.streamed for answer in complete):
        yield "the server did not stream: TTFT is the time of the whole answer, and there is no ITL or TPOT of it"
    if any(not answer.counted for answer in complete):
        yield "the server told no usage: each chunk counts as one output token, and prompts as none"
    if options.prompts in ("synthetic", "shared-prefix"):
        yield from _of_lengths(options, complete)


def _of_lengths(options: BenchmarkOptions, complete: Sequence[Answer]) -> Iterator[str]:
    written = fmean(answer.output_tokens for answer in complete)
    if all(answer.counted for answer in complete) and written != options.decode_length:
        yield (
            f"answers had {written:.4g} tokens on average, not {options.decode_length}: the model ended them, and the "
            "server has no ignore_eos"
        )
    asked = options.sequence_length
    read = fmean(answer.prompt_tokens for answer in complete)
    if options.prompts == "synthetic" and read and abs(read - asked) > OFF * asked:
        why = "the server adds to them, or its tokenizer is another"
        if options.tokenizer_name is None:
            why = "--tokenizer-name makes them exact"
        yield f"prompts had {read:.4g} tokens on average, not {asked}: {why}"


def _of_server(options: BenchmarkOptions, report: Report) -> Iterator[str]:
    grown = report.facts.get("metrics", {}).get("grown", {})
    if compiled := grown.get("compiles_after_warmup"):
        yield f"the server compiled {compiled:g} times during the measurement: those requests waited for it"
    hits = grown.get("prefix_cache_hit_tokens")
    if hits and options.prompts == "synthetic":
        yield f"{hits:g} tokens of prompts were in the server's prefix cache, though all prompts differ"
