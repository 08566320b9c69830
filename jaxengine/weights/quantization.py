"""Projections in 8 or 4 bits, quantised while they are loaded or stored so; activations keep their type.

With 8 bits a quantised matrix is a `Weight` of values and f32 scales of its output channels. The product is scaled, not
the weight, so a step reads one byte a weight; only for many tokens a GPU writes a matrix out in 16 bits first, which is
little beside their arithmetic (`ops/triton/dequantised`). A channel has one scale even where several devices share its
inputs. A GPU multiplies by kernels of our own (`ops/triton/grouped`, and those of experts). XLA would write out the
whole weight in each step where groups of inputs have scales; where channels have them it fuses the cast into the
product, but reads slowly then: one request of an 8B Llama took 7.06 ms a token in int8 and 6.54 in fp8 on an H200, 4.51
in bf16, and with kernels of ours 3.25 and 3.75. So XLA multiplies only by what does not divide into our tiles.

The projections of the layers are quantised; those of experts too, with scales for each expert's channels. Embedding and
head are not: often they are one array, and the head's rounding would go straight into the logits. Where a checkpoint
holds them quantised, a CPU does too. Neither are the matrices that decide a state space's time steps or a token's
experts. On a CPU int8 is the fast format (`jaxengine/ops/matmul.py`); of fp8 XLA casts the whole weight before each
product.
"""

import math
from dataclasses import replace
from itertools import pairwise

import jax.numpy as jnp
from jax import Array

from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import Parameter, ParameterSource, parameter_table
from jaxengine.architecture.vision_parameters import VISION
from jaxengine.architecture.weight_format import WeightFormat
from jaxengine.device import DeviceTraits
from jaxengine.ops.backend import unsupported_device
from jaxengine.ops.packing import octets, pack
from jaxengine.ops.triton import grouped
from jaxengine.ops.weight import Weight, WeightLayout
from jaxengine.sharding import SPLIT

PROJECTIONS = {"qkv", "q", "out", "cross_q", "cross_kv", "cross_out", "gate_up", "down", "in_proj", "out_proj"}
PROJECTIONS |= {"q_a", "kv_a"}  # of latents
PROJECTIONS |= {"linear_in", "linear_gate", "linear_out", "head_gate"}  # of layers that keep states
PROJECTIONS |= {"mamba_in", "mamba_out", "short_in", "short_out"}  # likewise
PROJECTIONS |= {"experts_gate_up", "experts_down", "shared_gate_up", "shared_down"}


