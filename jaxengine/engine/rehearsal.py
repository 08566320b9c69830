"""An engine answers a first request of its own before it is ready: ready then means that requests are answered, and at
their usual speed.

This request is served as any other is, with one step for its prompt and two for its tokens. It meets what only the
first request meets: memory that nothing has touched, or a step that does not run. It leaves no trace: counters start
after it, and it is shorter than a page, so none of it is cached.
"""

from jaxengine.engine.engine import Engine
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.request.sequence import Request

PROMPT_TOKENS, NEW_TOKENS = 4, 3  # or fewer where the longest request is shorter


def rehearse(engine: Engine) -> None:
    """Raises RuntimeError if a step fails; the reason is logged."""
    total = engine.description.max_total_tokens
    prompt = max(1, min(PROMPT_TOKENS, total - NEW_TOKENS))
    params = SamplingParams(max_tokens=min(NEW_TOKENS, total - prompt), temperature=0, seed=0, ignore_eos=True)
    engine.submit(Request(0, [0] * prompt, params))
    while not engine.idle:
        engine.step()
    if engine.step_failures:
        raise RuntimeError("the engine does not answer a request")
    engine.start_counting()
