"""Every kind of image processor that is served, by the model types that have it."""

from gateway.images.kinds.gemma3 import Gemma3
from gateway.images.kinds.idefics import Idefics
from gateway.images.kinds.idefics2 import Idefics2
from gateway.images.kinds.idefics3 import Idefics3
from gateway.images.kinds.internvl import InternVL
from gateway.images.kinds.kind import Kind
from gateway.images.kinds.llava import Llava
from gateway.images.kinds.llava_next import LlavaNext
from gateway.images.kinds.mllama import Mllama
from gateway.images.kinds.paligemma import PaliGemma
from gateway.images.kinds.pixtral import Pixtral
from gateway.images.kinds.qwen_vl import QwenVL
from gateway.images.room import Room
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
    Mllama,
    Idefics,
)
TRIAL = 1000  # pixels on each side of a picture that any kind can plan


def kind_of(settings: Settings, room: Room = Room()) -> Kind:
    """Raises UnusableProcessor: pictures of such a checkpoint are not served, or its settings make no sense, or `room`
    holds none.
    """
    kind = next((each for each in KINDS if each.serves(settings)), None)
    if kind is None:
        raise UnusableProcessor(f"config.json: images of model_type {settings.model_type!r} are not served")
    try:
        made = kind(settings, room)
        least = made.plan(TRIAL, TRIAL, "low")
        made.plan(TRIAL, TRIAL, "high")
    except UnusableProcessor:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise UnusableProcessor(
            f"preprocessor_config.json, processor_config.json or config.json has an unusable setting of images: {error}"
        ) from error
    if not room.holds(least):
        raise UnusableProcessor(
            f"an image has {least.shape.patches} patches and {least.rows} tokens, more than the {room.patches} and "
            f"{room.tokens} that the engine takes: see --max-image-patches"
        )
    return made
