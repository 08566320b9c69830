"""Rotary positions: from a configuration, in every spelling in use, to `Rope`.

transformers 5 writes one object `rope_parameters`, or one for each kind of layer inside it. Earlier versions wrote
`rope_theta`, `rope_scaling` (with `type` or `rope_type`) and `partial_rotary_factor` (GPT-NeoX: `rotary_pct`,
`rotary_emb_base`).
"""

from dataclasses import replace

from convert.config.config import Config
from convert.errors import CheckpointError
from jaxengine.architecture.model import Rope, RopeKind

KINDS: tuple[RopeKind, ...] = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional")
OLD_NAMES: dict[str, RopeKind] = {"su": "longrope"}  # Phi-3's first name of longrope
FULL, SLIDING = "full_attention", "sliding_attention"
MAX_DIM = 1024
MAX_FACTOR = 2**16


def rope(
    config: Config, head_dim: int, *, theta: float = 10000.0, part: float | None = None, layers: str | None = None
) -> Rope:
    """Rotary positions of all layers, or of those that `layers` names ("full_attention", "sliding_attention").

    Where a configuration has both spellings, the older `rope_scaling` wins, as in transformers.

    Args:
        theta: the family's base, where the configuration has none.
        part: the family's rotated share of a head, where the configuration has none; None: always the whole head.
    """
    fields = _fields(config, layers)
    kind = _kind(fields)
    theta_key = config.spelled("rope_theta", "rotary_emb_base")
    theta = fields.number("rope_theta", config.number(theta_key, theta))
    if theta == 0:
        raise config.error(theta_key, "must be positive")
    if kind == "proportional":
        return _proportional(fields, head_dim, theta)
    dim = _dim(config, fields, head_dim, part)
    return _by_axes(fields, _scaled(config, fields, kind, Rope(theta=theta, dim=dim)), dim or head_dim)


