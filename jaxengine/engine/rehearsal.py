"""An engine answers a first request of its own before it is ready: ready then means that requests are answered, and at
their usual speed.

This request is served as any other is, with one step for its prompt and, unless the model makes embeddings only, two
for its tokens. It meets what only the first request meets: memory that nothing has touched, or a step that does not
run. It leaves no trace: counters start after it, and it is shorter than a page, so none of it is cached.
"""

from jaxengine.engine.engine import Engine
from jaxengine.options.pooling import pooling_named
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.request.sequence import Request

PROMPT_TOKENS, NEW_TOKENS = 4, 3  # or fewer where the longest request is shorter


def rehearse(engine: Engine) -> None:
    """Raises RuntimeError if a step fails; the reason is logged."""
    described = engine.description
    total, pooling = described.max_total_tokens, pooling_named(described.pooling) if described.embeds_only else None
    prompt = max(1, min(PROMPT_TOKENS, total - NEW_TOKENS))
    new = 1 if pooling else min(NEW_TOKENS, total - prompt)
    params = SamplingParams(max_tokens=new, temperature=0, seed=0, ignore_eos=True)
    engine.submit(Request(0, [0] * prompt, params, pooling=pooling))
    while not engine.idle:
        engine.step()
    if engine.step_failures:
        raise RuntimeError("the engine does not answer a request")
    engine.start_counting()
