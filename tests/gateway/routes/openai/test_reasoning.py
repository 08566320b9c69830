"""Reasoning over `/v1/chat/completions`: told apart from the answer, counted, bounded and switched off."""

from typing import Any

import pytest

from gateway.routes.openai.responses import ChatCompletion
from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.fixtures import events, serve
from tests.gateway.routes.openai.test_chat import USER, deltas
from tests.gateway.routes.openai.tool_chats import HERMES, PARIS, PATH, WEATHER, calls_of, joined, script
from tests.gateway.toys import byte_level

THINKING = HERMES.replace(
    "<|im_start|>assistant\n{% endif %}",
    "<|im_start|>assistant\n{% if opens %}[THINK]\n{% elif enable_thinking is false %}"
    "[THINK]\n\n[/THINK]\n\n{% endif %}{% endif %}",
)
THOUGHT = "[THINK]\nhe he\n[/THINK]\n\nhello world"
BEGUN = THOUGHT.removeprefix("[THINK]\n")
OPENED = {"chat_template_kwargs": {"opens": True}}


def ids(text: str) -> list[int]:
    return list(byte_level().encode(text, add_special_tokens=False).ids)


def serving(answer: str, **options: Any) -> Any:
    return serve(script(answer), template=THINKING, max_total_tokens=1500, **options)


async def answered(answer: str, **fields: Any) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """The choice, the deltas of its stream, and the usage of a scripted answer."""
    async with serving(answer) as app:
        body = {"messages": USER, **fields}
        whole = await app.post(PATH, body)
        assert whole.status_code == 200, whole.text
        ChatCompletion.model_validate(whole.json(), strict=True)  # as documented
        stream = events(await app.post(PATH, {**body, "stream": True, "stream_options": {"include_usage": True}}))
        assert stream[-2]["usage"] == whole.json()["usage"]
        return whole.json()["choices"][0], deltas(stream), whole.json()["usage"]


async def request_of(answer: str = THOUGHT, **fields: Any) -> pb.Generate:
    async with serving(answer) as app:
        response = await app.post(PATH, {"messages": USER, **fields})
        assert response.status_code == 200, response.text
        return app.engine.requests[0]


@pytest.mark.parametrize(
    ("answer", "fields"),
    [(THOUGHT, {}), (BEGUN, OPENED)],
    ids=["marked", "in the prompt"],
)
async def test_reasoning_stands_beside_the_content_under_both_names(answer: str, fields: dict[str, Any]) -> None:
    choice, stream, usage = await answered(answer, **fields)
    message = choice["message"]
    assert (message["reasoning"], message["reasoning_content"]) == ("he he", "he he")
    assert (message["content"], choice["finish_reason"]) == ("hello world", "stop")
    whole = joined(stream)
    assert whole == {"role": "assistant", "reasoning": "he he", "reasoning_content": "he he", "content": "hello world"}
    assert usage["completion_tokens_details"] == {"reasoning_tokens": len(ids("he he"))}


async def test_an_answer_without_reasoning_counts_none() -> None:
    choice, _, usage = await answered("hello world")
    assert (choice["message"]["content"], choice["message"]["reasoning"]) == ("hello world", None)
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 0}


async def test_calls_follow_reasoning() -> None:
    choice, stream, _ = await answered("[THINK]\nhe he\n[/THINK]\n\n" + PARIS, tools=[WEATHER])
    assert calls_of(choice["message"]) == [("get_weather", {"city": "Paris"})]
    assert (choice["message"]["reasoning"], choice["message"]["content"]) == ("he he", None)
    assert choice["finish_reason"] == "tool_calls"
    assert joined(stream)["reasoning"] == "he he"


async def test_reasoning_that_is_cut_off_leaves_no_content() -> None:
    choice, stream, _ = await answered(THOUGHT, max_tokens=len(ids("[THINK]\nhe")))
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")
    assert choice["message"]["reasoning"] == joined(stream)["reasoning"] == "he"


async def test_reasoning_can_be_left_out_of_the_answer() -> None:
    choice, stream, usage = await answered(THOUGHT, include_reasoning=False)
    assert (choice["message"]["reasoning"], choice["message"]["content"]) == (None, "hello world")
    assert joined(stream) == {"role": "assistant", "content": "hello world"}
    assert usage["completion_tokens_details"]["reasoning_tokens"] > 0


