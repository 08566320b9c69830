"""Tiny random checkpoints of the Llama family, and what transformers computes with them.

Default initialisation hides bugs: norm weights of one, biases of zero and weights near zero make most wiring mistakes
invisible. So every parameter is drawn again, large enough that each branch of the decoder moves the logits.
The references run transformers in float32 with eager attention: the oracle our own decoder is compared with.
"""

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

transformers.logging.disable_progress_bar()

VOCAB = 320
PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ["<pad>", "<s>", "</s>", "<unk>"]
CORPUS = [
    "The quick brown fox jumps over the lazy dog.",
    "def add(a, b):\n    return a + b\n",
    "user: where does the river end?\nassistant: in the sea, as rivers do.",
]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}


def _rope(kind: str, theta: float = 10000.0, **parameters: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **parameters}}


LLAMA3_ROPE = _rope(
    "llama3", 5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
)

TINY: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama2_gqa": {"num_key_value_heads": 2},
    "llama3": {"num_key_value_heads": 1, "tie_word_embeddings": True, **LLAMA3_ROPE},
    "llama_bias_hd": {"num_key_value_heads": 2, "head_dim": 24, "attention_bias": True, "mlp_bias": True},
    "code_llama": _rope("default", 1e6),
    "llama_linear": _rope("linear", factor=4.0),
    "llama_dynamic": {"max_position_embeddings": 16, **_rope("dynamic", factor=2.0)},
    "llama_yarn": _rope("yarn", factor=8.0, original_max_position_embeddings=16),
    "mistral_full": {"model_type": "mistral", "num_key_value_heads": 2, "sliding_window": None},
}


def write_tiny(directory: Path, name: str, *, dtype: str = "float32", seed: int = 0, **overrides: Any) -> Path:
    """Write the checkpoint `name` of `TINY` to `directory/name` as `save_pretrained` does, tokenizer included.

    `overrides` replace configuration fields. The weights depend on `seed` and the configuration only.
    """
    fields = {"model_type": "llama", **BASE, **TINY[name], **overrides}
    return write_model(directory / name, fields, dtype=dtype, seed=seed)


def write_model(target: Path, fields: dict[str, Any], *, dtype: str = "float32", seed: int = 0) -> Path:
    """Write the model that the configuration `fields` describe to `target`, with weights that all matter."""
    config = transformers.AutoConfig.for_model(**fields)
    torch.manual_seed(seed)  # some vectors are random before they are drawn again
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    redraw(model, seed).to(getattr(torch, dtype)).save_pretrained(target)
    tokenizer().save_pretrained(target)
    return target


@torch.no_grad()
def redraw(model: Any, seed: int = 0) -> Any:
    """Draw every parameter again, so that norms, biases and positions all matter.

    A tied model gets small embeddings and strong blocks; otherwise its argmax just repeats the last token.
    """
    generator = torch.Generator().manual_seed(seed)
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    embedding_std, gain = (0.12, 2.0) if tied else (0.4, 1.3)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name or parameter.ndim == 1 or name.endswith("e_score_correction_bias"):
            parameter.add_(0.2 * noise)
        elif parameter is model.get_input_embeddings().weight:
            parameter.copy_(embedding_std * noise)
        elif isinstance(_owner(model, name), torch.nn.Embedding):  # positions
            parameter.copy_(0.4 * noise)
        else:
            inputs = parameter.shape[0 if isinstance(_owner(model, name), transformers.Conv1D) else -1]
            parameter.copy_(noise * gain / math.sqrt(inputs))
    for name, buffer in model.named_buffers():
        if name.endswith(("e_score_correction_bias", "expert_bias", "layer_scalar")):  # learned all the same
            buffer.add_(0.2 * torch.randn(buffer.shape, generator=generator))
    return model


def _owner(model: Any, parameter: str) -> Any:
    return model.get_submodule(parameter.rpartition(".")[0])


@functools.cache
def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """A byte-level BPE of `VOCAB` entries that puts `<s>` in front: four specials, 256 bytes, a few merges."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(CORPUS * 4, trainer)
    bpe.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", BOS)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        model_max_length=512,
        chat_template=CHAT_TEMPLATE,
    )


def load_reference(directory: Path) -> Any:
    """transformers' own model: float32, eager attention. Dynamic rope keeps state in it, so load one per sequence."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory, attn_implementation="eager", dtype=torch.float32
    ).eval()


@torch.no_grad()
def reference_logits(directory: Path, ids: list[int]) -> np.ndarray:
    """Logits after every prefix of `ids`, without a cache: float32 [len(ids), vocab]."""
    return load_reference(directory)(torch.tensor([ids]), use_cache=False).logits[0].numpy()


@torch.no_grad()
def reference_greedy(directory: Path, ids: list[int], new_tokens: int) -> list[int]:
    """The ids greedy decoding appends to `ids`, recomputed from scratch at each step and never stopped by EOS."""
    model, sequence = load_reference(directory), list(ids)
    for _ in range(new_tokens):
        sequence.append(int(model(torch.tensor([sequence]), use_cache=False).logits[0, -1].argmax()))
    return sequence[len(ids) :]
