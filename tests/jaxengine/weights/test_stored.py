"""A checkpoint that holds its projections quantised: they reach the devices as they are stored, and compute as such."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.architecture.model import Block, ModelSpec
from jaxengine.architecture.parameters import Parameter, ParameterSource, parameter_table
from jaxengine.architecture.weight_format import Component, StoredWeight, WeightFormat
from jaxengine.device import CPU, DeviceTraits
from jaxengine.model import linear
from jaxengine.ops.weight import Weight
from jaxengine.sharding import make_mesh
from jaxengine.weights.kv_heads import ReplicatedSource
from jaxengine.weights.kv_scales import CalibratedSource
from jaxengine.weights.loading import abstract_parameters, held_bytes, load_parameters
from jaxengine.weights.quantization import FORMATS, NF4, is_projection, weight_formats
from tests.families.forward import Forward
from tests.gpu.scale import TINY
from tests.gpu.weights import RandomSource
from tests.in_floats import InFloats
from tests.jaxengine.engines import prompt
from tests.shapes import H200
from tests.tiny_quantized import packed

SPEC = replace(TINY, cache_scales=((0.5, 4.0),) * TINY.num_layers)
FOUR_BITS = WeightFormat("four bits", "uint8", zeros="uint8", group=16, bits=4)
EIGHT_BITS = WeightFormat("eight bits in groups", "int8", "float16", group=16)
ORDERED = replace(FOUR_BITS, name="sorted four bits", ordered=True)
CHANNELS = WeightFormat("four bits, a scale a channel", "int8", bits=4)
SIGNED = WeightFormat("signed four bits", "int8", "float16", group=16, bits=4)
TABLE = WeightFormat("a table", "uint8", group=16, table=NF4, bits=4)
each_format = pytest.mark.parametrize(
    "format", [*FORMATS.values(), FOUR_BITS, EIGHT_BITS, ORDERED, CHANNELS], ids=lambda format: format.name
)


@dataclass(frozen=True)
class QuantizedCheckpoint:
    """Random numbers, the projections quantised as `format` says. `told` hears of each projection read in floats."""

    format: WeightFormat
    told: Callable[[str], None] = lambda name: None
    spec: ModelSpec = SPEC
    dtype: str = "float32"
    packed: bool = False

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        if not is_projection(name):
            return RandomSource(self.spec).read(name, index)
        self.told(name)
        return dense(self, name)[index]

    def stored(self, name: str) -> StoredWeight | None:
        if not is_projection(name):
            return None

        def read(component: Component, index: tuple[slice, ...]) -> np.ndarray:
            whole = words(self, name) if component == "words" else components(self.spec, self.format, name)[component]
            return whole[index]

        return StoredWeight(self.format, read, self.packed and parameter_table(self.spec)[name].shape[-1] % 8 == 0)


@cache
def components(spec: ModelSpec, format: WeightFormat, name: str) -> dict[Component, np.ndarray]:
    parameter, draw = parameter_table(spec)[name], np.random.default_rng(len(name))
    made: dict[Component, np.ndarray] = {}
    for component, dtype in format.dtypes.items():
        shape = parameter.component(component, format).shape
        if component == "scales":
            made[component] = draw.uniform(1e-3, 2e-3, shape).astype(dtype)
        elif component == "order":
            made[component] = draw.permutation(shape[0]).astype(dtype)
        else:
            made[component] = np.asarray(jnp.asarray(draw.integers(0, 16, shape) - format.offset, dtype))
    return made


def words(source: QuantizedCheckpoint, name: str) -> np.ndarray:
    """u32 [out…, in…/8] of the values."""
    parts = components(source.spec, source.format, name)
    codes, shape = parts["values"] + source.format.offset, parameter_table(source.spec)[name].shape
    if source.format.ordered:
        codes = codes.reshape(-1, len(parts["order"]))[:, np.argsort(parts["order"])]
    return packed(codes.reshape(-1, shape[-1]), 4).view(np.uint32).reshape(*shape[:-1], -1)


def dense(source: ParameterSource, name: str) -> np.ndarray:
    """What the stored components of `name` stand for, f32 in the table's layout."""
    stored = source.stored(name)
    assert stored is not None
    scales = stored.read("scales", ()).reshape(-1, 1)  # of each group of each channel
    whole = stored.read("values", ()).astype(np.float32).reshape(len(scales), -1)
    if stored.format.zeros is not None:
        whole = whole - stored.read("zeros", ()).astype(np.float32).reshape(-1, 1)
    whole, shape = whole * scales, parameter_table(source.spec)[name].shape
    if stored.format.ordered:
        order = stored.read("order", ())
        whole = whole.reshape(-1, len(order))[:, np.argsort(order)]
    return whole.reshape(shape)


