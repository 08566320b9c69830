"""Anthropic's SDK against the real server: only its base_url is changed."""

from typing import Any

import pytest

from gateway.routes.anthropic.schemas import CountRequest, MessagesRequest
from gateway.routes.anthropic.unsupported import HINTS, UNSUPPORTED
from tests.clients.environments import run_script
from tests.clients.test_clients import GOLDEN, KEY, MODEL, TEXT, guarded
from tests.servers import Server

pytestmark = pytest.mark.slow

__all__ = ["guarded"]  # a fixture

TOKENS = len(GOLDEN["greedy_ids"])
WHOLE = {"text": TEXT, "stop_reason": "end_turn", "output": TOKENS}
STOP = " Paris"
EVENTS = "message_start content_block_start content_block_delta content_block_stop message_delta message_stop"


@pytest.fixture(scope="module")
def seen(smollm2: Server) -> dict[str, Any]:
    job = {"url": smollm2.url, "user": GOLDEN["user"], "model": MODEL, "stop": STOP, "begin": TEXT.partition(STOP)[0]}
    return run_script("anthropic", "anthropic_sdk", **job)


def test_messages_are_the_models_text_whole_and_streamed(seen: dict[str, Any]) -> None:
    assert seen["whole"] == seen["beta"] == WHOLE
    assert seen["streamed"] == {**WHOLE, "joined": TEXT}
    assert seen["async"] == [WHOLE] * 4
    assert " ".join(seen["events"]) == EVENTS


def test_a_stop_sequence_ends_a_message(seen: dict[str, Any]) -> None:
    before = TEXT.partition(STOP)[0]
    stopped = seen["stopped"]
    assert (stopped["text"], stopped["stop_reason"], stopped["sequence"]) == (before, "stop_sequence", STOP)


def test_an_answer_goes_on_where_the_last_message_ends(seen: dict[str, Any]) -> None:
    assert seen["prefilled"]["text"].startswith(STOP)


def test_tools_are_called_and_their_results_read(seen: dict[str, Any]) -> None:
    whole, streamed = seen["called"]["whole"], seen["called"]["streamed"]
    assert (whole["name"], whole["stop_reason"]) == ("get_weather", "tool_use")
    for given in (whole["input"], streamed["input"], seen["parsed"]):
        assert set(given) == {"city", "days"} and given["city"] in ("Paris", "Rome") and isinstance(given["days"], int)
    assert streamed["last"] == streamed["input"] and streamed["snapshots"] > 1
    assert seen["called"]["after"] > 0
    assert seen["run"] == ["get_time"]


def test_models_are_listed(seen: dict[str, Any]) -> None:
    assert (seen["models"], seen["model"]) == ([MODEL], MODEL)


def test_tokens_are_counted_before_they_are_sent(seen: dict[str, Any]) -> None:
    counted, read = seen["counted"]
    assert counted == read > 0


def test_the_sdk_raises_the_right_exception_for_each_failure(guarded: Server) -> None:
    seen = run_script("anthropic", "anthropic_errors", url=guarded.url, key=KEY, engine=guarded.engine_pid())
    invalid = {"class": "BadRequestError", "type": "invalid_request_error", "status": 400, "id": True}
    assert seen["bearer"] == {"class": None}
    assert seen["wrong_key"].items() >= {"class": "AuthenticationError", "type": "authentication_error"}.items()
    named = {**invalid, "message": "stop_sequences.0: must not be empty"}
    assert seen["wrong_value"].items() >= named.items()
    assert seen["wrong_value_in_a_stream"].items() >= named.items()
    assert seen["too_long"].items() >= invalid.items() and "context limit" in seen["too_long"]["message"]
    assert seen["unknown_model"].items() >= {"class": "NotFoundError", "type": "not_found_error"}.items()
    assert seen["overload"].items() >= {"class": "RateLimitError", "type": "rate_limit_error", "status": 429}.items()
    assert 1 <= int(seen["overload"]["retry_after"]) <= 60
    assert seen["engine_death"]["type"] == "overloaded_error" and seen["engine_death"]["id"]


def test_every_parameter_of_the_sdk_is_declared_refused_or_a_hint() -> None:
    seen = run_script("anthropic", "anthropic_parameters")
    for model, names in ((MessagesRequest, seen["create"]), (CountRequest, seen["count_tokens"])):
        declared = {field.alias or name for name, field in model.model_fields.items()}
        assert set(names) <= declared | UNSUPPORTED.keys() | HINTS
