"""Images on their way to the engine: as it reads them, within what a message holds, and to where their pages are."""

import numpy as np
import pytest

from gateway.engine.images import check_bytes, image_to, sees
from jaxengine.architecture.picture import PictureShape
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc.limits import MAX_PATCH_BYTES
from jaxengine.service.codec import request_from
from tests.processes import ask


def test_the_engine_reads_what_is_sent() -> None:
    shape, patches = PictureShape(((1, 2), (2, 1)), 30, 40), np.arange(12, dtype="<f4").reshape(4, 3)
    message = image_to(b"d" * 32, 1, 4, shape, patches.tobytes(), "float32")
    (image,) = request_from(ask([1, 9, 9, 9, 9], 1, images=[message]), 1).images
    assert (image.digest, image.offset, image.length, image.shape) == (b"d" * 32, 1, 4, shape)
    np.testing.assert_array_equal(image.patches, patches)


def test_an_engine_without_an_image_token_does_not_see() -> None:
    assert not sees(pb.Description()) and sees(pb.Description(image_token_id=0))


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_a_message_holds_so_many_bytes_of_patches(dtype: str, size: int) -> None:
    description = pb.Description(patch_values=1024, patch_dtype=dtype)
    most = MAX_PATCH_BYTES // 1024 // size
    check_bytes(description, most)
    with pytest.raises(ValueError, match=rf"images have {MAX_PATCH_BYTES + 1024 * size} bytes of patches, at most"):
        check_bytes(description, most + 1)
