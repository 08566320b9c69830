"""References: the logits of each checkpoint of the zoo, by other code than ours.

The reference is transformers in f32. Its eager attention adds Falcon's ALiBi twice, its sdpa attention does not, so
Falcon RW runs with sdpa. transformers lacks Baichuan, whose few differences from Llama are written out here.
SantaCoder's original checkpoint is compared with GPT-BigCode.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file

from tests.families.zoo import BAICHUAN, SANTACODER, santacoder_model
from tests.tiny import redraw

EPS = 1e-5


@torch.no_grad()
def zoo_logits(directory: Path, ids: list[int]) -> np.ndarray:
    """Logits after every prefix of `ids`: float32 [len(ids), vocab]."""
    if directory.name in BAICHUAN:
        return _baichuan(directory, torch.tensor(ids)).numpy()
    logits = _model(directory)(torch.tensor([ids]), use_cache=False).logits
    return logits[0].float().numpy()  # type: ignore[no-any-return]


def _model(directory: Path) -> Any:
    if directory.name == SANTACODER:
        return redraw(santacoder_model(), seed=4)
    attention = "sdpa" if directory.name == "falcon_rw" else "eager"
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory, attn_implementation=attention, dtype=torch.float32
    ).eval()


def _baichuan(directory: Path, ids: torch.Tensor) -> torch.Tensor:
    fields, tensors = BAICHUAN[directory.name], load_file(directory / "model.safetensors")
    heads, alibi = fields["num_attention_heads"], "max_position_embeddings" not in fields
    x = tensors["model.embed_tokens.weight"][ids]
    for layer in range(2):
        own = {name.split(f"layers.{layer}.")[1]: t for name, t in tensors.items() if f"layers.{layer}." in name}
        x = x + _attention(own, _rms(x, own["input_layernorm.weight"]), heads, alibi)
        y = _rms(x, own["post_attention_layernorm.weight"])
        gate = torch.nn.functional.silu(y @ own["mlp.gate_proj.weight"].T)
        x = x + (gate * (y @ own["mlp.up_proj.weight"].T)) @ own["mlp.down_proj.weight"].T
    head = tensors["lm_head.weight"]
    if fields.get("vocab_size"):  # Baichuan 2
        head = torch.nn.functional.normalize(head)
    return _rms(x, tensors["model.norm.weight"]) @ head.T


def _rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)


def _attention(own: dict[str, torch.Tensor], y: torch.Tensor, heads: int, alibi: bool) -> torch.Tensor:
    count, hidden = y.shape
    q, k, v = (y @ own["self_attn.W_pack.weight"].T).view(count, 3, heads, -1).permute(1, 2, 0, 3)
    at = torch.arange(count)
    distance = at[:, None] - at[None]
    bias = torch.where(distance >= 0, 0.0, -math.inf)
    if alibi:
        bias = bias - _slopes(heads)[:, None, None] * distance
    else:
        q, k = _rotated(q, at), _rotated(k, at)
    weights = (q @ k.transpose(1, 2) / math.sqrt(hidden // heads) + bias).softmax(-1)
    return (weights @ v).transpose(0, 1).reshape(count, hidden) @ own["self_attn.o_proj.weight"].T


def _slopes(heads: int) -> torch.Tensor:
    """Six heads: four of the series for four, then every other one of the series for eight."""
    return torch.tensor([2.0 ** -(2 * i) for i in range(1, 5)] + [2.0**-1, 2.0**-3])[:heads]


def _rotated(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    angle = at[:, None] * 10000.0 ** (-torch.arange(half) / half)
    low, high = x[..., :half], x[..., half:]
    return torch.cat([low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()], -1)
