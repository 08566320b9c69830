"""The tokens that end a repetition for DRY: those that contain a breaker, as in llama.cpp.

A breaker that no token contains is told by the last token that it is written with.
"""

import asyncio

from gateway.errors import RequestError
from gateway.samplers.fields import SamplerFields
from gateway.text.model_text import ModelText

FIELD = "dry_sequence_breakers"
BREAKERS = ("\n", ":", '"', "*")
MAX_BREAKER_IDS = 32_768  # each of a request's sequences is sent them


async def dry_breakers(fields: SamplerFields, model: ModelText, vocab_size: int) -> list[int]:
    """The ids that `fields` ask for, below `vocab_size`; none where there is no DRY to break.

    Raises:
        RequestError: there are too many.
    """
    if not fields.dry_multiplier:
        return []
    ids, texts = set(fields.dry_sequence_breaker_ids or ()), fields.dry_sequence_breakers
    if texts is None:
        texts = [] if fields.dry_sequence_breaker_ids is not None else [*BREAKERS]
    found = await asyncio.get_running_loop().run_in_executor(model.executor, _ids_with, model, texts)
    return sorted(id for id in ids | found if id < vocab_size)


def _ids_with(model: ModelText, texts: list[str]) -> set[int]:
    found: set[int] = set()
    for text in texts:
        ids = model.token_search.ids_with(text)
        found.update(ids or model.tokenizer.encode(f"a{text}", add_special_tokens=False)[-1:])
        if len(found) > MAX_BREAKER_IDS:
            message = f"{FIELD} are inside more than {MAX_BREAKER_IDS} tokens: give longer ones"
            raise RequestError.invalid(message, FIELD)
    return found
