"""Responses that are stored: gone on from, shown, listed, deleted, each by its caller alone."""

import threading
from typing import Any

import pytest

from gateway.routes.openai_responses import create as create_module
from gateway.routes.openai_responses import routes as routes_module
from gateway.routes.openai_responses.answers import Deleted, ItemList
from gateway.routes.openai_responses.translation import chat_of
from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.fixtures import ServedApp
from tests.gateway.routes.openai.test_reasoning import THINKING, THOUGHT
from tests.gateway.routes.openai.tool_chats import PARIS
from tests.gateway.routes.openai_responses.scripted import PATH, WEATHER, create, prompt_of, serving, stream

KEYS = "one\ntwo"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def found(app: ServedApp, path: str, status: int = 200) -> Any:
    answer = await app.http.get(PATH + path)
    assert answer.status_code == status, answer.text
    return answer.json()


async def listed(app: ServedApp, id: str, query: str = "") -> tuple[list[str], bool]:
    """The texts of the items on a page, and whether there are more."""
    page = await found(app, f"/{id}/input_items?{query}")
    ItemList.model_validate(page, strict=True)
    texts = [item["content"][0]["text"] for item in page["data"]]
    assert [page["first_id"], page["last_id"]] == [item["id"] for item in (page["data"][0], page["data"][-1])]
    return texts, page["has_more"]


async def test_a_response_is_shown_as_it_was_answered() -> None:
    async with serving(THOUGHT) as app:
        assert await found(app, f"/{(whole := await create(app))['id']}") == whole
        last = (await stream(app))[-1]["response"]
        assert await found(app, f"/{last['id']}") == last


async def test_a_chain_goes_on_where_the_answer_before_ended() -> None:
    async with serving() as app:
        first = await create(app, instructions="be")
        second = await create(app, input="he", previous_response_id=first["id"])
        third = (await stream(app, input="or", previous_response_id=second["id"]))[-1]["response"]
        assert third["previous_response_id"] == second["id"]
        begun = prompt_of(app, 1).removesuffix("<|im_start|>assistant\n")
        assert begun.count("hello world") == 1 and "be" not in begun, "instructions hold for one response"
        assert prompt_of(app, 2).startswith(prompt_of(app, 1) + "hello world")
        assert await listed(app, third["id"], "order=asc") == (["lo", "hello world", "he", "hello world", "or"], False)


async def test_the_tokens_of_a_chain_begin_with_those_before() -> None:
    async with serving() as app:
        first = await create(app)
        await create(app, input="he", previous_response_id=first["id"])
        before, after = (list(request.prompt) for request in app.engine.requests)
    assert after[: len(before)] == before


async def test_reasoning_and_calls_of_a_chain_are_in_its_prompt() -> None:
    template = THINKING.replace("{{ m.content }}", "{{ m.reasoning_content or '' }}{{ m.content }}")
    async with serving("[THINK]\nhe he\n[/THINK]\n\n" + PARIS, template=template) as app:
        first = await create(app, tools=[WEATHER])
        call = first["output"][-1]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "22 C"}
        await create(app, input=[result], previous_response_id=first["id"], tools=[WEATHER])
        added = prompt_of(app, 1).removeprefix(prompt_of(app, 0))
    assert added.startswith('he he<tool_call>{"name": "get_weather"') and "tool\n22 C" in added


async def test_a_chain_outlives_what_it_began_with() -> None:
    async with serving() as app:
        first = await create(app)
        second = await create(app, input="he", previous_response_id=first["id"])
        await app.http.delete(f"{PATH}/{first['id']}")
        await create(app, input="or", previous_response_id=second["id"])
        assert "lo<" in prompt_of(app)


async def test_stored_items_can_be_referred_to() -> None:
    async with serving() as app:
        [said] = (await create(app))["output"]
        references = [{"type": "item_reference", "id": said["id"]}, {"id": said["id"]}]
        await create(app, input=[{"role": "user", "content": "lo"}, *references])
        assert prompt_of(app).count("hello world") == 2
        unknown = await app.post(PATH, {"input": [{"type": "item_reference", "id": "msg_1"}]})
        assert unknown.status_code == 404 and unknown.json()["error"]["param"] == "input[0].id"


async def test_a_response_without_store_is_forgotten() -> None:
    async with serving() as app:
        response = await create(app, store=False)
        assert response["store"] is False
        await found(app, f"/{response['id']}", 404)


async def test_a_server_that_keeps_none_says_so() -> None:
    async with serving(max_stored_responses=0) as app:
        response = await create(app)
        assert response["store"] is False
        assert "--max-stored-responses 0" in (await found(app, f"/{response['id']}", 404))["error"]["message"]


async def test_an_answer_that_is_too_large_to_be_kept_says_so() -> None:
    async with serving(max_stored_response_bytes=100) as app:
        response = await create(app)
        assert response["store"] is False and response["status"] == "completed"
        assert (await stream(app))[-1]["response"]["store"] is False


async def test_the_oldest_are_forgotten_and_the_refusal_says_how_many_are_kept() -> None:
    async with serving(max_stored_responses=2) as app:
        ids = [(await create(app))["id"] for _ in range(3)]
        assert "keeps the last 2 responses" in (await found(app, f"/{ids[0]}", 404))["error"]["message"]
        await found(app, f"/{ids[1]}")


