"""What every kind has in common: bounds, detail, odd pictures, settings; and what the gateway does without."""

import contextlib
import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers.image_utils import load_image

from gateway.images.kinds import kind_of
from gateway.images.processor import ImageProcessor
from gateway.images.settings import Settings, UnusableProcessor
from tests.gateway.images.models import changed, directory
from tests.gateway.images.reference import patches, sides
from tests.tiny_vision import SEEN
from tests.tiny_vision_prompts import kind_of as recipe_of
from tests.vision_references import noise

LOW = ("idefics2", "idefics3", "smolvlm", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl", "pixtral", "mistral3")


def odd(mode: str) -> Image.Image:
    """A picture of this mode whose pixels all differ."""
    picture = noise(53, 38)
    if mode == "PA":
        return picture.convert("P").convert("PA")
    if mode == "I;16":
        return Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257)
    return picture.convert(mode)


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "PA", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "I;16"]
)
@pytest.mark.parametrize("name", ["llava", "qwen2_vl", "idefics3"])
def test_pictures_of_every_mode_are_read_as_transformers_reads_them(name: str, mode: str) -> None:
    picture, ours = odd(mode), sides(name)
    found = ours.processor.patches(picture, ours.processor.plan(*picture.size))
    _, expected = patches(name, load_image(picture), ours.processor.kind.patch)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("orientation", range(9))
def test_pictures_are_turned_as_their_orientation_says(orientation: int) -> None:
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = orientation
    noise(64, 40).save(file, "JPEG", exif=exif)
    picture = Image.open(file)
    ours, upright = sides("qwen2_vl"), load_image(Image.open(file))
    found = ours.processor.patches(picture, ours.processor.plan(*upright.size))
    _, expected = patches("qwen2_vl", upright, ours.processor.kind.patch)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", SEEN)
def test_low_detail_has_fewer_rows_or_patches_where_there_is_a_choice(name: str) -> None:
    processor = sides(name).processor
    high, low = processor.plan(1200, 900, "high"), processor.plan(1200, 900, "low")
    assert high == processor.plan(1200, 900, "auto")
    if recipe_of(name) in LOW:
        picture = noise(1200, 900)
        assert low.detail == "low" and processor.patches(picture, low).shape[0] == low.shape.patches
        assert low.shape.patches <= high.shape.patches and low.rows <= high.rows
    else:
        assert low == high and high.detail == "high"


def test_low_detail_is_as_many_pixels_as_openais(tmp_path: Path) -> None:
    bounds = {"min_pixels": 3136, "max_pixels": 12845056}
    processor = ImageProcessor.open(changed("qwen2_vl", tmp_path, {"preprocessor_config.json": bounds}))
    assert processor.plan(4000, 3000, "high").rows == 15301
    assert processor.plan(4000, 3000, "low").rows == 315


