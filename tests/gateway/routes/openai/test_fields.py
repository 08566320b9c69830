"""No field that clients of OpenAI, vLLM, SGLang, Aphrodite or llama.cpp know is ignored unless it is one of our hints.

Each list holds every name that the request models of that version declare, or its server reads.
"""

import pytest
from pydantic import BaseModel

from gateway.routes.openai.common import StreamOptions
from gateway.routes.openai.constraints import StructuredOutputs
from gateway.routes.openai.messages import ContentPart, Message
from gateway.routes.openai.schemas import BatchRequest, ChatRequest, CompletionRequest
from gateway.routes.openai.tokens import Detokenize, TokenizeChat, TokenizeText
from gateway.routes.openai.unsupported import HINTS, HINTS_WITHIN, UNSUPPORTED
from gateway.routes.tgi.schemas import Parameters
from gateway.samplers.fields import SamplerFields

OPENAI_3_54_CHAT = """
    audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens messages
    metadata modalities model moderation n parallel_tool_calls prediction presence_penalty prompt_cache_key
    prompt_cache_options prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier
    stop store stream stream_options temperature tool_choice tools top_logprobs top_p user verbosity
    web_search_options
"""

OPENAI_3_54_TEXT = """
    best_of echo frequency_penalty logit_bias logprobs max_tokens model n presence_penalty prompt seed stop stream
    stream_options suffix temperature top_p user
"""

VLLM_0_33_CHAT = """
    add_generation_prompt add_special_tokens allowed_token_ids bad_words cache_salt chat_template
    chat_template_kwargs continue_final_message documents ec_transfer_params echo frequency_penalty ignore_eos
    include_reasoning include_stop_str_in_output kv_transfer_params length_penalty logit_bias logprob_token_ids
    logprobs max_completion_tokens max_tokens media_io_kwargs messages min_p min_tokens mm_payload
    mm_processor_kwargs model n parallel_tool_calls presence_penalty priority prompt_logprobs reasoning_effort
    repetition_detection repetition_penalty request_id response_format return_mm_kwargs return_prompt_text
    return_token_ids return_token_offsets return_tokens_as_token_ids return_weight_versions
    routed_experts_prompt_start seed session_id skip_special_tokens spaces_between_special_tokens stop
    stop_token_ids stream stream_interval stream_options structured_outputs temperature thinking_token_budget
    tool_choice tools top_k top_logprobs top_p truncate_prompt_tokens truncation_side use_beam_search user
    vllm_xargs watermarking
"""

VLLM_0_33_BATCH = """
    add_generation_prompt best_of cache_salt chat_template chat_template_kwargs continue_final_message
    early_stopping echo frequency_penalty guided_decoding_backend include_reasoning include_stop_str_in_output
    length_penalty logit_bias logprob_token_ids logprobs max_completion_tokens max_tokens media_io_kwargs messages
    min_p mm_processor_kwargs model n presence_penalty priority repetition_penalty request_id response_format
    return_token_ids return_tokens_as_token_ids seed stop structured_outputs temperature tool_choice top_k
    top_logprobs top_p use_beam_search user watermarking
"""

VLLM_0_33_TEXT = """
    add_special_tokens allowed_token_ids bad_words cache_salt ec_transfer_params echo frequency_penalty ignore_eos
    include_stop_str_in_output kv_transfer_params length_penalty logit_bias logprob_token_ids logprobs max_tokens
    min_p min_tokens mm_payload model n presence_penalty priority prompt prompt_embeds prompt_logprobs
    repetition_detection repetition_penalty request_id response_format return_mm_kwargs return_token_ids
    return_token_offsets return_tokens_as_token_ids return_weight_versions routed_experts_prompt_start seed
    session_id skip_special_tokens spaces_between_special_tokens stop stop_token_ids stream stream_interval
    stream_options structured_outputs suffix temperature thinking_token_budget top_k top_p truncate_prompt_tokens
    truncation_side use_beam_search user vllm_xargs watermarking
"""

VLLM_0_33_TOKENIZE_CHAT = """
    add_generation_prompt add_special_tokens chat_template chat_template_kwargs continue_final_message
    media_io_kwargs messages mm_processor_kwargs model return_token_strs tools
"""

SGLANG_0_5_23_CHAT = """
    bootstrap_host bootstrap_port bootstrap_room cache_salt chat_template_kwargs continue_final_message
    custom_logit_processor custom_params data_parallel_rank disagg_prefill_dp_rank ebnf extra_key frequency_penalty
    ignore_eos images_config input_ids logit_bias logprobs lora_path max_completion_tokens max_dynamic_patch
    max_tokens messages min_dynamic_patch min_p min_tokens mm_processor_kwargs model n no_stop_trim
    parallel_tool_calls presence_penalty priority reasoning_effort regex repetition_penalty response_format
    return_cached_tokens_details return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs_b64
    return_hidden_states return_input_ids_in_sglext return_meta_info return_output_ids_in_sglext
    return_prompt_token_ids return_routed_experts return_sampling_mask return_spec_tokens_details return_token_ids
    rid routed_dp_rank routed_experts_start_len sampling_logprobs_mode seed separate_reasoning session_id
    session_params skip_special_tokens stop stop_regex stop_token_ids stream stream_options stream_reasoning task
    temperature thinking tool_choice tools top_k top_logprobs top_p use_audio_in_video user video_config watermark
"""

