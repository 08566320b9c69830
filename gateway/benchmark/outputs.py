"""Where a report goes by `--output`: files, and one format on standard output."""

from collections.abc import Mapping
from pathlib import Path

from gateway.benchmark.options import BenchmarkOptions
from gateway.benchmark.values import FORMATS
from jaxengine.options.option import UsageError


def formats(options: BenchmarkOptions) -> set[str]:
    """Those that are asked for."""
    return {_format(each) for each in _named(options)}


def check(options: BenchmarkOptions) -> None:
    """Before anything is measured. Raises UsageError naming a file that cannot be written; none is changed."""
    for path in _files(options):
        new = not path.exists()
        try:
            with path.open("ab"):
                pass
        except OSError as error:
            raise UsageError(f"--output {path} cannot be written: {error.strerror}") from None
        if new:
            path.unlink(missing_ok=True)


def write(options: BenchmarkOptions, texts: Mapping[str, str]) -> None:
    """`texts` by their formats: the files first, as whoever reads standard output may have gone.

    Raises:
        UsageError: files could not be written; all else was.
    """
    failed = []
    for path in _files(options):
        try:
            path.write_text(texts[_format(str(path))], encoding="utf-8")
        except OSError as error:
            failed.append(f"--output {path} cannot be written: {error.strerror}")
    for name in _named(options):
        if name in FORMATS:
            print(texts[name], end="", flush=True)
    if failed:
        raise UsageError("; ".join(failed))


def _named(options: BenchmarkOptions) -> tuple[str, ...]:
    return options.output or ("md",)


def _files(options: BenchmarkOptions) -> list[Path]:
    return [Path(each) for each in _named(options) if each not in FORMATS]


def _format(output: str) -> str:
    return output if output in FORMATS else Path(output).suffix[1:]
