"""An engine without a model, for tests that are not about models.

`MockEngine` implements `jaxengine.request.interface.DrivenEngine`. Every id is a known function of the ids before it,
so a test can tell an exact answer from a nearly exact one. Beam `k` of a search is the answer without its first `k`
ids, with logprobs `k + 1` times as low. `python -m tests.engine_mock` serves it as a process through the real gRPC
service.

A prompt that begins with one of the ids below misbehaves on purpose.
"""

import argparse
import math
import os
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from jaxengine.options.adapters import named_adapters
from jaxengine.request.beam_search import BeamSearch
from jaxengine.request.event import Beam, Event, FinishReason, Token
from jaxengine.request.interface import AdapterRefused, Description, ServedAdapter, Stats, StepResult
from jaxengine.request.sequence import Request
from jaxengine.rpc import transport
from jaxengine.service import process
from jaxengine.service.adapter_record import AdapterRecord
from jaxengine.telemetry import logs
from jaxengine.telemetry.tracing import Tracing

VOCABULARY = 320
EMBEDDING = 4  # numbers
EOS = 0
HOLD_SECONDS = 0.005  # between two checks whether the hold is over
CRASH, HANG, FAIL, RAISE = 301, 302, 303, 304  # first prompt id: kill -9 self, stop stepping, ERROR, escape a step


def next_id(ids: Sequence[int], adapter: str = "") -> int:
    """The id that follows `ids`: never EOS, and never one that misbehaves. An adapter's differs by the path it has."""
    return 1 + (ids[-1] * 7 + len(ids) * 13 + zlib.crc32(adapter.encode())) % 255


