"""What a mock engine is told to be."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class MockOptions:
    step_seconds: float = 0.0
    load_seconds: float = 0.0
    max_total_tokens: int = 2048
    max_batch_size: int = 256
    page_size: int = 16
    model_dir: Path = Path("/nonexistent")
    decoder_start_token_id: int | None = None
    tokens_per_step: int = 1  # of a request, once it has its first: all but one of them are drafts, and right
    script: tuple[int, ...] = ()  # ids every request without an adapter is answered with, cyclically
    steps_on_host: bool = False
    # While this file exists, a request gets its first token and no more, a beam search nothing, and no adapter loads.
    hold: Path | None = None
    max_loras: int = 0  # 0 = no adapters are served
    lora_adapters: tuple[str, ...] = ()
    pooling: str = "last"
    logits: bool = True
    image_token_id: int | None = None  # it sees: every image that fits this description, whatever its shape
    max_images: int = 4
    max_image_patches: int = 4096
    patch_values: int = 12
    patch_dtype: str = "float32"
    prefix_pages: int = 0  # of prompts, that it remembers; 0 = no prefix cache
    prefill_seconds_per_page: float = 0.0  # that a step takes longer for each page, begun ones too, that is not cached
