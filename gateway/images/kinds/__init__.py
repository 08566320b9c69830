"""Every kind of image processor that is served, by the model types that have it."""

from gateway.images.kinds.gemma3 import Gemma3
from gateway.images.kinds.idefics2 import Idefics2
from gateway.images.kinds.idefics3 import Idefics3
from gateway.images.kinds.internvl import InternVL
from gateway.images.kinds.kind import Kind
from gateway.images.kinds.llava import Llava
from gateway.images.kinds.llava_next import LlavaNext
from gateway.images.kinds.paligemma import PaliGemma
from gateway.images.kinds.pixtral import Pixtral
from gateway.images.kinds.qwen_vl import QwenVL
from gateway.images.settings import Settings, UnusableProcessor

KINDS: tuple[type[Kind], ...] = (
    Llava,
    LlavaNext,
    QwenVL,
    Gemma3,
    Idefics3,
    Pixtral,
    Idefics2,
    InternVL,
    PaliGemma,
)


def kind_of(settings: Settings) -> Kind:
    """Raises UnusableProcessor: pictures of such a checkpoint are not served."""
    for kind in KINDS:
        if kind.serves(settings):
            return kind(settings)
    raise UnusableProcessor(f"config.json: images of model_type {settings.model_type!r} are not served")
