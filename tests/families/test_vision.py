"""What stands in for pictures: rows of the encoder equal transformers' image features, for every way to see."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from convert.source import open_model
from jaxengine.architecture.parameters import parameter_table
from jaxengine.architecture.picture import check_picture
from jaxengine.model.vision.packing import EncodeShape, encode_shapes, needed
from jaxengine.ops import BACKENDS
from jaxengine.ops.weight import Weight
from jaxengine.weights.kv_heads import replicate_heads
from tests import xla
from tests.families.vision_rows import TOLERANCE, Encoded
from tests.tiny_quantized import FORMATS, write_quantized
from tests.tiny_vision import SEEN, write_vision
from tests.vision_references import Reference, noise

pytestmark = pytest.mark.slow

TEXT_ALONE = replace(FORMATS["gptq"], kept="vision_tower|multi_modal_projector")
SIZES = ((64, 40), (40, 64), (150, 31))


@pytest.fixture(scope="module", params=SEEN)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Reference, Encoded]:
    directory = write_vision(tmp_path_factory.mktemp("vision"), request.param)
    return Reference(directory, request.param), Encoded(directory)


def test_rows_are_those_of_transformers(model: tuple[Reference, Encoded]) -> None:
    reference, encoded = model
    for width, height in SIZES:
        picture = noise(width, height)
        seen = reference.see(picture)
        check_picture(encoded.vision, seen.shape)
        (rows,) = encoded.rows([seen])
        expected = reference.rows(picture)
        assert rows.shape == expected.shape
        np.testing.assert_allclose(rows, expected, atol=TOLERANCE, rtol=0)


def test_pictures_of_one_call_do_not_see_each_other_nor_the_padding(model: tuple[Reference, Encoded]) -> None:
    reference, encoded = model
    pictures = [reference.see(noise(width, height)) for width, height in SIZES]
    need = needed(encoded.vision, [picture.shape for picture in pictures])
    roomy = encode_shapes(encoded.vision, EncodeShape(2 * need.patches, 2 * need.segments, 2 * need.rows))[-1]
    together = encoded.rows(pictures, roomy)
    for picture, rows in zip(pictures, together, strict=True):
        np.testing.assert_allclose(rows, encoded.rows([picture])[0], atol=TOLERANCE, rtol=0)


def test_a_tower_is_split_over_devices_by_its_heads_where_they_divide(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.families.vision_devices", str(tmp_path)]
    done = subprocess.run(program, env={**os.environ, **xla.devices(4)}, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stderr[-3000:]
    for found in json.loads(done.stdout.splitlines()[-1]):
        assert max(difference for difference, _ in found.values()) < TOLERANCE
        halves, quarters = (share for _, share in found.values())
        assert halves < 0.52 and 0.25 < quarters < 0.75  # matrices of heads are whole, those of the MLP are split


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_a_tower_beside_a_quantised_text_part_stays_in_floats(quantize: str | None, tmp_path: Path) -> None:
    directory = write_vision(tmp_path, "llava")
    if quantize is None:
        directory = write_quantized(directory, tmp_path / "made", TEXT_ALONE) / "quantised"
    reference, encoded = Reference(tmp_path / "llava", "llava"), Encoded(directory, quantize=quantize)
    assert encoded.source.stored("layers.0.qkv") is None or quantize is None
    formats = {name: each.layout.format for name, each in encoded.parameters.items() if isinstance(each, Weight)}
    assert formats["layers.0.qkv"] and not any(each for name, each in formats.items() if name.startswith("vision."))
    picture = noise(64, 40)
    (rows,) = encoded.rows([reference.see(picture)])
    np.testing.assert_allclose(rows, reference.rows(picture), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", ["llava", "pixtral", "qwen2_5_vl", "idefics2", "mllama", "idefics"])
def test_the_kernels_of_a_gpu_see_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted: tiles with a class token, pictures of any size that rotate, windows, a resampler, joined tiles."""
    kernels = BACKENDS["triton"]
    parts = {part: partial(getattr(kernels, part), interpret=True) for part in ("attend", "read", "add_norm")}
    monkeypatch.setitem(BACKENDS, "triton", replace(kernels, **parts))
    directory = write_vision(tmp_path, name)
    reference, encoded = Reference(directory, name), Encoded(directory, attention="triton")
    pictures = [noise(width, height) for width, height in SIZES]
    for picture, rows in zip(pictures, encoded.rows([reference.see(each) for each in pictures]), strict=True):
        np.testing.assert_allclose(rows, reference.rows(picture), atol=TOLERANCE, rtol=0)


def test_heads_of_the_text_part_that_are_copied_leave_the_tower_alone(tmp_path: Path) -> None:
    source = open_model(str(write_vision(tmp_path, "llava"))).source
    copied = replicate_heads(source, 4)
    assert copied.spec.num_kv_heads == 4 and copied.spec.vision == source.spec.vision
    for name in filter(re.compile(r"vision\.").match, parameter_table(source.spec)):
        np.testing.assert_array_equal(copied.read(name, ()), source.read(name, ()))
