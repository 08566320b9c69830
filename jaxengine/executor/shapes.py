"""Every shape that an engine's executables have, from the model and its limits; and which executables a step calls."""

from dataclasses import dataclass, replace
from typing import Any

from jaxengine.architecture.adaptation import AdapterShapes
from jaxengine.architecture.drafter import DrafterLayers, DrafterSpec, DraftModel, Eagle
from jaxengine.architecture.model import ModelSpec
from jaxengine.cache.limits import Limits
from jaxengine.model.vision.packing import EncodeShape
from jaxengine.rpc.limits import MAX_ALTERNATIVES
from jaxengine.step.buffer import NO_SIGHT, Sight, StepShape
from jaxengine.step.draft_functions import DraftShape

AnyShape = StepShape | EncodeShape

BLOCK = 32  # tokens: ragged steps are whole blocks


@dataclass(frozen=True)
class Shapes:
    """Everything the executables' shapes depend on."""

    spec: ModelSpec
    limits: Limits
    dtype: str  # of weights that are not quantised, and of activations
    pages: int  # of the pool, the sink included
    page_size: int  # tokens
    top: int  # most alternatives beside a sampled token
    cache_dtype: str  # of the caches' arrays
    adapters: AdapterShapes | None = None  # None where no request may name one
    drafter: DrafterSpec | None = None  # None where nothing that was learnt drafts
    sums_hidden: bool = False  # embeddings are means over all tokens

    @property
    def scored(self) -> int:
        """Alternatives beside each token of a prompt: a step may have thousands of these, and their logits all."""
        return min(self.top, MAX_ALTERNATIVES)

    @property
    def slots(self) -> int:
        return self.limits.max_batch_size

    @property
    def guesses(self) -> int:
        """Most tokens of a request's draft that a step verifies."""
        return self.limits.draft_tokens

    @property
    def draft_model(self) -> DrafterLayers | None:
        """The drafter, where it is a model of its own or EAGLE's layers, which have caches."""
        return self.drafter if isinstance(self.drafter, DraftModel | Eagle) else None

    @property
    def feature_size(self) -> int:
        """Numbers that a step keeps of each token beside keys and values; 0 where nothing reads any."""
        return self.drafter.feature_size if isinstance(self.drafter, Eagle) else 0

    @property
    def guess_masks(self) -> int:
        """Guesses of a step, each of which may want a mask of its own."""
        return max(self.limits.verify_buckets, default=0)

    @property
    def table_width(self) -> int:
        """Pages of the longest sequence, rounded up to whole 128-token blocks of keys."""
        block = max(128, self.page_size)
        tokens = self.limits.max_total_tokens + self.limits.extra_pages * self.page_size
        return -(-tokens // block) * (block // self.page_size)

    @property
    def tables(self) -> int:
        """Page tables of a sequence."""
        return len(self.limits.windows)

    @property
    def sees(self) -> bool:
        return self.spec.vision is not None

    @property
    def pool_width(self) -> int:
        """Numbers that the pool keeps of each of an image's tokens."""
        return (1 + self.spec.vision.deepstack) * self.spec.hidden_size if self.spec.vision else 0

    def sight(self, ragged: bool) -> Sight:
        """What a step uploads because the model sees. Behind prompts there are no images, but what they have done to
        rope positions stays, and so does what layers attend to.
        """
        vision = self.spec.vision
        if vision is None:
            return NO_SIGHT
        turned = any(kind.rope is not None and kind.rope.axes for kind in self.spec.kinds)
        if vision.cross:
            return Sight(run=self.limits.image_run(vision))
        if not ragged:
            return Sight(axes=int(turned))
        past_window = vision.horizon == "prompt" and any(kind.window for kind in self.spec.kinds)
        return Sight(True, vision.horizon != "token", 3 * turned, past_window)

    @property
    def mask_writes(self) -> list[int]:
        """How many masks one call writes: a few, or all of a step."""
        return sorted({min(8, self.slots), max(self.slots, self.guess_masks)})

    def decode(self, rows: int) -> StepShape:
        updates, sight = rows * self.tables, self.sight(ragged=False)
        return StepShape(tokens=rows, rows=rows, samples=rows, updates=updates, ragged=False, sight=sight)

    def mixed(self, tokens: int) -> StepShape:
        rows = self.limits.rows_of(tokens)
        updates, sight = (tokens // self.page_size + rows) * self.tables, self.sight(ragged=True)
        return StepShape(tokens=tokens, rows=rows, samples=rows, updates=updates, ragged=True, sight=sight)

    def verify(self, tokens: int) -> StepShape:
        """A mixed step with a sample of each token. Where a step can have so many rows it is the very same."""
        return replace(self.mixed(tokens), samples=tokens)

    def proposes(self, rows: int) -> bool:
        """Whether drafts may be proposed for so many rows: a step must have room for one."""
        return self.drafter is not None and rows < self.limits.verify_buckets[-1]

    def draft_reading(self, tokens: int) -> DraftShape:
        """What a draft model reads in one call, as much as a mixed step."""
        return DraftShape(tokens, self.limits.rows_of(tokens), self.table_width)

    def draft_guessing(self, rows: int) -> DraftShape:
        """What it reads in the call that guesses: no more than a step has verified, and a token for each row."""
        assert self.draft_model is not None
        fresh = min(self.draft_model.fresh * rows, self.limits.verify_buckets[-1] + rows)
        tokens = next((size for size in self.limits.verify_buckets if size >= fresh), -(-fresh // BLOCK) * BLOCK)
        return DraftShape(tokens, rows, self.table_width)

    def encode(self, tokens: int) -> StepShape:
        """Its updates bring each prompt's pages, and the first of those behind."""
        rows = self.limits.rows_of(tokens)
        updates = tokens // self.page_size + 2 * rows
        return StepShape(tokens=tokens, rows=rows, samples=0, updates=updates, ragged=True)

    def encode_shapes(self) -> list[StepShape]:
        return self.for_adapters([self.encode(tokens) for tokens in self.limits.encode_buckets])

    def see_shapes(self) -> list[EncodeShape]:
        """Of calls that encode pictures, the smallest first."""
        return list(self.limits.see_shapes(self.spec.vision))

    def step_shapes(self) -> list[StepShape]:
        """Of every step, those that pay most to have first: a lone request's decode before a large batch's, steps that
        verify before prompts, and with adapters, which serve a step that has none too.
        """
        limits = self.limits
        shapes = [
            *(self.decode(rows) for rows in limits.decode_buckets),
            *(self.verify(tokens) for tokens in limits.verify_buckets),
            *(self.mixed(tokens) for tokens in limits.mixed_buckets),
        ]
        shapes = list(dict.fromkeys(shapes))
        return [*self.for_adapters(shapes), *(shapes if self.adapters else ())]

    def for_adapters(self, shapes: list[StepShape]) -> list[StepShape]:
        """`shapes` of steps that may have adapters, if any may."""
        return [replace(shape, adapters=self.adapters is not None) for shape in shapes]

    def essential_steps(self) -> list[StepShape]:
        """Steps that an engine cannot serve well without: the largest, which hold whatever is scheduled, and those of a
        lone short request, which the largest would answer many times slower (8.8 s in place of 0.4 for 17 tokens of
        SmolLM2-135M on 2 CPU cores): one row, and the fewest tokens that share the largest step's samplers.
        """
        limits = self.limits
        short = next(tokens for tokens in limits.mixed_buckets if limits.rows_of(tokens) == limits.max_batch_size)
        mixed = (self.mixed(limits.token_budget), self.mixed(short))
        decode = (self.decode(limits.max_batch_size), self.decode(limits.decode_buckets[0]))
        return self.for_adapters([*mixed, *decode])

    def names(self, shape: AnyShape) -> list[Any]:
        """The executables a step of `shape` may call. What proposes drafts belongs to a decode step of as many rows,
        and what reads for a draft model to a mixed step of as many tokens.
        """
        if isinstance(shape, EncodeShape):
            return [("see", shape)]
        if not shape.samples:
            return [("encode", shape)]
        step = [("backbone", shape), ("sample", shape.samples, True), ("sample", shape.samples, False)]
        if not shape.ragged:
            return [*step, ("propose", shape.rows)] if self.proposes(shape.rows) else step
        step.append(("score", shape.tokens))
        if self.sums_hidden:
            step.append(("sum_hidden", shape.tokens))
        if self.draft_model is not None and shape.tokens in self.limits.mixed_buckets:
            step.append(("read", shape.tokens))
        return step
