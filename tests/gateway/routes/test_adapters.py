"""Requests that name an adapter: `adapter_id` on TGI's routes, `model` on `/v1`."""

import logging
from typing import Any

import pytest

from tests.engine_mock import continuation
from tests.gateway.fixtures import ServedApp, events, serve

ADAPTERS = ("sql=org/sql@v1", "org/code")
ALL = ["", "sql", "org/code"]
PATHS = {"": "", "sql": "org/sql@v1", "org/code": "org/code"}
CHAT = {"messages": [{"role": "user", "content": "lo"}], "max_tokens": 5}
RUNTIME = {"allow_runtime_lora_updating": True}


def asked(app: ServedApp) -> str:
    """The adapter of the last request that reached the engine."""
    return app.engine.requests[-1].adapter


def expected(app: ServedApp, name: str) -> str:
    """The text of five tokens that the mock answers to the last prompt, with the adapter `name`."""
    model = app.gateway.text_loader.current
    assert model is not None
    ids = continuation(list(app.engine.requests[-1].prompt), 5, PATHS[name])
    return model.tokenizer.decode(ids, skip_special_tokens=True)


async def generated(app: ServedApp, path: str, adapter: str | None) -> str:
    parameters = {"max_new_tokens": 5, "adapter_id": adapter, "return_full_text": False}
    if path == "/vertex":
        answer = await app.post(path, instances=[{"inputs": "lo", "parameters": parameters}])
        return answer.json()["predictions"][0]
    answer = await app.post(path, inputs="lo", parameters=parameters)
    if path == "/generate_stream":
        return events(answer)[-1]["generated_text"]
    fields = answer.json()
    return (fields[0] if isinstance(fields, list) else fields)["generated_text"]


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/", "/invocations", "/vertex"])
async def test_adapter_id_chooses_who_answers_on_every_route_of_tgi(path: str) -> None:
    async with serve([], adapters=ADAPTERS) as app:
        for name in ("sql", "org/code"):
            text = await generated(app, path, name)
            assert asked(app) == name
            assert text == expected(app, name)
        for none in (None, ""):
            assert await generated(app, path, none) == expected(app, "")
            assert asked(app) == ""


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/", "/invocations"])
async def test_an_adapter_id_that_is_not_served_is_422_and_lists_those_that_are(path: str) -> None:
    async with serve(adapters=ADAPTERS) as app:
        answer = await app.post(path, inputs="lo", parameters={"adapter_id": "other"})
        assert answer.status_code == 422
        message = "`adapter_id` is not one of this server's adapters: sql, org/code. Given: other"
        assert answer.json() == {"error": f"Input validation error: {message}", "error_type": "validation"}
        assert app.engine.requests == []
    async with serve(adapters=()) as app:
        answer = await app.post(path, inputs="lo", parameters={"adapter_id": "x" * 1000})
        assert "none is loaded" in answer.json()["error"] and "xxx" not in answer.json()["error"]


async def test_every_copy_of_best_of_has_the_adapter() -> None:
    async with serve(adapters=ADAPTERS) as app:
        parameters = {"adapter_id": "sql", "best_of": 2, "do_sample": True}
        assert (await app.post("/generate", inputs="lo", parameters=parameters)).status_code == 200
        assert [each.adapter for each in app.engine.requests] == ["sql", "sql"]


@pytest.mark.parametrize("name", ["sql", "org/code"])
async def test_an_adapters_name_as_model_chooses_it_and_answers_carry_it(name: str) -> None:
    async with serve([], adapters=ADAPTERS) as app:
        chat = (await app.post("/v1/chat/completions", {**CHAT, "model": name})).json()
        assert (chat["model"], asked(app)) == (name, name)
        assert chat["choices"][0]["message"]["content"] == expected(app, name)
        text = (await app.post("/v1/completions", prompt="lo", max_tokens=5, model=name, n=2)).json()
        assert (text["model"], text["choices"][1]["text"]) == (name, expected(app, name))
        stream = events(await app.post("/v1/chat/completions", {**CHAT, "model": name, "stream": True}))
        assert {chunk["model"] for chunk in stream[:-1]} == {name}
        batch = await app.post("/v1/chat/completions/batch", {"model": name, "messages": [CHAT["messages"]] * 2})
        assert (batch.json()["model"], asked(app)) == (name, name)
        predicted = await app.post("/vertex", instances=[{**CHAT, "model": name}])
        assert (predicted.json()["predictions"], asked(app)) == ([expected(app, name)], name)
        invoked = await app.post("/invocations", {**CHAT, "model": name})
        assert (invoked.json()["model"], asked(app)) == (name, name)


