"""Fields of `/v1/responses` that are refused or ignored, besides those of `gateway/routes/openai/unsupported.py`."""

from typing import Any

# By name, the values that ask for nothing and so are accepted, besides `null`.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "conversation": (),
    "prompt": (),  # a template that OpenAI keeps
    "context_management": ([],),
    "personality": (),  # of `/v1/responses/input_tokens`
    # of vLLM
    "previous_input_messages": ([],),
    "previous_response": (),
    "enable_response_messages": (False,),
    # of chats
    "messages": (),
    "max_tokens": (),
    "max_completion_tokens": (),
    "n": (1,),
    "logprobs": (False,),
    "response_format": ({"type": "text"},),
    "reasoning_effort": (),
    "prompt_logprobs": (),
    "use_beam_search": (False,),
    "return_token_ids": (False,),
    "echo": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "separate_reasoning": (True,),
    "stream_reasoning": (True,),
}
OUR_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "logprobs": "include with message.output_text.logprobs",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "previous_response": "previous_response_id",
}
# They change no answer: they bound or tune what is not served (calls of OpenAI's own tools, images, background), or
# concern bookkeeping.
HINTS = frozenset({"max_tool_calls", "background_options", "image", "access_programs"})
HINTS_WITHIN = {
    "stream_options": {"include_obfuscation"},
    "text": {"verbosity"},
    "reasoning": {"summary", "generate_summary", "context", "mode"},
}
INCLUDED = ("message.output_text.logprobs", "reasoning.encrypted_content")
# They concern tools and inputs that are refused, so there is nothing of theirs to include.
NOTHING_TO_INCLUDE = (
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
