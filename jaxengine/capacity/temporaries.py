"""What a step needs besides its arguments, without asking XLA: estimated from the sizes of its widest arrays.

Four programs can be the largest. One is the longest step of prompts, at its widest in an MLP, or where a matrix in few
bits is written out to be multiplied; one samples from the logits of a step, which it holds several times; one encodes
pictures; and one copies what layers keep of a few requests. `tests/gpu_compile/test_temporaries.py` compares the first
three with what XLA says for H200s: of dense models and mixtures of experts, on one GPU and on eight, in 16 bits and in
few, of a state space, an encoder and a tower.
"""

from collections.abc import Iterator, Mapping

import jax.numpy as jnp

from jaxengine.architecture.latent import Latent
from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import parameter_table
from jaxengine.architecture.recurrence import LinearAttention, Mamba2, ShortConvolution
from jaxengine.architecture.weight_format import WeightFormat
from jaxengine.device import DeviceTraits
from jaxengine.executor.compiler import COPIES
from jaxengine.executor.shapes import Shapes
from jaxengine.model.linear import weight_layout
from jaxengine.model.vision.segments import PAGE, scratch_pages
from jaxengine.ops.triton import dequantised
from jaxengine.ops.triton.grouped import MANY_TOKENS
from jaxengine.startup.memory import slot_bytes
from jaxengine.weights.quantization import shared_sizes

LOGITS_HELD = 7.4  # f32 arrays of all logits of a step's samples
SAMPLER_EXTRA = 12 << 20
RESIDUALS = 3  # arrays as wide as the hidden state that live together
READ = 0.3  # arrays as wide as a tower's heads, beside keys and values, which lie on pages
SIDE_BY_SIDE = 1.9  # arrays as wide as what chosen layers of a tower read, and what its last make
# Arrays as wide as what a recurrence convolves and gates, some of them in f32.
KEPT = {LinearAttention: 1.5, Mamba2: 3.9, ShortConvolution: 1.1}
SCANNED = 9.5  # arrays as wide as a state space's channels, some of them in f32


def estimated_temporaries(
    shapes: Shapes, devices: int, device: DeviceTraits, formats: Mapping[str, WeightFormat]
) -> int:
    """Bytes on each of `devices`, which are like `device`; `formats` are those of the matrices that are quantised."""
    prompts, pictures = of_prompts(shapes, devices, device, formats), of_pictures(shapes, devices)
    return max(prompts, of_sampling(shapes), pictures, of_copies(shapes, devices))


def of_prompts(shapes: Shapes, devices: int, device: DeviceTraits, formats: Mapping[str, WeightFormat]) -> int:
    spec, limits, itemsize = shapes.spec, shapes.limits, int(jnp.dtype(shapes.dtype).itemsize)
    tokens = max(limits.token_budget, *limits.encode_buckets, 0)
    adapted = _adapted_width(shapes) / devices
    most = int(tokens * (_width(spec, devices) + adapted) * itemsize)
    if tokens < MANY_TOKENS or itemsize != 2:
        return most
    for outputs, inputs in _written_out(spec, devices, device, formats):
        width = RESIDUALS * spec.hidden_size + max(outputs, inputs) + adapted
        row = inputs * itemsize
        chunk = max(size for _, size in dequantised.chunks(outputs, row)) * row
        most = max(most, int(tokens * width * itemsize) + chunk)
    return most


def _written_out(
    spec: ModelSpec, devices: int, device: DeviceTraits, formats: Mapping[str, WeightFormat]
) -> Iterator[tuple[int, int]]:
    """Outputs and inputs of a device's share of each matrix that many tokens multiply in 16 bits (`dequantised`).
    Experts' are none: their kernels read them as they are stored.
    """
    table = parameter_table(spec)
    for name, format in formats.items():
        parameter = table[name]
        share = shared_sizes(parameter, devices)
        if not parameter.stacked and weight_layout(parameter, device, format, share).grouped:
            yield share


def _adapted_width(shapes: Shapes) -> int:
    """Elements of a token that adapters add to gate and up, beside the product itself."""
    adapted = shapes.adapters is not None and any(name.endswith(".gate_up") for name in shapes.adapters.targets)
    return (2 if shapes.spec.gated else 1) * _widest_mlp(shapes.spec) if adapted else 0


def _width(spec: ModelSpec, devices: int) -> float:
    """Elements of a token that live together where it is widest: in what mixes tokens, or in what follows it."""
    return RESIDUALS * spec.hidden_size + max(_of_mixers(spec, devices), _of_mlp(spec, devices))


def _of_mixers(spec: ModelSpec, devices: int) -> float:
    if spec.state_space:
        return SCANNED * spec.state_space.channels / devices
    kept = KEPT[type(spec.recurrence)] * spec.recurrence.width if spec.recurrence else 0.0
    latent = spec.attention.latent
    attention = _of_latents(spec, latent) if latent else (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    return max(kept, attention) / devices


def _of_mlp(spec: ModelSpec, devices: int) -> float:
    if spec.experts:  # gate, up and activation are one kernel; each chosen expert has an output
        return spec.experts.used * (spec.experts.ffn_size / devices + spec.hidden_size)
    return (3 if spec.gated else 1) * _widest_mlp(spec) / devices  # gate and up, and their product


def _widest_mlp(spec: ModelSpec) -> int:
    """Inner width of the widest layer's."""
    return max(spec.ffn_size, *(kind.ffn_size for kind in spec.kinds))


def _of_latents(spec: ModelSpec, latent: Latent) -> int:
    """Elements of a token's latents and of its queries: as the model has them, as they meet latents, and what they
    attend to.
    """
    return latent.query_rank + latent.cached + spec.num_heads * (latent.head_dim + latent.cached + latent.rank)


def of_pictures(shapes: Shapes, devices: int) -> int:
    """Of the tower."""
    vision = shapes.spec.vision
    if vision is None:
        return 0
    tower, shape, heads = vision.tower, shapes.see_shapes()[-1], vision.tower.num_heads * vision.tower.head_dim
    width = RESIDUALS * tower.hidden_size + (3 if tower.gated else 1) * tower.ffn_size / devices
    width += READ * heads / devices
    if vision.cross:  # whose keys and values are written layer by layer
        width += SIDE_BY_SIDE * vision.feature_size
    cached = PAGE * scratch_pages(shape.patches, max(shape.segments, shape.windows))
    return int((shape.patches * width + 2 * cached * heads / devices) * jnp.dtype(shapes.dtype).itemsize)


def of_sampling(shapes: Shapes) -> int:
    samples = max(shape.samples for shape in shapes.step_shapes())
    return int(LOGITS_HELD * samples * shapes.spec.vocab_size * 4) + SAMPLER_EXTRA


def of_copies(shapes: Shapes, devices: int) -> int:
    """Of what `copy_slots` holds of all layers until it is written: of Qwen3.5-27B 24 MiB a layer, as XLA says."""
    of_slot = slot_bytes(shapes.limits, shapes.spec, shapes.dtype, devices) // shapes.limits.state_slots
    return COPIES * of_slot
