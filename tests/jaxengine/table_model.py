"""A model of transformers that is nothing but a table: the logits behind a text are drawn for that text."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput


class TableModel(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """
    Args:
        seed, sharpness: of the table; the larger the latter, the further are likely ids from others.
    """

    config_class = PreTrainedConfig

    def __init__(self, vocab: int, seed: int, sharpness: float = 2.0) -> None:
        super().__init__(PreTrainedConfig(vocab_size=vocab))
        self.vocab = vocab
        self.seed = seed
        self.sharpness = sharpness
        self.anything = torch.nn.Parameter(torch.zeros(1))  # tells dtype and device

    def logits(self, text: Sequence[int]) -> np.ndarray:
        """f32 [V], of what comes behind `text`."""
        drawn = np.random.default_rng([self.seed, *text]).normal(size=self.vocab)
        return (self.sharpness * drawn).astype(np.float32)

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        table = np.stack([self.logits(text) for text in input_ids.tolist()])
        return CausalLMOutput(logits=torch.from_numpy(table)[:, None])

    def logprobs(self, text: Sequence[int]) -> np.ndarray:
        """f32 [V]."""
        return torch.from_numpy(self.logits(text)).log_softmax(-1).numpy()
