"""Tiny checkpoints of models with an encoder, and transformers' logits of them.

Their texts have several pages and distances beyond the last bucket; encoder and decoder differ in depth.
"""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.tiny import BOS, EOS, PAD, VOCAB, redraw, tokenizer

T5: dict[str, Any] = {
    "model_type": "t5",
    "vocab_size": VOCAB,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "decoder_start_token_id": PAD,
    "d_model": 48,
    "d_kv": 16,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
}
GATED = {"feed_forward_proj": "gated-gelu"}
BART: dict[str, Any] = {
    "model_type": "bart",
    "vocab_size": VOCAB,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "decoder_start_token_id": EOS,
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "max_position_embeddings": 96,
} | {f"{stack}_{size}": n for stack in ("encoder", "decoder") for size, n in (("attention_heads", 4), ("ffn_dim", 64))}
SEQ2SEQ: dict[str, dict[str, Any]] = {
    "t5": T5,
    "t5_deep_decoder": {**T5, "num_decoder_layers": 3},
    "t5_deep_encoder": {**T5, "num_layers": 5, "num_decoder_layers": 2, "num_heads": 3, "d_kv": 8},
    "t5_start": {**T5, "decoder_start_token_id": 7, "relative_attention_num_buckets": 32}
    | {"relative_attention_max_distance": 128},
    "flan_t5": {**T5, **GATED, "tie_word_embeddings": False},
    "t5_own_head": {**T5, "feed_forward_proj": "gated-silu"},
    "mt5": {**T5, **GATED, "model_type": "mt5"},
    "umt5": {**T5, **GATED, "model_type": "umt5", "num_layers": 3, "num_decoder_layers": 2}
    | {"tie_word_embeddings": False},
    "umt5_tied": {**T5, **GATED, "model_type": "umt5"},
    "bart": BART,
    "bart_distilled": {**BART, "encoder_layers": 4, "decoder_layers": 1, "scale_embedding": True},
    "mbart": {**BART, "model_type": "mbart", "decoder_layers": 3, "scale_embedding": True, "decoder_start_token_id": 7},
}
OWN_HEAD = ("flan_t5", "t5_own_head", "umt5")  # in the checkpoint; transformers writes none, but reads one


def start_of(name: str) -> int:
    """The id that the decoder of checkpoint `name` starts from."""
    return int(SEQ2SEQ[name]["decoder_start_token_id"])


def write_seq2seq(directory: Path, name: str, seed: int = 0, **changed: Any) -> Path:
    """Write the checkpoint `name` of `SEQ2SEQ`, with some fields `changed` and a tokenizer, to `directory/name`."""
    target, fields = directory / name, {**SEQ2SEQ[name], **changed}
    config = transformers.AutoConfig.for_model(**fields)
    model = redraw(transformers.AutoModelForSeq2SeqLM.from_config(config, attn_implementation="eager").eval(), seed)
    if "d_kv" in fields:
        _temper(model, divided=fields.get("tie_word_embeddings", True) and fields["model_type"] != "mt5")
    else:
        _temper_bart(model, seed)
    model.save_pretrained(target)
    if name in OWN_HEAD:
        _add_head(target, fields, seed)
    tokenizer().save_pretrained(target)
    return target


@torch.no_grad()
def _temper(model: Any, *, divided: bool) -> None:
    """Make queries small, as T5 does, because scores are not scaled; and keep logits apart where they are divided."""
    for name, parameter in model.named_parameters():
        if name.endswith("ttention.q.weight"):
            parameter.mul_(model.config.d_kv**-0.5)
    model.get_decoder().final_layer_norm.weight.mul_(8 if divided else 1)


@torch.no_grad()
def _temper_bart(model: Any, seed: int) -> None:
    """Let logits depend on tokens as much as on positions, and attention on queries; draw the bias of the head."""
    for name, parameter in model.named_parameters():
        for part, factor in (("embed_positions", 0.3), ("out_proj.weight", 0.2), ("q_proj.weight", 3.0)):
            parameter.mul_(factor if part in name else 1.0)
    generator = torch.Generator().manual_seed(seed + 1)
    model.final_logits_bias.copy_(0.2 * torch.randn(model.final_logits_bias.shape, generator=generator))


def _add_head(target: Path, fields: dict[str, Any], seed: int) -> None:
    tensors = load_file(target / "model.safetensors")
    noise = torch.randn(VOCAB, fields["d_model"], generator=torch.Generator().manual_seed(seed + 1))
    save_file({**tensors, "lm_head.weight": 0.3 * noise}, target / "model.safetensors", metadata={"format": "pt"})
    config = (target / "config.json").read_text()
    tied = str(fields.get("tie_word_embeddings", True)).lower()
    (target / "config.json").write_text(config.replace('"tie_word_embeddings": true', f'"tie_word_embeddings": {tied}'))


@torch.no_grad()
def seq2seq_logits(directory: Path, source: list[int], ids: list[int]) -> np.ndarray:
    """Logits after every prefix of the decoder's `ids`, start token first: float32 [len(ids), vocab]."""
    model, decoder_ids = load_seq2seq(directory), torch.tensor([ids])
    logits = model(torch.tensor([source]), decoder_input_ids=decoder_ids, use_cache=False).logits
    # transformers 5.0 to 5.23 divide hidden states of every umT5; 4 and 5.24 do so only where the head is tied.
    always_divided = directory.name == "umt5" and not hasattr(model.config, "scale_decoder_outputs")
    factor = T5["d_model"] ** 0.5 if always_divided else 1.0
    return factor * logits[0].numpy()  # type: ignore[no-any-return]


@functools.lru_cache(1)
def load_seq2seq(directory: Path) -> Any:
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(
        directory, attn_implementation="eager", dtype=torch.float32
    ).eval()
