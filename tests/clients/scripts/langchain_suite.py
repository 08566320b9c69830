"""LangChain's own suite for chat models, run on `ChatOpenAI` before our server: what became of each of its tests.

Run as a script it starts pytest on itself. Its unit tests are left out: they ask no server anything.
"""

import contextlib
import json
import os
import sys

import pytest
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

job = json.loads(sys.argv[1])
SERVER = {"base_url": job["url"] + "/v1", "api_key": "unused", "model": job["model"]}
# None of this repository's settings. One event loop, as langchain-openai shares its connections between models.
LOOP = ("-oasyncio_mode=auto", "-oasyncio_default_test_loop_scope=session")
OPTIONS = ("--noconftest", f"-c{os.devnull}", "-pno:cacheprovider", "--capture=no", "--showlocals", *LOOP)


class TestServer(ChatModelIntegrationTests):
    """What is not declared here, such as images, sound and JSON mode, the suite takes to be missing."""

    chat_model_class = ChatOpenAI
    has_tool_calling = has_tool_choice = has_structured_output = False
    supports_model_override = False  # a server has one model

    @property
    def chat_model_params(self) -> dict:
        return {**SERVER, "max_tokens": 16, "temperature": 0, "max_retries": 0, "stream_usage": True}


class Outcomes:
    """A plugin of pytest that keeps each test's outcome; of one that did not pass, with the reason."""

    def __init__(self) -> None:
        self.seen: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("::")[2]
        if report.skipped:
            self.seen[name] = report.longrepr[2]
        elif report.failed or report.when == "call":
            self.seen[name] = report.longreprtext or report.outcome


if __name__ == "__main__":
    outcomes = Outcomes()
    with contextlib.redirect_stdout(sys.stderr):
        pytest.main([__file__, *OPTIONS], plugins=[outcomes])
    print(json.dumps(outcomes.seen))
