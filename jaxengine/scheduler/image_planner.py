"""Which images are encoded in which step, and so how far a chunk of a prompt that has some may reach.

An image is in the pool before a chunk has one of its places: it is there already, or the step encodes it first. Where
the pool or the encoder has no room for it in this step, the chunk ends before it. Then nobody who is planned later
begins an image in this step: small ones, or one that is always held by somebody, would keep it waiting for ever.

A sequence holds an image from the chunk that begins it until the step with its last place is complete. So whoever holds
rows and waits for others has computed all places of what it holds, or is about to: it always gives them back, and no
two can wait for each other.

Where an image's tokens see what is behind them the chunk that begins their part has all of it: an image, or a prompt.
What a cached page holds of it was computed so, hence a chunk may begin in the middle.
"""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Items
from typing import Any

from jaxengine.architecture.picture import PictureShape
from jaxengine.architecture.vision import Horizon
from jaxengine.cache.image_pool import ImagePool
from jaxengine.request.image import PlacedImage
from jaxengine.request.plan import Plan
from jaxengine.request.sequence import Request, Sequence


class ImagePlanner:
    """
    Args:
        rows: of the device's pool.
        horizon: of the model's `Vision`.
        fits: whether one step can encode these pictures.
    """

    def __init__(self, rows: int, horizon: Horizon, fits: Callable[[Items[PictureShape]], bool]) -> None:
        self.pool = ImagePool(rows)
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

    def _reach(self, sequence: Sequence, start: int, count: int, free: int, plan: Plan) -> tuple[int, bool]:
        """`reach`, and whether an image bounds it for which there is no room."""
        if count < 1 or not self.bounds(sequence):
            return count, False
        end = self._uncut(sequence, start, start + count, start + free)
        blocked = self._first_without_room(sequence, start, end, plan)
        if blocked is not None:
            end = start if self.horizon == "prompt" else max(start, blocked.image.offset)
        return end - start, blocked is not None

    def _hold(self, sequence: Sequence, start: int, count: int, plan: Plan) -> None:
        wanted = list(_missing(sequence, start, start + count))
        for each in wanted:  # first what is there, or what comes could take its place
            each.encoded = self.pool.hold(each.image.key)
            self.reused += each.encoded is not None
        for each in wanted:
            if each.encoded is None:
                each.encoded = self.pool.hold(each.image.key)  # the same picture twice
                self.reused += each.encoded is not None
            if each.encoded is None:
                each.encoded = self.pool.place(each.image.key, len(each.places))
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
        return end

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
            rows += len(each.places)
            if key not in self.pool.images:
                pictures.append(each.image.shape)
            room = self.pool.available if room is None else room
            if rows > room or not self.fits(pictures):
                return each
        return None

    # --- giving back ----------------------------------------------------------------------------------------------

    def passed(self, sequence: Sequence, position: int) -> None:
        """The steps that compute `sequence` up to `position` are complete: it needs no image before this any more."""
        self._release(each for each in sequence.images if each.image.end <= position)

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


def no_images() -> ImagePlanner:
    """Of a model that does not see."""
    return ImagePlanner(0, "token", lambda _: False)


def _missing(sequence: Sequence, start: int, end: int) -> Iterator[PlacedImage]:
    """The images in these tokens that `sequence` does not hold."""
    for each in sequence.images:
        if each.encoded is None and each.image.offset < end and start < each.image.end:
            yield each
