"""The images of a prompt, decoded and put with the engine's requests, once nothing else can refuse these."""

from collections.abc import Sequence

from gateway.engine.interface import EngineUnavailable
from gateway.images.picture import ReadPrompt
from gateway.request.gateway_state import Gateway
from gateway.request.lifecycle import RequestLifecycle
from jaxengine.rpc import engine_pb2 as pb


async def add_images(
    gateway: Gateway, lifecycle: RequestLifecycle, requests: Sequence[pb.Generate], prompt: ReadPrompt
) -> None:
    """Have all `requests`, each of which has `prompt`, see its images. Raises RequestError if one cannot be decoded."""
    if not prompt.placed:
        return
    sight = gateway.pictures.sight
    if sight is None:  # another model is served since the prompt was read
        raise EngineUnavailable("the model is not ready", gateway.engine.retry_after)
    with lifecycle.span("images"):
        images = await sight.images(prompt.placed, lifecycle.salt + requests[0].cache_salt)
    for each in {id(each): each for each in requests}.values():  # the answers of a beam search share one
        each.images.extend(images)
