"""What an engine says of itself, to its gateway and for `check_request`: a `Description`."""

from typing import Any

from jaxengine.cache.limits import Limits
from jaxengine.request.interface import Description, OpenModel
from jaxengine.rpc.limits import MAX_IMAGES
from jaxengine.startup.setup import Setup


def describe(setup: Setup, model: OpenModel, limits: Limits, pages: int) -> Description:
    """`pages` are those of the pool, with the sink that holds nobody's tokens."""
    return Description(
        model_id=model.model_id,
        revision=model.revision,
        dtype=setup.dtype,
        device_kind=setup.device.kind,
        device_count=setup.mesh.size,
        vocab_size=setup.spec.tokens,
        eos_token_ids=tuple(model.eos_token_ids),
        max_total_tokens=limits.max_total_tokens,
        max_batch_prefill_tokens=limits.token_budget,
        max_batch_total_tokens=limits.tokens_of(pages - 1),
        max_batch_size=limits.max_batch_size,
        page_size=limits.page_size,
        pages_total=pages - 1,
        max_top_logprobs=setup.top,
        prefix_cache=setup.shares_prefixes(limits),
        cache_dtype=setup.cache_dtype,
        decoder_start_token_id=setup.spec.encoder.start_token if setup.spec.encoder else None,
        max_adapters=setup.adapters.slots,
        max_adapter_rank=setup.adapters.rank,
        max_draft_tokens=limits.draft_tokens,
        pooling=setup.pooling(model),
        hidden_size=setup.spec.hidden_size,
        embeds_only=setup.spec.head.missing,
        logits=setup.spec.predicts_prompt,
        **_describe_sight(setup, limits),
    )


def _describe_sight(setup: Setup, limits: Limits) -> dict[str, Any]:
    """What a model that sees takes of pictures."""
    vision = setup.spec.vision
    if vision is None:
        return {}
    tokens, longest = limits.see_shapes(vision)[-1].rows, limits.token_budget - limits.max_batch_size + 1
    return {
        "image_token_id": vision.token,
        "patch_values": vision.patch_values,
        "patch_dtype": "bfloat16" if setup.dtype == "bfloat16" else "float32",
        "image_horizon": vision.horizon,
        "max_images": MAX_IMAGES,
        "max_image_patches": limits.image_patches,
        "max_image_tokens": tokens if vision.horizon == "token" else min(tokens, longest),
    }
