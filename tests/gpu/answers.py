"""What small engines answer on this platform: greedy tokens, and the log-probabilities of the whole vocabulary at every
position of prompt and answer. Run on a CPU and on a GPU, the two are compared by `correctness`.

`python -m tests.gpu.answers DIRECTORY VARIANT…` leaves there, for each variant, what it answered (npz) or why it did
not. Prompts of several lengths run together in chunks, so that mixed and decode steps, the scorer and the sampler all
take part.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import jax
import numpy as np

from jaxengine.request.event import Token
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.request.sequence import Request
from tests.gpu.engines import Client, small_engine
from tests.gpu.models import MODELS
from tests.gpu.record import one_line

PROMPTS = (3, 40, 150)
NEW = 16
ROWS = 4
CORES = 3  # of a process that compiles

Answers = dict[str, np.ndarray]


@dataclass(frozen=True)
class Variant:
    """An engine: of which model, by which back end, and how numbers are stored; `stored` are options, NAME=VALUE."""

    model: str
    backend: str
    dtype: str
    stored: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ",".join([self.model, self.backend, self.dtype, *self.stored])

    @classmethod
    def parse(cls, text: str) -> Self:
        model, backend, dtype, *stored = text.split(",")
        return cls(model, backend, dtype, tuple(stored))

    def save(self, directory: Path) -> None:
        """Its answers, or what kept it from answering: the others are wanted all the same."""
        part = directory / f"{self}.part"
        try:
            with part.open("wb") as file:
                np.savez(file, **self.answers())  # type: ignore[arg-type]
            part.rename(directory / f"{self}.npz")
        except Exception as error:
            traceback.print_exc()
            part.write_text(one_line(error))
            part.rename(directory / f"{self}.error")

    def answers(self) -> Answers:
        """`ids_n` i32 [NEW] and `logprobs_n` f32 [known + NEW, vocab] of each prompt n; of its tokens but the first are
        known what the decoder is given.
        """
        spec, options = MODELS[self.model], dict(pair.split("=") for pair in self.stored)
        engine = small_engine(
            spec,
            attention=self.backend,
            dtype=self.dtype,
            max_total_tokens=spec.max_positions,
            max_batch_size=ROWS,
            max_batch_total_tokens=ROWS * spec.max_positions,  # several engines share the device
            max_batch_prefill_tokens=64,
            max_top_logprobs=spec.vocab_size,
            **options,
        )
        params = SamplingParams(
            temperature=0, seed=0, max_tokens=NEW, ignore_eos=True, logprobs=spec.vocab_size, prompt_logprobs=True
        )
        for number, length in enumerate(PROMPTS):
            prompt = np.random.default_rng(number).integers(0, spec.vocab_size, length).tolist()
            engine.submit(Request(number, prompt, params))
        told: dict[int, list[Token]] = {number: [] for number in range(len(PROMPTS))}
        client = Client(engine)
        while not engine.idle:
            for event in client.step():
                told[event.request_id] += [*event.prompt[1:], *event.tokens]
        return {
            key: value
            for number, tokens in told.items()
            for key, value in {
                f"ids_{number}": np.array([token.id for token in tokens[-NEW:]], np.int32),
                f"logprobs_{number}": np.stack([whole_vocabulary(token, spec.vocab_size) for token in tokens]),
            }.items()
        }


def whole_vocabulary(token: Token, vocab: int) -> np.ndarray:
    """f32 [vocab], in the order of ids."""
    row = np.full(vocab, np.nan, np.float32)
    ids, logprobs = zip(*token.top, strict=True)
    row[list(ids)] = logprobs
    return row


@dataclass(frozen=True)
class Answering:
    """Processes that answer into `directory`."""

    directory: Path
    by_variant: dict[Variant, subprocess.Popen[bytes]]

    def of(self, variant: Variant) -> Answers:
        """Waits for it. Raises RuntimeError if it could not answer."""
        answer, error = (self.directory / f"{variant}.{kind}" for kind in ("npz", "error"))
        process = self.by_variant.get(variant)
        while process and not (answer.exists() or error.exists()) and process.poll() is None:
            time.sleep(0.1)
        if not answer.exists():
            ended = f"ended with {process.returncode}" if process else "was not asked"
            raise RuntimeError(error.read_text() if error.exists() else ended)
        with np.load(answer) as saved:
            return dict(saved)


@contextmanager
def answering(variants: Iterable[Variant], known: Path | None = None, **environment: str) -> Iterator[Answering]:
    """A few processes share `variants`, since nearly all of their time is the host's, compiling. They take no more of
    the device's memory than they need. What `known` has is not asked again.
    """
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        asked, by_variant = [], {}
        for variant in variants:
            if known and (answer := known / f"{variant}.npz").exists():
                shutil.copy(answer, directory)
            else:
                asked.append(variant)
        count = max(1, min(len(asked), (os.cpu_count() or 1) // CORES))
        for share in filter(None, (asked[first::count] for first in range(count))):
            process = stack.enter_context(_process(directory, share, environment))
            by_variant |= dict.fromkeys(share, process)
        yield Answering(Path(directory), by_variant)


@contextmanager
def _process(directory: str, variants: list[Variant], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.gpu.answers", directory, *map(str, variants)]
    own = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **environment}
    with subprocess.Popen(command, env=own) as process:
        try:
            yield process
        finally:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("variants", nargs="+", type=Variant.parse)
    given = parser.parse_args()
    # A GPU's default f32 product rounds operands to tf32, which is not what a comparison with a CPU asks about.
    jax.config.update("jax_default_matmul_precision", "highest")
    for variant in given.variants:
        variant.save(given.directory)


if __name__ == "__main__":
    main()