def continuation(prompt: Sequence[int], count: int, adapter: str = "") -> list[int]:
    """What the mock answers to `prompt`, be it with the adapter that was loaded from the path `adapter`."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(next_id(ids, adapter))
    return ids[len(prompt) :]


@dataclass(frozen=True)
class MockOptions:
    step_seconds: float = 0.0
    load_seconds: float = 0.0
    max_total_tokens: int = 2048
    max_batch_size: int = 256
    page_size: int = 16
    model_dir: Path = Path("/nonexistent")
    decoder_start_token_id: int | None = None
    tokens_per_step: int = 1  # of a request, once it has its first: all but one of them are drafts, and right
    script: tuple[int, ...] = ()  # ids every request without an adapter is answered with, cyclically
    steps_on_host: bool = False
    # While this file exists, a request gets its first token and no more, a beam search nothing, and no adapter loads.
    hold: Path | None = None
    max_loras: int = 0  # 0 = no adapters are served
    lora_adapters: tuple[str, ...] = ()
    pooling: str = "last"
    logits: bool = True


@dataclass
class Live:
    """A request that runs."""

    request: Request
    adapter: str = ""  # the path of its adapter
    arrived: float = field(default_factory=time.monotonic)
    ids: list[int] = field(default_factory=list)
    generated: int = 0
    sampling_steps: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0

    @property
    def waits(self) -> bool:
        """Whether it has had what it gets while requests are held."""
        return bool(self.generated or self.request.beam_search)


def embedding_of(prompt: Sequence[int]) -> bytes:
    """What a prompt is embedded as: its length, its last id, the sum of all, and their mean."""
    numbers = (len(prompt), prompt[-1], sum(prompt), sum(prompt) / len(prompt))
    return np.array(numbers, "<f4").tobytes()


def logits_of(prompt: Sequence[int]) -> np.ndarray:
    """What a prompt's logits are: f32 [prompt, VOCABULARY], each row's highest at its id."""
    distance = np.abs(np.arange(VOCABULARY) - np.array(prompt)[:, None])
    return (8.5 - distance / 4).astype("<f4")


class MockEngine:
    """`tokens_per_step` tokens per request and step, first come first served; prompts cost one step, like a token."""

    def __init__(self, options: MockOptions) -> None:
        self.options = options
        self._lock = threading.Lock()
        self._wake: Callable[[], None] = lambda: None
        self._live: dict[int, Live] = {}
        self._ended: list[Event] = []
        self._prompt_tokens = self._generated_tokens = self._steps = 0
        self._drafts = self._draft_tokens = 0
        self._accepted = [0] * (options.tokens_per_step - 1)
        self._adapters: dict[str, ServedAdapter] = {}
        for adapter in named_adapters(options.lora_adapters):
            self.load_adapter(adapter.name, adapter.path)

    @property
    def description(self) -> Description:
        return Description(
            model_id="mock/model",
            revision="0123abc",
            eos_token_ids=(EOS,),
            dtype="float32",
            device_kind="mock",
            device_count=1,
            vocab_size=VOCABULARY,
            max_total_tokens=self.options.max_total_tokens,
            max_batch_prefill_tokens=self.options.max_total_tokens,
            max_batch_total_tokens=self.options.max_total_tokens * self.options.max_batch_size,
            max_batch_size=self.options.max_batch_size,
            page_size=self.options.page_size,
            pages_total=self._pages_total,
            max_top_logprobs=20,
            prefix_cache=False,
            cache_dtype="float32",
            decoder_start_token_id=self.options.decoder_start_token_id,
            max_adapters=self.options.max_loras,
            max_adapter_rank=16 if self.options.max_loras else 0,
            max_draft_tokens=self.options.tokens_per_step - 1,
            pooling=self.options.pooling,
            hidden_size=EMBEDDING,
            logits=self.options.logits,
        )

    @property
    def steps_on_host(self) -> bool:
        return self.options.steps_on_host

    @property
    def _pages_total(self) -> int:
        return self.options.max_total_tokens * self.options.max_batch_size // self.options.page_size

    @property
    def idle(self) -> bool:
        with self._lock:
            return not self._live and not self._ended

    def notify(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def submit(self, request: Request) -> None:
        length = len(request.prompt) + request.params.max_tokens
        if not request.prompt:
            raise ValueError("prompt must not be empty")
        if length > self.options.max_total_tokens:
            raise ValueError(f"prompt and new tokens are {length}, at most {self.options.max_total_tokens}")
        if request.adapter and request.adapter not in self._adapters:
            raise ValueError(f"adapter {request.adapter!r} is not served")
        with self._lock:
            self._live[request.id] = self.live(request)
            self._prompt_tokens += len(request.prompt)
        self._wake()

    def live(self, request: Request) -> Live:
        """A request that goes on with the adapter that it begins with, whatever is loaded later."""
        adapter = self._adapters[request.adapter].path if request.adapter else ""
        return Live(request, adapter, ids=list(request.prompt))

    def load_adapter(self, name: str, path: str, *, in_place: bool = False) -> ServedAdapter:
        """There is an adapter in every directory with the file `adapter_config.json`, and at every id of `org/`."""
        while self.options.hold is not None and self.options.hold.exists():
            time.sleep(HOLD_SECONDS)
        if not self.options.max_loras:
            raise AdapterRefused("off", "this engine serves no adapters")
        if name in self._adapters and not in_place:
            raise AdapterRefused("taken", f"an adapter is called {name!r} already")
        if not path.startswith("org/"):
            if not Path(path).is_dir():
                raise AdapterRefused("missing", f"adapter {path!r}: no such file or directory")
            if not (Path(path) / "adapter_config.json").is_file():
                raise AdapterRefused("invalid", f"{path}: no adapter_config.json")
        self._adapters[name] = ServedAdapter(name, path, rank=8)
        return self._adapters[name]

    def unload_adapter(self, name: str) -> None:
        if self._adapters.pop(name, None) is None:
            raise AdapterRefused("missing", f"no adapter is called {name!r}")

    def adapters(self) -> tuple[ServedAdapter, ...]:
        return tuple(self._adapters.values())

    def cancel(self, request_id: int) -> None:
        with self._lock:
            if self._live.pop(request_id, None) is not None:
                self._ended.append(Event(request_id, finish=FinishReason.CANCELLED))
        self._wake()

    def is_queued(self, request_id: int) -> bool:
        with self._lock:
            row = self._live.get(request_id)
            return row is not None and not row.generated

    def step(self) -> StepResult | None:
        held = self.options.hold is not None and self.options.hold.exists()
        with self._lock:
            rows = [row for row in self._live.values() if not (held and row.waits)][: self.options.max_batch_size]
            events, self._ended = self._ended, []
        if not rows and not events:
            if held:
                time.sleep(HOLD_SECONDS)
            return None
        self._steps += 1
        prefill = sum(len(row.request.prompt) for row in rows if not row.generated)
        if self.options.step_seconds:
            time.sleep(self.options.step_seconds)
        sampled = [self.advance(row) for row in rows]
        with self._lock:
            for event in sampled:
                if event.finish:
                    self._live.pop(event.request_id, None)
            # A request cancelled while this step ran has its last event already.
            cancelled = {event.request_id for event in self._ended}
            events += [event for event in sampled if event.request_id not in cancelled]
        seconds = max(self.options.step_seconds, 1e-6)
        found = [each for event in sampled for each in (event, *event.beams)]
        answered = prefill + sum(len(each.tokens) for each in found)
        return StepResult(events, prefill, decode_tokens=len(rows), answered_tokens=answered, seconds=seconds)

    def stats(self) -> Stats:
        with self._lock:
            running = min(len(self._live), self.options.max_batch_size)
            pages = sum(math.ceil(len(row.ids) / self.options.page_size) for row in self._live.values())
            waiting = len(self._live) - running
            adapters = {row.request.adapter for row in self._live.values()} - {""}
        return Stats(
            waiting=waiting,
            running=running,
            pages_total=self._pages_total,
            pages_used=pages,
            pages_cached=0,
            preemptions=0,
            prompt_tokens=self._prompt_tokens,
            cached_prompt_tokens=0,
            generated_tokens=self._generated_tokens,
            step_failures=0,
            compiles_after_warmup=0,
            steps=self._steps,
            running_adapters=tuple(sorted(adapters)),
            drafts=self._drafts,
            draft_tokens=self._draft_tokens,
            accepted_draft_tokens=tuple(self._accepted),
        )

    def advance(self, row: Live) -> Event:
        """The request's next tokens, or the misbehaviour that its prompt asks for."""
        request = row.request
        misbehave(request.prompt[0])
        if request.prompt[0] == FAIL:
            return Event(request.id, finish=FinishReason.ERROR, error="told to fail")
        if request.timeout is not None and time.monotonic() - row.arrived > request.timeout:
            return Event(request.id, finish=FinishReason.DEADLINE)
        if request.beam_search is not None:
            return self._searched(row, request.beam_search)
        if request.pooling:
            return Event(request.id, finish=FinishReason.LENGTH, first=True, embedding=embedding_of(request.prompt))
        if request.logits:
            logits = logits_of(request.prompt if request.logits == "all" else request.prompt[-1:])
            return Event(request.id, finish=FinishReason.LENGTH, first=True, logits=logits.tobytes())
        event = Event(request.id, tokens := [], first=not row.generated)
        if event.first and request.params.prompt_logprobs:
            first, *others = request.prompt
            event.prompt = [Token(first, math.nan), *(Token(number, -0.5, rank=3) for number in others)]
        room = request.params.max_tokens - row.generated
        most = 1 if event.first else min(self.options.tokens_per_step, room)
        while len(tokens) < most and not event.finish:
            tokens.append(token := self._token(row))
            row.ids.append(token.id)
            row.generated += 1
            event.finish = self._finish(row, token.id)
        self._generated_tokens += len(tokens)
        if self.options.tokens_per_step > 1:
            self._count_draft(row, event, most - 1)
        return event

    def _searched(self, row: Live, search: BeamSearch) -> Event:
        """The only event of a beam search."""
        beams = sorted((self._beam(row, k, search) for k in range(search.width)), key=lambda beam: -beam.score)
        answers = beams[: search.answers or search.width]
        self._generated_tokens += sum(len(beam.tokens) for beam in answers)
        return Event(row.request.id, finish=answers[0].finish, first=True, beams=answers)

    def _beam(self, row: Live, k: int, search: BeamSearch) -> Beam:
        beam, tokens, finish = replace(row, ids=list(row.ids)), list[Token](), FinishReason.NOT_FINISHED
        for _ in range(k):
            beam.ids.append(self._token(beam).id)
        while not finish:
            token = self._token(beam)
            beam.ids.append(token.id)
            beam.generated += 1
            tokens.append(token._replace(logprob=(k + 1) * token.logprob))
            finish = self._finish(beam, token.id)
        total = sum(token.logprob for token in tokens)
        return Beam(tokens, finish, search.score(total, len(tokens)))

    def _count_draft(self, row: Live, event: Event, drafted: int) -> None:
        accepted = len(event.tokens) - 1
        row.sampling_steps += 1
        row.draft_tokens += drafted
        row.accepted_draft_tokens += accepted
        self._drafts += bool(drafted)
        self._draft_tokens += drafted
        for position in range(accepted):
            self._accepted[position] += 1
        event.sampling_steps = row.sampling_steps
        event.draft_tokens, event.accepted_draft_tokens = row.draft_tokens, row.accepted_draft_tokens

    def _token(self, row: Live) -> Token:
        script = self.options.script
        scripted = script and not row.adapter
        at = len(row.ids) - len(row.request.prompt)
        number = script[at % len(script)] if scripted else next_id(row.ids, row.adapter)
        count = row.request.params.logprobs
        top = tuple(((number + i) % VOCABULARY, -0.25 * (i + 1)) for i in range(count))
        return Token(number, -0.25, top)

    def _finish(self, row: Live, number: int) -> FinishReason:
        params = row.request.params
        if row.generated >= params.min_tokens:
            if number == EOS and not params.ignore_eos:
                return FinishReason.EOS
            if number in params.stop_token_ids:
                return FinishReason.STOP_TOKEN
        return FinishReason.LENGTH if row.generated >= params.max_tokens else FinishReason.NOT_FINISHED


