"""Parameters under which an answer is the reference's."""

from jaxengine.llm import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
