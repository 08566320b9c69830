"""A probe of transformers' own module: it runs once without weights, and shows what it needs of an engine.

Calls of its attention show the number and width of the heads, whatever the configuration calls them. Known logits, put
in place of the output embedding's, show what the module does to logits. A factor and a soft cap are applied by the
engine; anything else is refused.
"""

import math
from typing import Any

import numpy as np

from jaxengine.architecture.model import Head

NAME = "probe"  # of the attention that records its calls, in transformers' AttentionInterface
LENGTHS = (53, 43)  # tokens of the text; a model may have a size near one of them, such as 56 heads, but not near both
NEAR = 4  # tokens by which a convolution or a shift may change the text's length
MIXING_OPERATIONS = ("convolution", "cumsum", "cumprod", "roll", "flip")
LOGITS = np.array([1e9, -64.0, -8.0, -1.0, -1e-6, 0.0, 1e-6, 1.0, 8.0, 64.0, -1e9])
UNCAPPED = 6  # index into LOGITS of one so small that no soft cap changes it


class TokenMixing(ValueError):
    """Tokens see each other outside of attention, or a size of the model is near the text's length."""


def probe(module: Any) -> tuple[dict[str, Any], Head]:
    """`ModelSpec`'s sizes of attention, each the largest of all layers, and the `Head` that makes the module's logits.

    Raises:
        ValueError: layers do not attend through the interface, or have different numbers of heads; tokens see each
            other outside of attention, so that pages would not hold all state; positions are not counted from 0 (as
            in RoBERTa); logits are changed by more than a factor and a soft cap.
        Exception: whatever else the module raises without weights.
    """
    if any(hasattr(each, "create_position_ids_from_input_ids") for each in module.modules()):
        raise ValueError("it counts positions in a way of its own")
    first, second = LENGTHS
    try:
        return _probe_with(module, first)
    except TokenMixing:
        return _probe_with(module, second)


def _probe_with(module: Any, tokens: int) -> tuple[dict[str, Any], Head]:
    """`probe` with a text of `tokens`."""
    import torch
    from transformers import AttentionInterface

    shapes: list[tuple[int, int, int]] = []  # of each layer: heads, key/value heads and their width

    def attention(_: Any, query: Any, key: Any, value: Any, *__: Any, **___: Any) -> tuple[Any, None]:
        shapes.append((query.shape[1], key.shape[1], max(query.shape[-1], value.shape[-1])))
        return value.new_empty(1, query.shape[2], query.shape[1], value.shape[-1]), None

    AttentionInterface.register(NAME, attention)
    module.set_attn_implementation(NAME)
    ids = torch.zeros(1, tokens, dtype=torch.long, device="meta")
    logits = torch.from_numpy(np.tile(LOGITS, (1, tokens, 1)))
    module.set_output_embeddings(_constant_output(logits))
    with torch.no_grad(), _mixing_detector(tokens):
        out = module(input_ids=ids, position_ids=ids, use_cache=False).logits
    if not shapes or len({heads for heads, *_ in shapes}) > 1:
        raise ValueError("its layers do not attend through the interface, or with different numbers of heads")
    heads, kv_heads, widths = zip(*shapes, strict=True)
    sizes = {"num_heads": heads[0], "num_kv_heads": max(kv_heads), "head_dim": max(widths)}
    return sizes, fit_head(np.array([]) if out.is_meta else out[0, -1].double().numpy())


def fit_head(logits: np.ndarray) -> Head:
    """The head whose soft cap and factor turn `LOGITS` into `logits`.

    Raises:
        ValueError: there is no such head.
    """
    if logits.shape == LOGITS.shape:
        scale = logits[UNCAPPED] / LOGITS[UNCAPPED]
        capped = logits[0] < 0.5 * scale * LOGITS[0]
        head = Head(scale=_rounded(scale), softcap=_rounded(logits[0]) if capped else 0.0)
        expected = head.scale * LOGITS
        if capped:
            expected = head.softcap * np.tanh(expected / head.softcap)
        if np.allclose(logits, expected, rtol=1e-5):
            return head
    raise ValueError("it makes more of logits than a factor and a soft cap would")


def _rounded(value: float) -> float:
    """`value` to six digits: the decimal number of a configuration, without the error of the computation."""
    return float(round(value, 5 - math.floor(math.log10(abs(value))))) if value else 0.0


def _constant_output(logits: Any) -> Any:
    import torch

    class ConstantOutput(torch.nn.Module):
        """An output embedding whose result is always `logits`."""

        weight = bias = None

        def forward(self, _: Any) -> Any:
            return logits

    return ConstantOutput()


def _mixing_detector(tokens: int) -> Any:
    """A mode of PyTorch in which only attention may let a token see others.

    An operation that mixes tokens is known by its name, or by its result: an axis a little shorter or longer than the
    text, or two axes of the text's length. It raises `TokenMixing`. Integers may have such shapes: they are masks, and
    indices of where tokens are sent.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class MixingDetector(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = function(*args, **(kwargs or {}))
            for each in out if isinstance(out, tuple | list) else (out,):
                if isinstance(each, torch.Tensor) and each.is_floating_point() and each.is_meta:
                    self._check(function.__name__.split(".")[0], list(each.shape))
            return out

        @staticmethod
        def _check(name: str, shape: list[int]) -> None:
            other = any(0 < abs(size - tokens) <= NEAR for size in shape)
            if other or shape.count(tokens) > 1 or (name in MIXING_OPERATIONS and tokens in shape):
                raise TokenMixing(
                    f"its tokens see each other outside of the attention interface ({name} makes {shape})"
                )

    return MixingDetector()
