"""What goes with `use_beam_search`, vLLM's field for the likeliest answers instead of sampled ones, and what does not.

A beam search compares whole texts by their likelihood. What samples, what shows a text before it is chosen, and what
ends or constrains one without the search is refused by name.
"""

import json
from collections.abc import Mapping
from typing import Any

from gateway.errors import RequestError
from gateway.routes.openai.unsupported import first_asked
from gateway.samplers.fields import FILTERS

# By field, the values that ask for nothing else and so are accepted, besides `null`.
NOT_WITH_BEAMS: dict[str, tuple[Any, ...]] = {
    "stream": (False,),
    "temperature": (0,),
    "top_p": (1, 0),  # 0 means greedy, as a temperature of 0 does
    "top_k": (0, -1),
    "min_p": (0,),
    "typical_p": (1,),
    **FILTERS,
    "stop": ([],),
    "prompt_logprobs": (),
    "thinking_token_budget": (-1,),
    "thinking_budget_tokens": (-1,),
    "reasoning_budget_tokens": (-1,),
}
ONLY_WITH_BEAMS: dict[str, tuple[Any, ...]] = {"length_penalty": (1,), "early_stopping": (False,)}


def check_fields(fields: Mapping[str, Any], constraint: str | None) -> None:
    """Raise RequestError naming the first of a request's `fields` that does not go with its `use_beam_search`.

    `constraint` is the field that says what the text must match.
    """
    if not fields.get("use_beam_search"):
        if name := first_asked(fields, ONLY_WITH_BEAMS):
            raise RequestError.invalid(f"{name} is only allowed when use_beam_search is true", name)
        return
    if name := first_asked(fields, NOT_WITH_BEAMS):
        taken = " or ".join(map(json.dumps, NOT_WITH_BEAMS[name]))
        raise not_with_beams(f"{name} other than {taken}" if taken else name, name)
    if constraint is not None:
        raise not_with_beams(constraint, constraint)


def not_with_beams(what: str, field: str) -> RequestError:
    return RequestError.invalid(f"{what} is not supported with use_beam_search", field)
