"""EAGLE's layers in PyTorch, out of transformers' own Llama: what they guess, and the files that trainers write."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import nn
from transformers.models.llama.modeling_llama import (
    LlamaConfig,
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

GAIN = 1.5  # so that what the layers add decides the guess
Guess = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # ids [n], their logits [n], features [1, read, hidden]


def chained(
    tokens: Sequence[int],
    features: torch.Tensor,
    count: int,
    known: int,
    guess: Callable[[torch.Tensor, torch.Tensor], Guess],
) -> tuple[list[int], list[float]]:
    """What `guess` makes of the ids that are read, [1, read], and the features in front of them, one id after another,
    and the chances. Only the first `known` ids are tokens.
    """
    ids: list[int] = []
    chances: list[float] = []
    for _ in range(count):
        own, logits, following = guess(torch.tensor([[*tokens[1:], *ids]]), features)
        chance = logits.masked_fill(own >= known, -torch.inf).softmax(-1)
        best = int(chance.argmax())
        ids.append(int(own[best]))
        chances.append(float(chance[best]))
        features = torch.cat([features, following[:, -1:]], dim=1)
    return ids, chances


@dataclass(frozen=True)
class Kind:
    """What an EAGLE is made of; as `architecture.drafter.Eagle`."""

    taps: tuple[int, ...] = ()
    layers: int = 1
    kv_heads: int = 2
    draft_vocab: int | None = None
    own_embedding: bool = False
    own_head: bool = False
    fc_bias: bool = False
    norms: str = ""
    norm_before_residual: bool = False
    norm_output: bool = False
    window: int = 0


class TinyEagle(nn.Module):
    """For a model of `hidden` numbers and `vocab` ids, with random weights. Its names are those of the files."""

    def __init__(self, kind: Kind, hidden: int, vocab: int, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.kind = kind
        self.config = LlamaConfig(
            hidden_size=hidden,
            intermediate_size=96,
            num_hidden_layers=kind.layers,
            num_attention_heads=4,
            num_key_value_heads=kind.kv_heads,
            vocab_size=vocab,
            rms_norm_eps=1e-5,
            max_position_embeddings=64,
            attn_implementation="eager",
        )
        self.layers = nn.ModuleList(LlamaDecoderLayer(self.config, i) for i in range(kind.layers))
        self.rotary = LlamaRotaryEmbedding(self.config)
        first: Any = self.layers[0]
        if kind.taps:
            self.fc = nn.Linear(len(kind.taps) * hidden, hidden, bias=kind.fc_bias)
            first.hidden_norm = LlamaRMSNorm(hidden, 1e-5)
            for name in ("q_proj", "k_proj", "v_proj"):
                outputs = getattr(first.self_attn, name).out_features
                setattr(first.self_attn, name, nn.Linear(2 * hidden, outputs, bias=False))
            self.norm = LlamaRMSNorm(hidden, 1e-5)
        else:
            self.fc = nn.Linear(2 * hidden, hidden, bias=kind.fc_bias)
            first.input_layernorm = nn.Identity()
        if kind.norms == "joined":
            self.input_norm = LlamaRMSNorm(len(kind.taps) * hidden, 1e-5)
        elif kind.norms == "each":
            self.fc_norm = nn.ModuleList(LlamaRMSNorm(hidden, 1e-5) for _ in kind.taps)
        if kind.own_embedding:
            self.embed_tokens = nn.Embedding(vocab, hidden)
        if kind.own_head:
            self.lm_head = nn.Linear(hidden, kind.draft_vocab or vocab, bias=False)
        for name, parameter in self.named_parameters():
            scale = 0.2 if parameter.ndim == 1 else 1.0 if "embed" in name else GAIN * parameter.shape[1] ** -0.5
            parameter.data = (parameter.ndim == 1) * 1.0 + scale * torch.randn_like(parameter)
        if kind.draft_vocab:
            chosen = torch.randperm(vocab)[: kind.draft_vocab].sort().values
            self.register_buffer("d2t", chosen - torch.arange(kind.draft_vocab))
            self.register_buffer("t2d", torch.zeros(vocab, dtype=torch.bool).index_fill(0, chosen, True))
        self.eval()

    def write(self, directory: Path, *, midlayer: bool = True, prefix: str = "", **config: Any) -> Path:
        """`directory`, as SafeAILab's code saves it."""
        directory.mkdir(parents=True, exist_ok=True)
        settings = self.config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
        if self.kind.taps:
            ids = list(self.kind.taps)
            settings |= {"architectures": ["LlamaForCausalLMEagle3"], "eagle_aux_hidden_state_layer_ids": ids}
            settings |= {"norm_before_residual": self.kind.norm_before_residual, "norm_output": self.kind.norm_output}
            settings |= {"draft_vocab_size": self.kind.draft_vocab or self.config.vocab_size}
        if self.kind.window:
            types = ["sliding_attention"] * self.kind.layers
            settings |= {"layer_types": types, "sliding_window": self.kind.window}
        settings |= config
        (directory / "config.json").write_text(
            json.dumps({key: value for key, value in settings.items() if value is not None})
        )
        save_file(self.named(midlayer=midlayer, prefix=prefix), directory / "model.safetensors")
        return directory

    def named(self, *, midlayer: bool = True, prefix: str = "") -> dict[str, torch.Tensor]:
        """The tensors of a file."""
        tensors = {name: tensor.contiguous() for name, tensor in self.state_dict().items() if "rotary" not in name}
        if midlayer and self.kind.taps:
            tensors = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
        return {name if "lm_head" in name or "2" in name[:3] else prefix + name: each for name, each in tensors.items()}

    @torch.no_grad()
    def guesses(
        self, model: Any, tokens: Sequence[int], count: int, known: int | None = None
    ) -> tuple[list[int], list[float]]:
        """What is guessed behind `tokens`, the last of which `model` has just sampled, and the chances. Only the first
        `known` ids are tokens.
        """

        def guess(read: torch.Tensor, features: torch.Tensor) -> Guess:
            states = self._states(model, read, features)
            normed = self.norm(states) if self.kind.taps else states
            head = self.lm_head if self.kind.own_head else model.lm_head
            logits = head(normed[0, -1])
            own = self.d2t + torch.arange(len(logits)) if self.kind.draft_vocab else torch.arange(len(logits))
            return own, logits, normed if self.kind.norm_output else states

        return chained(tokens, self._features(model, tokens[:-1]), count, known or self.config.vocab_size, guess)

    def _features(self, model: Any, tokens: Sequence[int]) -> torch.Tensor:
        """[1, tokens, hidden]"""
        seen: dict[int, torch.Tensor] = {}
        hooks = [
            layer.register_forward_pre_hook(lambda _, args, kwargs, i=i: seen.__setitem__(i, args[0]), with_kwargs=True)
            for i, layer in enumerate(model.model.layers)
        ]
        last = len(model.model.layers)
        hooks.append(model.model.norm.register_forward_pre_hook(lambda _, args: seen.__setitem__(last, args[0])))
        hidden = model.model(torch.tensor([[*tokens]]), use_cache=False).last_hidden_state
        for hook in hooks:
            hook.remove()
        if not self.kind.taps:
            return hidden  # type: ignore[no-any-return]
        tapped = [seen[tap] for tap in self.kind.taps]
        if self.kind.norms == "each":
            tapped = [norm(x) for norm, x in zip(self.fc_norm, tapped, strict=True)]
        joined = torch.cat(tapped, dim=-1)
        return self.fc(self.input_norm(joined) if self.kind.norms == "joined" else joined)  # type: ignore[no-any-return]

    def _states(self, model: Any, ids: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """[1, ids, hidden]"""
        embedded = (self.embed_tokens if self.kind.own_embedding else model.model.embed_tokens)(ids)
        count = ids.shape[1]
        rotation = self.rotary(embedded, torch.arange(count)[None])
        seen = torch.ones(count, count).tril().triu(1 - (self.kind.window or count))
        mask = torch.zeros(count, count).masked_fill(seen == 0, torch.finfo(torch.float32).min)[None, None]
        first: Any = self.layers[0]
        if self.kind.taps:
            normed = first.hidden_norm(features)
            x = torch.cat([first.input_layernorm(embedded), normed], dim=-1)
            residual = normed if self.kind.norm_before_residual else features
            residual = residual + first.self_attn(x, rotation, mask)[0]
            states = residual + first.mlp(first.post_attention_layernorm(residual))
        else:
            fused = self.fc(torch.cat([embedded, features], dim=-1))
            states = first(fused, attention_mask=mask, position_embeddings=rotation)
        for layer in self.layers[1:]:
            states = layer(states, attention_mask=mask, position_embeddings=rotation)
        return states  # type: ignore[no-any-return]


def reference(directory: Path) -> Any:
    """The model in `directory`, whose hidden states EAGLE's layers read."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    ).eval()
