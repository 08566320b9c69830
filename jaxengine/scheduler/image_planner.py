"""Which images are encoded in which step, and so how far a chunk of a prompt that has some may reach.

An image is in the pool before a chunk has one of its places: it is there already, or the step encodes it first. Where
the pool or the encoder has no room for it in this step, the chunk ends before it. Then nobody who is planned later
begins an image in this step: small ones, or one that is always held by somebody, would keep it waiting for ever.

A sequence holds an image from the chunk that begins it until the step with its last place is complete. So whoever holds
rows and waits for others has computed all places of what it holds, or is about to: it always gives them back, and no
two can wait for each other.

Where an image's tokens see what is behind them the chunk that begins their part has all of it: an image, or a prompt.
What a cached page holds of it was computed so, hence a chunk may begin in the middle.

Where layers attend to images, a sequence holds those of a run from the chunk that begins it until what is behind the
run sees the next one, or until it ends. It takes all of them at once, and a chunk has tokens of one run. So what has
been said of those that wait holds here too: whoever waits for a run holds nothing as soon as its steps are complete.
Neither does a beam that waits for the others of its search, of which one may have an earlier run before it.
"""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Items
from typing import Any

from jaxengine.architecture.picture import PictureShape
from jaxengine.architecture.vision import Horizon
from jaxengine.cache.image_pool import ImagePool
from jaxengine.request.image import FOREVER, PlacedImage
from jaxengine.request.plan import Plan, Row
from jaxengine.request.sequence import Request, Sequence


