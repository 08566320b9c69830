"""The part of LangChain's own suite for chat models that asks for tools and structured output, as `langchain_suite`."""

import contextlib
import json
import sys

import pytest
from langchain_openai import ChatOpenAI
from langchain_suite import OPTIONS, SERVER, Outcomes
from langchain_tests.integration_tests import ChatModelIntegrationTests

# Not the names of this file and its classes, which `-k` looks at too.
ASKING = "test_tool or test_structured or test_json_mode or test_agent or test_unicode or test_bind"
AGAIN = "TestFunctionCalling and test_structured"


class TestStructured(ChatModelIntegrationTests):
    """With LangChain's defaults, by which `with_structured_output` asks for a JSON schema."""

    chat_model_class = ChatOpenAI
    has_tool_calling = has_tool_choice = has_structured_output = supports_json_mode = True

    @property
    def chat_model_params(self) -> dict:
        return {**SERVER, "max_tokens": 300, "temperature": 0, "frequency_penalty": 1.5, "max_retries": 0}


class TestFunctionCalling(TestStructured):
    """Structured output as the arguments of a forced call."""

    @property
    def structured_output_kwargs(self) -> dict:
        return {"method": "function_calling"}


if __name__ == "__main__":
    outcomes = Outcomes()
    with contextlib.redirect_stdout(sys.stderr):
        pytest.main(
            [__file__, *OPTIONS, f"-k({ASKING}) and TestStructured or {AGAIN}"],
            plugins=[outcomes],
        )
    print(json.dumps(outcomes.seen))
