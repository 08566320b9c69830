"""Adapters over the wire: what a client is told, what it may ask for, and how refusals and deaths reach it."""

import asyncio
import signal
from pathlib import Path

import pytest

from gateway.engine.adapters import EngineAdapters
from gateway.engine.interface import EngineUnavailable
from gateway.errors import Kind, RequestError
from tests.engine_mock import continuation
from tests.processes import PATIENCE, ask, collect, connected, running_engine, until

SERVING = ("--max-loras=4", "--lora-adapters=first=org/first")


async def test_a_client_knows_the_adapters_from_the_moment_it_is_ready(tmp_path: Path) -> None:
    with running_engine(tmp_path, *SERVING) as engine:
        async with connected(engine) as client:
            assert {name: each.path for name, each in client.adapters.served.items()} == {"first": "org/first"}
            assert (await collect(client, ask([10], 9, adapter="first")))[0] == continuation([10], 9, "org/first")


async def test_a_change_is_known_to_its_client_at_once_and_to_others_by_themselves(tmp_path: Path) -> None:
    with running_engine(tmp_path, *SERVING) as engine:
        async with connected(engine) as one, connected(engine) as other:
            await one.adapters.load("second", "org/second", in_place=False)
            assert list(one.adapters.served) == ["first", "second"]
            await until(lambda: list(other.adapters.served) == ["first", "second"])
            await other.adapters.load("second", "org/better", in_place=True)
            assert other.adapters.served["second"].path == "org/better"
            await other.adapters.unload("first")
            assert list(other.adapters.served) == ["second"]
            await one.adapters.refresh()
            assert list(one.adapters.served) == ["second"]


async def test_refusals_carry_the_engines_words_and_their_kind(tmp_path: Path) -> None:
    with running_engine(tmp_path, *SERVING) as engine:
        async with connected(engine) as client:
            for name, path, kind, words in (
                ("first", "org/other", Kind.INVALID, "an adapter is called 'first' already"),
                ("new", str(tmp_path), Kind.INVALID, f"{tmp_path}: no adapter_config.json"),
                ("new", "/nowhere", Kind.MODEL_NOT_FOUND, "adapter '/nowhere': no such file or directory"),
            ):
                with pytest.raises(RequestError) as refused:
                    await client.adapters.load(name, path, in_place=False)
                assert (refused.value.kind, refused.value.message) == (kind, words)
            with pytest.raises(RequestError) as unknown:
                await client.adapters.unload("new")
            assert unknown.value.kind is Kind.MODEL_NOT_FOUND


async def test_without_an_engine_every_call_says_so() -> None:
    adapters = EngineAdapters((), lambda: 7)
    for call in (adapters.refresh(), adapters.load("a", "org/a", in_place=False), adapters.unload("a")):
        with pytest.raises(EngineUnavailable) as refused:
            await call
        assert refused.value.retry_after == 7


async def test_an_engine_that_dies_during_a_call_ends_it_as_unavailable(tmp_path: Path) -> None:
    with running_engine(tmp_path, *SERVING) as engine:
        async with connected(engine) as client:
            engine.process.send_signal(signal.SIGSTOP)
            call = asyncio.create_task(client.adapters.refresh())
            await asyncio.sleep(0.1)
            engine.process.kill()
            with pytest.raises(EngineUnavailable):
                await asyncio.wait_for(call, PATIENCE)


async def test_a_hung_engine_ends_a_call_as_unavailable_once_it_is_given_up(tmp_path: Path) -> None:
    with running_engine(tmp_path, *SERVING) as engine:
        async with connected(engine, hang_limit=1.0) as client:
            engine.process.send_signal(signal.SIGSTOP)
            with pytest.raises(EngineUnavailable):
                await asyncio.wait_for(client.adapters.refresh(), PATIENCE)
            engine.process.kill()
