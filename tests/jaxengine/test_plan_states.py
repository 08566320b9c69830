"""What is planned for models whose layers keep states: how many requests, snapshots and drafts have room."""

import json
from pathlib import Path

import pytest

from jaxengine.capacity.report import facts
from tests.jaxengine.capacity.configurations import LLAMA_8B, QWEN3_5_27B, write
from tests.jaxengine.test_plan import planned


def test_states_take_a_third_of_what_weights_leave(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """48 layers keep 48 heads of 128 x 128 states in f32, and 3 tokens of 10,240 channels in bf16, of each request."""
    model = write(tmp_path, QWEN3_5_27B)
    each = 48 * (48 * 128 * 128 * 4 + 3 * 10_240 * 2)
    told = facts(planned(model, "--devices", "h200"))
    assert (told["fits"], told["max_batch_size"], told["state_snapshots"]) == (True, 160, 80)
    assert told["bytes_of_a_device"]["slots"] == (161 + 80) * each  # and behind half as many prefixes
    assert told["bytes_of_a_page"] == 16 * 16 * 2 * 4 * 256 * 2  # of 16 layers with attention
    halved = facts(planned(model, "--devices", "h200x2", "--num-shard", "2"))
    assert halved["bytes_of_a_device"]["slots"] == (257 + 128) * each // 2
    refused = planned(model, "--devices", "h100", "--max-batch-size", "256")
    assert "the states of 256 requests and of 0 prefixes take 36.85 GiB" in refused.problem
    assert "lower max_batch_size or state_snapshots" in refused.problem
    assert "no room for any" in caplog.text
    alone = facts(planned(model, "--devices", "h200", "--max-batch-size", "1"))
    assert alone["bytes_of_a_device"]["slots"] == (2 + 2) * each  # both that one prompt saves
    caplog.clear()
    none = facts(planned(model, "--devices", "h200", "--state-snapshots", "0"))
    assert "no room" not in caplog.text
    assert none["bytes_of_a_device"]["slots"] == 161 * each


def test_states_leave_room_for_what_drafts(tmp_path: Path) -> None:
    """A draft model of 17 GB beside them, where without one there would be room for 160 requests."""
    model = write(tmp_path / "model", QWEN3_5_27B)
    small = write(tmp_path / "small", LLAMA_8B | {"vocab_size": QWEN3_5_27B["vocab_size"]})
    config = json.dumps({"method": "draft_model", "model": small, "num_speculative_tokens": 3})
    told = facts(planned(model, "--devices", "h200", "--speculative-config", config))
    device = told["bytes_of_a_device"]
    left = device["usable"] - device["weights"] - device["drafter"]
    assert (told["fits"], told["max_batch_size"]) == (True, 128)
    assert 3 * device["slots"] * 129 // (129 + told["state_snapshots"]) < left
