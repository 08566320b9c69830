"""Switches drawn at random, in combinations that no family has, compared with the decoder in NumPy."""

import random
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from jaxengine.architecture.latent import Latent
from jaxengine.architecture.model import (
    Activation,
    Attention,
    Beside,
    Block,
    ClampedGate,
    Embedding,
    Experts,
    Head,
    LayerKind,
    LinearAttention,
    Mamba2,
    ModelSpec,
    Norm,
    NormKind,
    QKNorm,
    QueryScale,
    Rope,
    Routing,
    ShortConvolution,
)
from jaxengine.architecture.parameters import parameter_table
from jaxengine.architecture.weight_format import StoredWeight
from tests.families import numpy_decoder
from tests.families.forward import Forward

LENGTHS = (15, 22)  # on both sides of the trained length of longrope


class RandomSource:
    """Every parameter of `spec` drawn from `seed`, norms around one, matrices keeping the size of what they read."""

    dtype = "float32"

    def __init__(self, spec: ModelSpec, seed: int) -> None:
        self.spec = spec
        generator = np.random.default_rng(seed)
        self.values: dict[str, np.ndarray] = {}
        for name, parameter in parameter_table(spec).items():
            noise = generator.standard_normal(parameter.shape)
            matrix = parameter.inputs > 0 and name != "embedding"
            inputs = np.prod(parameter.shape[len(parameter.shape) - parameter.inputs :]) if matrix else 1
            centre = 1.0 if name.endswith("norm") and spec.norm.kind != "rms_plus_one" else 0.0
            drawn = centre + 0.3 * noise if name.endswith(("norm", "bias")) else noise / np.sqrt(inputs)
            self.values[name] = drawn.astype(np.float32)

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        return self.values[name][index]

    def stored(self, name: str) -> StoredWeight | None:
        return None


