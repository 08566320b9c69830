"""Adapters of tiny models, made and applied by PEFT itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import peft
import torch
import transformers

LOUD = 0.4  # standard deviation of what an adapter has; at first PEFT makes one that changes nothing


def adapted(model: Path, *, seed: int = 0, **config: Any) -> Any:
    """The model in `model` with an adapter whose every number matters, as a `PeftModel`."""
    torch.manual_seed(seed)
    made = transformers.AutoConfig.from_pretrained(model)
    encoder = made.is_encoder_decoder
    kind = transformers.AutoModelForSeq2SeqLM if encoder else transformers.AutoModelForCausalLM
    base = kind.from_pretrained(model, attn_implementation="eager")
    task = "SEQ_2_SEQ_LM" if encoder else "CAUSAL_LM"
    settings = {"target_modules": "all-linear", "r": 4, "lora_alpha": 6, "task_type": task, **config}
    wrapped = peft.get_peft_model(base, peft.LoraConfig(**settings))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in wrapped.parameters():
            if parameter.requires_grad:
                parameter.add_(LOUD * torch.randn(parameter.shape, generator=generator))
    return wrapped.eval()


def write_adapter(target: Path, model: Path, **config: Any) -> Path:
    """`target`, with an adapter of `model` in `target`/adapter and what PEFT merges of both in `target`/merged."""
    made = adapted(model, **config)
    made.save_pretrained(target / "adapter")
    made.merge_and_unload().save_pretrained(target / "merged")
    return target


def logits(model: Any, ids: Sequence[int]) -> Any:
    """f32 [len(ids), vocab]."""
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0].numpy()