async def test_an_unknown_response_is_not_gone_on_from() -> None:
    async with serving() as app:
        answer = await app.post(PATH, {"input": "lo", "previous_response_id": "resp_1"})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "previous_response_not_found")
        assert error["param"] == "previous_response_id" and "Previous response with id 'resp_1' not found" in str(error)


async def test_a_caller_cannot_see_or_go_on_from_anothers_response() -> None:
    async with serving(api_key=KEYS) as app:
        one, other = bearer("one"), bearer("two")
        made = (await app.http.post(PATH, json={"input": "lo"}, headers=one)).json()
        at, said = f"{PATH}/{made['id']}", made["output"][0]["id"]
        bodies = [{"input": "lo", "previous_response_id": made["id"]}, {"input": [{"id": said}]}]
        answers = [await app.http.get(path, headers=other) for path in (at, f"{at}/input_items")]
        answers += [await app.http.delete(at, headers=other), await app.http.post(f"{at}/cancel", headers=other)]
        answers += [await app.http.post(PATH, json=body, headers=other) for body in bodies]
        assert [each.status_code for each in answers] == [404, 404, 404, 404, 400, 404]
        own = [await app.http.get(at, headers=one), *[await app.http.post(PATH, json=b, headers=one) for b in bodies]]
        assert [each.status_code for each in own] == [200] * 3
        without = [await app.http.get(at), await app.http.delete(at), await app.http.post(f"{at}/cancel")]
        assert {each.status_code for each in without} == {401}


async def test_a_deleted_response_is_gone() -> None:
    async with serving() as app:
        id = (await create(app))["id"]
        answer = await app.http.delete(f"{PATH}/{id}")
        Deleted.model_validate(answer.json(), strict=True)
        assert answer.json()["id"] == id
        assert (await app.http.delete(f"{PATH}/{id}")).status_code == 404
        await found(app, f"/{id}", 404)


async def test_nothing_can_be_cancelled_as_nothing_runs_in_the_background() -> None:
    async with serving() as app:
        id = (await create(app))["id"]
        answer = await app.http.post(f"{PATH}/{id}/cancel")
        assert answer.status_code == 400 and "background" in answer.json()["error"]["message"]
        assert (await app.http.post(f"{PATH}/resp_1/cancel")).status_code == 404


async def test_the_events_of_a_stored_response_are_not_kept() -> None:
    async with serving() as app:
        id = (await create(app))["id"]
        assert (await found(app, f"/{id}?stream=true", 400))["error"]["param"] == "stream"
        await found(app, f"/{id}?stream=false")


async def test_input_items_are_listed_by_pages() -> None:
    items: list[dict[str, Any]] = [{"role": "user", "content": str(number)} for number in range(5)]
    items[1] = {"role": "assistant", "content": "1"}
    async with serving() as app:
        id = (await create(app, input=items))["id"]
        assert await listed(app, id) == (["4", "3", "2", "1", "0"], False)
        assert await listed(app, id, "order=asc&limit=2") == (["0", "1"], True)
        first = await found(app, f"/{id}/input_items?order=asc&limit=2")
        rest = f"order=asc&limit=3&after={first['last_id']}"
        assert await listed(app, id, rest) == (["2", "3", "4"], False)


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "limit=²", "order=up", "after=msg_1"])
async def test_a_page_that_cannot_be_is_refused_by_name(query: str) -> None:
    async with serving() as app:
        id = (await create(app))["id"]
        error = (await found(app, f"/{id}/input_items?{query}", 400))["error"]
        assert error["param"] == query.partition("=")[0]


async def test_a_count_is_that_of_the_prompt() -> None:
    asked = {"input": "lo", "instructions": "be", "tools": [WEATHER], "reasoning": {"effort": "low"}}
    async with serving() as app:
        first = await create(app)
        for fields in (asked, {**asked, "previous_response_id": first["id"]}):
            usage = (await create(app, **fields))["usage"]
            counted = await app.post(f"{PATH}/input_tokens", {**fields, "model": None})
            assert counted.json() == {"object": "response.input_tokens", "input_tokens": usage["input_tokens"]}
        assert len(app.engine.requests) == 3, "nothing is generated for a count"
        for wrong in ({"input": "lo", "conversation": "a"}, {"input": []}, {"input": "lo", "personality": "friendly"}):
            assert (await app.post(f"{PATH}/input_tokens", wrong)).status_code == 400
        assert (await app.post(f"{PATH}/input_tokens", {"input": "lo", "model": "other"})).status_code == 404


async def test_the_schemas_of_a_count_are_checked_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    checked_in: list[threading.Thread] = []

    def check(body: Any, items: Any) -> Any:
        checked_in.append(threading.current_thread())
        return chat_of(body, items)

    for module in (create_module, routes_module):
        monkeypatch.setattr(module, "chat_of", check, raising=False)
    async with serving() as app:
        counted = await app.post(f"{PATH}/input_tokens", {"input": "lo", "tools": [WEATHER]})
    assert counted.status_code == 200
    assert len(checked_in) == 1 and checked_in[0] is not threading.main_thread()


async def test_the_engine_is_told_the_caller() -> None:
    async with serving(api_key=KEYS) as app:
        await app.http.post(PATH, json={"input": "lo"}, headers=bearer("two"))
        request: pb.Generate = app.engine.requests[0]
        assert request.caller == 1 and request.cache_salt
