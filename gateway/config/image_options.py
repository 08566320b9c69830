"""The options of images in prompts, for models that see: how many, how large, and from where they may be fetched."""

from dataclasses import dataclass

from gateway.config import values
from jaxengine.options.option import option


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """A part of the table of `Options`."""

    max_images: int = option(
        4,
        values.whole(0, 64),
        "most images of a prompt, for models that see; 0 has such a model answer texts alone",
        group="Images",
        after="queue_timeout",
    )
    max_image_size: int = option(
        20 << 20,
        values.whole(1, 1 << 30),
        "largest file of an image in bytes",
        after="max_images",
    )
    max_image_pixels: int = option(
        1 << 24,
        values.whole(1, 1 << 28),
        "most pixels of an image, width times height",
        after="max_image_size",
    )
    max_image_memory: int = option(
        4 << 30,
        values.whole(1, 1 << 48),
        "bytes that requests of an HTTP process may hold of their images: bodies, files and what the engine is sent; a "
        "request beyond is answered 429; an eighth, where it is free, keeps what earlier images became",
        after="max_image_pixels",
    )
    image_payload_limit: int = option(
        32 << 20,
        values.whole(1),
        "largest request body in bytes where the model sees, instead of --payload-limit",
        after="max_image_memory",
    )
    allowed_media_domains: tuple[str, ...] = option(
        (),
        values.domain,
        "host from which images may be fetched, *.example.com for those below one, * for all, :PORT behind it for "
        "another port than 80 and 443; 10.1.0.0/16 for hosts at such addresses, which must else be public; repeatable; "
        "without it images come in requests alone",
        after="image_payload_limit",
    )
    image_fetch_timeout: float = option(
        5.0,
        values.number(0.1, 600),
        "seconds in which an image must have been fetched, redirects included",
        after="allowed_media_domains",
    )
