"""The images of a prompt, decoded and put with the engine's requests, once nothing else can refuse these."""

from collections.abc import Sequence

from gateway.engine.interface import EngineUnavailable
from gateway.images.picture import ReadPrompt
from gateway.request.gateway_state import Gateway
from gateway.request.lifecycle import RequestLifecycle
from jaxengine.rpc import engine_pb2 as pb

FILE_COPIES = 4  # in bytes of a file: it, and its base64 in the body, as that came and as it was read


async def add_images(
    gateway: Gateway, lifecycle: RequestLifecycle, requests: Sequence[pb.Generate], prompt: ReadPrompt
) -> None:
    """Have all `requests`, each of which has `prompt`, see its images. Raises RequestError if one cannot be decoded, or
    there is no memory for them until the answers are complete.
    """
    if not prompt.placed:
        return
    sight = gateway.pictures.sight
    if sight is None:  # another model is served since the prompt was read
        raise EngineUnavailable("the model is not ready", gateway.engine.retry_after)
    different = {id(each): each for each in requests}.values()  # the answers of a beam search share one
    files = sum(len(each.picture.file) for each in prompt.placed)
    patches = sum(sight.patch_bytes(each.picture) for each in prompt.placed)
    lifecycle.keep(gateway.pictures.memory.hold(FILE_COPIES * files + len(different) * patches))
    with lifecycle.span("images"):
        images = await sight.images(prompt.placed, lifecycle.salt + requests[0].cache_salt)
    for each in different:
        for image in images:
            each.images.add().CopyFrom(image)  # `extend` holds the event loop five times as long: 0.2 s for 50 MB
