"""Fields of `/v1` that this server knows and does not serve.

A field that changes the answer must not be ignored: a client that asked for JSON and got prose has been lied to.
Each name lists the values that ask for nothing; `null` always does. Hints that only affect cost or bookkeeping
(`user`, `store`, `service_tier`, `prediction`, `parallel_tool_calls` …) are absent here and ignored.
"""

from collections.abc import Mapping
from typing import Any

from gateway.errors import RequestError

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "use_beam_search": (False,),
    "best_of": (1,),  # of chats; completions declare it
    "length_penalty": (1, 1.0),
    "logprob_token_ids": (),
    "prompt_embeds": (),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "json_schema": (),
    "regex": (),
    "ebnf": (),
    "grammar": (),
    "lora_path": (),
    "logits_processors": ([],),
    "custom_logit_processor": (),
    "vllm_xargs": (),
    "repetition_detection": (),
    "thinking_token_budget": (-1,),
    "watermarking": (),
    "mm_processor_kwargs": ({},),
    "media_io_kwargs": ({},),
    "mm_payload": (),
    "kv_transfer_params": (),
    "ec_transfer_params": (),
    "routed_experts_prompt_start": (),
    "include_reasoning": (True,),
    "return_prompt_text": (False,),
    "return_token_offsets": (False,),
    "return_weight_versions": (False,),
    # of SGLang
    "return_hidden_states": (False,),
    "stop_regex": ("", []),
    "no_stop_trim": (False,),
    "input_ids": (),
    "session_params": (),
    # samplers of llama.cpp and Aphrodite
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "no_repeat_ngram_size": (0,),
    "nsigma": (0,),
    "skew": (0,),
    "smoothing_factor": (0,),
    "tfs": (1,),
    "top_a": (0,),
    "top_n_sigma": (-1, 0),
    "xtc_probability": (0,),
}


def refuse_unsupported(fields: Mapping[str, Any]) -> None:
    """Raise RequestError naming the first field that asks for something we don't do."""
    for name, harmless in UNSUPPORTED.items():
        value = fields.get(name)
        if value is not None and value not in harmless:
            raise RequestError.invalid(f"{name} is not supported", name)
