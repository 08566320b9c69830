"""A module that drafts, among a tiny model's tensors: transformers' own, with random weights."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.modeling_layers import MtpModel

from tests.eagle import Guess, chained

GAIN = 1.5  # so that what the module adds decides the guess
FULL = "full_attention"
BESIDE = {
    "eh_proj.weight": "fc.weight",
    "enorm.weight": "pre_fc_norm_embedding.weight",
    "hnorm.weight": "pre_fc_norm_hidden.weight",
    "shared_head.norm.weight": "norm.weight",
}


class TinyModule:
    """Of the model in `directory`, whose configuration says that it has one."""

    def __init__(self, directory: Path, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.directory = directory
        self.config = transformers.AutoConfig.from_pretrained(directory).get_text_config()
        model = transformers.AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager")
        if self.beside:
            model.config.num_mtp_layers, model.config.mtp_layer_types = 1, [FULL]
            end = len(self.config.layer_types) - self.config.layer_types[::-1].index(FULL)
            model.model.layers = model.model.layers[:end]  # its norms are of the last layer's class
        self.module: Any = MtpModel(model, 1).layers[0].eval()
        named = [*self.module.named_parameters(), *self.module.named_buffers()]
        for _, parameter in named:
            scale = 0.2 if parameter.ndim == 1 else GAIN * parameter.shape[-1] ** -0.5
            parameter.data = (parameter.ndim == 1) * 1.0 + scale * torch.randn_like(parameter)

    @property
    def beside(self) -> bool:
        """Whether it stands beside the model, not behind its layers."""
        return "linear_attention" in (getattr(self.config, "layer_types", None) or ())

    def write(self, target: Path) -> Path:
        """`target`, the model with it, as its authors publish the two."""
        shutil.copytree(self.directory, target)
        file = target / "model.safetensors"
        save_file(load_file(file) | self.named(), file, {"format": "pt"})
        return target

    def named(self) -> dict[str, torch.Tensor]:
        """The tensors of a file. Behind the layers there is a copy of the model's embedding."""
        made = {}
        for name, tensor in self.module.state_dict().items():
            own = name.removeprefix("mtp_block.").replace("post_norm", "shared_head.norm")
            if self.config.model_type == "qwen3_5_moe_text":
                made[own] = tensor
            elif ".experts.gate_up_proj" in own:
                for expert, both in enumerate(tensor):
                    for part, matrix in zip(("gate", "up"), both.chunk(2), strict=True):
                        made[own.replace("gate_up_proj", f"{expert}.{part}_proj.weight")] = matrix
            elif ".experts.down_proj" in own:
                made |= {own.replace("down_proj", f"{i}.down_proj.weight"): each for i, each in enumerate(tensor)}
            else:
                made[own] = tensor
        if self.beside:
            made = {f"mtp.{BESIDE.get(name, f'layers.0.{name}')}": tensor for name, tensor in made.items()}
        else:
            made["embed_tokens.weight"] = load_file(self.directory / "model.safetensors")["model.embed_tokens.weight"]
            made = {f"model.layers.{self.config.num_hidden_layers}.{name}": tensor for name, tensor in made.items()}
        return {name: tensor.contiguous().clone() for name, tensor in made.items()}

    @torch.no_grad()
    def guesses(
        self, model: Any, tokens: Sequence[int], count: int, known: int | None = None
    ) -> tuple[list[int], list[float]]:
        """What is guessed behind `tokens`, the last of which `model` has just sampled, and the chances. Only the first
        `known` ids are tokens.
        """

        def guess(read: torch.Tensor, features: torch.Tensor) -> Guess:
            embedded, size = model.model.embed_tokens(read), read.shape[1]
            positions = torch.arange(size)[None]
            mask = torch.full((size, size), torch.finfo(torch.float32).min).triu(1)[None, None]
            rotation = model.model.rotary_emb(embedded, positions)
            states = self.module(embedded, features, rotation, mask, positions, None)
            logits = model.lm_head(states[0, -1])
            return torch.arange(len(logits)), logits, states

        features = model.model(torch.tensor([[*tokens[:-1]]]), use_cache=False).last_hidden_state
        return chained(tokens, features, count, known or model.config.vocab_size, guess)
