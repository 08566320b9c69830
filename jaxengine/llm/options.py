"""The options of `LLM`: the engine's, which vLLM's names mean too where it has the same."""

import dataclasses
from collections.abc import Mapping

from jaxengine.options.suggestion import suggestion
from jaxengine.options.table import EngineOptions

VLLM = {
    "tensor_parallel_size": "tensor_parallel",
    "max_model_len": "max_total_tokens",
    "max_num_seqs": "max_batch_size",
    "max_num_batched_tokens": "max_batch_prefill_tokens",
    "quantization": "quantize",
    "block_size": "page_size",
    "enable_prefix_caching": "prefix_cache",
    "max_logprobs": "max_top_logprobs",
}


def engine_options(given: Mapping[str, object]) -> EngineOptions:
    """The engine's options of those `given`, by either name.

    Raises:
        TypeError: an option is unknown, or given by both of its names.
        ValueError: a value is wrong, or two contradict each other.
    """
    known = {row.name for row in dataclasses.fields(EngineOptions)}
    for name in given:
        if name not in known and name not in VLLM:
            raise TypeError(f"LLM has no option {name!r}{suggestion(name, [*known, *VLLM])}")
        if VLLM.get(name) in given:
            raise TypeError(f"{name} is vLLM's name of {VLLM[name]}: give one of them")
    return EngineOptions(**{VLLM.get(name, name): value for name, value in given.items()})  # type: ignore[arg-type]