SGLANG_0_5_23_TEXT = """
    best_of bootstrap_host bootstrap_port bootstrap_room cache_salt custom_labels custom_logit_processor
    custom_params data_parallel_rank disagg_prefill_dp_rank ebnf echo extra_key frequency_penalty ignore_eos
    images_config json_schema logit_bias logprobs lora_path max_tokens min_p min_tokens mm_processor_kwargs model n
    no_stop_trim presence_penalty priority prompt regex repetition_penalty response_format
    return_cached_tokens_details return_hidden_states return_routed_experts return_spec_tokens_details
    return_token_ids rid routed_dp_rank routed_experts_start_len seed session_id session_params skip_special_tokens
    stop stop_regex stop_token_ids stream stream_options suffix temperature top_k top_p user watermark
"""

SGLANG_0_5_23_TOKENIZE_CHAT = """
    add_generation_prompt add_special_tokens chat_template_kwargs continue_final_message messages model
    reasoning_effort tool_choice tools
"""

APHRODITE_CHAT = """
    add_generation_prompt add_special_tokens allowed_token_ids aphrodite_xargs bad_words best_of chat_template
    chat_template_kwargs continue_final_message custom_token_bans documents dry_allowed_length dry_base
    dry_early_exit_match_len dry_max_ngram dry_max_occurrences dry_multiplier dry_penalty_last_n dry_range
    dry_sequence_breakers dynatemp_exponent dynatemp_high dynatemp_low dynatemp_max dynatemp_min early_stopping echo
    epsilon_cutoff eta_cutoff frequency_penalty grammar guided_choice guided_decoding_backend guided_grammar guided_json
    guided_regex guided_whitespace_pattern ignore_eos include_reasoning include_stop_str_in_output kv_transfer_params
    length_penalty logit_bias logprobs max_completion_tokens max_tokens messages min_p min_tokens mirostat_eta
    mirostat_mode mirostat_tau mm_processor_kwargs model n no_repeat_ngram_size nsigma parallel_tool_calls
    presence_penalty priority prompt_logprobs reasoning_effort repetition_penalty request_id response_format
    sampler_order sampler_priority seed skew skip_special_tokens smoothing_curve smoothing_factor
    spaces_between_special_tokens stop stop_token_ids stream stream_options structural_tag temperature temperature_last
    tfs token_ban_ranges tool_choice tools top_a top_k top_logprobs top_p truncate_prompt_tokens typical_p
    use_beam_search user xtc_probability xtc_threshold
"""

# Of the commit that llama-cpp-python 0.3.36 brings along.
LLAMA_CPP_CHAT = """
    adaptive_decay adaptive_target add_generation_prompt backend_sampling cache_prompt chat_format chat_parser
    chat_template_kwargs continue_final_message dry_allowed_length dry_base dry_multiplier dry_penalty_last_n
    dry_sequence_breakers dynatemp_exponent dynatemp_range echo frequency_penalty generation_prompt grammar
    grammar_lazy grammar_triggers grammar_type id_slot ignore_eos json_schema logit_bias logprobs lora
    max_completion_tokens max_tokens message_delimiters messages min_keep min_p mirostat mirostat_eta mirostat_tau n
    n_cache_reuse n_cmpl n_discard n_indent n_keep n_predict n_probs parallel_tool_calls parse_tool_calls
    post_sampling_probs presence_penalty preserved_tokens reasoning_budget_end_tag reasoning_budget_end_tags
    reasoning_budget_message reasoning_budget_start_tag reasoning_budget_tokens reasoning_control reasoning_effort
    reasoning_format repeat_last_n repeat_penalty response_fields response_format return_progress return_tokens
    samplers seed sse_ping_interval stop stream stream_options t_max_predict_ms temperature thinking_budget_tokens
    timings_per_token tool_choice tools top_k top_logprobs top_n_sigma top_p typical_p verbose xtc_probability
    xtc_threshold
"""