def random_spec(seed: int) -> ModelSpec:
    """A spec with random sizes and switches; `SEEDS` show every choice of a switch (`test_every_choice_is_drawn`)."""
    draw = random.Random(seed)

    def maybe(value: Any, other: Any) -> Any:
        return value if draw.random() < 0.5 else other

    kv, group, dim = draw.choice([1, 2, 3]), draw.choice([1, 2, 3]), draw.choice([8, 12])
    hidden = draw.choice([24, 40])
    norm = draw.choice(get_args(NormKind))
    experts = maybe(random_experts(draw), None)
    if experts is not None:
        experts = replace(experts, judges=1 + seed // 2 % 2, norm=seed % 2 > 0)
    gated = draw.random() < 0.5
    return ModelSpec(
        vocab_size=50,
        hidden_size=hidden,
        num_layers=3,
        num_heads=kv * group,
        num_kv_heads=kv,
        head_dim=dim,
        ffn_size=36,
        max_positions=64,
        norm=Norm(norm, weight=draw.random() < 0.8, bias=norm == "layer" and draw.random() < 0.5),
        block=draw.choice(get_args(Block)),
        kinds=tuple(random_kind(draw, dim, experts is not None) for _ in range(draw.choice([1, 2, 3]))),
        attention=Attention(
            qk_norm=maybe(QKNorm(draw.choice(get_args(NormKind)), draw.choice(["head", "projection"])), None),
            alibi=maybe(tuple(draw.uniform(0.01, 0.6) for _ in range(kv * group)), ()),
            alibi_rounded=seed % 2 > 0,
            softcap=maybe(2.0, 0.0),
            clip=maybe(1.5, 0.0),
            query_scale=QueryScale(0.3, 4) if seed % 3 == 0 else None,
            sinks=draw.random() < 0.5,
        ),
        activation=draw.choice(get_args(Activation)),
        gated=gated,
        clamped_gate=maybe(ClampedGate(0.7, 1.3), None) if gated else None,
        experts=experts,
        embedding=Embedding(maybe(16, 0), maybe(2.5, 1.0), draw.random() < 0.5, draw.random() < 0.5),
        head=Head(draw.random() < 0.5, draw.random() < 0.5, maybe(0.5, 1.0), maybe(3.0, 0.0)),
        final_norm=draw.random() < 0.7,
        residual_scale=maybe(0.7, 1.0),
        qkv_bias=draw.random() < 0.5,
        out_bias=draw.random() < 0.5,
        mlp_bias=draw.random() < 0.5,
        layer_scale=draw.random() < 0.5,
    )


def random_experts(draw: random.Random) -> Experts:
    routing = draw.choice(get_args(Routing))
    used = 2 if routing == "sparse_mixer" else draw.choice([1, 3])
    shared, renormalise, bias = draw.choice([0, 28]), draw.random() < 0.5, draw.random() < 0.5
    experts = Experts(draw.choice([4, 60]), used, 20, routing, renormalise, shared, jitter=0.3, bias=bias)
    if routing == "sparse_mixer":
        return experts
    groups = draw.choice([(1, 1), (2, 1), (2, 2)]) if used == 1 else draw.choice([(1, 1), (2, 2)])
    return replace(
        experts,
        shared_gate=draw.random() < 0.5,
        choice_bias=draw.random() < 0.5,
        scale=draw.choice([1.0, 2.5]),
        groups=groups[0],
        used_groups=groups[1],
    )


def random_kind(draw: random.Random, head_dim: int, experts: bool) -> LayerKind:
    dim = draw.choice([0, 4])
    factors = [tuple(draw.uniform(1, 3) for _ in range((dim or head_dim) // 2)) for _ in range(2)]
    ropes: list[Any] = [
        None,
        Rope(theta=100.0, dim=dim),
        Rope("linear", 100.0, 3.0, dim=dim),
        Rope("longrope", 100.0, 4.0, 16, short_factors=factors[0], long_factors=factors[1], dim=dim),
    ]
    ropes.append(replace(ropes[-1], short_attention_factor=1.3))
    rope = draw.choice(ropes)
    return LayerKind(rope, draw.choice([0, 1, 5]), draw.choice([None, 0.4]), experts and draw.random() < 0.7)


def random_latent_spec(seed: int) -> ModelSpec:
    """`random_spec` with latents, and none of the switches that these exclude."""
    draw, spec = random.Random(seed), random_spec(seed)
    latent = Latent(draw.choice([10, 16]), draw.choice([6, 9]), 4, draw.choice([5, 12]), draw.choice([0, 14]), 0.1)
    kinds = tuple(
        replace(kind, rope=None if kind.rope is None else Rope(theta=draw.choice([10.0, 100.0]), dim=latent.rope_dim))
        for kind in spec.kinds
    )
    attention = replace(spec.attention, qk_norm=None, clip=0.0, query_scale=None, alibi_rounded=False, latent=latent)
    experts = spec.experts and replace(spec.experts, judges=3 - spec.experts.judges)
    sizes = {"num_kv_heads": 1, "head_dim": latent.head_dim}
    return replace(spec, **sizes, attention=attention, kinds=kinds, experts=experts)


RECURRENCES: list[dict[str, Any]] = [
    {"linear_attention": LinearAttention(6, 2, 5, 4, kernel=2, most_rate=2.0, eps=0.1)},
    {"linear_attention": LinearAttention(2, 2, 4, 7)},
    {"mamba2": Mamba2(6, 5, 3, 4, bias=True, most_step=0.9, least_step=0.2)},
    {"mamba2": Mamba2(4, 6, 2, 3, 2, "norm_first", out_bias=True, conv_bias=False, scales=(0.5, 2.0, 0.7, 1.2, 0.8))},
    {"mamba2": Mamba2(4, 6, 1, 3, norm="none")},
    {"short_convolution": ShortConvolution(20)},
    {"short_convolution": ShortConvolution(28, 2, bias=True)},
]


def random_hybrid(seed: int) -> ModelSpec:
    """A spec with random sizes and switches, and layers of every kind of mixer."""
    spec, draw = random_spec(seed), random.Random(seed)
    experts = spec.experts is not None
    kinds = (
        LayerKind(
            None, experts=experts, mixer="recurrence", block=draw.choice(["sequential", "sandwich", "post_norm"])
        ),
        replace(spec.kinds[0], experts=False, mixer=draw.choice(["both", "attention"]), block="branch_norm"),
        LayerKind(None, mixer="recurrence", feed_forward=False),
        replace(spec.kinds[0], experts=False, mixer="both", feed_forward=False),
        LayerKind(None, experts=experts, mixer="none"),
    )
    scales = {} if experts else {"gate_scale": 0.7, "mlp_scale": 1.3}
    beside = Beside(*(draw.choice([1.0, 0.6, 1.5]) for _ in range(4)))
    return replace(
        spec,
        block="sequential",
        num_layers=5,
        kinds=kinds,
        beside=beside,
        **scales,
        **RECURRENCES[seed % len(RECURRENCES)],
    )


SEEDS = range(110, 122)  # the first twelve that show every choice
LATENT_SEEDS = SEEDS[1:7]


def compare_with_numpy(source: RandomSource, seed: int) -> None:
    length = LENGTHS[seed % 2]
    ids = np.random.default_rng(seed).integers(0, 50, length).tolist()
    expected = numpy_decoder.logits(source.spec, source.values, ids)
    model = Forward(source)
    np.testing.assert_allclose(model.prefill(0, ids[:-1], 0, length), expected[:-1], atol=1e-3)
    np.testing.assert_allclose(model.decode(0, ids[-1], length - 1, length), expected[-1], atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_random_switches_compute_what_numpy_does(seed: int) -> None:
    compare_with_numpy(RandomSource(random_spec(seed), seed), seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", LATENT_SEEDS)
def test_random_latents_compute_what_numpy_does(seed: int) -> None:
    """Which caches none, and makes keys and values of them for each head."""
    compare_with_numpy(RandomSource(random_latent_spec(seed), seed), seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(7))
def test_random_layers_that_keep_states_compute_what_numpy_does(seed: int) -> None:
    compare_with_numpy(RandomSource(random_hybrid(seed), seed), seed)


def test_every_choice_is_drawn() -> None:
    specs = [random_spec(seed) for seed in SEEDS]
    assert {spec.block for spec in specs} == set(get_args(Block))
    assert {spec.norm.kind for spec in specs} == set(get_args(NormKind))
    assert {spec.activation for spec in specs} == set(get_args(Activation))
    kinds = [kind for spec in specs for kind in spec.kinds]
    assert {kind.rope and kind.rope.kind for kind in kinds} == {None, "default", "linear", "longrope"}
    assert {kind.window for kind in kinds} == {0, 1, 5} and len({kind.scale for kind in kinds}) == 2
    over = {spec.attention.qk_norm and spec.attention.qk_norm.over for spec in specs}
    assert over == {None, "head", "projection"}
    mixtures = [spec.experts for spec in specs if spec.experts and any(kind.experts for kind in spec.kinds)]
    assert {mixture.routing for mixture in mixtures} == set(get_args(Routing))
    switches = ("count", "used", "shared_ffn_size", "shared_gate", "bias", "choice_bias", "scale")
    assert any(each.used_groups < each.groups for each in mixtures)
    assert all(len({getattr(each, switch) for each in mixtures}) == 2 for switch in switches)
    assert {spec.clamped_gate for spec in specs if spec.experts} == {None, ClampedGate(0.7, 1.3)}
    assert {spec.attention.query_scale for spec in specs} == {None, QueryScale(0.3, 4)}
    assert {spec.attention.sinks for spec in specs} == {True, False}
    assert {each.norm for each in mixtures} == {True, False}
    latents = [random_latent_spec(seed) for seed in LATENT_SEEDS]
    grouped = [spec.experts for spec in (*specs, *latents) if spec.experts]
    assert {each.judges for each in grouped if each.groups > each.used_groups} == {1, 2}
    assert {spec.attention.latent and spec.attention.latent.query_rank for spec in latents} == {0, 14}
    assert {kind.rope is None for spec in latents for kind in spec.kinds} == {True, False}
    switches = ("gated", "final_norm", "qkv_bias", "out_bias", "mlp_bias", "residual_scale", "embedding_width")
    for switch in (*switches, "layer_scale"):
        assert len({getattr(spec, switch) for spec in specs}) > 1, switch


@pytest.mark.parametrize("seed", SEEDS)
def test_a_spec_survives_json(seed: int) -> None:
    for spec in (random_spec(seed), random_hybrid(seed)):
        assert ModelSpec.from_json(spec.to_json()) == spec
