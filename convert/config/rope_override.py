"""`--rope-scaling` and `--rope-factor`: a checkpoint served for longer texts than it was trained on.

What the checkpoint itself says about stretching is replaced, as in TGI. Nothing else of it changes, no array above all.
"""

from dataclasses import replace
from typing import Literal

from convert.errors import USAGE, CheckpointError
from convert.mapping.composition import SourceWithSpec
from jaxengine.spec.model import LayerKind
from jaxengine.spec.parameters import ParameterSource


def stretch(source: ParameterSource, kind: Literal["linear", "dynamic"], factor: float) -> SourceWithSpec:
    """`source` for `factor` times as many positions as it was trained on.

    Raises:
        CheckpointError: its positions are not rotary.
    """
    spec = source.spec
    ropes = [layer.rope for layer in spec.kinds if layer.rope is not None]
    if not ropes:
        raise CheckpointError("--rope-scaling: this model's positions are not rotary", exit_code=USAGE)
    trained = max(rope.original_positions for rope in ropes) or spec.max_positions

    def stretched(layer: LayerKind) -> LayerKind:
        if layer.rope is None:
            return layer
        plain = type(layer.rope)(kind, layer.rope.theta, factor, 0 if kind == "linear" else trained, dim=layer.rope.dim)
        return replace(layer, rope=plain)

    kinds = tuple(map(stretched, spec.kinds))
    return SourceWithSpec(source, replace(spec, kinds=kinds, max_positions=int(trained * factor)))
