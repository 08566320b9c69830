"""What the engine refuses: a model before it is loaded, and a request when it arrives, even if the gateway let it pass.

An id outside the vocabulary would not fail on the device: gathers clamp, so it would silently read another row.
"""

from collections.abc import Iterable, Mapping, Sequence

from jaxengine.request.beam_search import BeamSearch
from jaxengine.request.interface import Description
from jaxengine.request.resume import Resume
from jaxengine.request.sampling_params import MAX_EOS_TOKEN_IDS
from jaxengine.request.sequence import Request
from jaxengine.rpc.limits import MAX_ALTERNATIVES, MAX_LISTED_ALTERNATIVES, MAX_LOGITS_BYTES


def check_ends(eos_token_ids: Sequence[int]) -> None:
    """Raises ValueError if a model has more EOS ids than the sampler can ban at once."""
    if len(eos_token_ids) > MAX_EOS_TOKEN_IDS:
        raise ValueError(f"the model has {len(eos_token_ids)} eos_token_ids, at most {MAX_EOS_TOKEN_IDS} can be served")


def check_request(request: Request, limits: Description) -> None:
    """Raises ValueError, naming field, value and limit, if an engine with `limits` can never serve `request`."""
    params, length = request.params, len(request.prompt)
    if not length:
        raise ValueError("prompt has no tokens")
    if length + params.max_tokens > limits.max_total_tokens:
        raise ValueError(
            f"prompt of {length} tokens and max_tokens {params.max_tokens} make {length + params.max_tokens}, "
            f"more than max_total_tokens {limits.max_total_tokens}"
        )
    if params.logprobs > limits.max_top_logprobs:
        raise ValueError(f"logprobs {params.logprobs} is more than {limits.max_top_logprobs}")
    if params.prompt_logprobs and params.logprobs > MAX_ALTERNATIVES:
        raise ValueError(f"logprobs {params.logprobs} is more than a prompt's tokens have, {MAX_ALTERNATIVES}")
    if request.pooling is not None:
        _check_pooling(request, limits)
    elif limits.embeds_only:
        raise ValueError("this model has no head to generate text with: it makes embeddings")
    if request.logits is not None:
        _check_logits(request, limits)
    if request.resume is not None:
        check_resume(request, request.resume, limits)
    ends = {*limits.eos_token_ids, *params.stop_token_ids}
    if request.beam_search is not None:
        _check_beam_search(request, request.beam_search, limits)
    if params.only_biased and params.min_tokens and ends.issuperset(params.logit_bias):
        raise ValueError("only_biased leaves no id that may be drawn before min_tokens")
    _check_ids("prompt", request.prompt, limits, besides=limits.image_token_id)  # which may lie behind the vocabulary
    for name, ids in (
        ("stop_token_ids", params.stop_token_ids),
        ("logit_bias", params.logit_bias),
        ("dry_breakers", params.samplers.dry_breakers),
        *(("bad_words", word) for word in params.bad_words),
        ("reasoning", (*request.reasoning.begin, *request.reasoning.end) if request.reasoning else ()),
    ):
        _check_ids(name, ids, limits)


def check_resume(request: Request, resume: Resume, limits: Description) -> None:
    """Raises ValueError if an engine with `limits` cannot go on with `request` as `resume` says."""
    refused = {"beam search": request.beam_search, "pooling": request.pooling, "logits": request.logits}
    _refuse("resume", {name: asked is not None for name, asked in refused.items()})
    most, generated = request.params.max_tokens, len(resume.generated)
    if generated >= most:
        raise ValueError(f"resume.generated has {generated} tokens, not fewer than max_tokens {most}")
    _check_ids("resume.generated", resume.generated, limits)


def _check_ids(name: str, ids: Iterable[int], limits: Description, besides: int | None = None) -> None:
    """Raises ValueError where field `name` has an id outside the vocabulary, other than `besides`."""
    wrong = next((i for i in ids if not 0 <= i < limits.vocab_size and i != besides), None)
    if wrong is not None:
        raise ValueError(f"{name} has the id {wrong}, outside [0, {limits.vocab_size})")


def _refuse(what: str, beside: Mapping[str, bool]) -> None:
    """Raises ValueError naming the first of those asked for `beside` `what`, with which none goes."""
    if asked := next((name for name, asked in beside.items() if asked), None):
        raise ValueError(f"{what} does not go with {asked}")


def _refuse_text(what: str, request: Request) -> None:
    """Raises ValueError where `request`, which asks for `what` in place of text, asks for a text's properties too."""
    refused = {
        "max_tokens above 1": request.params.max_tokens > 1,
        "prompt_logprobs": request.params.prompt_logprobs,
        "a grammar": request.grammar is not None,
        "reasoning": request.reasoning is not None,
        "beam search": request.beam_search is not None,
    }
    _refuse(what, refused)


def _check_pooling(request: Request, limits: Description) -> None:
    _refuse_text("pooling", request)
    if request.pooling != limits.pooling:
        raise ValueError(f"pooling {request.pooling!r} is not this engine's, {limits.pooling!r}")


def _check_logits(request: Request, limits: Description) -> None:
    _refuse_text("logits", request)
    _refuse("logits", {"pooling": request.pooling is not None})
    if not limits.logits:
        raise ValueError(f"logits {request.logits!r} of a prompt that an encoder reads: this model has none")
    positions = len(request.prompt) if request.logits == "all" else 1
    wanted = 4 * positions * limits.vocab_size
    if wanted > MAX_LOGITS_BYTES:
        raise ValueError(
            f"logits {request.logits!r} of {positions} positions and {limits.vocab_size} ids take {wanted} bytes, more "
            f"than {MAX_LOGITS_BYTES}"
        )


def _check_beam_search(request: Request, search: BeamSearch, limits: Description) -> None:
    params = request.params
    refused = {
        "a temperature above 0": not params.greedy,
        "a watermark": params.watermark_gamma > 0,
        "samplers that filter": params.samplers != params.samplers.without_filters(),
        "prompt_logprobs": params.prompt_logprobs,
        "a grammar": request.grammar is not None,
        "reasoning": request.reasoning is not None,
    }
    _refuse("beam search", refused)
    if search.width > limits.max_batch_size:
        raise ValueError(f"beam search of width {search.width} is more than max_batch_size {limits.max_batch_size}")
    ends = {*(() if params.ignore_eos else limits.eos_token_ids), *params.stop_token_ids}
    allowed = len(params.logit_bias.keys() - ends)
    if params.only_biased and allowed < search.width:
        raise ValueError(f"only {allowed} ids may go on a text, fewer than beam search's width {search.width}")
    listed = search.width + len(ends)
    if listed > limits.max_top_logprobs:
        raise ValueError(
            f"beam search of width {search.width} with {len(ends)} ids that end a text needs {listed} alternatives, "
            f"more than max_top_logprobs {limits.max_top_logprobs}"
        )
    if search.width * params.max_tokens * params.logprobs > MAX_LISTED_ALTERNATIVES:
        raise ValueError(
            f"{search.width} beams of up to {params.max_tokens} tokens with logprobs {params.logprobs} list more than "
            f"{MAX_LISTED_ALTERNATIVES} alternatives"
        )
    longest = len(request.prompt) + params.max_tokens
    pages = -(-longest // limits.page_size) + (limits.decoder_start_token_id is not None)
    if search.width * pages * limits.page_size > limits.max_batch_total_tokens:
        raise ValueError(
            f"{search.width} beams of up to {longest} tokens do not fit into max_batch_total_tokens "
            f"{limits.max_batch_total_tokens}"
        )
