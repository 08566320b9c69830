"""What the engine refuses of the images of a request when it arrives, even if the gateway let it pass.

Gathers clamp: an image with too few rows, or places without an image, would be a wrong answer and no error.
"""

from collections.abc import Sequence as Ids

from jaxengine.architecture.picture import check_picture, places_of
from jaxengine.architecture.vision import Vision
from jaxengine.request.image import Image, PlacedImage, place
from jaxengine.request.interface import Description
from jaxengine.request.sequence import Request


def check_images(request: Request, limits: Description, vision: Vision | None) -> None:
    """Raises ValueError, naming field, value and limit, if an engine with `limits` cannot see the request's images.

    Args:
        vision: of its model; None where that does not see.
    """
    check_spans(request, limits)
    if vision is not None and limits.image_token_id is not None:
        for number, each in enumerate(place(request.prompt, request.images, limits.image_token_id)):
            _check_rows(f"images[{number}]", each, vision)


def check_spans(request: Request, limits: Description) -> None:
    """Raises ValueError, as `check_images`, for what can be told without knowing how the model sees."""
    images, token = request.images, limits.image_token_id
    if token is None:
        if images:
            raise ValueError("images: this model does not see")
        return
    if len(images) > limits.max_images:
        raise ValueError(f"images has {len(images)} entries, more than max_images {limits.max_images}")
    _check_order(images, len(request.prompt))
    placed = place(request.prompt, images, token)
    for number, each in enumerate(placed):
        _check_span(f"images[{number}]", each, limits)
        _check_size(f"images[{number}]", [each], limits)
    if limits.image_horizon == "prompt":
        _check_size("images", placed, limits)
    if list(request.prompt).count(token) != sum(len(each.places) for each in placed):
        raise ValueError(f"prompt has the id {token}, in whose places images stand, outside of its images")


def _check_order(images: Ids[Image], length: int) -> None:
    end = 0
    for number, image in enumerate(images):
        if image.offset < end:
            raise ValueError(f"images[{number}].offset {image.offset} is before {end}, where the image before it ends")
        end = image.end
        if end > length:
            raise ValueError(f"images[{number}] ends at {end}, behind the prompt of {length} tokens")


def _check_span(name: str, placed: PlacedImage, limits: Description) -> None:
    image, places = placed.image, placed.places
    if image.patches.shape[1] != limits.patch_values:
        raise ValueError(f"{name}.patches have {image.patches.shape[1]} values each, not {limits.patch_values}")
    if not len(places) or (places[0], places[-1]) != (image.offset, image.end - 1):
        raise ValueError(f"{name} must begin with the id {limits.image_token_id} and end with it")


def _check_rows(name: str, placed: PlacedImage, vision: Vision) -> None:
    """That an image is one for this model, and has a place for each of its rows."""
    try:
        check_picture(vision, placed.image.shape)
    except ValueError as error:
        raise ValueError(f"{name}.tiles: {error}") from error
    places = places_of(vision, placed.image.shape)
    if len(placed.places) != places:
        raise ValueError(f"{name} has {len(placed.places)} places in the prompt for its {places} rows")


def _check_size(name: str, placed: Ids[PlacedImage], limits: Description) -> None:
    patches = sum(each.image.shape.patches for each in placed)
    if patches > limits.max_image_patches:
        raise ValueError(f"{name} has {patches} patches, more than max_image_patches {limits.max_image_patches}")
    rows = sum(len(each.places) for each in placed)
    if rows > limits.max_image_tokens:
        raise ValueError(f"{name} has {rows} tokens, more than max_image_tokens {limits.max_image_tokens}")