# bitsandbytes' tables: quantiles of the normal distribution (Dettmers et al. 2023, arXiv 2305.14314), and fractions
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634),
    *(0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
FRACTIONS = (0.0, 0.0052083334885537624, 2 / 3, 1.0, 1 / 3, 0.5, 1 / 6, 0.25)
FP4 = (*FRACTIONS, *(-each for each in FRACTIONS))

FLOATS, GGUF = "none", "gguf"
FORMATS = {  # with a scale for each output channel
    "int8": WeightFormat("int8", "int8"),
    "fp8": WeightFormat("fp8", "float8_e4m3fn"),
}
FOUR_BITS = {
    "int4": WeightFormat("int4", "int8", "bfloat16", group=128, bits=4),
    "nf4": WeightFormat("nf4", "uint8", "float32", group=64, table=NF4, bits=4),
    "fp4": WeightFormat("fp4", "uint8", "float32", group=64, table=FP4, bits=4),
}


# What an option makes of floats, and of which methods a checkpoint may be that it names.
MADE = {name: name for name in (*FORMATS, *FOUR_BITS)} | {
    **dict.fromkeys(("eetq", "bitsandbytes"), "int8"),
    "bitsandbytes-nf4": "nf4",
    "bitsandbytes-fp4": "fp4",
}
NAMED = {
    **dict.fromkeys(("bitsandbytes", "bitsandbytes-nf4", "bitsandbytes-fp4"), ("bitsandbytes",)),
    **dict.fromkeys(("auto-round", "gptq", "marlin"), ("gptq", "awq")),
    "fp8": ("fp8", "modelopt", "compressed-tensors"),
    "modelopt": ("modelopt", "fp8"),
}


def resolve(asked: str | None, method: str | None, on_host: bool = False) -> str | None:
    """What is made of weights in floats: the name of a format, or None for nothing; FLOATS where what is stored
    quantised shall become floats too.

    On a CPU a GGUF file computes in floats unless int8 is asked for: its blocks rounded once more, with one scale for a
    channel, moved the default model's log-probabilities by up to 0.43, and 2 of 3 golden answers with them.

    Args:
        asked: `--quantize`.
        method: by which the checkpoint is quantised, if it is.
        on_host: whether the device is a CPU.

    Raises:
        ValueError: they contradict each other.
    """
    if on_host and method == GGUF and asked in (None, "int8"):
        return None if asked else FLOATS
    if asked in (None, FLOATS):
        return asked
    if method is None:
        if asked not in MADE:
            raise ValueError(f"quantize {asked!r}: the checkpoint is in floats; these can become {', '.join(MADE)}")
        return MADE[asked]
    if method not in NAMED.get(asked, (asked,)):
        raise ValueError(f"quantize {asked!r}: the checkpoint is quantised by {method}; leave the option out")
    return None


def check_quantizable(spec: ModelSpec, quantize: str | None, device: DeviceTraits) -> None:
    """Raises ValueError if `spec` has weights that ought to be quantised and cannot be, or not on `device`."""
    if quantize in (None, FLOATS):
        return
    if spec.traced:
        raise ValueError(f"quantize {quantize!r} is not supported for transformers' own modules: leave it out")
    if quantize in FOUR_BITS and not device.kernels:
        raise ValueError(f"quantize {quantize!r} needs an NVIDIA GPU; on a CPU int8 is the smallest and the fastest")
    if not spec.experts or not device.kernels or quantize in FOUR_BITS:
        return
    # The kernels of experts read values as they are stored.
    if problem := unsupported_device(device, FORMATS[quantize].values, "experts"):
        raise ValueError(f"quantize {quantize!r}: {problem}; int8 runs on all that are supported")


def is_projection(name: str) -> bool:
    """Whether parameter `name` is one of the matrices that are quantised.

    None of a vision tower is: it is small, and what a rounded one shows is wrong for every token of the answer. What a
    checkpoint holds of it quantised is read in floats.
    """
    layer, _, kind = name.rpartition(".")
    return bool(layer) and kind in PROJECTIONS and not name.startswith(VISION)


def chosen_formats(spec: ModelSpec, quantize: str | None, devices: int = 1) -> dict[str, WeightFormat]:
    """The format of every matrix that the engine is told to quantise. Groups are smaller where a device's share of the
    inputs does not divide into whole ones. What the kernels of groups cannot divide has 8 bits instead of 4.
    """
    if quantize in (None, FLOATS):
        return {}
    table, format = parameter_table(spec), (FORMATS | FOUR_BITS)[quantize]
    return {name: _fitting(format, table[name], devices) for name in filter(is_projection, table)}


def _fitting(format: WeightFormat, parameter: Parameter, devices: int) -> WeightFormat:
    if not format.group:
        return format
    outputs, inputs = shared_sizes(parameter, devices)
    group = math.gcd(format.group, inputs)
    unsupported = grouped.unsupported(outputs, inputs, group, format.bits)
    return FORMATS["int8"] if unsupported else replace(format, group=group)


def weight_formats(
    source: ParameterSource, quantize: str | None, device: DeviceTraits, devices: int = 1
) -> dict[str, WeightFormat]:
    """The format of every matrix that devices hold quantised: one that is stored so keeps the format it has, if a
    product can read it. Others are read in floats, and quantised as told. On a CPU, where nothing is said, what is
    stored quantised becomes int8, which computes fastest.
    """
    if quantize == FLOATS:
        return {}
    table, spec = parameter_table(source.spec), source.spec
    matrices = (name for name in table if is_projection(name) or (device.on_host and _is_vocabulary(name, spec)))
    stored = {name: each.format for name in matrices if (each := source.stored(name))}
    kept = {name: format for name, format in stored.items() if _readable(table[name], format, device, devices)}
    fast = dict.fromkeys(stored, FORMATS["int8"]) if device.on_host and quantize is None else {}
    return chosen_formats(spec, quantize, devices) | fast | kept


def _is_vocabulary(name: str, spec: ModelSpec) -> bool:
    """Whether parameter `name` has a row for each token, and a product with it is ours."""
    return name in ("embedding", "head") and not spec.traced


def _readable(parameter: Parameter, format: WeightFormat, device: DeviceTraits, devices: int) -> bool:
    """Whether a product on `device`, one of `devices` that share the matrix, reads `format` as it is stored.

    Where no kernels run, that takes one scale for each output channel. Experts' inputs would have an order of their own
    for each expert, which their kernels do not know.
    """
    by_kernel = device.kernels and (parameter.stacked > 0 or not format.per_channel)
    if by_kernel and (unsupported_device(device, format.values, "weights") or (parameter.stacked and format.ordered)):
        return False
    if format.per_channel:
        return not device.on_host or format.values == "int8"
    if not by_kernel:
        return False
    outputs, inputs = shared_sizes(parameter, devices)
    return not grouped.unsupported(outputs, inputs, format.group, format.bits)


def shared_sizes(parameter: Parameter, devices: int) -> tuple[int, int]:
    """Outputs and inputs of a device's share of a matrix, of one if `parameter` is a stack."""
    sizes = [
        n // devices if axis in SPLIT and n % devices == 0 else n
        for n, axis in zip(parameter.shape, parameter.axes, strict=True)
    ]
    first = len(sizes) - parameter.inputs
    return math.prod(sizes[parameter.stacked : first]), math.prod(sizes[first:])


def group_weight(layout: WeightLayout, weight: Weight) -> Weight:
    """`weight`, laid out as the parameter table has it, in the grouped `layout`."""
    assert layout.format is not None and weight.scales is not None
    outputs = weight.values.shape[: weight.values.ndim - layout.inputs]
    values = weight.values.reshape(*outputs, -1)
    if layout.plane:
        few = layout.format.bits <= 4
        codes = values.astype(jnp.int16) + layout.format.offset if few else octets(values)
        values = pack(codes, layout.plane, layout.format.bits)
    scales, zeros = (
        each if each is None else _groups_first(each, len(outputs), layout.stacked)
        for each in (weight.scales, weight.zeros)
    )
    return Weight(values, layout, scales, zeros, weight.order)


def _groups_first(array: Array, outputs: int, stacked: int) -> Array:
    """[stacked…, groups, out…] of [stacked…, out…, groups] or, where there is one group, of [stacked…, out…]."""
    return jnp.moveaxis(array if array.ndim > outputs else array[..., None], -1, stacked)


def quantize_weight(layout: WeightLayout, array: Array) -> Weight:
    """`array` [stacked…, out…, in…] with a scale for each output channel or group of inputs."""
    format = layout.format
    assert format is not None and format.zeros is None
    if format.group:
        return _in_groups(layout, format, array)
    dtype, inputs = jnp.dtype(format.values), tuple(range(array.ndim - layout.inputs, array.ndim))
    whole = jnp.issubdtype(dtype, jnp.integer)
    largest = float(jnp.iinfo(dtype).max if whole else jnp.finfo(dtype).max)
    array = array.astype(jnp.float32)
    scales = _not_zero(jnp.abs(array).max(inputs, keepdims=True)) / largest
    values = (array / scales).clip(-largest, largest)
    return Weight((jnp.rint(values) if whole else values).astype(dtype), layout, scales.squeeze(inputs))


def _in_groups(layout: WeightLayout, format: WeightFormat, array: Array) -> Weight:
    """`array` [out…, in…] with a scale for each group of inputs.

    Integers of four bits reach from -8 to 7, so a group's largest element becomes -8 and the scale may be negative, as
    in llama.cpp's Q4_0. An entry of a table is the nearest one.
    """
    outputs = array.shape[: array.ndim - layout.inputs]
    groups = array.astype(jnp.float32).reshape(*outputs, -1, format.group)  # [out…, G, group]
    furthest = jnp.take_along_axis(groups, jnp.abs(groups).argmax(-1, keepdims=True), -1)
    if format.table:
        scales = _not_zero(jnp.abs(furthest)).astype(format.scales)
        codes = _nearest(groups / scales.astype(jnp.float32), format.table)
    else:
        lowest = -float(format.offset)
        scales = (_not_zero(furthest) / lowest).astype(format.scales)
        codes = jnp.rint(groups / scales.astype(jnp.float32)).clip(lowest, -lowest - 1)
    return Weight(codes.astype(format.values).reshape(array.shape), layout, scales[..., 0])


def _nearest(numbers: Array, table: tuple[float, ...]) -> Array:
    """i32: the table's entry that is nearest to each number."""
    order = sorted(range(len(table)), key=table.__getitem__)
    borders = [(table[low] + table[high]) / 2 for low, high in pairwise(order)]
    return jnp.asarray(order)[jnp.searchsorted(jnp.asarray(borders), numbers)]


def _not_zero(magnitude: Array) -> Array:
    return jnp.where(magnitude == 0, 1, magnitude)