@pytest.mark.parametrize(
    ("format", "device"),
    [
        (FORMATS["int8"], CPU),
        (FORMATS["int8"], H200),
        (FORMATS["fp8"], H200),
        (FOUR_BITS, H200),
        (EIGHT_BITS, H200),
        (ORDERED, H200),
        (CHANNELS, H200),
    ],
    ids=lambda each: getattr(each, "platform", getattr(each, "name", "")),
)
@pytest.mark.parametrize("quantize", [None, "int8"])
def test_devices_hold_the_bits_that_are_stored(
    format: WeightFormat, device: DeviceTraits, quantize: str | None
) -> None:
    """Whatever the engine is told to make of floats."""
    asked: list[str] = []
    source = QuantizedCheckpoint(format, asked.append)
    loaded = load_parameters(source, make_mesh(), "float32", device, lambda *_: None, quantize)
    assert not asked
    for name in filter(is_projection, parameter_table(SPEC)):
        weight, stored = loaded[name], components(SPEC, format, name)
        assert isinstance(weight, Weight) and weight.layout.format == format
        assert weight.values.nbytes == stored["values"].size * format.bits // 8
        np.testing.assert_array_equal(weight.dense("float32").reshape(stored["values"].shape), dense(source, name))


@pytest.mark.parametrize("format", [FORMATS["fp8"], FOUR_BITS, ORDERED], ids=lambda format: format.name)
def test_a_cpu_holds_in_8_bits_what_it_cannot_multiply_by_as_stored(format: WeightFormat) -> None:
    """Unless it is told otherwise."""
    source = QuantizedCheckpoint(format)
    for quantize, held in ((None, "int8"), ("int8", "int8"), ("fp8", "fp8")):
        formats = weight_formats(source, quantize, CPU)
        assert {formats[name].name for name in filter(is_projection, parameter_table(SPEC))} == {held}
    loaded = load_parameters(source, make_mesh(), "float32", CPU, lambda *_: None)
    for name in filter(is_projection, parameter_table(SPEC)):
        weight, exact = loaded[name], dense(source, name)
        ours = np.asarray(weight.dense("float32"))
        np.testing.assert_allclose(ours, exact, atol=0.51 / 127 * np.abs(exact).max())


def test_a_cpu_keeps_4_bits_with_a_scale_a_channel_in_8() -> None:
    source = QuantizedCheckpoint(CHANNELS)
    loaded = load_parameters(source, make_mesh(), "float32", CPU, lambda *_: None)
    for name in filter(is_projection, parameter_table(SPEC)):
        weight, exact = loaded[name], dense(source, name)
        assert weight.values.dtype == "int8"
        np.testing.assert_array_equal(np.asarray(weight.dense("float32")), exact)


@pytest.mark.parametrize(("outputs", "inputs"), [(24, 256), (64, 96)])
def test_4_bits_that_do_not_divide_into_planes_are_held_in_8(outputs: int, inputs: int) -> None:
    matrix = Parameter((outputs, inputs), (None, None), 1)
    assert not linear.weight_layout(matrix, H200, CHANNELS, (outputs, inputs)).grouped
    assert linear.weight_layout(matrix, H200, CHANNELS, (64, 256)).grouped


@pytest.mark.parametrize(
    ("shape", "stacked", "format", "plane", "by_kernel"),
    [
        ((64, 256), 0, FORMATS["int8"], 64, True),
        ((64, 288), 0, FORMATS["fp8"], 16, True),
        ((64, 256), 0, EIGHT_BITS, 16, True),
        ((64, 16), 0, EIGHT_BITS, 0, True),
        ((24, 256), 0, FORMATS["int8"], 0, False),
        ((64, 272), 0, FORMATS["int8"], 0, False),
        ((4, 64, 256), 1, FORMATS["int8"], 0, False),
        ((4, 64, 256), 1, EIGHT_BITS, 0, True),
    ],
)
def test_bytes_lie_in_planes_where_they_divide_but_not_those_of_experts(
    shape: tuple[int, ...], stacked: int, format: WeightFormat, plane: int, by_kernel: bool
) -> None:
    matrix = Parameter(shape, (None,) * len(shape), 1, stacked=stacked)
    layout = linear.weight_layout(matrix, H200, format, (shape[-2], shape[-1]))
    assert (layout.plane, layout.grouped > 0) == (plane, by_kernel)


