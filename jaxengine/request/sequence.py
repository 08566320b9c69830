"""One request inside the engine: what was asked for, which tokens are known, and which pages hold them.

Token ids, sampling parameters and the RNG counter (the position) always stay on the host. A step that fails after its
cache was donated destroys the cache, and then everything is rebuilt from here.
"""

import math
import time
import weakref
from collections.abc import Sequence as Ids
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import numpy as np

from jaxengine.architecture.adaptation import LoadedAdapter
from jaxengine.grammar.grammar import Grammar, Reasoning
from jaxengine.grammar.matcher import Matcher
from jaxengine.options.pooling import Pooling
from jaxengine.request.beam_search import BeamSearch
from jaxengine.request.beams import Beams
from jaxengine.request.event import FinishReason, Token
from jaxengine.request.image import Image, PlacedImage, place
from jaxengine.request.resume import Resume
from jaxengine.request.sampling_params import SamplingParams

Logits = Literal["last", "all"]  # of a prompt's last position, or of every one
LOGITS: tuple[Logits, ...] = ("last", "all")
AGING_SECONDS = 60.0  # one priority level is worth so much waiting: overtaking is bounded, so no request starves


@dataclass(frozen=True)
class Request:
    """What the engine is asked for. `params.seed` must be set; `arrived` is on the monotonic clock."""

    id: int
    prompt: Ids[int]
    params: SamplingParams
    _: KW_ONLY
    salt: bytes = b""
    timeout: float | None = None  # seconds from arrival
    queue_timeout: float | None = None  # seconds from arrival until it is first scheduled
    caller: int = 0  # between callers, waiting requests are served fairly, see `FairQueue`
    priority: int = 0  # lower runs earlier, among the same caller's requests
    grammar: Grammar | None = None  # what the generated text must match
    reasoning: Reasoning | None = None  # what stands before that text
    adapter: str = ""  # name of the adapter that answers; "" = the model itself
    beam_search: BeamSearch | None = None
    pooling: Pooling | None = None  # it wants its prompt's hidden states pooled, and no text
    logits: Logits | None = None  # it wants its prompt's logits, and no text
    resume: Resume | None = None  # what it has been answered by an engine that is gone
    images: tuple[Image, ...] = ()  # in its prompt, in this order; they do not overlap
    arrived: float = field(default_factory=time.monotonic)

    @property
    def constrained(self) -> bool:
        """Whether not every id may come next at all times."""
        return self.grammar is not None or (self.reasoning is not None and self.reasoning.budget is not None)


@dataclass(slots=True)
class PageTable:
    """Pages of a sequence in order of position. The first `released` entries are SINK: their pages were released."""

    pages: list[int]
    released: int = 0

    @property
    def held(self) -> list[int]:
        """The pages that the sequence still holds."""
        return self.pages[self.released :]


