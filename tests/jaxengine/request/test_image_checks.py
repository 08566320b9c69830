"""What of a request's images the engine refuses, in words that name the field and the limit."""

from typing import Any

import numpy as np
import pytest

from jaxengine.architecture.picture import PictureShape
from jaxengine.architecture.switches import Norm
from jaxengine.architecture.vision import Connector, Horizon, Tower, Vision
from jaxengine.request.checks import check_request
from jaxengine.request.image import Image
from jaxengine.request.image_checks import check_images
from jaxengine.request.interface import Description
from jaxengine.request.samplers import Samplers
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.request.sequence import Request
from tests.engine_mock import MockEngine, MockOptions

TOKEN, VALUES = 300, 12
TOWER = Tower(8, 1, 1, 8, 8, Norm("layer"), positions="interpolated", grid=(4, 4))
VISION = Vision(TOWER, Connector(merge=2), TOKEN, 2, VALUES)  # a row of four patches
SPAN = [TOKEN, TOKEN, 5, TOKEN, TOKEN]  # of a picture of 4 · 4 patches, in two rows


def description(horizon: Horizon = "token", **fields: Any) -> Description:
    sight = MockOptions(image_token_id=TOKEN, patch_values=VALUES, max_images=2, max_image_patches=16)
    made = vars(MockEngine(sight).description) | {"image_horizon": horizon, "max_image_tokens": 4}
    return Description(**made | fields)


def image(offset: int, *, tile: tuple[int, int] = (4, 4), length: int = 5, values: int = VALUES) -> Image:
    patches = np.zeros((tile[0] * tile[1], values), np.float32)
    return Image(bytes(32), offset, length, PictureShape((tile,), 8, 8), patches)


def request(prompt: list[int], *images: Image) -> Request:
    return Request(1, prompt, SamplingParams(max_tokens=4, seed=0), images=images)


def test_images_where_the_prompt_says_are_taken() -> None:
    check_images(request([1, *SPAN, 2, *SPAN], image(1), image(7)), description(), VISION)
    check_images(request([1, 2]), description(), VISION)
    check_images(request([1, TOKEN]), description(image_token_id=None), None)


@pytest.mark.parametrize(
    ("asked", "refusal"),
    [
        (request([1, *SPAN], image(2)), r"images\[0\] ends at 7, behind the prompt of 6 tokens"),
        (
            request(SPAN + SPAN, image(5), image(0)),
            r"images\[1\].offset 0 is before 10, where the image before it ends",
        ),
        (request(SPAN + SPAN, image(0), image(4)), r"images\[1\].offset 4 is before 5"),
        (request([*SPAN] * 3, *map(image, (0, 5, 10))), "images has 3 entries, more than max_images 2"),
        (request([1, *SPAN, 2], image(0, length=6)), r"images\[0\] must begin with the id 300 and end with it"),
        (request([1, *SPAN, 2], image(1, length=6)), r"images\[0\] must begin with the id 300 and end with it"),
        (request([1] * 5, image(0)), r"images\[0\] must begin with the id 300"),
        (request(SPAN, image(0, values=3)), r"images\[0\].patches have 3 values each, not 12"),
        (request(SPAN, image(0, tile=(4, 5))), r"images\[0\] has 20 patches, more than max_image_patches 16"),
        (request(SPAN, image(0, tile=(4, 2))), r"images\[0\] has 4 places in the prompt for its 2 rows"),
        (request(SPAN, image(0, tile=(16, 1))), r"images\[0\].tiles: tiles must have at least 2 rows and columns"),
        (request([*SPAN, TOKEN], image(0)), "prompt has the id 300, .* outside of its images"),
        (request([1, TOKEN]), "prompt has the id 300, .* outside of its images"),
        (request([TOKEN] * 5, image(0)), r"images\[0\] has 5 tokens, more than max_image_tokens 4"),
    ],
)
def test_others_are_refused(asked: Request, refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal):
        check_images(asked, description(), VISION)


def test_where_all_images_are_encoded_at_once_their_sums_count() -> None:
    two = request(SPAN + SPAN, image(0), image(5))
    with pytest.raises(ValueError, match="images has 32 patches, more than max_image_patches 16"):
        check_images(two, description("prompt"), VISION)
    check_images(two, description("prompt", max_image_patches=32, max_image_tokens=8), VISION)


def test_a_model_that_does_not_see_is_sent_none() -> None:
    with pytest.raises(ValueError, match="images: this model does not see"):
        check_images(request(SPAN, image(0)), description(image_token_id=None), None)


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"digest": bytes(31)}, "images.digest must have 32 bytes, got 31"),
        ({"length": 0}, "images.offset 0 and images.length 0 span no tokens"),
        ({"patches": np.zeros((15, VALUES))}, r"images.patches of shape \(15, 12\) are not the 16 of its tiles"),
    ],
)
def test_an_image_that_contradicts_itself_is_none(fields: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal):
        Image(**vars(image(0)) | fields)


def test_the_image_token_behind_the_vocabulary_is_taken_in_prompts_alone() -> None:
    """Elsewhere it would index what has an entry for each id of the vocabulary."""
    limits = description(vocab_size=TOKEN)
    check_request(request([1, *SPAN], image(1)), limits)
    for field in ({"logit_bias": {TOKEN: 1.0}}, {"samplers": Samplers(dry_breakers=(TOKEN,))}):
        asked = Request(1, [1], SamplingParams(max_tokens=4, seed=0, **field))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=rf"has the id {TOKEN}, outside \[0, {TOKEN}\)"):
            check_request(asked, limits)