async def test_reasoning_that_is_left_out_does_not_stay_in_the_content() -> None:
    choice, stream, _ = await answered(THOUGHT, include_reasoning=False, separate_reasoning=False)
    assert choice["message"]["content"] == joined(stream)["content"] == "hello world"


async def test_reasoning_can_stay_in_the_content() -> None:
    choice, stream, _ = await answered(THOUGHT, separate_reasoning=False)
    assert choice["message"]["content"] == joined(stream)["content"] == THOUGHT


async def test_reasoning_can_come_in_one_delta() -> None:
    _, stream, _ = await answered(THOUGHT, stream_reasoning=False)
    parts = [each["delta"]["reasoning"] for each in stream if "reasoning" in each["delta"]]
    assert parts == ["he he"]


OFF: list[dict[str, Any]] = [
    {"reasoning_effort": "none"},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"chat_template_kwargs": {"thinking": False}},
    {"reasoning_effort": "none", "chat_template_kwargs": {"thinking": False}},
]


@pytest.mark.parametrize("fields", OFF, ids=str)
async def test_reasoning_can_be_switched_off(fields: dict[str, Any]) -> None:
    async with serving("hello world") as app:
        answer = (await app.post(PATH, {"messages": USER, **fields})).json()["choices"][0]["message"]
        assert (answer["content"], answer["reasoning"]) == ("hello world", None)
        prompt = byte_level().decode(list(app.engine.requests[0].prompt), skip_special_tokens=False)
        assert prompt.endswith("[THINK]\n\n[/THINK]\n\n")


@pytest.mark.parametrize("fields", OFF, ids=str)
@pytest.mark.parametrize("opens", [False, True])
async def test_reasoning_of_a_template_without_a_switch_ends_where_it_begins(
    fields: dict[str, Any], opens: bool
) -> None:
    template = HERMES if not opens else HERMES.replace("assistant\n{% endif %}", "assistant\n[THINK]\n{% endif %}")
    async with serve(
        script("hello world"), template=template, reasoning_parser="mistral", max_total_tokens=1500
    ) as app:
        assert (await app.post(PATH, {"messages": USER, **fields})).status_code == 200
        reasoning = app.engine.requests[0].reasoning
        assert (list(reasoning.begin), list(reasoning.end)) == ([] if opens else ids("[THINK]"), ids("[/THINK]"))
        assert reasoning.HasField("budget") and reasoning.budget == 0


async def test_switching_reasoning_off_asks_nothing_of_a_model_that_has_none() -> None:
    async with serve(script("hello world"), template=HERMES, max_total_tokens=1500) as app:
        for fields in OFF:
            assert (await app.post(PATH, {"messages": USER, **fields})).status_code == 200
        assert not any(request.HasField("reasoning") for request in app.engine.requests)


async def test_reasoning_that_cannot_be_switched_off_is_refused_by_name() -> None:
    async with serving("hello world", reasoning_parser="openai_gptoss") as app:
        error = (await app.post(PATH, messages=USER, reasoning_effort="none")).json()["error"]
        assert error["param"] == "reasoning_effort" and "none is not supported" in error["message"]
        both = {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}
        error = (await app.post(PATH, {"messages": USER, **both})).json()["error"]
        assert error["param"] == "reasoning_effort" and "exclude each other" in error["message"]


@pytest.mark.parametrize("variables", [{"thinking": True}, {"enable_thinking": True}], ids=str)
async def test_either_name_of_the_switch_reaches_the_template(variables: dict[str, Any]) -> None:
    for name in ("thinking", "enable_thinking"):
        template = "{{ " + name + " }}{% for m in messages %}{{ m.content }}{% endfor %}"
        async with serve(template=template) as app:
            assert (await app.post(PATH, messages=USER, chat_template_kwargs=variables)).status_code == 200
            assert byte_level().decode(list(app.engine.requests[0].prompt)).startswith("True")


