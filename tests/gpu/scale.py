"""How large the measurements are: the real thing for a GPU, and a shrunken copy that proves the scripts on a CPU."""

from dataclasses import dataclass, replace

from jaxengine.architecture.model import ModelSpec
from jaxengine.cache.limits import Limits
from jaxengine.options.table import EngineOptions
from jaxengine.startup.defaults import derive_limits
from tests.shapes import H200, LLAMA_8B

TINY = ModelSpec(
    vocab_size=512,
    hidden_size=128,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    ffn_size=256,
    max_positions=2048,
)


@dataclass(frozen=True)
class Load:
    """Requests that arrive together, each of `prompt` random tokens, each wanting `new` more."""

    requests: int
    prompt: int
    new: int

    @property
    def name(self) -> str:
        return f"{self.requests} x ({self.prompt} + {self.new})"


@dataclass(frozen=True)
class Scale:
    """Sizes of everything a section measures.

    copy_bytes: of the array whose copy gives the bandwidth; several times the last-level cache.
    matmul: side of the square matrices whose product gives the arithmetic rate.
    growth: tokens a request may gain while decoding is measured, over all batch sizes.
    """

    name: str
    model: str
    spec: ModelSpec
    dtype: str
    decode_rows: tuple[int, ...]
    contexts: tuple[int, ...]
    decode_steps: int
    growth: int
    prefills: tuple[int, ...]
    loads: tuple[Load, ...]
    traced_rows: tuple[int, ...]
    copy_bytes: int
    matmul: int
    repeats: int

    @property
    def itemsize(self) -> int:
        """Bytes of an element of weights and cache."""
        return 4 if self.dtype == "float32" else 2

    def brief(self, *rows: int) -> "Scale":
        """With one context and one length of prompts, and of the full one only `rows`: the less there is to compile."""
        rows = rows if self.name == "full" else self.decode_rows
        return replace(self, contexts=self.contexts[:1], prefills=self.prefills[1:2] or self.prefills, decode_rows=rows)

    @property
    def limits(self) -> Limits:
        """Buckets of exactly the measured sizes: nothing is padded, and nothing else is compiled."""
        longest = max(*self.prefills, *self.contexts) + self.growth
        limits = derive_limits(EngineOptions(max_total_tokens=longest), self.spec, H200)
        encode = self.prefills if self.spec.encoder else ()
        return replace(limits, decode_buckets=self.decode_rows, mixed_buckets=self.prefills, encode_buckets=encode)


FULL = Scale(
    name="full",
    model="Llama-3.1-8B",
    spec=LLAMA_8B,
    dtype="bfloat16",
    decode_rows=(1, 8, 32, 128, 256),
    contexts=(1024, 4096),
    decode_steps=64,
    growth=1024,
    prefills=(512, 2048, 8192),
    loads=(Load(1, 1024, 128), Load(32, 1024, 128), Load(128, 1024, 128)),
    traced_rows=(1, 128),
    copy_bytes=4 << 30,
    matmul=8192,
    repeats=7,
)
SMOKE = Scale(
    name="smoke",
    model="tiny",
    spec=TINY,
    dtype="float32",
    decode_rows=(1, 4),
    contexts=(32,),
    decode_steps=4,
    growth=64,
    prefills=(32,),
    loads=(Load(1, 16, 4), Load(4, 16, 4)),
    traced_rows=(4,),
    copy_bytes=1 << 20,
    matmul=128,
    repeats=2,
)
SCALES = {scale.name: scale for scale in (FULL, SMOKE)}
