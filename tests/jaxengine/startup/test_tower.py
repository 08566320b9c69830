"""A tower is refused where the kernels cannot run it, before anything is loaded."""

from dataclasses import replace

import pytest

from jaxengine.architecture.model import ModelSpec
from jaxengine.device import CPU
from jaxengine.startup.tower import check_tower
from tests.shapes import H200, LLAMA_8B, LLAVA_NEXT_7B


def test_the_kernels_must_be_able_to_run_it() -> None:
    check_tower(LLAMA_8B, "auto", H200, "bfloat16")
    check_tower(LLAVA_NEXT_7B, "auto", H200, "bfloat16")
    check_tower(with_heads(20), "auto", CPU, "float32")
    with pytest.raises(ValueError, match=r"^vision tower: attention 'auto': triton supports head_dim .* has 20"):
        check_tower(with_heads(20), "auto", H200, "bfloat16")


def with_heads(head_dim: int) -> ModelSpec:
    vision = LLAVA_NEXT_7B.vision
    assert vision is not None
    return replace(LLAVA_NEXT_7B, vision=replace(vision, tower=replace(vision.tower, head_dim=head_dim)))