@pytest.mark.parametrize(
    ("fields", "param", "problem"),
    [
        (
            {"reasoning": {"enabled": False, "effort": "low"}},
            "reasoning",
            "enabled false and reasoning.effort low exclude",
        ),
        (
            {"reasoning": {"enabled": True, "effort": "none"}},
            "reasoning",
            "enabled true and reasoning.effort none exclude",
        ),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, "reasoning_effort", "do not say the same"),
        ({"reasoning": {"enabled": True}, "reasoning_effort": "none"}, "reasoning_effort", "do not say the same"),
        ({"reasoning": {"max_tokens": 4}, "thinking_token_budget": 5}, "thinking_token_budget", "do not say the same"),
        ({"reasoning": {"exclude": True}, "include_reasoning": True}, "include_reasoning", "do not say the same"),
        ({"reasoning": {"max_tokens": -2}}, "reasoning.max_tokens", "must be at least -1"),
        ({"reasoning": "high"}, "reasoning", "must be an object"),
    ],
    ids=str,
)
async def test_an_object_that_contradicts_is_refused(fields: dict[str, Any], param: str, problem: str) -> None:
    async with serve() as app:
        answer = await app.post(PATH, {"messages": USER, **fields})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param
        assert problem in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"reasoning_effort": "high"}, "True True high"),
        ({"reasoning_effort": "minimal"}, "True True minimal"),
        ({"reasoning_effort": "none"}, "False False none"),
        ({"reasoning": {"effort": "low", "exclude": True}}, "True True low"),
        ({"reasoning": {"enabled": True, "max_tokens": -1}}, "True True medium"),
        ({"reasoning": {"enabled": False}}, "False False none"),
        ({"reasoning": {"enabled": True}, "reasoning_effort": "high"}, "True True high"),
        ({"reasoning": {"effort": "high", "summary": "auto"}, "reasoning_effort": "high"}, "True True high"),
        ({"reasoning": {}}, "None None None"),
        ({"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}}, "False False high"),
        ({"chat_template_kwargs": {"reasoning_effort": "high"}}, "None None high"),
        ({}, "None None None"),
    ],
    ids=str,
)
async def test_an_effort_switches_reasoning_on_unless_a_switch_says_otherwise(
    fields: dict[str, Any], shown: str
) -> None:
    names = ("enable_thinking", "thinking", "reasoning_effort")
    template = " ".join(f"{{{{ {name} if {name} is defined else None }}}}" for name in names) + "{{ messages[0].role }}"
    async with serve(template=template) as app:
        assert (await app.post(PATH, {"messages": USER, **fields})).status_code == 200
        assert byte_level().decode(list(app.engine.requests[0].prompt)) == shown + "user"


async def test_a_constraint_waits_for_the_end_of_reasoning() -> None:
    forced = {"tools": [WEATHER], "tool_choice": "required"}
    request = await request_of(**forced)
    assert request.HasField("grammar")
    assert (list(request.reasoning.begin), list(request.reasoning.end)) == (ids("[THINK]"), ids("[/THINK]"))
    assert not request.reasoning.HasField("budget")
    request = await request_of(**forced, **OPENED)
    assert (list(request.reasoning.begin), list(request.reasoning.end)) == ([], ids("[/THINK]"))
    request = await request_of(**forced, reasoning_effort="none")
    assert request.HasField("grammar") and not request.HasField("reasoning")
    assert not (await request_of()).HasField("reasoning")


@pytest.mark.parametrize(
    ("begun", "reasoning", "content"),
    [("he ", None, "hello world"), ("<think>\nhe", "hello world", ""), ("<think>he</think> ", None, "hello world")],
)
async def test_an_answer_that_goes_on_with_a_message_is_reasoning_only_where_that_was(
    begun: str, reasoning: str | None, content: str
) -> None:
    goes_on = {"continue_final_message": True, "add_generation_prompt": False}
    async with serving("hello world", reasoning_parser="deepseek_r1") as app:
        body = {"messages": [*USER, {"role": "assistant", "content": begun}], **goes_on}
        response = await app.post(PATH, {**body, "response_format": {"type": "json_object"}})
        answer = response.json()["choices"][0]["message"]
        assert (answer["reasoning"], answer["content"]) == (reasoning, content)
        [request] = app.engine.requests
        waits = request.HasField("reasoning") and not request.reasoning.begin
        assert waits is (reasoning is not None)  # else the document is what comes next


@pytest.mark.parametrize("field", ["thinking_token_budget", "thinking_budget_tokens", "reasoning_budget_tokens"])
async def test_a_budget_of_reasoning_is_the_engines_to_keep(field: str) -> None:
    request = await request_of(**{field: 7})
    assert request.reasoning.budget == 7 and not request.HasField("grammar")
    assert not (await request_of(**{field: -1})).HasField("reasoning")
    assert not (await request_of(**{field: 7}, reasoning_effort="none")).HasField("reasoning")
