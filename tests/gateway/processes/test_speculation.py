"""Speculation of a whole server: from an option of the launcher to streams, metrics and log lines, over a restart."""

import os
import re
import signal
from pathlib import Path

import httpx
import pytest

from tests.engine_mock import continuation
from tests.gateway.fixtures import events
from tests.gateway.processes.test_launcher import prompt_ids
from tests.gateway.toys import write_model
from tests.processes import PATIENCE, Launcher, running_launcher

pytestmark = pytest.mark.slow

TOKENS = 10  # of an answer: of a step 1, 4, 4 and 1


def ids(server: Launcher) -> list[int]:
    body = {"inputs": "hello", "parameters": {"max_new_tokens": TOKENS}}
    stream = events(httpx.post(server.url + "/generate_stream", json=body, timeout=PATIENCE))
    assert [event["index"] for event in stream] == list(range(1, TOKENS + 1))
    return [event["token"]["id"] for event in stream]


def counters(server: Launcher) -> dict[str, float]:
    """By name without vLLM's prefix; those by position end in it."""
    text = httpx.get(server.url + "/metrics", timeout=PATIENCE).text
    found = re.findall(r'^vllm:spec_decode_num_(\w+)_total{[^}]*?(?:position="(\d)")?} (\S+)$', text, re.MULTILINE)
    return {name + position: float(value) for name, position, value in found}


def test_an_option_of_the_launcher_reaches_streams_metrics_and_log_lines(tmp_path: Path) -> None:
    with running_launcher(write_model(tmp_path), "--speculate=3") as server:
        server.wait_for(200)
        for _ in range(2):  # the second time after a restart of the engine
            assert httpx.get(server.url + "/info", timeout=PATIENCE).json()["speculate"] == 3
            assert ids(server) == continuation(prompt_ids("hello"), TOKENS)
            assert counters(server) == {
                "drafts": 2,
                "draft_tokens": 6,
                "accepted_tokens": 6,
                **{f"accepted_tokens_per_pos{position}": 2 for position in range(3)},
            }
            killed = server.engine_pid()
            os.kill(killed, signal.SIGKILL)
            server.wait_for(503)
            server.wait_for(200)
        skipped = re.findall(
            r"^tgi_request_skipped_tokens_(\w+) (\S+)$",
            httpx.get(server.url + "/metrics", timeout=PATIENCE).text,
            re.MULTILINE,
        )
        assert dict(skipped) == {"count": "2.0", "sum": "12.0"}
    assert len(re.findall("tokens_per_step.{1,4}2.5", server.log.read_text())) == 2
