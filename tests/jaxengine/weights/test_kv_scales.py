"""Scales of an 8-bit cache are in the weights: they change what is cached, and nothing that is computed from it."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from convert.mapping.composition import SourceWithSpec
from convert.source import open_model
from jaxengine.architecture.adaptation import Adaptable, AdapterWeights, LowRank
from jaxengine.architecture.model import ModelSpec, QKNorm
from jaxengine.architecture.parameters import parameter_table
from jaxengine.architecture.weight_format import StoredWeight
from jaxengine.weights.kv_scales import LEAST, MOST, CalibratedSource, calibrated, whole_power
from tests.families import numpy_decoder
from tests.families.forward import Forward
from tests.families.test_switches import RandomSource, random_spec
from tests.in_floats import InFloats
from tests.jaxengine.answers import divergence, golden_caches, golden_logprobs
from tests.shapes import LLAMA_8B

SCALES = ((3.0, 0.3), (0.25, 1.0), (0.06, 5.0))  # of each of a random model's layers
POWERS = ((4.0, 0.5), (0.25, 1.0), (0.0625, 8.0))


def random_model(seed: int, norm: QKNorm | None) -> RandomSource:
    spec = random_spec(seed)
    return RandomSource(
        replace(spec, attention=replace(spec.attention, qk_norm=norm, clip=0.0), cache_scales=SCALES), seed
    )


@pytest.mark.parametrize(
    ("seed", "norm"),
    [
        pytest.param(48, None, id="plain, biased"),
        pytest.param(70, QKNorm("rms", "head"), id="normalised"),
        pytest.param(68, QKNorm("rms_plus_one", "projection"), id="one added"),
        pytest.param(103, QKNorm("layer", "head", bias=True), id="normalised, biased"),
    ],
)
def test_caches_are_scaled_and_logits_are_not(seed: int, norm: QKNorm | None) -> None:
    source = random_model(seed, norm)
    ids = np.random.default_rng(seed).integers(0, 50, 12).tolist()
    model = Forward(CalibratedSource(source), slots=1)
    plain = Forward(source, slots=1)
    expected = numpy_decoder.logits(source.spec, source.values, ids)
    for each in (model, plain):
        np.testing.assert_allclose(each.prefill(0, ids, 0, len(ids)), expected, atol=1e-3)
    for layer, powers in enumerate(POWERS):
        for cache, exact, power in zip(model.caches, plain.caches, powers, strict=True):
            np.testing.assert_allclose(cache[layer, 1] * power, exact[layer, 1], atol=1e-4)


@pytest.mark.parametrize("norm", [None, QKNorm("rms", "head")])
def test_what_an_adapter_adds_is_scaled_as_what_it_adds_to(norm: QKNorm | None) -> None:
    source = random_model(48, norm)
    reader = RandomAdapters(source.spec)
    ids = np.random.default_rng(48).integers(0, 50, 12).tolist()
    exact = Forward(source, slots=1, adapter=(reader, "a")).prefill(0, ids, 0, len(ids))
    scaled = Forward(CalibratedSource(source), slots=1, adapter=(reader, "a")).prefill(0, ids, 0, len(ids))
    np.testing.assert_allclose(scaled, exact, atol=1e-3)
    assert abs(exact - Forward(source, slots=1).prefill(0, ids, 0, len(ids))).max() > 0.1


@pytest.mark.parametrize("norm", [None, QKNorm("rms_plus_one", "projection")])
def test_a_slice_is_a_slice_of_the_whole(norm: QKNorm | None) -> None:
    source = CalibratedSource(random_model(44, norm))
    for name, parameter in parameter_table(source.spec).items():
        whole = source.read(name, ())
        for cut in range(min(2, len(parameter.shape)) + 1):
            index = tuple(slice(size // 2, size) for size in parameter.shape[:cut])
            np.testing.assert_array_equal(source.read(name, index), whole[index])


def test_bits_of_a_weight_are_kept() -> None:
    """Or a model in 16 bits would be another one."""
    scale = {scale: whole_power(scale) for scale in (0.06, 0.0625, 0.063, 1.0, 1.01, 4.5, 1e-6, 1e6)}
    assert list(scale.values()) == [0.0625, 0.0625, 0.125, 1, 2, 8, LEAST, MOST]


def test_only_an_8_bit_cache_of_a_calibrated_model_is_scaled() -> None:
    known = Spec(replace(LLAMA_8B, cache_scales=((0.1, 0.1),) * 32))
    clipped = Spec(replace(known.spec, attention=replace(LLAMA_8B.attention, clip=8.0)))
    assert isinstance(calibrated(known, "float8_e4m3fn"), CalibratedSource)
    assert isinstance(calibrated(known, "float8_e5m2"), CalibratedSource)
    for source, cache in ((known, "bfloat16"), (Spec(LLAMA_8B), "float8_e4m3fn"), (clipped, "float8_e4m3fn")):
        assert calibrated(source, cache) is source


@dataclass(frozen=True)
class Spec:
    """A source that nobody reads."""

    spec: ModelSpec
    dtype: str = "bfloat16"

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        raise AssertionError(name)

    def stored(self, name: str) -> StoredWeight | None:
        return None


@dataclass(frozen=True)
class RandomAdapters:
    """Reads an adapter of all that attention multiplies by."""

    spec: ModelSpec

    @property
    def targets(self) -> dict[str, Adaptable]:
        qkv = Adaptable((*(0,) * self.spec.group, 1, 2), axis=1)
        of_layers = {"qkv": qkv, "out": Adaptable()}
        return {f"layers.{i}.{name}": each for i in range(self.spec.num_layers) for name, each in of_layers.items()}

    def read(self, name: str) -> AdapterWeights:
        table, random = parameter_table(self.spec), np.random.default_rng(5)

        def matrix(name: str, adaptable: Adaptable) -> LowRank:
            shape, inputs = table[name].shape, table[name].inputs
            sizes = (adaptable.modules, 2, int(np.prod(shape[-inputs:]))), (*shape[:-inputs], 2)
            return LowRank(*(random.normal(0, 0.4, size).astype(np.float32) for size in sizes))

        return AdapterWeights(name, "", b"", {name: matrix(name, each) for name, each in self.targets.items()})


class Louder(InFloats):
    """`source` with keys 256 times as large, and queries as much smaller: another cache, the same model."""

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        values = self.source.read(name, index)
        if not name.endswith(".qkv"):
            return values
        factors = np.array([1 / 256] * self.spec.group + [256, 1], np.float32)[index[1] if index else slice(None)]
        return values * factors[:, None, None]


@pytest.mark.slow
def test_a_trained_model_with_large_keys_keeps_its_mind_where_it_was_calibrated() -> None:
    """SmolLM2 over its golden answers. Measured: KL 0.0055 with scales, 4.3 with keys that saturate at 448."""
    source = Louder(open_model(None).source)
    largest = [
        (256 * float(abs(keys).max()), float(abs(values).max())) for keys, values in zip(*golden_caches(), strict=True)
    ]
    assert max(keys for keys, _ in largest) > 448
    scales = tuple((keys / 448, values / 448) for keys, values in largest)
    scaled = calibrated(SourceWithSpec(source, replace(source.spec, cache_scales=scales)), "float8_e4m3fn")
    assert divergence(golden_logprobs(cache="float8_e4m3fn", source=scaled)) < 0.011
    saturating = golden_logprobs(cache="float8_e4m3fn", source=source)
    assert np.isfinite(saturating).all() and divergence(saturating) > 1
