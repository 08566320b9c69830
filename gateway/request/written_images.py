"""Texts that no chat template writes: prompts of TGI's routes, in which images are written `![](…)`, and others beside
which images come by themselves.
"""

from collections.abc import Sequence

from gateway.images.markdown import cut as cut_at_images
from gateway.images.picture import Picture, ReadPrompt, Source
from gateway.images.sight import Sight
from gateway.request.gateway_state import Gateway
from gateway.text.model_text import ModelText, Side
from gateway.text.tokenizer import TokenSpan


async def read_written(
    gateway: Gateway, model: ModelText, text: str, *, field: str, cut: Side | None = None
) -> ReadPrompt:
    """The prompt of `text`, in which a model that sees reads the images that are written. Raises RequestError.

    With `cut` the caller truncates the prompt, so a text without images may be as long as it likes.
    """
    sight = gateway.pictures.sight
    if sight is None:
        return ReadPrompt(await model.encode(text, add_special_tokens=True, field=field, cut=cut))
    whole, pictures = await _looked_at(sight, text, field)
    if not pictures:
        return ReadPrompt(await model.encode(text, add_special_tokens=True, field=field, cut=cut))
    return await sight.prompt(whole, pictures, special=True, field=field)


async def spans_of_written(gateway: Gateway, model: ModelText, text: str, *, field: str) -> list[TokenSpan]:
    """The tokens of that prompt. Where there are images, their ranges are those in the text that the model reads."""
    if (sight := gateway.pictures.sight) is not None:
        whole, pictures = await _looked_at(sight, text, field)
        if pictures:
            return (await sight.spans(whole, pictures, special=True, field=field))[1]
    return await model.spans(text, field=field, add_special_tokens=True)


async def _looked_at(sight: Sight, text: str, field: str) -> tuple[str, list[Picture]]:
    """`text` with a placeholder for each image that is written there, and the images."""
    texts, urls = cut_at_images(text, sight.most + 1)
    sources = [Source(url, field) for url in urls]
    sight.check_count(sources, field)
    for each in texts:
        sight.refuse_spelled(each, field)
    return sight.placeholder.join(texts), await sight.look(sources)


async def read_beside(gateway: Gateway, text: str, sources: Sequence[Source], *, field: str, of: str) -> ReadPrompt:
    """The prompt of `text` with the images of `sources`, of which there are some, in the field `of`: in the places that
    it spells, which are the client's to write here, or else in front of it. Raises RequestError.
    """
    sight = gateway.pictures.seeing(sources, of)
    pictures = await sight.look(sources)
    if not sight.is_spelled(text):
        text = sight.placeholder * len(pictures) + text
    return await sight.prompt(text, pictures, special=True, field=field)
