"""What a model is, as data: the one description that converters write and the engine reads.

`ModelSpec` says how the decoder computes, `parameter_table` which arrays it computes with. Nothing here imports JAX, so
converters and the scheduler can read it anywhere. A family of checkpoints is mapped onto this by `convert/families`;
this file knows no checkpoint format and no tensor name of another library.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True)
class Rope:
    """Rotary positions, rotate-half pairing. The formulas of each kind are in `jaxengine/model/rope.py`."""

    kind: RopeKind = "default"
    theta: float = 10000.0
    factor: float = 1.0
    original_positions: int = 0  # trained length: dynamic, llama3, yarn
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn: round the ramp's ends to whole dimensions
    attention_factor: float | None = None  # yarn: multiplies cos and sin; None = derived from factor and mscale
    mscale: float = 0.0  # yarn
    mscale_all_dim: float = 0.0  # yarn

    def __post_init__(self) -> None:
        if self.theta <= 0 or self.factor <= 0:
            raise ValueError(f"rope theta and factor must be positive, got {self.theta} and {self.factor}")
        if self.kind in ("dynamic", "llama3", "yarn") and self.original_positions <= 0:
            raise ValueError(f"rope kind {self.kind!r} needs original_positions")

    @property
    def by_position(self) -> bool:
        """Whether a token's angles depend on its position alone; `dynamic` looks at the length of the prompt too."""
        return self.kind != "dynamic"


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only transformer: pre-norm, sequential residual, grouped-query attention, gated MLP."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    max_positions: int
    norm_eps: float = 1e-5
    rope: Rope = dataclasses.field(default_factory=Rope)
    activation: Activation = "silu"
    tied_head: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "ffn_size")
        for name in (*sizes, "max_positions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} must be even to rotate")

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.num_heads // self.num_kv_heads

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "ModelSpec":
        fields: dict[str, Any] = json.loads(text)
        return cls(**{**fields, "rope": Rope(**fields["rope"])})


@dataclass(frozen=True)
class Parameter:
    """One array of the model. `axes` names each dimension for sharding; None is never sharded.

    The last `inputs` axes of a matrix are what a product contracts: `[out…, in…]`, Hugging Face's order. How the device
    stores it is the choice of `jaxengine/model/linear.py`.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    inputs: int = 0


def parameter_table(spec: ModelSpec) -> dict[str, Parameter]:
    """Every parameter of `spec`, by name, in forward order: the single source for init, sharding and loading.

    q, k and v are one array, grouped by key/value head: `qkv[j]` holds the `group` query heads that read kv head j,
    then that head's key and its value. Splitting axis 0 over devices therefore splits attention cleanly.
    Gate and up projections are one array `[2, ffn, hidden]`: 0 is the gate, 1 is up.
    """
    hidden, kv, group, dim, ffn = spec.hidden_size, spec.num_kv_heads, spec.group, spec.head_dim, spec.ffn_size
    table = {"embedding": Parameter((spec.vocab_size, hidden), ("vocab", "embed"))}
    for i in range(spec.num_layers):
        layer = {
            "attention_norm": Parameter((hidden,), ("embed",)),
            "qkv": Parameter((kv, group + 2, dim, hidden), ("kv_heads", None, None, "embed"), 1),
            "qkv_bias": Parameter((kv, group + 2, dim), ("kv_heads", None, None)),
            "out": Parameter((hidden, kv, group, dim), ("embed", "kv_heads", None, None), 3),
            "out_bias": Parameter((hidden,), ("embed",)),
            "mlp_norm": Parameter((hidden,), ("embed",)),
            "gate_up": Parameter((2, ffn, hidden), (None, "ffn", "embed"), 1),
            "gate_up_bias": Parameter((2, ffn), (None, "ffn")),
            "down": Parameter((hidden, ffn), ("embed", "ffn"), 1),
            "down_bias": Parameter((hidden,), ("embed",)),
        }
        absent = {
            *(() if spec.qkv_bias else ("qkv_bias",)),
            *(() if spec.out_bias else ("out_bias",)),
            *(() if spec.mlp_bias else ("gate_up_bias", "down_bias")),
        }
        table |= {f"layers.{i}.{name}": parameter for name, parameter in layer.items() if name not in absent}
    table["final_norm"] = Parameter((hidden,), ("embed",))
    if not spec.tied_head:
        table["head"] = Parameter((spec.vocab_size, hidden), ("vocab", "embed"), 1)
    return table


class ParameterSource(Protocol):
    """Where parameters come from: a converter reading a checkpoint, or random numbers in a test."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def dtype(self) -> str:
        """The checkpoint's own floating type, e.g. "bfloat16": what "auto" means."""
        ...

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """The slice `index` of parameter `name` in the table's layout, in any floating dtype (ml_dtypes included).

        Called from several threads at once. Raises `CheckpointError`-like ValueErrors that name file and tensor.
        """
        ...


def parameter_count(table: Mapping[str, Parameter]) -> int:
    return sum(int(np.prod(parameter.shape)) for parameter in table.values())