def misbehave(number: int) -> None:
    if number == CRASH:
        os.kill(os.getpid(), signal.SIGKILL)
    elif number == HANG:
        time.sleep(3600)
    elif number == RAISE:
        raise RuntimeError("told to raise")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--uds-path", type=Path, required=True)
    parser.add_argument("--model-dir", type=Path, default=MockOptions.model_dir)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--script", type=int, nargs="*", default=[], help="ids every request is answered with")
    parser.add_argument("--hold", type=Path, help="while this file exists, loading and requests wait")
    parser.add_argument("--load-seconds", type=float, default=0.0)
    parser.add_argument("--max-total-tokens", type=int, default=MockOptions.max_total_tokens)
    parser.add_argument("--max-batch-size", type=int, default=MockOptions.max_batch_size)
    parser.add_argument("--speculate", type=int, default=0)
    parser.add_argument("--enable-lora", action="store_true")
    parser.add_argument("--max-loras", type=int)
    parser.add_argument("--lora-adapters", action="append", default=[])
    parser.add_argument("--adapters-file", type=Path)
    parser.add_argument("--drain-seconds", type=float, default=5.0)
    parser.add_argument("--parent-pid", type=int)
    parser.add_argument("--fail-with", type=int, help="exit with this code instead of loading")
    parser.add_argument("--json-output", action="store_true")
    parser.add_argument("--otlp-endpoint")
    arguments, _ = parser.parse_known_args(argv)
    logs.configure(arguments.json_output)
    if arguments.parent_pid is not None:
        process.die_with_parent(arguments.parent_pid)

    def load(progress: process.Progress) -> process.Loaded:
        progress("loading 1/2")
        time.sleep(arguments.load_seconds / 2)
        if arguments.fail_with is not None:
            raise process.StartupError("told to fail", arguments.fail_with)
        progress("compiling 1/1")
        time.sleep(arguments.load_seconds / 2)
        while arguments.hold is not None and arguments.hold.exists():
            time.sleep(HOLD_SECONDS)
        options = MockOptions(
            step_seconds=arguments.step_seconds,
            max_total_tokens=arguments.max_total_tokens,
            max_batch_size=arguments.max_batch_size,
            model_dir=arguments.model_dir,
            tokens_per_step=1 + arguments.speculate,
            script=tuple(arguments.script),
            hold=arguments.hold,
            max_loras=arguments.max_loras or (8 if arguments.enable_lora or arguments.lora_adapters else 0),
            lora_adapters=tuple(arguments.lora_adapters),
        )
        engine = MockEngine(options)
        record = None if arguments.adapters_file is None else AdapterRecord(arguments.adapters_file)
        if record is not None and (noted := record.read()) is not None:
            noted.restore(engine)
        return process.Loaded(engine, arguments.model_dir, record)

    token = os.environ.pop(transport.TOKEN_VARIABLE, "")
    tracing = Tracing.to(arguments.otlp_endpoint, "engine")
    return process.run(arguments.uds_path, token, load, drain_seconds=arguments.drain_seconds, tracing=tracing)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
