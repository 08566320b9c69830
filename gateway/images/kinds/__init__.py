"""Every kind of image processor that is served, by the model types that have it."""

from gateway.images.kinds.kind import Kind
from gateway.images.kinds.llava import Llava
from gateway.images.settings import Settings, UnusableProcessor

KINDS: tuple[type[Kind], ...] = (Llava,)


def kind_of(settings: Settings) -> Kind:
    """Raises UnusableProcessor: pictures of such a checkpoint are not served."""
    for kind in KINDS:
        if kind.serves(settings):
            return kind(settings)
    raise UnusableProcessor(f"config.json: images of model_type {settings.model_type!r} are not served")
