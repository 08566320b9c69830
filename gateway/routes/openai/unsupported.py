"""Known fields of `/v1` that are not served: those that are refused, and hints, which are ignored.

A field that changes the answer must not be ignored: a client that asks for JSON must not get prose. A hint changes no
answer: it is about cost, bookkeeping or routing, or it is a detail of a field that is refused. Every field that
OpenAI's clients, vLLM, SGLang and llama.cpp know is declared, or in one of these tables; tests compare their lists.
"""

from collections.abc import Mapping
from typing import Any

from gateway.errors import RequestError

# By name, the values that ask for nothing and so are accepted, besides `null`.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "tools": ([],),  # of a completion, as the next three; chats declare them
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    # of vLLM
    "best_of": (1,),  # of chats; completions declare it
    "logprob_token_ids": (),
    "prompt_embeds": (),
    "lora_path": (),
    "logits_processors": ([],),
    "custom_logit_processor": (),
    "vllm_xargs": ({},),
    "repetition_detection": (),
    "thinking_token_budget": (-1,),  # of a completion; chats declare it
    "watermarking": (False,),
    "mm_processor_kwargs": ({},),
    "media_io_kwargs": ({},),
    "kv_transfer_params": ({},),
    "ec_transfer_params": ({},),
    "routed_experts_prompt_start": (0,),
    "include_reasoning": (True,),  # of a completion; chats declare it
    "return_prompt_text": (False,),
    "return_token_offsets": (False,),
    "return_weight_versions": (False,),
    # of SGLang
    "return_hidden_states": (False,),
    "return_routed_experts": (False,),
    "routed_experts_start_len": (0,),
    "return_cached_tokens_details": (False,),
    "return_spec_tokens_details": (False,),
    "return_prompt_token_ids": (False,),
    "return_meta_info": (False,),
    "return_input_ids_in_sglext": (False,),
    "return_output_ids_in_sglext": (False,),
    "return_sampling_mask": (False,),
    "return_flat_raw_output_top_logprobs": (False,),
    "sampling_logprobs_mode": (),
    "stop_regex": ("", []),
    "no_stop_trim": (False,),
    "input_ids": (),
    "session_params": (),
    "extra_key": ("",),
    "custom_params": ({},),
    "watermark": (False, {}),
    "thinking": (),
    "task": (),
    # of llama.cpp and Aphrodite
    "grammar_lazy": (False,),
    "grammar_triggers": ([],),
    "n_predict": (),
    "max_completion_tokens": (),  # of a completion, as the next; chats declare both
    "continue_final_message": (False,),
    "n_cmpl": (1,),
    "n_probs": (0,),
    "n_indent": (0,),
    "t_max_predict_ms": (-1, 0),
    "return_tokens": (False,),
    "post_sampling_probs": (False,),
    "response_fields": ([],),
    "verbose": (False,),
    "lora": ([],),
    "min_keep": (0,),
    "adaptive_target": (-1, -0.01),  # the latter SillyTavern's
    "dry_max_ngram": (12,),  # Aphrodite's, as the next six; repetitions here are of up to 128 tokens
    "dry_max_occurrences": (8,),
    "dry_early_exit_match_len": (8,),
    "token_ban_ranges": ([],),
    "banned_strings": ([], ""),
    "structural_tag": ("",),
    "aphrodite_xargs": ({},),
    "reasoning_format": ("none", "auto"),
    "reasoning_control": (False,),
    "reasoning_budget_tokens": (-1,),  # of a completion, as the next; chats declare both
    "thinking_budget_tokens": (-1,),
    "parse_tool_calls": (False,),
    "chat_format": (0,),
    "chat_parser": ("",),
    "generation_prompt": ("",),
}

# Refused fields that this server has under another name.
OUR_NAMES = {
    "n_predict": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "n_cmpl": "n",
    "n_probs": "logprobs",
    "banned_strings": "bad_words",
    "structural_tag": "structured_outputs",
    "return_tokens": "return_token_ids",
    "return_prompt_token_ids": "return_token_ids",
    "extra_key": "cache_salt",
    "thinking": "chat_template_kwargs",
    "lora": "model",
    "lora_path": "model",
}

# Fields that are ignored, and below those within other fields.
HINTS = frozenset(
    {
        *("user", "store", "metadata", "service_tier", "prediction", "verbosity", "moderation"),
        *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier"),
        # of vLLM
        *("session_id", "stream_interval", "spaces_between_special_tokens"),
        *("mm_payload", "return_mm_kwargs"),  # of its render routes
        "guided_decoding_backend",
        # of SGLang
        *("rid", "custom_labels", "return_flat_raw_top_logprobs_b64"),
        *("data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank"),
        *("bootstrap_host", "bootstrap_port", "bootstrap_room"),
        *("max_dynamic_patch", "min_dynamic_patch", "use_audio_in_video", "images_config", "video_config"),
        # of llama.cpp
        *("timings_per_token", "return_progress", "sse_ping_interval", "backend_sampling", "message_delimiters"),
        *("cache_prompt", "id_slot", "n_cache_reuse", "n_keep", "n_discard"),
        *("adaptive_decay", "grammar_type", "preserved_tokens"),
        *("reasoning_budget_start_tag", "reasoning_budget_end_tag", "reasoning_budget_end_tags"),
        "reasoning_budget_message",
    }
)

HINTS_WITHIN = {
    "stream_options": {"include_obfuscation"},
    "messages": {"phase"},  # of an earlier answer
    "messages.content": {"prompt_cache_breakpoint"},
}


def refuse_unsupported(
    fields: Mapping[str, Any],
    harmless: Mapping[str, tuple[Any, ...]] = UNSUPPORTED,
    our_names: Mapping[str, str] = OUR_NAMES,
) -> None:
    """Raise RequestError naming the first of `fields` that asks for something this server does not do, or a route that
    has tables of its own.
    """
    if name := first_asked(fields, harmless):
        ours = f": use {our_names[name]}" if name in our_names else ""
        raise RequestError.invalid(f"{name} is not supported{ours}", name)


def first_asked(fields: Mapping[str, Any], harmless: Mapping[str, tuple[Any, ...]]) -> str | None:
    """The first name in `harmless` of a field with another value than those there, which ask for nothing, or null."""
    asked = (name for name in harmless if fields.get(name) is not None and fields[name] not in harmless[name])
    return next(asked, None)
