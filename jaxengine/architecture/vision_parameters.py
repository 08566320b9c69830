"""The parameters of a vision tower and of its connector, under "vision.". No JAX here.

A tower's heads have an axis of their own: key/value heads of the text model are copied where devices are more, and a
tower's never are.
"""

from dataclasses import replace

from jaxengine.architecture.layer_parameters import layer_parameters, norm_parameters
from jaxengine.architecture.model import ModelSpec, Norm
from jaxengine.architecture.parameter import Parameter
from jaxengine.architecture.vision import Connector, Vision

VISION = "vision."
RESAMPLER = "resampler."


def vision_parameters(spec: ModelSpec) -> dict[str, Parameter]:
    """Every parameter by which `spec` sees, in forward order.

    `connector.up` has a gate in front, [2, inner, merged], where the connector is gated. A resampler's layers have one
    more norm, `context_norm`, of what they read.
    `squeeze` is [tower, k², tower]: a product of the k² features that are merged. `up` and `down` are the connector's
    products, `only` is the one where there is one. `newline` is the row behind each row of patches.
    Where tiles see each other `pre_tiles` and `post_tiles` are added to all tokens of a tile, in front of the layers
    and of the global ones, and `tile_positions` to each; they have rows for every canvas and every tile of it.
    """
    assert spec.vision is not None
    vision = spec.vision
    table = (
        _tower(spec, vision)
        | _tiles(spec, vision)
        | _connector(vision.connector, vision.feature_size, spec.hidden_size)
    )
    for i in range(vision.deepstack):
        own = _connector(vision.deepstack_connector, vision.tower.hidden_size, spec.hidden_size)
        table |= {name.replace("connector.", f"deepstack.{i}."): parameter for name, parameter in own.items()}
    if vision.resampler is not None:
        table |= _resampler(spec, vision.resampler.latents)
    if vision.rows == "unpadded":
        table["newline"] = Parameter((spec.hidden_size,), ("embed",))
    return {f"{VISION}{name}": parameter for name, parameter in table.items()}


def _tower(spec: ModelSpec, vision: Vision) -> dict[str, Parameter]:
    tower, layers = vision.tower, spec.tower_spec
    vector = Parameter((tower.hidden_size,), ("embed",))
    table = {"patch": Parameter((tower.hidden_size, vision.patch_values), ("embed", None), 1)}
    if tower.patch_bias:
        table["patch_bias"] = vector
    if tower.class_token:
        table["class_token"] = vector
    if tower.positions != "none":
        rows = tower.grid[0] * tower.grid[1] + tower.class_token
        table["positions"] = Parameter((rows, tower.hidden_size), (None, "embed"))
    if tower.pre_norm:
        table |= norm_parameters("pre_norm", layers)
    for i in range(tower.num_layers):
        own = layer_parameters(layers, layers.kind(i))
        table |= {f"layers.{i}.{name}": _of_tower(parameter) for name, parameter in own.items()}
    return table | (norm_parameters("post_norm", layers) if tower.post_norm else {})


def _tiles(spec: ModelSpec, vision: Vision) -> dict[str, Parameter]:
    tower, layers = vision.tower, spec.global_spec if vision.tower.global_layers else None
    if not tower.tiles:
        return {}
    width, canvases = tower.tiles * tower.hidden_size, 1 + len(tower.canvases)
    table = {name: Parameter((canvases, width), (None, None)) for name in ("pre_tiles", "post_tiles")}
    table["tile_positions"] = Parameter((canvases, tower.tokens * width), (None, None))
    gates = ("pre_tiles_gate", "positions_gate", "post_tiles_gate")
    table |= {name: Parameter((1,), (None,)) for name in gates}
    for i in range(tower.global_layers):
        assert layers is not None
        own = layer_parameters(layers, layers.kind(i))
        table |= {f"global_layers.{i}.{name}": _of_tower(parameter) for name, parameter in own.items()}
    return table


def _of_tower(parameter: Parameter) -> Parameter:
    axes = ("tower_heads" if axis == "kv_heads" else axis for axis in parameter.axes)
    return replace(parameter, axes=tuple(axes))


def _connector(connector: Connector, features: int, hidden: int) -> dict[str, Parameter]:
    square = connector.merge**2
    merged = features if connector.pooled or connector.squeeze else features * square
    table: dict[str, Parameter] = {}
    if connector.norm is not None:
        table |= _norm(connector.norm, merged if connector.norm_merged else features)
    if connector.squeeze:
        table["connector.squeeze"] = Parameter((features, square, features), ("embed", None, None), 2)
    if connector.inner:
        gate = (2,) if connector.gated else ()
        axes = (*(None for _ in gate), "ffn", None)
        table |= _product("up", (*gate, connector.inner, merged), axes, connector.bias)
        table |= _product("down", (hidden, connector.inner), ("embed", "ffn"), connector.bias)
    elif connector.product:
        table |= _product("only", (hidden, merged), ("embed", None), connector.bias)
    return table


def _resampler(spec: ModelSpec, latents: int) -> dict[str, Parameter]:
    layers = spec.resampler_spec
    table = {"latents": Parameter((latents, layers.hidden_size), (None, "embed"))}
    for i in range(layers.num_layers):
        own = layer_parameters(layers, layers.kind(i)) | norm_parameters("context_norm", layers)
        table |= {f"layers.{i}.{name}": _of_tower(parameter) for name, parameter in own.items()}
    return {f"{RESAMPLER}{name}": each for name, each in (table | norm_parameters("final_norm", layers)).items()}


def _norm(norm: Norm, width: int) -> dict[str, Parameter]:
    present = {"connector.norm": norm.weight, "connector.norm_bias": norm.bias}
    return {name: Parameter((width,), (None,)) for name, wanted in present.items() if wanted}


def _product(name: str, shape: tuple[int, ...], axes: tuple[str | None, ...], bias: bool) -> dict[str, Parameter]:
    table = {f"connector.{name}": Parameter(shape, axes, 1)}
    return table | ({f"connector.{name}_bias": Parameter(shape[:-1], axes[:-1])} if bias else {})
