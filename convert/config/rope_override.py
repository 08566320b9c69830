"""`--rope-scaling` and `--rope-factor`: a checkpoint served for longer texts than it was trained on.

The options replace what the checkpoint itself says about scaling, as in TGI.
"""

from dataclasses import replace
from typing import Literal

from convert.errors import USAGE, CheckpointError
from jaxengine.architecture.model import LayerKind, ModelSpec, Rope

Scaling = Literal["linear", "dynamic"]


def override_rope(spec: ModelSpec, scaling: Scaling, factor: float) -> ModelSpec:
    """`spec` for `factor` times as many positions as the model was trained on; its parameters stay the same.

    Raises:
        CheckpointError: its positions are not rotary.
    """
    ropes = [layer.rope for layer in spec.kinds if layer.rope is not None]
    if not ropes:
        raise CheckpointError("--rope-scaling: this model's positions are not rotary", exit_code=USAGE)
    trained = max(rope.original_positions for rope in ropes) or spec.max_positions

    def overridden(layer: LayerKind) -> LayerKind:
        if layer.rope is None:
            return layer
        original = 0 if scaling == "linear" else trained
        scaled = Rope(scaling, layer.rope.theta, factor, original, dim=layer.rope.dim)
        return replace(layer, rope=replace(scaled, axes=layer.rope.axes, layout=layer.rope.layout))

    kinds = tuple(map(overridden, spec.kinds))
    return replace(spec, kinds=kinds, max_positions=int(trained * factor))
