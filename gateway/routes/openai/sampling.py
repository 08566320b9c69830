"""The engine's requests for a `/v1` request: one `pb.Generate` per sequence, or for all answers of a beam search.

A field that the request leaves open has the value that the model's author recommends (generation_config.json), or else
OpenAI's default. Temperature 0 and top_p 0 both mean greedy.
"""

import secrets
from collections.abc import Collection

from gateway.errors import RequestError
from gateway.request.output import OutputPolicy
from gateway.routes.openai.common import Common
from gateway.samplers.engine_sampling import add_samplers
from gateway.text.model_text import ModelText
from gateway.text.sampling_defaults import GREEDY_TEMPERATURE
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc.limits import MAX_ALTERNATIVES, MAX_BAD_WORD_IDS, MAX_BAD_WORDS, MAX_LISTED_ALTERNATIVES

EARLY_STOPPING = {False: pb.BeamSearch.HEURISTIC, True: pb.BeamSearch.WIDTH, "never": pb.BeamSearch.NEVER}


def generate_requests(
    body: Common,
    adapter: str,
    prompt: list[int],
    limit: int,
    model: ModelText,
    *,
    breakers: Collection[int] = (),
    echo_logprobs: bool = False,
) -> list[pb.Generate]:
    """The engine request of each sequence, answered by `adapter`, or by the model itself if that is empty.

    A given seed counts up over them: with one seed they would all be equal. The answers of a beam search share one
    request. `breakers` are the ids of `dry_breakers`.
    """
    if (body.min_tokens or 0) > limit:
        raise RequestError.invalid(
            f"min_tokens is {body.min_tokens}, but at most {limit} can be generated", "min_tokens"
        )
    field = "prompt_logprobs" if body.prompt_logprobs is not None else "echo" if echo_logprobs else ""
    if field and not model.continues:
        message = f"{field} asks for the logprobs of a prompt, but this model's encoder reads it: it has none"
        raise RequestError.invalid(message, field)
    if field:
        _check_listed_with_prompt(body, field, len(prompt))
    if body.use_beam_search:
        _check_listed_with_beams(body, limit)
    seed = secrets.randbits(63) if body.seed in (None, -1) else body.seed or 0
    words = _bad_words(body.bad_words or [], model)
    grammar = body.constraint.to_proto(model.tokenizer.marks) if body.constraint else None
    requests = []
    for number in range(1 if body.use_beam_search else body.sequences):
        sampling = _sampling(body, model.defaults)
        add_samplers(sampling, body, breakers=breakers, defaults=model.defaults)
        sampling.bad_words.extend(words)
        sampling.seed = (seed + number) % 2**64
        sampling.top_logprobs = max(body.alternatives.values())
        sampling.prompt_logprobs = echo_logprobs or body.prompt_logprobs is not None
        requests.append(
            pb.Generate(
                prompt=prompt,
                sampling=sampling,
                max_new_tokens=limit,
                min_new_tokens=body.min_tokens or 0,
                stop_token_ids=body.stop_token_ids or [],
                ignore_eos=bool(body.ignore_eos),
                cache_salt=(body.cache_salt or "").encode(),
                priority=body.priority or 0,
                grammar=grammar,
                adapter=adapter,
                beam_search=_beam_search(body),
            )
        )
    return requests * body.choices if body.use_beam_search else requests


def _check_listed_with_prompt(body: Common, field: str, tokens: int) -> None:
    """Check what `field` lists beside each of the prompt's `tokens`. Raises RequestError."""
    top = max(body.alternatives.values())
    if top > MAX_ALTERNATIVES:
        message = f"{field} lists at most {MAX_ALTERNATIVES} logprobs beside a token, {top} are asked for"
        raise RequestError.invalid(message, field)
    if top * tokens > MAX_LISTED_ALTERNATIVES:
        asked = f"{field} asks for {top} logprobs beside each of {tokens} tokens"
        raise RequestError.invalid(f"{asked}, at most {MAX_LISTED_ALTERNATIVES} can be listed with a prompt", field)


def _check_listed_with_beams(body: Common, limit: int) -> None:
    """Check what is listed beside each token of beams of up to `limit` tokens. Raises RequestError."""
    field, top = max(body.alternatives.items(), key=lambda item: item[1])
    if top * limit * body.sequences > MAX_LISTED_ALTERNATIVES:
        asked = f"{field} asks for {top} logprobs beside each of up to {limit} tokens of {body.sequences} beams"
        most = f"at most {MAX_LISTED_ALTERNATIVES} can be listed with beams: lower max_tokens"
        raise RequestError.invalid(f"{asked}, {most}", field)


def _beam_search(body: Common) -> pb.BeamSearch | None:
    if not body.use_beam_search:
        return None
    return pb.BeamSearch(
        width=body.sequences,
        answers=body.choices,
        length_penalty=1.0 if body.length_penalty is None else body.length_penalty,
        early_stopping=EARLY_STOPPING[body.early_stopping or False],
    )


def policy(body: Common, visible: frozenset[int] = frozenset()) -> OutputPolicy:
    """How the request wants its text; `visible` special tokens stay in it, for a parser."""
    return OutputPolicy(
        keep_stop=bool(body.include_stop_str_in_output),
        show_end=bool(body.include_stop_str_in_output),
        skip_special=body.skip_special_tokens is not False,
        length_first=False,
        visible=visible,
    )


def _sampling(body: Common, defaults: dict[str, float]) -> pb.Sampling:
    if body.use_beam_search:  # what is recommended for sampling says nothing of a search
        kept = {name: value for name, value in defaults.items() if name == "repetition_penalty"}
        defaults = {"temperature": 0.0, **kept}

    def chosen(name: str, otherwise: float) -> float:
        given = body.value(name)
        return float(defaults.get(name, otherwise) if given is None else given)

    temperature, top_p = chosen("temperature", 1.0), chosen("top_p", 1.0)
    greedy = temperature < GREEDY_TEMPERATURE or top_p == 0.0
    return pb.Sampling(
        temperature=0.0 if greedy else temperature,
        top_p=1.0 if greedy else top_p,
        top_k=max(0, int(chosen("top_k", 0))),
        min_p=chosen("min_p", 0.0),
        typical_p=chosen("typical_p", 1.0),
        repetition_penalty=chosen("repetition_penalty", 1.0),
        frequency_penalty=body.frequency_penalty or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        logit_bias=_biases(body),
        only_biased=body.allowed_token_ids is not None,
    )


def _bad_words(words: list[str], model: ModelText) -> list[pb.TokenIds]:
    """The ids of each word at the start of a text, and after a space if those differ. Raises RequestError."""
    spellings = [spelling for word in words for spelling in (word, " " + word.lstrip())]
    found = dict.fromkeys(map(tuple, model.tokenizer.encode_each(spellings, add_special_tokens=False)))
    if len(found) > MAX_BAD_WORDS:
        message = f"bad_words make {len(found)} sequences of tokens, at most {MAX_BAD_WORDS}"
        raise RequestError.invalid(message, "bad_words")
    for ids in found:
        if not 1 <= len(ids) <= MAX_BAD_WORD_IDS:
            message = f"each of bad_words must be 1 to {MAX_BAD_WORD_IDS} tokens, one has {len(ids)}"
            raise RequestError.invalid(message, "bad_words")
    return [pb.TokenIds(ids=ids) for ids in found]


def _biases(body: Common) -> dict[int, float]:
    given = {int(key): float(value) for key, value in (body.logit_bias or {}).items()}
    if body.allowed_token_ids is None:
        return given
    return {id: given.get(id, 0.0) for id in body.allowed_token_ids}
