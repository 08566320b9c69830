"""No field that Anthropic's SDK or vLLM know is ignored unless it is in our list of hints."""

import re

import pytest
from pydantic import BaseModel

from gateway.routes.anthropic.content import Block
from gateway.routes.anthropic.schemas import CountRequest, MessagesRequest, OutputConfig, Thinking, Tool, ToolChoice
from gateway.routes.anthropic.unsupported import HINTS, HINTS_WITHIN, UNSUPPORTED
from tests.processes import ROOT

# Of both `messages` and `beta.messages`; sampling left the SDK's own parameters, though not the API.
ANTHROPIC_2_14 = """
    betas billing_policy cache_control compaction container context_management diagnostics fallback_credit_token
    fallbacks inference_geo max_tokens mcp_servers messages metadata model output_config output_format service_tier
    speed stop_sequences stream system temperature thinking thread tool_choice tools top_k top_p user_profile_id
    workspace_id
"""
ANTHROPIC_2_14_COUNT = """
    betas cache_control compaction context_management mcp_servers messages model output_config output_format speed
    system thinking tool_choice tools user_profile_id workspace_id
"""
VLLM_0_33 = """
    chat_template_kwargs kv_transfer_params max_tokens messages metadata model output_config stop_sequences stream
    system temperature tool_choice tools top_k top_p
"""
PARTS: dict[str, tuple[type[BaseModel], str]] = {
    "tools": (
        Tool,
        "allowed_callers cache_control defer_loading description eager_input_streaming input_examples input_schema "
        "name strict type",
    ),
    "tool_choice": (ToolChoice, "disable_parallel_tool_use name type"),
    "thinking": (Thinking, "block_binding budget_tokens display type"),
    "output_config": (OutputConfig, "effort format task_budget"),
    "content": (  # of the blocks that are served
        Block,
        "cache_control caller citations content data id input is_error name signature source text thinking "
        "tool_use_id toolset_name transformations type",
    ),
}


def declared(model: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


@pytest.mark.parametrize(
    ("model", "fields"),
    [(MessagesRequest, ANTHROPIC_2_14), (CountRequest, ANTHROPIC_2_14_COUNT), (MessagesRequest, VLLM_0_33)],
)
def test_a_known_field_is_declared_refused_or_a_hint(model: type[BaseModel], fields: str) -> None:
    assert set(fields.split()) <= declared(model) | UNSUPPORTED.keys() | HINTS


def test_the_page_has_every_field() -> None:
    section = (ROOT / "docs/clients.md").read_text().split("## Anthropic's Messages API")[1].split("\n## ")[0]
    rows = [row for row in section.split("Every field that")[0].splitlines() if row.startswith("| ")]
    told = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    within = set().union(*HINTS_WITHIN.values())
    assert set(told) == declared(MessagesRequest) | HINTS | within | UNSUPPORTED.keys()


def test_no_field_is_two_things() -> None:
    assert not declared(MessagesRequest) & (UNSUPPORTED.keys() | HINTS)
    assert not UNSUPPORTED.keys() & HINTS


@pytest.mark.parametrize("name", PARTS)
def test_a_known_field_within_another_is_declared_or_a_hint(name: str) -> None:
    model, fields = PARTS[name]
    assert set(fields.split()) == declared(model) | HINTS_WITHIN.get(name, set())
