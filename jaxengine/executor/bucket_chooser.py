"""Which step shape a plan is padded to: the smallest that holds it, is compiled and, on a GPU, has run before.

On a GPU an executable's first run loads its code and records its graph. So shapes run on padding first: all that
serving waits for before the engine is ready, later ones between requests.
"""

import time
from collections.abc import Callable, Container, Hashable
from dataclasses import replace
from typing import TypeVar

from jaxengine.executor.shapes import AnyShape, Shapes
from jaxengine.model.vision.packing import EncodeShape
from jaxengine.request.plan import Plan
from jaxengine.step.buffer import StepShape

Shape = TypeVar("Shape", StepShape, EncodeShape)

FIRST_RUN_SECONDS = 10.0  # under requests without a pause, a first run stops them at most once in so many seconds


class BucketChooser:
    """The shapes of one engine's steps, and which of them have run.

    Args:
        executables: says which names are compiled.
        first_run: runs a shape on padding and waits for it; None where a first run costs nothing.
    """

    def __init__(
        self, shapes: Shapes, executables: Container[Hashable], first_run: Callable[[AnyShape], None] | None
    ) -> None:
        self.shapes = shapes
        self.executables = executables
        self.first_run = first_run
        limits = shapes.limits
        self.decode_shapes = self._by_adapters([shapes.decode(size) for size in limits.decode_buckets])
        self.verify_shapes = self._by_adapters([shapes.verify(size) for size in limits.verify_buckets])
        mixed = [shapes.mixed(size) for size in limits.mixed_buckets]
        self.mixed_shapes = self._by_adapters(mixed)
        either = dict.fromkeys([*mixed, *map(shapes.verify, limits.verify_buckets)])
        self.short_shapes = self._by_adapters(sorted(either, key=lambda shape: shape.tokens))
        self.encode_shapes = shapes.encode_shapes()
        self.see_shapes = shapes.see_shapes()
        self.cold: list[AnyShape] = [*shapes.step_shapes(), *self.encode_shapes, *self.see_shapes]  # that never ran
        self.warm: set[AnyShape] = set()  # shapes that have run
        self.compiled: set[AnyShape] = set()  # shapes that were found so: what is compiled stays
        self.last_first_run = 0.0  # monotonic

    def step(self, plan: Plan) -> StepShape:
        """The shape for the rows of `plan`."""
        tokens, rows = plan.tokens, len(plan.rows)
        candidates = self._of_kind(plan)[plan.has_adapters]
        return self._ready([shape for shape in candidates if shape.tokens >= tokens and shape.rows >= rows])

    def _of_kind(self, plan: Plan) -> dict[bool, list[StepShape]]:
        if plan.decode_only:
            return self.decode_shapes
        if plan.verifies:
            return self.verify_shapes
        return self.short_shapes if plan.decodes else self.mixed_shapes

    def _by_adapters(self, shapes: list[StepShape]) -> dict[bool, list[StepShape]]:
        """`shapes` as they serve plans without adapters and with any. One without is tried first where no row has any.

        Made once: of eight sizes they took 25 us of each step.
        """
        if self.shapes.adapters is None:
            return {False: shapes, True: shapes}
        with_adapters = [replace(shape, adapters=True) for shape in shapes]
        return {False: [each for pair in zip(shapes, with_adapters, strict=True) for each in pair], True: with_adapters}

    def can_verify(self, tokens: int) -> bool:
        """Whether a step of `tokens` tokens that verifies drafts can run."""
        return self._can_run(self.shapes.verify(tokens))

    def propose_size(self, rows: int) -> int | None:
        """The fewest rows for which drafts can be proposed now, of as many as there are or more."""
        sizes = [size for size in self.shapes.limits.decode_buckets if size >= rows and self.shapes.proposes(size)]
        return next((size for size in sizes if self._can_run(self.shapes.decode(size))), None)

    def read_size(self, tokens: int) -> int:
        """How many tokens a draft model can read at once, as many as there are or more."""
        sizes = [size for size in self.shapes.limits.mixed_buckets if size >= tokens]
        return self._ready(self.shapes.for_adapters([self.shapes.mixed(size) for size in sizes])).tokens

    def plain_size(self, rows: int) -> int:
        """The size of a step that decodes `rows` rows."""
        return next(size for size in self.shapes.limits.decode_buckets if size >= rows)

    def encode(self, plan: Plan) -> StepShape:
        """The shape for the encoder rows of `plan`."""
        return self._ready([shape for shape in self.encode_shapes if shape.tokens >= plan.encoder_tokens])

    def see(self, needed: EncodeShape) -> EncodeShape:
        """The shape for pictures that need so much together, which is no more than the largest has."""
        return self._ready([shape for shape in self.see_shapes if shape.holds(needed)])

    def warm_next(self) -> bool:
        """Run one shape for the first time if one was compiled since the last call; False if there is none.

        Raises what the device raised: that shape is never tried again, and the device state must be reset.
        """
        shape = next(filter(self._compiled, self.cold), None) if self.first_run else None
        if shape is not None:
            self._warm(shape)
        return shape is not None

    def _ready(self, candidates: list[Shape]) -> Shape:
        """The first of `candidates` that is compiled and warm; the last one always is.

        An engine that never rests would never warm a smaller one. So now and then a first run stops the requests.
        """
        first = next(filter(self._compiled, candidates))
        if self._is_warm(first):
            return first
        return next(shape for shape in candidates if shape in self.warm)

    def _can_run(self, shape: StepShape) -> bool:
        """Whether a step of `shape` can run now, whatever adapters it has."""
        (shape,) = self.shapes.for_adapters([shape])
        return self._compiled(shape) and self._is_warm(shape)

    def _is_warm(self, shape: AnyShape) -> bool:
        """Whether `shape`, which is compiled, has run before; perhaps it runs now for the first time."""
        if not self.first_run or shape in self.warm:
            return True
        if shape in self.cold and time.monotonic() - self.last_first_run >= FIRST_RUN_SECONDS:
            self._warm(shape)
        return shape in self.warm

    def _warm(self, shape: AnyShape) -> None:
        assert self.first_run is not None
        self.cold.remove(shape)
        self.first_run(shape)
        self.warm.add(shape)
        self.last_first_run = time.monotonic()

    def _compiled(self, shape: AnyShape) -> bool:
        if shape in self.compiled:
            return True
        if not all(name in self.executables for name in self.shapes.names(shape)):
            return False
        self.compiled.add(shape)
        return True
