"""Layers that differ in their heads and MLPs, or read the keys of others, drawn at random, compared with NumPy."""

import random
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from jaxengine.architecture.model import (
    Embedding,
    Experts,
    LayerKind,
    ModelSpec,
    Norm,
    NormKind,
    QKNorm,
    Rope,
    ShortConvolution,
)
from jaxengine.architecture.parameters import parameter_table
from tests.families import numpy_decoder
from tests.families.forward import Forward
from tests.families.test_switches import RandomSource, random_spec

LENGTH = 20
SEEDS = range(6)


def differing_spec(seed: int) -> ModelSpec:
    """A random spec of `test_switches`, with five layers of three sizes, of which the last two read earlier ones."""
    draw = random.Random(f"layers that differ {seed}")
    spec, kind = random_spec(seed), draw.choice(get_args(NormKind))
    dim, window = 2 * spec.head_dim, draw.choice([0, 5])
    turned = Rope("proportional", 100.0, draw.choice([1.0, 2.0]), turning=draw.choice([1, dim // 2]))
    kinds = [
        LayerKind(Rope(theta=100.0), 3, head_dim=spec.head_dim // 2, ffn_size=44),
        LayerKind(turned, window, 1.0, kv_heads=1, head_dim=dim),
        LayerKind(None, scale=draw.choice([None, 0.3])),
    ]
    kinds += [replace(kinds[i], reads=i, ffn_size=draw.choice([0, 28])) for i in draw.sample(range(3), 2)]
    beside = Experts(4, 2, 20, renormalise=True, learned_scale=True, beside=True)
    attention = replace(spec.attention, qk_norm=draw.choice([None, QKNorm(kind)]), value_norm=seed % 3 < 2)
    return replace(
        spec,
        num_layers=5,
        num_heads=2 * spec.num_kv_heads,
        kinds=tuple(replace(each, experts=seed % 2 > 0) for each in kinds),
        norm=Norm(kind),
        block="sandwich" if seed % 2 else spec.block,
        experts=beside if seed % 2 else None,
        clamped_gate=None,
        attention=replace(attention, alibi=(), sinks=False, clip=0.0, query_scale=None),
        embedding=Embedding(scale=1.5, layer_width=draw.choice([0, 6])),
        output_scale=seed % 3 > 0,
        residual_scale=1.0,
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_layers_that_differ_compute_what_numpy_does(seed: int) -> None:
    source = RandomSource(differing_spec(seed), seed)
    ids = np.random.default_rng(seed).integers(0, 50, LENGTH).tolist()
    expected = numpy_decoder.logits(source.spec, source.values, ids)
    model = Forward(source)
    np.testing.assert_allclose(model.prefill(0, ids[:-1], 0, LENGTH), expected[:-1], atol=1e-3)
    np.testing.assert_allclose(model.decode(0, ids[-1], LENGTH - 1, LENGTH), expected[-1], atol=1e-3)


def test_every_choice_is_drawn() -> None:
    specs = [differing_spec(seed) for seed in SEEDS]
    assert {spec.embedding.layer_width for spec in specs} == {0, 6}
    assert {spec.output_scale for spec in specs} == {spec.attention.value_norm for spec in specs} == {False, True}
    assert {spec.attention.qk_norm is None for spec in specs} == {False, True}
    assert {kind.reads for spec in specs for kind in spec.kinds} == {None, 0, 1, 2}
    assert {spec.kinds[1].window for spec in specs} == {0, 5}
    ropes = [spec.kinds[1].rope for spec in specs]
    assert {(rope.factor, rope.turning == 1) for rope in ropes if rope} >= {(1.0, True), (2.0, False)}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_spec_survives_json(seed: int) -> None:
    spec = differing_spec(seed)
    assert ModelSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        ([LayerKind(), LayerKind(reads=1)], "layer 1 reads the keys of layer 1, which is not before it"),
        (
            [LayerKind(), LayerKind(reads=0, window=4)],
            "layer 1 reads the keys of layer 0, whose window or heads",
        ),
        ([LayerKind(), LayerKind(reads=0), LayerKind(reads=1)], "layer 2 reads the keys of layer 1, which has none"),
        ([LayerKind(kv_heads=3)], "num_heads 4 is not a multiple of a layer's num_kv_heads 3"),
        ([LayerKind(head_dim=2**19)], "num_heads times a layer's head_dim must be at most"),
    ],
)
def test_what_cannot_be_is_refused_by_name(kinds: list[LayerKind], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ModelSpec(50, 24, len(kinds), 4, 2, 8, 36, 64, kinds=tuple(kinds))


def test_layers_without_attention_may_have_mlps_of_their_own_width() -> None:
    states = LayerKind(None, mixer="recurrence", ffn_size=28)
    kinds = (LayerKind(), states, replace(states, mixer="none", ffn_size=12))
    spec = ModelSpec(50, 24, 3, 2, 2, 8, 20, 64, kinds=kinds, short_convolution=ShortConvolution(8))
    assert [parameter_table(spec)[f"layers.{i}.down"].shape for i in range(3)] == [(24, 20), (24, 28), (24, 12)]
