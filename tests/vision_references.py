"""What transformers computes with models that see: patches, rows of pictures, whole prompts, logits, greedy ids.

All in float32 with eager attention. Pictures are random noise of any size, so that nothing in them is alike.
"""

import functools
import importlib
import itertools
import json
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer
from transformers.models.idefics.processing_idefics import IdeficsProcessor

from jaxengine.architecture.picture import PictureShape
from tests.tiny_vision_prompts import IMAGE, PROCESSORS, kind_of

# Where a picture stands in a text, before transformers' processor puts in what the model reads there.
MARKS = {"pixtral": "[IMG]", "mistral3": "[IMG]", "gemma3": "<start_of_image>", "internvl": "<IMG_CONTEXT>"}
MARKS["mllama"] = "<|image|>"
# What the processor of texts and pictures tells that of pictures.
IMAGE_OPTIONS: dict[str, dict[str, Any]] = {"internvl": {"crop_to_patches": True}, "mistral3": {"patch_size": 28}}
MARKS |= dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl"), "<|vision_start|><|image_pad|><|vision_end|>")


def mark(name: str) -> str:
    """How a text of the recipe `name` says that a picture is here."""
    return MARKS.get(kind_of(name), "<image>")


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """A picture of random pixels."""
    generator = np.random.default_rng((seed, width, height))
    return Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8))


@dataclass(frozen=True, eq=False)
class Seen:
    """One picture as the tower takes it.

    patches: f32 [N, patch_values].
    """

    shape: PictureShape
    patches: np.ndarray