def _proportional(fields: Config, head_dim: int, theta: float) -> Rope:
    """Pairs are of the whole head, and the share of them that turns has the frequencies that it would have in all."""
    part, factor = fields.number("partial_rotary_factor", 1.0), fields.number("factor", 1.0)
    turning = int(part * head_dim // 2) if 0 < part <= 1 else 0
    if not turning:
        raise fields.error("partial_rotary_factor", f"must turn one of {head_dim // 2} pairs or more, and be at most 1")
    if not 1 <= factor <= MAX_FACTOR:
        raise fields.error("factor", f"must be 1 to {MAX_FACTOR}")
    return Rope("proportional", theta, factor, turning=turning)


def with_full_positions(config: Config) -> Config:
    """`config` with the rotary positions of the layers that see everything as those of all."""
    ropes = config.section("rope_parameters")
    full = ropes and ropes.section(FULL)
    return Config({**config.values, "rope_parameters": full.values}, config.where) if full else config


def _scaled(config: Config, fields: Config, kind: RopeKind, plain: Rope) -> Rope:
    if kind == "default":
        return plain
    positions = config.integer("max_position_embeddings")
    original = positions if kind == "dynamic" else _trained(config, fields, None if kind == "longrope" else positions)
    derived = positions / original if kind in ("yarn", "longrope") else None
    factor = fields.number("factor", derived)
    if factor < 1:
        raise fields.error("factor", "must be at least 1")
    if factor > MAX_FACTOR:
        raise fields.error("factor", f"must be at most {MAX_FACTOR}")
    scaled = replace(plain, kind=kind, factor=factor, original_positions=0 if kind == "linear" else original)
    if kind == "llama3":
        return _llama3(fields, scaled)
    if kind == "yarn":
        return _yarn(fields, scaled)
    return _longrope(fields, scaled) if kind == "longrope" else scaled


def _by_axes(fields: Config, rope: Rope, dim: int) -> Rope:
    """`rope`, its frequencies shared by a token's time, row and column where the configuration says it."""
    sections = fields.get("mrope_section")
    if sections is None:
        return rope
    if not isinstance(sections, list) or len(sections) != 3 or not all(type(n) is int and n >= 0 for n in sections):
        raise fields.error("mrope_section", "must be a list of three whole numbers")
    pairs = dim // 2
    if fields.flag("mrope_interleaved", False):
        row, column = (len(range(axis, min(pairs, 3 * sections[axis]), 3)) for axis in (1, 2))
        return replace(rope, axes=(pairs - row - column, row, column), layout="interleaved")
    if sum(sections) != pairs:
        raise fields.error("mrope_section", f"must sum to the {pairs} pairs of dimensions that rotate")
    return replace(rope, axes=(sections[0], sections[1], sections[2]))


def longest(config: Config, rope: Rope, positions: int) -> int:
    """Positions the model may use: the configuration's `positions`, or more where its rotary scaling says so.

    With linear scaling, `max_position_embeddings` is the scaled length in some checkpoints and the trained length in
    others. The latter have `max_sequence_length` too (Vicuna 16k).
    """
    if rope.kind == "linear":
        return max(positions, config.integer("max_sequence_length", positions))
    if rope.kind in ("dynamic", "yarn"):
        return max(positions, int(rope.original_positions * rope.factor))
    return positions


def _fields(config: Config, layers: str | None) -> Config:
    new = config.section("rope_parameters")
    if layers is not None and new is not None and (nested := new.section(layers)) is not None:
        return nested
    given = [section for section in (config.section("rope_scaling"), new) if section is not None and section.values]
    fields = given[0] if given else Config({}, config.where)
    if of_kind := next((key for key, value in fields.values.items() if isinstance(value, dict)), None):
        raise fields.error(of_kind, "must not be an object: the positions of all layers are the same here")
    return fields


def _kind(fields: Config) -> RopeKind:
    key = fields.spelled("rope_type", "type")
    name = fields.text(key, "default")
    if name == "yarn" and fields.get("short_factor") is not None:  # early Phi-3 configurations
        return "longrope"
    kind = next((known for known in KINDS if known == OLD_NAMES.get(name, name)), None)
    if kind is None:
        raise fields.error(key, f"must be one of {', '.join(KINDS)}")
    return kind


def _trained(config: Config, fields: Config, default: int | None) -> int:
    """The trained length. Where `config` and its section `fields` both have it, `config` wins, as in transformers."""
    key = "original_max_position_embeddings"
    return (fields if config.get(key) is None else config).integer(key, default)


def _dim(config: Config, fields: Config, head_dim: int, default: float | None) -> int:
    """How many dimensions of a head rotate; 0 for all."""
    if fields.get("rotary_dim") is not None:  # from a GGUF file
        dim = fields.integer("rotary_dim")
        return 0 if dim == head_dim else dim
    key = config.spelled("partial_rotary_factor", "rotary_pct", "rope_pct")
    part = fields.number("partial_rotary_factor", config.number(key, default or 1.0))
    if not 0 < part <= 1:
        raise config.error(key, "must be in (0, 1]")
    if default is None and part != 1:
        raise config.error(key, "other than 1 is not supported")
    dim = int(head_dim * part)
    return 0 if dim == head_dim else dim


def _llama3(fields: Config, rope: Rope) -> Rope:
    low, high = fields.number("low_freq_factor"), fields.number("high_freq_factor")
    if not 0 < low < high:
        raise fields.error("low_freq_factor", f"must be positive and below high_freq_factor {high}")
    return replace(rope, low_freq_factor=low, high_freq_factor=high)


def _yarn(fields: Config, rope: Rope) -> Rope:
    return replace(
        rope,
        beta_fast=fields.number("beta_fast", 32.0) or 32.0,  # 0 means the default, as in transformers
        beta_slow=fields.number("beta_slow", 1.0) or 1.0,
        truncate=fields.flag("truncate", True),
        attention_factor=_number_or_none(fields, "attention_factor"),
        mscale=fields.number("mscale", 0.0),
        mscale_all_dim=fields.number("mscale_all_dim", 0.0),
    )


def _longrope(fields: Config, rope: Rope) -> Rope:
    return replace(
        rope,
        attention_factor=_number_or_none(fields, fields.spelled("long_mscale", "attention_factor")),
        short_attention_factor=_number_or_none(fields, "short_mscale"),
        short_factors=_factors(fields, "short_factor"),
        long_factors=_factors(fields, "long_factor"),
    )


def _number_or_none(fields: Config, key: str) -> float | None:
    return None if fields.get(key) is None else fields.number(key)


def _factors(fields: Config, key: str) -> tuple[float, ...]:
    values = fields.get(key)
    if not isinstance(values, list) or not 0 < len(values) <= MAX_DIM:
        raise fields.error(key, f"must be a list of at most {MAX_DIM} numbers")
    if not all(isinstance(value, int | float) and 0 < value < float("inf") for value in values):
        raise CheckpointError(f"{fields.where}: {key} must hold positive finite numbers")
    return tuple(float(value) for value in values)
