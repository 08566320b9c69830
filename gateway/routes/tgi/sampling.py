"""The engine's sampling parameters for a TGI request, with TGI's meaning of each."""

import secrets
from collections.abc import Collection

from gateway.config.options import Options
from gateway.routes.tgi.schemas import Parameters
from gateway.samplers.engine_sampling import add_samplers
from gateway.text.sampling_defaults import GREEDY_TEMPERATURE
from jaxengine.rpc import engine_pb2 as pb


def samples(settings: Parameters) -> bool:
    """Whether tokens are sampled rather than chosen greedily. By TGI's rule temperature 1 alone is greedy."""
    return (
        settings.do_sample
        or settings.temperature not in (None, 1.0)
        or settings.top_k is not None
        or settings.top_p is not None
        or settings.typical_p is not None
        or settings.filters
    )


def sampling(
    settings: Parameters, options: Options, *, breakers: Collection[int], prompt_logprobs: bool
) -> pb.Sampling:
    """The sampling parameters of a valid request; each call draws a seed if none is given. Raises RequestError."""
    temperature = settings.temperature or 1.0
    greedy = not samples(settings) or temperature < GREEDY_TEMPERATURE
    chosen = pb.Sampling(
        temperature=0.0 if greedy else temperature,
        top_k=settings.top_k or 0,
        top_p=settings.top_p or 1.0,
        typical_p=settings.typical_p or 1.0,
        min_p=settings.min_p or 0.0,
        repetition_penalty=settings.value("repetition_penalty") or 1.0,
        frequency_penalty=settings.frequency_penalty or 0.0,
        frequency_over_length=True,
        processed_logprobs=True,
        seed=secrets.randbits(64) if settings.seed is None else settings.seed,
        top_logprobs=settings.top_n_tokens or 0,
        prompt_logprobs=prompt_logprobs,
        watermark_gamma=options.watermark_gamma if settings.watermark else 0.0,
        watermark_delta=options.watermark_delta if settings.watermark else 0.0,
    )
    add_samplers(chosen, settings, breakers=breakers)
    return chosen