@pytest.mark.parametrize(
    ("size", "said"),
    [((0, 5), "must have pixels"), ((201, 1), "at most 200 times"), ((5, 1001), "at most 200 times")],
)
def test_pictures_of_no_use_are_refused_with_the_limit(size: tuple[int, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        sides("llava").processor.plan(*size)


def test_a_picture_of_another_size_than_planned_is_refused() -> None:
    ours = sides("qwen2_vl").processor
    with pytest.raises(ValueError, match="30 x 20 pixels, not 31 x 20"):
        ours.patches(noise(30, 20), ours.plan(31, 20))


BROKEN: list[tuple[str, str, dict[str, Any], str]] = [
    ("llava", "config.json", {"model_type": "llama4"}, "config.json: images of model_type 'llama4' are not served"),
    (
        "llava",
        "preprocessor_config.json",
        {"image_processor_type": "BitImageProcessor"},
        "BitImageProcessor is not served",
    ),
    ("llava", "preprocessor_config.json", {"do_center_crop": False}, "size must have height and width"),
    ("llava_siglip", "preprocessor_config.json", {"do_resize": False}, "do_resize must be true"),
    ("llava", "preprocessor_config.json", {"crop_size": "large"}, "crop_size must be a size, not 'large'"),
    ("llava", "preprocessor_config.json", {"crop_size": {"height": -1, "width": 3}}, "positive whole numbers"),
    ("llava", "preprocessor_config.json", {"crop_size": 13}, "have no patch of 14"),
    ("llava", "", {"patch_size": [14, 7]}, "vision_config.patch_size must be one number"),
    ("llava_next", "preprocessor_config.json", {"image_grid_pinpoints": [[28, 56]]}, "must be those of config.json"),
    (
        "llava_next",
        "preprocessor_config.json",
        {"image_grid_pinpoints": [[30, 56]]},
        "multiples of the tiles' 28 pixels",
    ),
    ("qwen2_vl", "preprocessor_config.json", {"max_pixels": 7}, "shortest_edge and longest_edge in pixels"),
    ("qwen2_vl", "preprocessor_config.json", {"patch_size": 16}, "patch_size must be 14, as in config.json"),
    ("gemma3", "processor_config.json", {"image_seq_length": 9}, "image_seq_length must be 4"),
    ("idefics3", "processor_config.json", {"image_seq_len": None}, "image_seq_len must be 4"),
    ("idefics3", "preprocessor_config.json", {"max_image_size": 5}, "max_image_size must have a longest_edge"),
    ("idefics2", "preprocessor_config.json", {"size": {"height": 56, "width": 56}}, "shortest_edge and longest_edge"),
    ("idefics2", "processor_config.json", {"image_seq_len": 64}, "image_seq_len must be 4"),
    ("pixtral", "processor_config.json", {"patch_size": 14}, r"must be \(16, 1\), as in config.json"),
    ("mistral3", "preprocessor_config.json", {"do_resize": False}, "do_resize must be true"),
    ("internvl", "preprocessor_config.json", {"min_patches": 13}, "max_patches must be at least min_patches"),
    ("internvl", "processor_config.json", {"image_seq_length": 256}, "image_seq_length must be 4"),
    ("paligemma", "preprocessor_config.json", {"image_seq_length": 256}, "image_seq_length must be 4"),
]


@pytest.mark.parametrize(("name", "file", "values", "said"), BROKEN)
def test_settings_that_are_not_served_are_refused_at_start(
    name: str, file: str, values: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UnusableProcessor, match=said):
        ImageProcessor.open(changed(name, tmp_path, {file: values}))


@pytest.mark.parametrize("name", SEEN)
def test_senseless_settings_are_refused_at_start_or_harmless(name: str) -> None:
    whole = Settings.read(directory(name))
    parts = {"model": whole.model, "image": whole.image, "processor": whole.processor}
    for part, values in parts.items():
        for key in values.keys() - {"model_type"}:
            for value in (None, "x", 0, -3, 1.5, True, [], [1], {}, {"height": 0}):
                settings = replace(whole, **{part: {**values, key: value}})
                with contextlib.suppress(UnusableProcessor):
                    assert kind_of(settings).plan(300, 200, "auto").rows > 0


def test_a_nested_processor_comes_before_a_file_of_its_own(tmp_path: Path) -> None:
    """As transformers 5 saves them."""
    inside = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2}
    files = {
        "processor_config.json": {"image_processor": {**inside, "size": {"shortest_edge": 1, "longest_edge": 9999}}}
    }
    processor = ImageProcessor.open(changed("qwen2_vl", tmp_path, files))
    assert processor.plan(1000, 1000).rows == 9
    assert sides("qwen2_vl").processor.plan(1000, 1000).rows == 9


@pytest.mark.parametrize("name", SEEN)
def test_defaults_are_those_of_transformers_class(name: str, tmp_path: Path) -> None:
    """Where no file has a setting: what fits the model is served, the rest refused by a message that names it."""
    target = changed(name, tmp_path, {})
    (target / "preprocessor_config.json").write_text("{}")
    try:
        processor = ImageProcessor.open(target)
    except UnusableProcessor as error:
        assert "must be" in str(error)
        return
    plan = processor.plan(300, 200)
    assert processor.patches(noise(300, 200), plan).shape[0] == plan.shape.patches


def test_the_fingerprint_tells_settings_apart(tmp_path: Path) -> None:
    other = ImageProcessor.open(changed("llava", tmp_path, {"preprocessor_config.json": {"image_mean": [0, 0, 0]}}))
    same = ImageProcessor.open(directory("llava"))
    assert other.fingerprint != same.fingerprint == sides("llava").processor.fingerprint
    assert len(same.fingerprint) == 32


WITHOUT = """
import sys
from dataclasses import replace
from pathlib import Path
for name in {blocked}:
    sys.modules[name] = None  # any import of it raises
from PIL import Image
from gateway.images.processor import ImageProcessor
for path in sys.argv[1:]:
    processor = ImageProcessor.open(Path(path))
    plan = processor.plan(120, 80)
    {then}
"""


def without(blocked: tuple[str, ...], then: str) -> None:
    code = WITHOUT.format(blocked=blocked, then=then)
    targets = [str(directory(name)) for name in SEEN]
    done = subprocess.run([sys.executable, "-c", code, *targets], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


def test_counting_needs_no_transformers() -> None:
    without(("transformers", "torch", "torchvision", "jax"), "plan.rows")


@pytest.mark.slow
def test_patches_need_no_torch() -> None:
    without(("torch", "torchvision", "jax"), "processor.patches(Image.new('RGB', (120, 80)), plan)")
