"""Tiny checkpoints as PyTorch exports them to ONNX: by TorchScript's exporter, or by that of torch.export (dynamo)."""

import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.shared_cache import digest, kept

WEIGHTS = "model.safetensors"


def exported(
    checkpoint: Path,
    *,
    dynamo: bool,
    dtype: str = "float32",
    around: bool = False,
    file: str = "model.onnx",
    **options: Any,
) -> Path:
    """A directory with what is in `checkpoint`, but for its weights, which are in `file`. Not to be written to.

    Args:
        around: the model is exported as a part of another module.
        options: of `torch.onnx.export`.
    """
    said = f"{torch.__version__} {transformers.__version__} {dynamo} {dtype} {around} {file} {options}"
    key = digest(Path(__file__), checkpoint / WEIGHTS, checkpoint / "config.json", said)

    def write(directory: Path) -> None:
        shutil.copytree(checkpoint, directory, ignore=shutil.ignore_patterns(WEIGHTS))
        (directory / file).parent.mkdir(exist_ok=True)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            checkpoint, attn_implementation="eager", dtype=getattr(torch, dtype)
        )
        _export(_Around(model) if around else _without_cache(model), directory / file, dynamo, options)

    return kept("exports", key, write)


def _export(model: Any, path: Path, dynamo: bool, options: dict[str, Any]) -> None:
    ids = torch.arange(4, 12)[None]
    length = {1: "length"}
    shapes = {"dynamic_shapes": (length, length)} if dynamo else {"dynamic_axes": {"input_ids": length, "mask": length}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.eval(),
            (ids, torch.ones_like(ids)),
            path,
            input_names=["input_ids", "mask"],
            output_names=["logits"],
            dynamo=dynamo,
            verbose=False,
            **{**shapes, **options},
        )


def _without_cache(model: Any) -> Any:
    """`model` itself, as a function of ids and mask."""
    kind = type(model)

    class Plain(kind):  # type: ignore[misc]
        def forward(self, input_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return super().forward(input_ids, attention_mask=mask, use_cache=False).logits  # type: ignore[no-any-return]

    model.__class__ = Plain
    return model


class _Around(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.inner = model

    def forward(self, input_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.inner(input_ids, attention_mask=mask, use_cache=False).logits  # type: ignore[no-any-return]
