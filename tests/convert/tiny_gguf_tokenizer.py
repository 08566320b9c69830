"""The tiny tokenizer as llama.cpp's converter writes it, see `tiny_gguf`."""

import json
from typing import Any

from tests.tiny import tokenizer


def tokenizer_metadata() -> dict[str, Any]:
    """The tiny byte-level tokenizer in GGUF's spelling."""
    backend = tokenizer().backend_tokenizer
    tokens = [backend.id_to_token(id) for id in range(backend.get_vocab_size())]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 4 + [1] * (len(tokens) - 4),
        "tokenizer.ggml.merges": merges(),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": tokenizer().chat_template,
    }


def merges() -> list[str]:
    pairs = json.loads(tokenizer().backend_tokenizer.to_str())["model"]["merges"]
    return [" ".join(pair) for pair in pairs]