@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
def test_xla_multiplies_bytes_where_our_kernels_do_not_run(format: WeightFormat) -> None:
    matrix = Parameter((64, 256), (None, None), 1)
    for device in (DeviceTraits("gpu", "Tesla T4", (7, 5)), DeviceTraits("gpu", "of another maker")):
        layout = linear.weight_layout(matrix, device, format, (64, 256))
        assert layout.format == format and not (layout.plane or layout.grouped)


@pytest.mark.parametrize("format", [FOUR_BITS, SIGNED, TABLE, ORDERED], ids=lambda format: format.name)
@pytest.mark.parametrize("device", [CPU, H200], ids=lambda device: device.platform)
def test_words_become_what_values_do(format: WeightFormat, device: DeviceTraits) -> None:
    asked: list[str] = []

    def load(packed: bool) -> list[jax.Array]:
        source = QuantizedCheckpoint(format, asked.append, packed=packed)
        stored = [source.stored(name) for name in filter(is_projection, parameter_table(SPEC))]
        assert any(each.packed for each in stored if each) == packed
        return jax.tree.leaves(load_parameters(source, make_mesh(), "float32", device, lambda *_: None))

    for ours, expected in zip(load(packed=True), load(packed=False), strict=True):
        np.testing.assert_array_equal(ours, expected)
    assert not asked


@each_format
def test_memory_counts_what_devices_will_hold(format: WeightFormat) -> None:
    source = QuantizedCheckpoint(format)
    planned = abstract_parameters(SPEC, make_mesh(), "bfloat16", H200, weight_formats(source, None, H200))
    loaded = load_parameters(source, make_mesh(), "bfloat16", H200, lambda *_: None)
    arrays = jax.tree.leaves([each for name, each in loaded.items() if name != "head" or not SPEC.head.tied])
    assert held_bytes(planned) == sum(array.nbytes for array in arrays)
    assert jax.tree.structure(planned) == jax.tree.structure(loaded)


@each_format
def test_a_model_computes_with_what_is_stored(format: WeightFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, whose kernel is interpreted."""
    monkeypatch.setattr(linear.grouped, "product", partial(linear.grouped.product, interpret=True))
    source, ids = QuantizedCheckpoint(format), prompt(20)
    ours, expected = (Forward(each, slots=1, device=H200).prefill(0, ids, 0, 20) for each in (source, InFloats(source)))
    np.testing.assert_allclose(ours, expected, atol=2e-3 * np.abs(expected).max())


@pytest.mark.parametrize("block", ["sandwich", "parallel", "parallel_norms", "branch_norm"])
def test_sorted_inputs_are_in_order_once_whatever_comes_before_a_product(
    block: Block, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A norm for one product alone, one for two products, or none."""
    monkeypatch.setattr(linear.grouped, "product", partial(linear.grouped.product, interpret=True))
    source, ids = QuantizedCheckpoint(ORDERED, spec=replace(SPEC, block=block)), prompt(20)
    ours, expected = (Forward(each, slots=1, device=H200).prefill(0, ids, 0, 20) for each in (source, InFloats(source)))
    np.testing.assert_allclose(ours, expected, atol=2e-3 * np.abs(expected).max())


@each_format
@pytest.mark.parametrize("kind", ["qkv", "out", "gate_up"])
def test_copied_heads_and_an_8_bit_cache_s_scales_reach_what_is_stored(format: WeightFormat, kind: str) -> None:
    """The same matrix as through floats, up to rounding."""
    name, source = f"layers.0.{kind}", QuantizedCheckpoint(format)
    for wrapped in (
        ReplicatedSource(source, 2),
        CalibratedSource(source),
        CalibratedSource(ReplicatedSource(source, 2)),
    ):
        np.testing.assert_allclose(dense(wrapped, name), wrapped.read(name, ()), rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in parameter_table(SPEC) if "." not in name])
def test_what_is_no_projection_is_read_in_floats(name: str) -> None:
    class Source(InFloats):
        def stored(self, parameter: str) -> StoredWeight | None:
            return StoredWeight(FORMATS["int8"], lambda *_: np.empty(0)) if parameter == name else None

    assert not weight_formats(Source(QuantizedCheckpoint(FORMATS["int8"])), None, H200)