class Sequence:
    """A request while it is served.

    `length` counts the tokens that exist, whether the host has read them or they are still on the device. `computed`
    counts the positions whose keys and values are written, or are being written by a dispatched step. The next position
    to feed is `computed`; the next token to sample has position `length`.

    Args:
        arrival: number of the request in order of arrival.
        adapter: the one that the request names.
        start_token: for a model with an encoder. The prompt is then `encoder_input`, and the decoder starts from this
            token alone. The sequence's page table begins with the pages of the encoder input.
        image_token: for a model that sees: the id in whose places rows of images stand.
        cross, forgets: layers of it attend to images instead, see `place`.

    A resumed request begins as one that was preempted: what it has been answered stands behind its prompt.
    """

    def __init__(
        self,
        request: Request,
        arrival: int,
        start_token: int | None = None,
        adapter: LoadedAdapter | None = None,
        *,
        image_token: int | None = None,
        cross: bool = False,
        forgets: int = -1,
    ) -> None:
        self.request = request
        self.adapter = adapter
        self.image_token, self.cross, self.forgets = image_token, cross, forgets
        self.adapter_slot: int | None = None  # of the device's stacks; with a slot for the sequence it has this too
        self.saves: list[int] = []  # positions behind which states are to be copied, of those that are not yet
        self.snapshot: int | None = None  # the slot whose states it has started from
        self.passed_by = 0  # later requests with adapters that were begun while it waited for a slot of the stacks
        self.params: SamplingParams = request.params
        self.arrival = arrival
        timeouts = [each for each in (request.timeout, request.queue_timeout) if each is not None]
        self.earliest_deadline = request.arrived + min(timeouts, default=math.inf)
        prompt = list(request.prompt)
        self.prompt_tokens = len(prompt)
        self.encoder_input: list[int] = [] if start_token is None else prompt
        self.tokens: list[int] = prompt if start_token is None else [start_token]
        self.prompt_length = len(self.tokens)
        self.images: list[PlacedImage] = []
        if image_token is not None:
            self.images = place(prompt, request.images, image_token, cross, forgets)
        self.max_length = self.prompt_length + self.params.max_tokens  # `length` never exceeds it
        self.tokens += request.resume.generated if request.resume else ()
        self.length = len(self.tokens)
        self.rope_length = self.prompt_length  # length of the text when its keys were computed, see `model/rope.py`
        self.tables: list[PageTable] = []  # all of one length; empty without a slot
        self.prefix_keys: list[bytes] = []  # prefix-cache key of each full page of known tokens, computed as needed
        self.offered_pages = 0  # pages of each table that the prefix cache has been offered
        self.slot: int | None = None
        self.computed = 0
        # So many tokens from there on are guesses that a step has found right. Layers that keep states have none of
        # them, as no state is kept of a guess, so they are computed again.
        self.again = 0
        self.page_capacity = 0  # tokens that its pages can hold, the encoder input's pages left out
        self.in_flight = 0  # dispatched steps not yet completed that hold a row of this sequence
        self.finish = FinishReason.NOT_FINISHED
        self.nonfinite = False  # a row had NaN or infinite logits: its pages must not be shared
        self.cached_tokens = 0
        # Monotonic; when it was first scheduled, or first left waiting for a prefix that another request computes.
        self.admitted_at: float | None = None
        self.first_token_at: float | None = None  # monotonic; when the host read its first sampled token
        self.preemptions = 0
        self.sampling_steps = 0  # that gave it tokens
        self.draft_tokens = self.accepted_draft_tokens = 0
        self.surprise = 2 * request.params.samplers.mirostat_tau  # mirostat's bound, in bits
        if request.resume and request.resume.surprise is not None:
            self.surprise = request.resume.surprise
        # The other beams of a search. They know the first by a weak reference: what refers to itself keeps its pictures
        # in memory until the garbage collector comes by.
        self._others: list[Sequence] = []
        self._first: weakref.ref[Sequence] | None = None  # None of the first itself
        self.beams: Beams | None = None  # of which each member is one
        self.matcher: Matcher | None = None  # has read the generated tokens that the host has
        # Filled chunk by chunk if asked for. The first token has no logprob.
        self.prompt_logprobs = [Token(self.tokens[0], math.nan)] if request.params.prompt_logprobs else []
        self.pooling: Pooling | None = request.pooling
        self.pooled: np.ndarray | None = None  # f32 [hidden], of those pooled so far the sum
        self.logits: np.ndarray | None = None  # f32 [positions, vocabulary], those that are wanted, as far as they came

    def fan_out(self, beams: Beams) -> None:
        """Serve the request as a beam search, of which this sequence is the first beam. The others are asleep until it
        has grown for the first time: they have a slot and a page when it has, and no row in any step.
        """
        start_token = self.tokens[0] if self.encoder_input else None
        sees: dict[str, Any] = {"image_token": self.image_token, "cross": self.cross, "forgets": self.forgets}
        for _ in range(1, beams.search.width):
            other = Sequence(self.request, self.arrival, start_token, self.adapter, **sees)
            other._first = weakref.ref(self)
            self._others.append(other)
        for member in self.members:
            member.beams = beams

    def become(self, parent: "Sequence") -> None:
        """Have all that `parent` has, but for slot and pages."""
        self.tokens = [*parent.tokens]
        self.length, self.computed, self.rope_length = parent.length, parent.computed, parent.rope_length
        self.prefix_keys, self.offered_pages = [*parent.prefix_keys], parent.offered_pages

    @property
    def shareable(self) -> int:
        """How many of its tokens see what they would in any prompt: behind the id `forgets` a prompt's see no image,
        and those of an answer do.
        """
        first = self.prompt_length - 1
        if not self.images or self.forgets < 0 or self.forgets not in self.tokens[first:]:
            return len(self.tokens)
        return self.tokens.index(self.forgets, first) + 1

    @property
    def reads_whole_prompt(self) -> bool:
        """Whether every token of its prompt must be computed for it, so that it shares no page that others wrote."""
        return self.params.prompt_logprobs or self.pooling == "mean" or self.request.logits == "all"

    @property
    def images_end(self) -> int:
        """Index of the first token behind its images."""
        return self.images[-1].image.end if self.images else 0

    @property
    def wants_text(self) -> bool:
        """Whether it is answered with tokens. One that is not ends with its prompt, behind which no token counts."""
        return self.pooling is None and self.request.logits is None

    @property
    def scope(self) -> tuple[bytes, bytes]:
        """Requests share what was computed, and what was answered, only where theirs is the same."""
        return self.request.salt, self.adapter.digest if self.adapter else b""

    @property
    def representative(self) -> "Sequence":
        """The one that stands for its request. It may be gone before the others of a search that has ended."""
        return self if self._first is None else self._first() or self

    @property
    def first(self) -> bool:
        """Whether it stands for its request."""
        return self._first is None

    @property
    def members(self) -> list["Sequence"]:
        """Those that are served as one, the one that stands for the request in front."""
        return [self.representative, *self.representative._others]

    @property
    def asleep(self) -> bool:
        return self.beams is not None and not (self.first or self.beams.begun)

    def until_save(self, start: int) -> int:
        """How many tokens from `start` on may be computed together: up to where states are saved, or all."""
        return next((at for at in self.saves if at > start), self.length) - start

    @property
    def waits_for_beams(self) -> bool:
        """Whether beams of its search have been sampled since it last grew, but not all."""
        return self.beams is not None and bool(self.beams.noted)

    @property
    def listed(self) -> int:
        """How many alternatives its samples must list."""
        return max(self.params.logprobs, self.beams.candidates) if self.beams else self.params.logprobs

    @property
    def pending(self) -> int:
        """Sampled tokens that the host has not read yet."""
        return self.length - len(self.tokens)

    @property
    def generated(self) -> int:
        return self.length - self.prompt_length

    @property
    def exhausted(self) -> bool:
        """Whether all tokens that it may have are sampled, so that nothing is left to schedule."""
        return self.length >= self.max_length

    def outgrows_rope(self, switch_length: int) -> bool:
        """Whether it is longer than `switch_length`, and its keys were computed when it was not."""
        return self.rope_length <= switch_length < self.length

    @property
    def order(self) -> tuple[float, int]:
        """Sorts the queue: first come first served, where one priority level is worth AGING_SECONDS of waiting."""
        return (self.request.arrived + self.request.priority * AGING_SECONDS, self.arrival)

    def expired(self, now: float) -> FinishReason | None:
        """The finish reason of the deadline that has passed, or None."""
        age = now - self.request.arrived
        if self.request.timeout is not None and age > self.request.timeout:
            return FinishReason.DEADLINE
        queued = self.request.queue_timeout if self.admitted_at is None else None
        return FinishReason.QUEUE_TIMEOUT if queued is not None and age > queued else None
