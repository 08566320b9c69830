"""Tokens that are never drawn, told to the engine as biases: it takes more of those than of one-token bad words, and
beside ids that are the only ones allowed. Where a grammar leaves nothing else, it has its way.
"""

from collections.abc import Collection

from gateway.errors import RequestError
from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc.limits import MAX_LOGIT_BIAS

FIELD = "custom_token_bans"
BAN = -10_000  # the lowest bias of the engine, which is a ban there


def ban(sampling: pb.Sampling, ids: Collection[int]) -> None:
    """Raises RequestError if nothing is left, or if there are too many ids with a bias."""
    if not ids:
        return
    if sampling.only_biased:
        for id in ids:
            sampling.logit_bias.pop(id, None)
        if not sampling.logit_bias:
            raise RequestError.invalid(f"{FIELD} bans every one of allowed_token_ids", FIELD)
        return
    for id in ids:
        sampling.logit_bias[id] = BAN
    if (count := len(sampling.logit_bias)) > MAX_LOGIT_BIAS:
        message = f"{FIELD} and logit_bias name {count} tokens, at most {MAX_LOGIT_BIAS} can have a bias or a ban"
        raise RequestError.invalid(message, FIELD)