LLAMA_CPP_TEXT = """
    adaptive_decay adaptive_target backend_sampling best_of cache_prompt chat_format chat_parser
    continue_final_message dry_allowed_length dry_base dry_multiplier dry_penalty_last_n dry_sequence_breakers
    dynatemp_exponent dynatemp_range echo frequency_penalty generation_prompt grammar grammar_lazy grammar_triggers
    grammar_type id_slot ignore_eos json_schema logit_bias logprobs lora max_completion_tokens max_tokens
    message_delimiters min_keep min_p mirostat mirostat_eta mirostat_tau n n_cache_reuse n_cmpl n_discard n_indent
    n_keep n_predict n_probs parse_tool_calls post_sampling_probs presence_penalty preserved_tokens prompt
    reasoning_budget_end_tag reasoning_budget_end_tags reasoning_budget_message reasoning_budget_start_tag
    reasoning_budget_tokens reasoning_control reasoning_format repeat_last_n repeat_penalty response_fields
    return_progress return_tokens samplers seed sse_ping_interval stop stream stream_options suffix t_max_predict_ms
    temperature timings_per_token top_k top_n_sigma top_p typical_p verbose xtc_probability xtc_threshold
"""

VLLM_0_33_TOKENIZE = SGLANG_0_5_23_TOKENIZE = "model prompt add_special_tokens"
VLLM_0_33_DETOKENIZE, SGLANG_0_5_23_DETOKENIZE = "model tokens", "model tokens skip_special_tokens"
TGI_3_PARAMETERS = """
    adapter_id best_of decoder_input_details details do_sample frequency_penalty grammar max_new_tokens
    repetition_penalty return_full_text seed stop temperature top_k top_n_tokens top_p truncate typical_p watermark
"""
PARTS: dict[str, tuple[type[BaseModel], str]] = {
    "messages": (
        Message,
        "audio content function_call name refusal role tool_call_id tool_calls "  # OpenAI 3.54
        "reasoning task tools "  # vLLM 0.33
        "phase prefix reasoning_content",  # SGLang 0.5.23
    ),
    "messages.content": (  # of texts, refusals and images, OpenAI 3.54; vLLM 0.33
        ContentPart,
        "type text refusal image_url prompt_cache_breakpoint uuid",
    ),
    "structured_outputs": (
        StructuredOutputs,
        "json regex choice grammar json_object structural_tag "  # vLLM 0.33
        "disable_any_whitespace disable_additional_properties whitespace_pattern",
    ),
    "stream_options": (StreamOptions, "include_usage include_obfuscation continuous_usage_stats"),
}

LISTS: dict[str, tuple[type[BaseModel], str]] = {
    "OpenAI 3.54, chat": (ChatRequest, OPENAI_3_54_CHAT),
    "OpenAI 3.54, completion": (CompletionRequest, OPENAI_3_54_TEXT),
    "vLLM 0.33, chat": (ChatRequest, VLLM_0_33_CHAT),
    "vLLM 0.33, batch of chats": (BatchRequest, VLLM_0_33_BATCH),
    "vLLM 0.33, completion": (CompletionRequest, VLLM_0_33_TEXT),
    "vLLM 0.33, tokenize a chat": (TokenizeChat, VLLM_0_33_TOKENIZE_CHAT),
    "vLLM 0.33, tokenize": (TokenizeText, VLLM_0_33_TOKENIZE),
    "vLLM 0.33, detokenize": (Detokenize, VLLM_0_33_DETOKENIZE),
    "SGLang 0.5.23, chat": (ChatRequest, SGLANG_0_5_23_CHAT),
    "SGLang 0.5.23, completion": (CompletionRequest, SGLANG_0_5_23_TEXT),
    "SGLang 0.5.23, tokenize a chat": (TokenizeChat, SGLANG_0_5_23_TOKENIZE_CHAT),
    "SGLang 0.5.23, tokenize": (TokenizeText, SGLANG_0_5_23_TOKENIZE),
    "SGLang 0.5.23, detokenize": (Detokenize, SGLANG_0_5_23_DETOKENIZE),
    "Aphrodite, chat": (ChatRequest, APHRODITE_CHAT),
    "llama.cpp, chat": (ChatRequest, LLAMA_CPP_CHAT),
    "llama.cpp, completion": (CompletionRequest, LLAMA_CPP_TEXT),
}


def declared(model: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


@pytest.mark.parametrize("name", LISTS)
def test_a_known_field_is_declared_refused_or_a_hint(name: str) -> None:
    model, fields = LISTS[name]
    decided = declared(model)
    if model.model_config["extra"] == "allow":  # where others are looked at
        decided |= UNSUPPORTED.keys() | HINTS
    assert set(fields.split()) <= decided


def test_no_field_is_two_things() -> None:
    served = declared(ChatRequest) & declared(CompletionRequest)
    assert not served & UNSUPPORTED.keys()
    assert not HINTS & (UNSUPPORTED.keys() | declared(ChatRequest) | declared(CompletionRequest))


@pytest.mark.parametrize("name", PARTS)
def test_a_known_field_within_another_is_declared_or_a_hint(name: str) -> None:
    model, fields = PARTS[name]
    assert set(fields.split()) == declared(model) | HINTS_WITHIN.get(name, set())


def test_tgis_parameters_are_ours_and_the_samplers() -> None:
    assert declared(Parameters) == set(TGI_3_PARAMETERS.split()) | declared(SamplerFields)