class Reference:
    """The recipe `name`, written to `directory`, in transformers."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self.idefics = kind_of(name) == "idefics"
        self.directory = directory
        settings: dict[str, Any] = {"attn_implementation": "eager", "dtype": torch.float32}
        self.model = AutoModelForImageTextToText.from_pretrained(directory, **settings).eval()
        self.model.generation_config.eos_token_id = None
        self.images = AutoImageProcessor.from_pretrained(directory)
        self.tiles: list[list[int]] = []  # of the last pictures, where layers attend to tiles
        if name == "mllama":
            _blind_in_front_of_pictures(self.model)
            _features_in_front_of_layers(self.model)

    @functools.cached_property
    def processor(self) -> Any:
        """transformers' processor of texts and pictures."""
        return processor_of(self.directory, self.name, self.images)

    def pixels(self, pictures: Sequence[Image.Image]) -> dict[str, torch.Tensor]:
        """What the whole model takes beside ids, of one prompt's pictures."""
        options = IMAGE_OPTIONS.get(kind_of(self.name), {})
        found = self.images([list(pictures)], return_tensors="pt", **options)
        if self.idefics:
            return {"pixel_values": found[None]}
        taken = dict(found)
        if "num_tiles" in taken:
            self.tiles = taken.pop("num_tiles")
        for unused in ("num_crops", "num_patches", "rows", "cols"):
            taken.pop(unused, None)
        return taken

    def see(self, picture: Image.Image) -> Seen:
        """A picture's patches and shape."""
        pixels = self.pixels([picture])
        values = pixels["pixel_values"].float().numpy()
        if "image_grid_thw" in pixels:
            rows, columns = pixels["image_grid_thw"][0, 1:].tolist()
            return self._seen(picture, [(rows, columns)], [values])
        whole = values.reshape(-1, *values.shape[-3:])  # [tiles, 3, height, width]
        if "aspect_ratio_ids" in pixels:
            whole = whole[: self.tiles[0][0]]
        sizes = [whole.shape[-2:]] * len(whole)
        if (masks := pixels.get("pixel_attention_mask")) is not None:
            sizes = [(int(mask[:, 0].sum()), int(mask[0].sum())) for mask in masks[0]]
        side = self.model.config.vision_config.patch_size
        side = side if isinstance(side, int) else side[0]
        tiles = [(height // side, width // side) for height, width in sizes]
        patches = [_patches(each, *tile, side) for each, tile in zip(whole, tiles, strict=True)]
        return self._seen(picture, tiles, patches)

    def _seen(self, picture: Image.Image, tiles: list[Any], patches: list[np.ndarray]) -> Seen:
        shape = PictureShape(tuple(tiles), picture.height, picture.width)
        return Seen(shape, np.concatenate(patches))

    @torch.no_grad()
    def tile_rows(self, picture: Image.Image) -> np.ndarray:
        """What layers attend to of a picture: f32 [tokens of its tiles, hidden]."""
        whole, pixels = self.model.model, self.pixels([picture])
        found = whole.multi_modal_projector(whole.vision_model(**pixels).last_hidden_state)  # [1, 1, tiles, N, hidden]
        return found[0, 0, : self.tiles[0][0]].flatten(0, 1).float().numpy()

    @torch.no_grad()
    def resampled(self, picture: Image.Image) -> np.ndarray:
        """What layers of Idefics attend to of a picture: f32 [tokens, the tower's width]."""
        whole = self.model.model
        found = whole.vision_model(self.pixels([picture])["pixel_values"][0]).last_hidden_state
        if self.model.config.use_resampler:
            found = whole.perceiver_resampler(found)
        return found[0].float().numpy()

    @torch.no_grad()
    def rows(self, picture: Image.Image) -> np.ndarray:
        """What stands in for a picture's placeholders, then deepstack's sets: f32 [rows, (1 + deepstack) * hidden]."""
        if self.name == "mllama":
            return self.tile_rows(picture)
        if self.idefics:
            return self.resampled(picture)
        found = self.model.model.get_image_features(**self.pixels([picture]), **self._features(), return_dict=True)
        sets = [found.pooler_output, *(getattr(found, "deepstack_features", None) or [])]
        hidden = self.model.config.get_text_config().hidden_size
        flat = [torch.cat([each.reshape(-1, hidden) for each in rows]) for rows in sets]
        return torch.cat(flat, dim=-1).float().numpy()

    def _features(self) -> dict[str, Any]:
        names = ("vision_feature_layer", "vision_feature_select_strategy")
        return {name: getattr(self.model.config, name) for name in names if hasattr(self.model.config, name)}

    def prompt(self, text: str, pictures: Sequence[Image.Image]) -> list[int]:
        """The ids of a text in which `mark` stands for each picture, as transformers' processor writes them."""
        if not pictures:  # which some processors do not take
            return list(AutoTokenizer.from_pretrained(self.directory)(text)["input_ids"])
        images = [list(pictures)]
        ids: list[int] = self.processor(text=[text], images=images, return_tensors="pt")["input_ids"][0].tolist()
        return ids

    def chat(self, parts: Sequence[str | Image.Image]) -> list[int]:
        """The ids of a user's texts and pictures, as the checkpoint's template writes them."""
        content = [
            {"type": "text", "text": each} if isinstance(each, str) else {"type": "image", "image": each}
            for each in parts
        ]
        found = self.processor.apply_chat_template(
            [{"role": "user", "content": content}],
            chat_template=template(self.directory),
            tokenize=True,
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        ids: list[int] = found["input_ids"][0].tolist()
        return ids

    @torch.no_grad()
    def logits(self, ids: Sequence[int], pictures: Sequence[Image.Image], prompt: int | None = None) -> np.ndarray:
        """Logits behind every id, computed without a cache: f32 [len(ids), vocabulary]. `prompt`: how many of the ids
        are the prompt's, where that matters; None = all.
        """
        found = self.model(**self._inputs(ids, pictures, prompt), use_cache=False)
        return found.logits[0].float().numpy()

    @torch.no_grad()
    def greedy(self, ids: Sequence[int], pictures: Sequence[Image.Image], new_tokens: int) -> list[int]:
        """The ids that greedy decoding appends, never stopped by EOS."""
        inputs = self._inputs(ids, pictures, None)
        found = self.model.generate(**inputs, do_sample=False, max_new_tokens=new_tokens)
        return [int(token) for token in found[0, len(ids) :]]

    def _inputs(
        self, ids: Sequence[int], pictures: Sequence[Image.Image], prompt: int | None
    ) -> dict[str, torch.Tensor]:
        inputs = {"input_ids": torch.tensor([list(ids)]), **(self.pixels(pictures) if pictures else {})}
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        seen = (inputs["input_ids"] == IMAGE).int()
        if self.name == "gemma3":
            inputs["token_type_ids"] = seen
        if self.name == "paligemma":  # the prompt's are 0
            places = torch.arange(len(ids))[None]
            inputs["token_type_ids"] = (places >= (len(ids) if prompt is None else prompt)).int()
        if self.idefics:
            inputs |= self._seen_by_idefics(ids[:prompt], len(ids), len(pictures))
        if self.name == "mllama" and pictures:
            inputs["cross_attention_mask"] = self._seen_by(ids[:prompt], len(ids))
        if self.name.startswith("qwen"):
            inputs["mm_token_type_ids"] = seen
        return inputs

    def _seen_by(self, ids: Sequence[int], count: int) -> torch.Tensor:
        """Which tiles of which picture each of `count` ids sees, [1, ids, pictures, tiles]: those of a prompt by
        transformers' own functions, those behind it what its last sees.
        """
        from transformers.models.mllama import processing_mllama as own

        spans, most = own.get_cross_attention_token_mask(list(ids), IMAGE), self.images.max_image_tiles
        mask = torch.tensor(own.convert_sparse_cross_attention_mask_to_dense([spans], self.tiles, most, len(ids)))
        return torch.cat([mask, mask[:, -1:].expand(-1, count - len(ids), -1, -1)], dim=1)

    def _seen_by_idefics(self, ids: Sequence[int], count: int, pictures: int) -> dict[str, torch.Tensor]:
        """The same, [1, ids, pictures]; without pictures what the processor has in their place, which no id sees."""
        from transformers.models.idefics import processing_idefics as own

        if not pictures:
            side = self.model.config.vision_config.image_size
            return {
                "pixel_values": torch.zeros(1, 1, 3, side, side),
                "image_attention_mask": torch.zeros(1, count, 1),
            }
        tokenizer = AutoTokenizer.from_pretrained(self.directory)
        seen, _ = own.image_attention_mask_for_packed_input_ids(torch.tensor([list(ids)]), tokenizer, "pt")
        mask = own.incremental_to_binary_attention_mask(seen, "pt", num_classes=pictures)
        return {"image_attention_mask": torch.cat([mask, mask[:, -1:].expand(-1, count - len(ids), -1)], dim=1)}


def _blind_in_front_of_pictures(model: Any) -> None:
    """Have what stands in front of a prompt's first picture see none, as Meta's own code has it, and as transformers
    means it: it masks what the MLP makes of these tokens, but has their attention see all pictures, and the padding.
    """
    for layer in model.model.language_model.layers:
        if hasattr(layer, "cross_attn"):
            masks: list[Any] = []

            def note(_: Any, args: Any, kwargs: Any, masks: list[Any] = masks) -> None:
                masks[:] = [kwargs["full_text_row_masked_out_mask"]]

            def masked(_: Any, args: Any, found: Any, masks: list[Any] = masks) -> Any:
                return found if masks[0] is None else (found[0] * masks[0][:, 0], *found[1:])

            layer.register_forward_pre_hook(note, with_kwargs=True)
            layer.cross_attn.register_forward_hook(masked)


def _features_in_front_of_layers(model: Any) -> None:
    """Have the text read what chosen layers of the tower read, as in Meta's own code, with which the model was trained
    (`ImageTransformer` of llama-models: `out.append(x)` in front of `x = r(x)`), and in transformers 4.45. Later ones
    give it what these layers make.
    """

    def shifted(_: Any, args: Any, found: Any) -> Any:
        found.hidden_states = (args[0], *found.hidden_states[:-1])
        return found

    model.model.vision_model.transformer.register_forward_hook(shifted)


def _patches(tile: np.ndarray, rows: int, columns: int, side: int) -> np.ndarray:
    """f32 [3, height, width] → [rows * columns, 3 * side * side], row by row."""
    squares = tile[:, : rows * side, : columns * side].reshape(3, rows, side, columns, side)
    return np.ascontiguousarray(squares.transpose(1, 3, 0, 2, 4).reshape(rows * columns, -1))


FOLDERS = {"LlavaNextProcessor": "llava_next", "PixtralProcessor": "pixtral", "SmolVLMProcessor": "smolvlm"}
FOLDERS |= {"Qwen2VLProcessor": "qwen2_vl", "Qwen2_5_VLProcessor": "qwen2_5_vl", "Qwen3VLProcessor": "qwen3_vl"}
FOLDERS |= {"MllamaProcessor": "mllama", "IdeficsProcessor": "idefics"}
FOLDERS |= {"InternVLProcessor": "internvl", "PaliGemmaProcessor": "paligemma", "Gemma3Processor": "gemma3"}
FOLDERS |= {"LlavaProcessor": "llava", "Idefics2Processor": "idefics2", "Idefics3Processor": "idefics3"}


def processor_of(directory: Path, name: str, images: Any) -> Any:
    """The processor's own class, which `AutoProcessor` builds only where torchvision reads videos."""
    file = directory / "processor_config.json"
    settings = json.loads(file.read_text()) if file.exists() else dict(PROCESSORS[kind_of(name)])
    kind = settings.pop("processor_class")
    base = getattr(_module(FOLDERS[kind]), kind)
    unchecked = {"check_argument_for_proper_class": lambda self, argument, value: None}
    made = type(kind, (_Interleaving if kind == "IdeficsProcessor" else base,), unchecked)
    parts: dict[str, Any] = {"image_processor": images, "tokenizer": AutoTokenizer.from_pretrained(directory)}
    if "video_processor" in base.__init__.__code__.co_varnames:
        parts["video_processor"] = types.SimpleNamespace(merge_size=2, num_frames=None, fps=None)
    return made(**parts, **settings)


class _Interleaving(IdeficsProcessor):  # type: ignore[misc]
    """Idefics' takes a list of texts and pictures; this one a text with marks in it, as the others do."""

    def __call__(self, text: str | list[str], images: list[Any], **options: Any) -> Any:
        (whole,) = [text] if isinstance(text, str) else text
        (pictures,) = images if isinstance(images[0], list) else [images]
        parts: list[Any] = []
        for piece, picture in itertools.zip_longest(whole.split("<image>"), pictures):
            parts += [piece] * bool(piece) + [picture] * (picture is not None)
        return super().__call__(text=[parts], **options)


def _module(folder: str) -> Any:
    """A processor's module, with what it imports for videos alone replaced."""
    root = "transformers.models"
    if folder == "pixtral":
        without = importlib.import_module(f"{root}.pixtral.image_processing_pil_pixtral")
        sys.modules.setdefault(f"{root}.pixtral.image_processing_pixtral", without)
    module = importlib.import_module(f"{root}.{folder}.processing_{folder}")
    if folder == "smolvlm":
        module.num2words = module.num2words or str  # type: ignore[attr-defined]
    return module


def template(directory: Path) -> str | None:
    """The chat template beside the weights, wherever it stands."""
    if (file := directory / "chat_template.jinja").exists():
        return file.read_text()
    if (file := directory / "chat_template.json").exists():
        return str(json.loads(file.read_text())["chat_template"])
    return None


transformers.logging.set_verbosity_error()
