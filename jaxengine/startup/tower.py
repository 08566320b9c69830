"""Whether a vision tower can run where its model does."""

from jaxengine.architecture.model import ModelSpec
from jaxengine.device import DeviceTraits
from jaxengine.ops import choose_backend


def check_tower(spec: ModelSpec, attention: str, device: DeviceTraits, dtype: str) -> None:
    """Raises ValueError where the back end that `attention` chooses cannot run the tower of `spec`, if it has one."""
    for head_dim, group in spec.vision.heads if spec.vision else ():
        try:
            choose_backend(attention, device, head_dim, group, dtype)
        except ValueError as error:
            raise ValueError(f"vision tower: {error}") from error
