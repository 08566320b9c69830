"""The mock engine itself.

Beam `k` of a search is the answer without its first `k` ids, with logprobs `k + 1` times as low.
"""

import hashlib
import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxengine.options.adapters import NO_ADAPTER, named_adapters
from jaxengine.request.beam_search import BeamSearch
from jaxengine.request.checks import check_resume
from jaxengine.request.event import Beam, Event, FinishReason, Token
from jaxengine.request.image_checks import check_spans
from jaxengine.request.interface import AdapterRefused, Description, ServedAdapter, Stats, StepResult
from jaxengine.request.sequence import Request
from jaxengine.rpc.page_keys import cache_name, root_key
from tests.engine_mock.answers import EMBEDDING, EOS, FAIL, VOCABULARY, embedding_of, logits_of, misbehave, next_id
from tests.engine_mock.live import Live
from tests.engine_mock.options import MockOptions
from tests.engine_mock.prefix_cache import PrefixCache

HOLD_SECONDS = 0.005  # between two checks whether the hold is over


def digest_of(path: str) -> bytes:
    """What tells the adapter at `path` from others."""
    return hashlib.sha256(path.encode()).digest()


class MockEngine:
    """`tokens_per_step` tokens per request and step, first come first served; prompts cost one step, like a token."""

    def __init__(self, options: MockOptions) -> None:
        self.options = options
        self._lock = threading.Lock()
        self._wake: Callable[[], None] = lambda: None
        self._live: dict[int, Live] = {}
        self._ended: list[Event] = []
        self._prefixes = PrefixCache(options.prefix_pages, options.page_size)
        self._prompt_tokens = self._cached_tokens = self._generated_tokens = self._steps = 0
        self._drafts = self._draft_tokens = 0
        self._images: set[bytes] = set()  # digests of those that it has seen
        self._images_encoded = self._images_reused = 0
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
            prefix_cache=bool(self.options.prefix_pages),
            cache_dtype="float32",
            decoder_start_token_id=self.options.decoder_start_token_id,
            max_adapters=self.options.max_loras,
            max_adapter_rank=16 if self.options.max_loras else 0,
            max_draft_tokens=self.options.tokens_per_step - 1,
            pooling=self.options.pooling,
            hidden_size=EMBEDDING,
            logits=self.options.logits,
            **self._sight,
        )

    @property
    def _sight(self) -> dict[str, Any]:
        """Fields of the description."""
        options = self.options
        if options.image_token_id is None:
            return {}
        return {
            "image_token_id": options.image_token_id,
            "image_horizon": "token",
            "max_images": options.max_images,
            "max_image_patches": options.max_image_patches,
            "max_image_tokens": options.max_image_patches,
            "patch_values": options.patch_values,
            "patch_dtype": options.patch_dtype,
        }

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
            raise ValueError(f"{NO_ADAPTER} {request.adapter!r}")
        if request.resume is not None:
            check_resume(request, request.resume, self.description)
        check_spans(request, self.description)
        with self._lock:
            self._live[request.id] = self.live(request)
            self._prompt_tokens += len(request.prompt)
            self._see(request)
        self._wake()

    def _see(self, request: Request) -> None:
        for image in request.images:
            self._images_reused += image.digest in self._images
            self._images_encoded += image.digest not in self._images
            self._images.add(image.digest)

    def live(self, request: Request) -> Live:
        """A request that goes on with the adapter that it begins with, whatever is loaded later."""
        adapter = self._adapters[request.adapter].path if request.adapter else ""
        return Live(request, adapter)

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
        self._adapters[name] = ServedAdapter(name, path, rank=8, digest=digest_of(path))
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
            return row is not None and not row.begun

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
        new = [row for row in rows if not row.begun]
        for row in new:
            self._begin(row)
        prefill = sum(len(row.request.prompt) - row.cached_tokens for row in new)
        seconds = self.options.step_seconds + self._prefill_seconds(new)
        time.sleep(seconds)
        sampled = [self.advance(row) for row in rows]
        with self._lock:
            for event in sampled:
                if event.finish:
                    self._live.pop(event.request_id, None)
            # A request cancelled while this step ran has its last event already.
            cancelled = {event.request_id for event in self._ended}
            events += [event for event in sampled if event.request_id not in cancelled]
        found = [each for event in sampled for each in (event, *event.beams)]
        answered = prefill + sum(len(each.tokens) for each in found)
        pages = self._prefixes.take_changes()
        return StepResult(events, prefill, len(rows), answered, seconds=max(seconds, 1e-6), pages=pages)

    def _begin(self, row: Live) -> None:
        """Find what the prefix cache has of the prompt."""
        if self.options.prefix_pages:
            model = cache_name(self.description.model_id, self.description.revision)
            root = root_key(model, row.request.salt, digest_of(row.adapter) if row.adapter else b"")
            row.cached_tokens = self._prefixes.read(root, row.request.prompt, row.request.images)
            row.cached_tokens *= self.options.page_size
            self._cached_tokens += row.cached_tokens

    def _prefill_seconds(self, rows: list[Live]) -> float:
        size = self.options.page_size
        pages = sum(math.ceil((len(row.request.prompt) - row.cached_tokens) / size) for row in rows)
        return self.options.prefill_seconds_per_page * pages

    def stats(self) -> Stats:
        with self._lock:
            running = min(len(self._live), self.options.max_batch_size)
            pages = sum(math.ceil(len(row.ids) / self.options.page_size) for row in self._live.values())
            waiting = len(self._live) - running
            queued = sum(len(row.request.prompt) for row in self._live.values() if not row.begun)
            adapters = {row.request.adapter for row in self._live.values()} - {""}
        return Stats(
            waiting=waiting,
            running=running,
            pages_total=self._pages_total,
            pages_used=pages,
            pages_cached=len(self._prefixes.keys),
            preemptions=0,
            prompt_tokens=self._prompt_tokens - self._cached_tokens,
            cached_prompt_tokens=self._cached_tokens,
            generated_tokens=self._generated_tokens,
            step_failures=0,
            compiles_after_warmup=0,
            steps=self._steps,
            running_adapters=tuple(sorted(adapters)),
            drafts=self._drafts,
            draft_tokens=self._draft_tokens,
            accepted_draft_tokens=tuple(self._accepted),
            queued_prefill_tokens=queued,
            images_encoded=self._images_encoded,
            images_reused=self._images_reused,
        )

    def advance(self, row: Live) -> Event:
        """The request's next tokens, or the misbehaviour that its prompt asks for."""
        request = row.request
        behaves = self.options.image_token_id is not None  # models that see have tokens with these ids
        if not behaves:
            misbehave(request.prompt[0], begun=row.begun)
        if request.prompt[0] == FAIL and not behaves:
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
        event = Event(request.id, tokens := [], first=not row.begun, cached_tokens=row.cached_tokens)
        row.begun = True
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
