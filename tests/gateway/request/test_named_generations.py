"""Generations that clients have named: seen by several HTTP processes, told apart by caller, forgotten at their end."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.request.named_generations import FOLDER, LOOK_SECONDS, NamedGenerations


def output(text: str) -> Any:
    return SimpleNamespace(text=text)


async def settle() -> None:
    await asyncio.sleep(3 * LOOK_SECONDS)


async def counted() -> Any:
    for number in range(1000):
        yield number
        await asyncio.sleep(LOOK_SECONDS / 10)


async def test_another_process_sees_a_text_and_ends_its_generation(tmp_path: Path) -> None:
    here, there = NamedGenerations(tmp_path), NamedGenerations(tmp_path)
    growing = output("hé")
    async with here.running(1, "a") as generation:
        await settle()
        assert there.text(1, "a") == ""
        generation.output = growing
        await settle()
        assert there.text(1, "a") == "hé"
        growing.text = "héllo\r\n"
        await settle()
        assert there.text(1, "a") == "héllo\r\n"
        assert (there.text(2, "a"), there.text(1, "b"), there.end(2, "a")) == ("", "", False)
        numbers = generation.until_ended(counted())
        assert await anext(numbers) == 0
        assert there.end(1, "a")
        assert len([number async for number in numbers]) < 100
    assert not [*(tmp_path / FOLDER).iterdir()]
    assert (there.text(1, "a"), there.end(1, "a")) == ("", False)


async def test_of_several_generations_of_one_name_the_last_shows_and_all_end(tmp_path: Path) -> None:
    here, there = NamedGenerations(tmp_path), NamedGenerations(tmp_path)
    async with here.running(0, "a") as first, here.running(0, "a") as second:
        first.output, second.output = output("first"), output("second")
        await settle()
        assert here.text(0, "a") == there.text(0, "a") == "second"
        assert there.end(0, "a")
        for generation in (first, second):
            assert len([number async for number in generation.until_ended(counted())]) < 100


async def test_a_name_that_is_no_name_of_a_file_is_a_name(tmp_path: Path) -> None:
    here, there = NamedGenerations(tmp_path), NamedGenerations(tmp_path)
    for name in ("../../etc/passwd", "\x00", "*", "🙂" * 128):
        async with here.running(0, name) as generation:
            generation.output = output("text")
            await settle()
            assert there.text(0, name) == "text"


async def test_ending_waits_for_nothing() -> None:
    async def never() -> Any:
        await asyncio.Event().wait()
        yield 0

    names = NamedGenerations()
    async with names.running(0, "a") as generation:
        reading = asyncio.create_task(anext(generation.until_ended(never()), None))
        await asyncio.sleep(0)
        assert names.end(0, "a")
        assert await asyncio.wait_for(reading, 10) is None


async def test_one_that_is_ended_before_it_has_begun_gives_nothing() -> None:
    names = NamedGenerations()
    async with names.running(0, "a") as generation:
        assert names.end(0, "a")
        assert [number async for number in generation.until_ended(counted())] == []


async def test_a_directory_that_cannot_be_written_keeps_a_generation_to_its_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here = NamedGenerations(tmp_path)
    (tmp_path / FOLDER).rmdir()
    async with here.running(0, "a") as generation:
        generation.output = output("text")
        await settle()
        assert here.text(0, "a") == "text"
    assert "a named generation is not shared with other HTTP processes" in caplog.text
