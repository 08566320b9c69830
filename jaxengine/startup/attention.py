"""The attention back end of a model, whose layers may differ in their heads."""

from jaxengine.architecture.model import ModelSpec
from jaxengine.device import DeviceTraits
from jaxengine.ops import choose_backend


def choose_for_layers(
    attention: str, device: DeviceTraits, spec: ModelSpec, dtype: str, cache_dtype: str | None = None
) -> str:
    """`choose_backend` for all layers of `spec`, which it raises for if one of them cannot run."""
    sizes = [(head_dim, spec.num_heads // max(1, kv_heads)) for kv_heads, head_dim in spec.heads]
    latent = spec.attention.latent
    return [choose_backend(attention, device, *each, dtype, cache_dtype, latent) for each in sizes][-1]
