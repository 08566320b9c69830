"""The engine in this process, for notebooks and scripts: `LLM(model).generate(prompts, SamplingParams(...))`.

from jaxengine.llm import LLM, SamplingParams

llm = LLM()                                                             # the default model; or a hub id, or a directory
llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=8))[0].text
llm.chat([{"role": "user", "content": "What is the capital of France?"}])[0].text
for piece in llm.stream("Once upon a time", SamplingParams(max_tokens=64)):
    print(piece, end="")
llm.embed(["a text", "another text"])                                   # float32 [2, hidden]

Names are vLLM's where it has the same thing: `generate`, `chat`, `embed`, `n`, `stop`, `logprobs`, `use_tqdm`,
`outputs[0].text`.
"""

from jaxengine.llm.completion import Completion, Logprob, Output, SamplingParams, Stream
from jaxengine.llm.llm import LLM
from jaxengine.request.beam_search import BeamSearch

__all__ = ["LLM", "BeamSearch", "Completion", "Logprob", "Output", "SamplingParams", "Stream"]
