"""One sequence from the engine as text: `OutputProcessor` joins engine events, the detokenizer and stop strings.

A sequence is an engine request of its own, but for the answers of a beam search: they share one, whose only event has a
beam for each.

All dialects read the same `OutputDelta`s. They differ in `OutputPolicy`: whether stop strings stay in the output,
whether the token that ended the sequence shows, and which of two reasons for the end is named.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial

from gateway.config.options import Options
from gateway.engine.interface import Engine
from gateway.errors import engine_failure
from gateway.http.encoding import in_thread
from gateway.text.model_text import ModelText
from gateway.text.stop_strings import StopMatcher
from jaxengine.rpc import engine_pb2 as pb

LONG = 100  # tokens at once, each of which takes 10 to 20 µs


class Finish(StrEnum):
    """Why a sequence ended, in TGI's words."""

    LENGTH = "length"
    EOS = "eos_token"
    STOP = "stop_sequence"
    STOP_TOKEN = "stop_token"


@dataclass(frozen=True, slots=True)
class OutputPolicy:
    """How a dialect, or a request, wants the text."""

    keep_stop: bool  # the stop string stays in the text, and nothing is held back for it
    show_end: bool  # the EOS or stop token that ended the sequence shows, unless `skip_special` hides it
    skip_special: bool  # special tokens are left out of the running text
    length_first: bool  # the last permitted token ends by LENGTH, even if it is EOS or completes a stop string
    visible: frozenset[int] = frozenset()  # special tokens that stay in the running text although others are left out

    def hides(self, id: int) -> bool:
        """Whether the special token `id` is left out of the running text."""
        return self.skip_special and id not in self.visible


@dataclass(frozen=True, slots=True)
class TokenText:
    """One generated token.

    text: what the token added to the running text, "" while a character is incomplete; a special token that the
        running text leaves out shows its name here.
    top: the likeliest alternatives, if asked for.
    start: characters of running text before the token.
    released: running text that may be shown once the token has come: its own, less what is held back, and what was.
    """

    id: int
    logprob: float
    text: str
    special: bool
    top: Sequence[pb.Alternative]
    start: int
    released: str


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """What one engine event added to a sequence."""

    tokens: list[TokenText]
    text: str  # running text that the event released; the rest is held back, it may begin a stop string
    finish: Finish | None
    prompt: pb.Prompt | None  # in the first delta: the prompt's own logprobs and counts

    def singles(self) -> "list[OutputDelta]":
        """The same as the deltas of its tokens one by one, for readers that count tokens by what their text is."""
        if len(self.tokens) < 2:
            return [self]
        each = [OutputDelta([token], token.released, None, None) for token in self.tokens]
        each[0] = replace(each[0], prompt=self.prompt)
        each[-1] = replace(each[-1], finish=self.finish)
        return each


@dataclass
class OutputProcessor:
    """The output of one sequence so far."""

    model: ModelText
    request: pb.Generate  # one object, shared by the answers of a beam search
    prompt_ids: list[int]  # one list, shared by the choices of a prompt
    stops: list[str]
    policy: OutputPolicy
    generated: int = 0  # tokens
    finish: Finish | None = None
    stop_reason: str | int | None = None
    prompt: pb.Prompt = field(default_factory=pb.Prompt)
    preemptions: int = 0
    accepted_draft_tokens: int = 0  # of the generated tokens
    embedding: bytes = b""  # float32, little-endian; of a request with `pooling`, which has no tokens
    logits: bytes = b""  # likewise; of a request with `logits`

    def __post_init__(self) -> None:
        self._matcher = StopMatcher(self.stops, keep=self.policy.keep_stop)
        self._detokenizer = self.model.detokenizer(
            self.prompt_ids, skip_special_tokens=self.policy.skip_special, visible=self.policy.visible
        )
        self._written = 0  # characters of running text, released or held back
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        """The running text that has been released."""
        return "".join(self._parts)

    def push(self, event: pb.RequestEvent) -> OutputDelta:
        """Add an event that is no failure. After a delta with `finish` no event may follow."""
        if event.HasField("prompt"):
            self.prompt = event.prompt
        self.preemptions = max(self.preemptions, event.preemptions)
        if self.request.pooling or self.request.logits:
            self.embedding, self.logits, self.finish = event.embedding, event.logits, Finish.LENGTH
            return OutputDelta([], "", self.finish, self.prompt)
        tokens: list[TokenText] = []
        for number, token in enumerate(event.tokens, 1):
            ending = event.finish if number == len(event.tokens) else pb.NOT_FINISHED
            tokens.append(self._add(token, ending))
            if self.finish is not None:
                break
        released = "".join([token.released for token in tokens])
        if self.finish is None and event.finish != pb.NOT_FINISHED:  # the event ends the sequence without a token
            released += self._end(event.finish, 0)
        self._parts.append(released)
        drafts = event.accepted_draft_tokens - (len(event.tokens) - len(tokens))  # less those behind a stop string
        self.accepted_draft_tokens = max(self.accepted_draft_tokens, drafts)
        return OutputDelta(tokens, released, self.finish, event.prompt if event.HasField("prompt") else None)

    def _add(self, token: pb.Token, ending: int) -> TokenText:
        self.generated += 1
        start = self._written
        special = self.model.tokenizer.is_special(token.id)
        running = self._running_text(token.id, ending)
        self._written += len(running)
        release = self._matcher.push(running, may_end=self.generated > self.request.min_new_tokens)
        if release.stop is not None:
            self._stop(release.stop)
            running = running[: len(release.text)] if self.policy.keep_stop else running
        released = release.text
        if ending != pb.NOT_FINISHED:
            released += self._end(ending, token.id)
        shown = self.model.tokenizer.token_text(token.id) if special and self.policy.hides(token.id) else ""
        return TokenText(token.id, token.logprob, running + shown, special, token.top, start, released)

    def _running_text(self, id: int, ending: int) -> str:
        """What a token adds to the running text; the last token also completes what was incomplete."""
        hidden = not self.policy.show_end and ending in (pb.EOS, pb.STOP_TOKEN)
        text = "" if hidden else self._detokenizer.push(id)
        return text if ending == pb.NOT_FINISHED else text + self._detokenizer.flush()

    def _stop(self, stop: str) -> None:
        """Name the reason, after the text completed the stop string `stop`."""
        if self.policy.length_first and self.generated >= self.request.max_new_tokens:
            self.finish = Finish.LENGTH
        else:
            self.finish, self.stop_reason = Finish.STOP, stop

    def _end(self, ending: int, id: int) -> str:
        """Name the engine's reason, unless a stop string ended the sequence first; the text that was held back."""
        if self.finish is not None:
            return ""
        if ending == pb.LENGTH or (self.policy.length_first and self.generated >= self.request.max_new_tokens):
            self.finish = Finish.LENGTH
        elif ending == pb.EOS:
            self.finish = Finish.EOS
        else:
            self.finish, self.stop_reason = Finish.STOP_TOKEN, id
        return self._matcher.flush()


