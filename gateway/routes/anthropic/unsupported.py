"""Known fields of the Messages API that are not served: those that are refused, and hints, which are ignored.

As in OpenAI's dialect: a field that changes the answer is never ignored, and names that no client knows are.
"""

from typing import Any

KEPT_THINKING = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}  # as Claude Code writes it

# By name, the values that ask for nothing and so are accepted, besides `null`.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "container": (),
    "mcp_servers": ([],),
    "context_management": ({}, {"edits": []}, KEPT_THINKING),
    "compaction": (),
    "thread": (),
    "kv_transfer_params": ({},),  # of vLLM
}

# Fields that are ignored, and below those within other fields.
HINTS = frozenset(
    {
        *("cache_control", "metadata", "service_tier", "speed", "inference_geo", "diagnostics", "betas"),
        *("user_profile_id", "workspace_id", "billing_policy", "fallbacks", "fallback_credit_token"),
    }
)
HINTS_WITHIN = {
    "tools": {"cache_control", "eager_input_streaming", "defer_loading", "allowed_callers", "input_examples"},
    "content": {"cache_control", "citations", "caller", "toolset_name"},
    "thinking": {"block_binding"},  # about signatures, of which there are none
    "output_config": {"task_budget"},  # what an agent has left: it bounds no answer
}