class ImagePlanner:
    """
    Args:
        rows: of the device's pool.
        horizon: of the model's `Vision`.
        fits: whether one step can encode these pictures.
        run: the most rows that layers attend to at once; 0 = none does, and rows stand in for tokens.
    """

    def __init__(self, rows: int, horizon: Horizon, fits: Callable[[Items[PictureShape]], bool], run: int = 0) -> None:
        self.pool = ImagePool(rows)
        self.run = run
        self.horizon = horizon
        self.fits = fits
        self.start_counting()

    def start_counting(self) -> None:
        """Set the counters of `stats` to zero."""
        self.encoded = self.reused = 0  # images

    def stats(self) -> dict[str, Any]:
        """Fields of `Stats`."""
        return {"images_encoded": self.encoded, "images_reused": self.reused}

    # --- planning -------------------------------------------------------------------------------------------------

    def bounds(self, sequence: Sequence) -> bool:
        """Whether the chunks of `sequence` may have to end where others' need not."""
        return bool(sequence.images) or self.horizon == "prompt"

    def reach(self, sequence: Sequence, start: int, count: int, free: int, plan: Plan) -> int:
        """How many tokens of `sequence` from `start` on a row of `plan` may have. It is `count` or fewer; or more, but
        not more than `free`, where those must not be cut.
        """
        return self._reach(sequence, start, count, free, plan)[0]

    def take(self, sequence: Sequence, start: int, count: int, free: int, plan: Plan) -> int:
        """`reach`, and the images in these tokens will be in the pool when `plan` runs."""
        count, blocked = self._reach(sequence, start, count, free, plan)
        if count and sequence.images:
            self._hold(sequence, start, count, plan)
        plan.images_wait |= blocked
        return count

    def lacks(self, sequence: Sequence) -> bool:
        """Whether its next token sees images that it does not hold. A beam's may: it has begun with all tokens but this
        one, or it has waited for other beams.
        """
        at = sequence.computed
        return self.run > 0 and any(True for _ in _missing(sequence, at, at + 1))

    def may_lengthen(self, row: Row) -> bool:
        """Whether what follows the tokens of `row` may be of the same row: not where layers attend to other images."""
        return not self.run or row.start + row.count < self._run_end(row.sequence, row.start)

    def _reach(self, sequence: Sequence, start: int, count: int, free: int, plan: Plan) -> tuple[int, bool]:
        """`reach`, and whether an image bounds it for which there is no room."""
        if count < 1 or not self.bounds(sequence):
            return count, False
        end = self._uncut(sequence, start, start + count, start + free)
        blocked = self._first_without_room(sequence, start, end, plan)
        if blocked is not None:
            end = start if self.horizon == "prompt" else max(start, blocked.first)
        return end - start, blocked is not None

    def _hold(self, sequence: Sequence, start: int, count: int, plan: Plan) -> None:
        wanted = list(_missing(sequence, start, start + count))
        plan.sees_others += [sequence] if wanted else []
        for each in wanted:  # first what is there, or what comes could take its place
            each.encoded = self.pool.hold(each.image.key)
            self.reused += each.encoded is not None
        for each in wanted:
            if each.encoded is None:
                each.encoded = self.pool.hold(each.image.key)  # the same picture twice
                self.reused += each.encoded is not None
            if each.encoded is None:
                each.encoded = self.pool.place(each.image.key, self._rows(each))
                self.encoded += 1
                plan.encodes.append((each.image, each.encoded.rows))

    def _uncut(self, sequence: Sequence, start: int, end: int, limit: int) -> int:
        """Where a chunk from `start` on ends that should end at `end` and must end by `limit`, if it cuts nothing."""
        if self.horizon == "prompt" and end < sequence.prompt_length:
            return sequence.prompt_length if sequence.prompt_length <= limit else start
        if self.horizon == "image":
            for image in (each.image for each in sequence.images):
                if image.offset < end < image.end:
                    whole = image.end if image.end <= limit else start
                    return image.offset if image.offset > start else whole
        return min(end, self._run_end(sequence, start)) if self.run else end

    def _run_end(self, sequence: Sequence, start: int) -> int:
        """Where the run ends that a token at `start` sees; the first one, in front of it."""
        return next((each.until for each in sequence.images if start < each.until), FOREVER)

    def _rows(self, placed: PlacedImage) -> int:
        """How many of the pool's an image takes."""
        return len(placed.image.shape.tiles) if self.run else len(placed.places)

    def _first_without_room(self, sequence: Sequence, start: int, end: int, plan: Plan) -> PlacedImage | None:
        """The first image of these tokens that cannot be in the pool when `plan` runs."""
        rows, room = 0, None
        pictures, counted = [image.shape for image, _ in plan.encodes], set()
        for each in _missing(sequence, start, end):
            key = each.image.key
            if plan.images_wait:
                return each
            if self.pool.is_held(key) or key in counted:
                continue
            counted.add(key)
            rows += self._rows(each)
            if key not in self.pool.images:
                pictures.append(each.image.shape)
            room = self.pool.available if room is None else room
            whole = self.run > 0 and not plan.encodes  # a run may take more calls than the step has room for
            if rows > room or not (whole or self.fits(pictures)):
                return each
        return None

    # --- giving back ----------------------------------------------------------------------------------------------

    def passed(self, sequence: Sequence, position: int) -> None:
        """The steps that compute `sequence` up to `position` are complete: it needs no image before this any more."""
        self._release(each for each in sequence.images if each.until <= position)

    def rest(self, sequence: Sequence) -> None:
        """`sequence` waits for the other beams of its search, which may need room for what is behind them."""
        if not sequence.in_flight:
            self._release(sequence.images)

    def release(self, sequence: Sequence) -> None:
        """No step computes `sequence` any more, or not before it is admitted again."""
        self._release(sequence.images)

    def forget(self, sequence: Sequence) -> None:
        """Let nobody find what `sequence` has seen: it cannot be trusted."""
        self.pool.forget(each.image.key for each in sequence.images)

    def reset(self) -> None:
        """The pool's content is lost, and no sequence holds any of it."""
        self.pool.reset()

    def _release(self, images: Iterable[PlacedImage]) -> None:
        for each in images:
            if each.encoded is not None:
                self.pool.release(each.encoded)
                each.encoded = None

    # --- what can never be served ---------------------------------------------------------------------------------

    def check(self, request: Request, longest: int) -> None:
        """Raises ValueError, naming field and limit, if `request` would wait for ever.

        Args:
            longest: tokens of one request that a step has room for whatever else it computes.
        """
        together = self.horizon == "prompt"
        for images in [request.images] if together else [[each] for each in request.images]:
            pictures = {each.key: each.shape for each in images}.values()
            if pictures and not self.fits([*pictures]):
                patches = sum(each.patches for each in pictures)
                raise ValueError(f"images has {patches} patches together, more than one step can encode")
        spans = [len(request.prompt)] if together else [each.length for each in request.images]
        if self.horizon != "token" and max(spans, default=0) > longest:
            name = "prompt" if together else "images"
            raise ValueError(f"{name} has {max(spans)} tokens together, more than the {longest} that one step computes")
        if self.run:
            self._check_runs(request)

    def _check_runs(self, request: Request) -> None:
        tiles, end = 0, -1
        for image in request.images:
            tiles = len(image.shape.tiles) + (tiles if image.offset == end else 0)
            end = image.end
            if tiles > self.run:
                raise ValueError(f"images has {tiles} tiles without a token between them, more than {self.run}")


def no_images() -> ImagePlanner:
    """Of a model that does not see."""
    return ImagePlanner(0, "token", lambda _: False)


def _missing(sequence: Sequence, start: int, end: int) -> Iterator[PlacedImage]:
    """The images in these tokens that `sequence` does not hold."""
    for each in sequence.images:
        if each.encoded is None and each.first < end and start < each.until:
            yield each