Numbered = list[tuple[int, OutputProcessor]]  # sequences, each with its index
_Arrival = tuple[int, OutputDelta] | Exception | None  # a delta, the exception that ended a request, or None at its end


async def run_all(
    engine: Engine, outputs: list[OutputProcessor], options: Options, at_once: int | None = None
) -> AsyncGenerator[tuple[int, OutputDelta], None]:
    """Generate sequences: their deltas as they come, each with its index. Closing the iterator cancels them all in the
    engine, and so does the failure of one.

    Args:
        at_once: requests that the engine has at once; all if not given.

    Raises:
        RequestError: the engine ended a request with a failure.
        EngineUnavailable: see Engine.generate.
    """
    streams = [_run(engine, sequences, options) for sequences in by_request(outputs)]
    if len(streams) == 1:
        async with aclosing(streams[0]) as deltas:
            async for numbered in deltas:
                yield numbered
        return
    queue: asyncio.Queue[_Arrival] = asyncio.Queue(maxsize=2 * len(outputs))
    room = asyncio.Semaphore(at_once or len(streams))
    tasks = [asyncio.create_task(_feed(queue, deltas, room)) for deltas in streams]
    running = len(tasks)
    try:
        while running:
            arrival = await queue.get()
            if isinstance(arrival, Exception):
                raise arrival
            if arrival is None:
                running -= 1
            else:
                yield arrival
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def by_request(outputs: list[OutputProcessor]) -> list[Numbered]:
    """The sequences of each engine request."""
    found: dict[int, Numbered] = {}
    for index, output in enumerate(outputs):
        found.setdefault(id(output.request), []).append((index, output))
    return list(found.values())


async def _run(engine: Engine, sequences: Numbered, options: Options) -> AsyncGenerator[tuple[int, OutputDelta], None]:
    """The deltas of one engine request."""
    async with aclosing(engine.generate(sequences[0][1].request)) as events:
        async for event in events:
            failure = engine_failure(event, options)
            if failure is not None:
                raise failure
            for number, (index, output) in enumerate(sequences):
                tokens = event.beams[number].tokens if event.beams else event.tokens
                yield index, await in_thread(partial(_push, output, event, number), when=len(tokens) > LONG)
            if sequences[0][1].finish is not None:
                return


def _push(output: OutputProcessor, event: pb.RequestEvent, number: int) -> OutputDelta:
    """Add to `output` what `event` says of it, sequence `number` of its request."""
    if not event.beams:
        return output.push(event)
    beam = event.beams[number]
    return output.push(
        pb.RequestEvent(tokens=beam.tokens, finish=beam.finish, prompt=event.prompt, preemptions=event.preemptions)
    )


async def _feed(
    queue: asyncio.Queue[_Arrival], deltas: AsyncGenerator[tuple[int, OutputDelta], None], room: asyncio.Semaphore
) -> None:
    """Once there is room, put the deltas of one request into the queue, then None or the exception that ended it."""
    async with room, aclosing(deltas):
        try:
            async for numbered in deltas:
                await queue.put(numbered)
        except Exception as error:
            await queue.put(error)
            return
    await queue.put(None)