async def test_the_models_own_names_mean_no_adapter() -> None:
    async with serve([], adapters=ADAPTERS) as app:
        for name in (None, "", "tgi", "mock/model"):
            answer = (await app.post("/v1/chat/completions", {**CHAT, "model": name})).json()
            assert (answer["model"], asked(app)) == ("mock/model", "")
            assert answer["choices"][0]["message"]["content"] == expected(app, "")


async def test_the_fingerprint_differs_by_the_adapter_and_stays_the_models_without_one() -> None:
    async def prints(app: ServedApp) -> list[str]:
        return [
            (await app.post("/v1/completions", prompt="lo", model=name)).json()["system_fingerprint"] for name in ALL
        ]

    async with serve(adapters=ADAPTERS) as app, serve() as plain:
        base, *adapted = await prints(app)
        assert len({base, *adapted}) == 3
        assert (await plain.post("/v1/completions", prompt="lo")).json()["system_fingerprint"] == base


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"prompt": "lo"}),
        ("/tokenize", {"prompt": "lo"}),
        ("/tokenize", CHAT),
        ("/detokenize", {"tokens": [5]}),
    ],
)
async def test_routes_that_look_at_model_take_an_adapters_name_and_no_other(path: str, body: dict[str, Any]) -> None:
    async with serve(adapters=ADAPTERS) as app:
        assert (await app.post(path, {**body, "model": "sql"})).status_code == 200
        refused = await app.post(path, {**body, "model": "other"})
        assert refused.status_code == 404
        error = refused.json()["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        names = "this server serves `mock/model` and its adapters sql, org/code"
        assert error["message"] == f"the model `other` does not exist; {names}"


async def test_adapters_have_cards_behind_the_models() -> None:
    async with serve(adapters=ADAPTERS, served_model_name=("mine", "old")) as app:
        listed = (await app.http.get("/v1/models")).json()["data"]
        shown = [(card["id"], card["root"], card["parent"]) for card in listed]
        assert shown == [
            ("mine", "mock/model", None),
            ("old", "mock/model", None),
            ("sql", "org/sql@v1", "mine"),
            ("org/code", "org/code", "mine"),
        ]
        assert {card["max_model_len"] for card in listed} == {64}
        for card in listed:
            assert (await app.http.get(f"/v1/models/{card['id']}")).json() == card
        assert (await app.http.get("/v1/models/other")).status_code == 404


async def test_an_adapter_that_another_process_has_just_loaded_is_found_by_asking_the_engine() -> None:
    async with serve(adapters=ADAPTERS, **RUNTIME) as app:
        for number, (path, body) in enumerate(
            [
                ("/v1/completions", {"prompt": "lo", "model": "new0"}),
                ("/generate", {"inputs": "lo", "parameters": {"adapter_id": "new1"}}),
            ]
        ):
            app.engine.mock.load_adapter(f"new{number}", "org/new")
            assert f"new{number}" not in app.engine.adapters.served
            assert (await app.post(path, body)).status_code == 200
            assert asked(app) == f"new{number}"
        app.engine.mock.load_adapter("new2", "org/new")
        assert "new2" in [card["id"] for card in (await app.http.get("/v1/models")).json()["data"]]
        app.engine.mock.load_adapter("new3", "org/new")
        assert (await app.http.get("/v1/models/new3")).status_code == 200
        asks = app.engine.adapters.refreshes
        await app.post("/v1/completions", prompt="lo", model="new0")
        assert app.engine.adapters.refreshes == asks, "a name that is known was asked for"


async def test_without_loading_at_run_time_the_engine_is_never_asked() -> None:
    async with serve(adapters=ADAPTERS) as app:
        await app.post("/v1/completions", prompt="lo", model="other")
        await app.post("/generate", inputs="lo", parameters={"adapter_id": "other"})
        await app.http.get("/v1/models")
        assert app.engine.adapters.refreshes == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_an_adapter_that_is_unloaded_before_the_engine_gets_the_request_is_refused_as_any_other_time(
    stream: bool,
) -> None:
    async with serve(adapters=ADAPTERS) as app:
        app.engine.mock.unload_adapter("sql")  # as another HTTP process does: this one has not been told
        answer = await app.post("/v1/completions", prompt="lo", model="sql", stream=stream)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert error["message"] == "no adapter is called 'sql'"
        answer = await app.post("/generate", inputs="lo", parameters={"adapter_id": "sql"})
        assert answer.status_code == 422 and "no adapter is called 'sql'" in answer.json()["error"]


async def test_the_access_log_names_the_adapter(caplog: pytest.LogCaptureFixture) -> None:
    async with serve(adapters=ADAPTERS) as app:
        with caplog.at_level(logging.INFO, "gateway.access"):
            await app.post("/v1/completions", prompt="lo", model="sql")
            await app.post("/v1/completions", prompt="lo")
    spans = [record.__dict__["fields"]["span"] for record in caplog.records if record.name == "gateway.access"]
    assert [span.get("adapter") for span in spans] == ["sql", None]
