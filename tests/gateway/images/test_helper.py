"""Pictures are decoded in processes that may die: what of that others notice, and what is left of it."""

import asyncio
import errno
import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from gateway.errors import Kind, RequestError
from gateway.images import helper as helper_module
from gateway.images.header import PictureHeader, read_header
from gateway.images.helper import PictureHelper
from tests.gateway.images import toy_helper as toy
from tests.gateway.images.helpers import (
    MAX_PIXELS,
    alive,
    helper_pid,
    no_descriptor_left,
    of_width,
    pillows_pixels,
    pixels,
    toy_helper,
)
from tests.gateway.images.hostile_pictures import noise, png_bomb, saved
from tests.processes import children, until

GOOD = saved(noise(40, 30), "PNG")


async def refusal(helper: PictureHelper, data: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        await pixels(helper, data)
    return caught.value


@pytest.mark.parametrize(
    "width, words",
    [
        (toy.DIES, "damaged"),
        (toy.EATS, "too much memory"),
        (toy.HANGS, "too long"),
        (toy.SPINS, "too long"),
        (toy.FAILS, "cannot be processed"),
        (toy.LIES, "cannot be processed"),
    ],
)
async def test_a_picture_that_ends_its_child_is_refused_and_others_are_not(width: int, words: str) -> None:
    async with toy_helper() as helper:
        bad = asyncio.create_task(refusal(helper, of_width(width)))
        for _ in range(3):
            assert np.array_equal(await pixels(helper, GOOD), pillows_pixels(GOOD))
        error = await bad
        assert error.kind is Kind.INVALID and words in error.message
        assert np.array_equal(await pixels(helper, GOOD), pillows_pixels(GOOD))


async def test_a_child_reaches_no_file_no_socket_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("API_KEY", "secret")
    async with toy_helper() as helper:
        assert (await pixels(helper, of_width(toy.ESCAPES))).shape == (16, toy.ESCAPES, 3)


async def test_a_header_that_lies_about_the_size_is_found_out() -> None:
    bomb = png_bomb(2000, 2000)
    async with toy_helper() as helper:
        for lie in (PictureHeader("PNG", 40, 30), PictureHeader("PNG", 2000, 1999), PictureHeader("GIF", 2000, 2000)):
            with pytest.raises(RequestError, match="decoded"):
                await pixels(helper, bomb, lie)


async def test_patches_are_bfloat16_where_that_is_asked_for() -> None:
    helper = PictureHelper(Path("/"), dtype="bfloat16", program="tests.gateway.images.toy_helper")
    header = read_header(GOOD, MAX_PIXELS)
    found = await helper.patches(GOOD, header, (30, 120))
    await helper.close()
    assert found.dtype.name == "bfloat16"
    assert np.array_equal(found.astype(np.float32), pillows_pixels(GOOD).reshape(30, 120).astype(found.dtype))


async def test_a_killed_child_is_a_refusal_and_a_killed_helper_is_not() -> None:
    async with toy_helper() as helper:
        await pixels(helper, GOOD)
        first = helper_pid(helper)
        hanging = asyncio.create_task(refusal(helper, of_width(toy.HANGS)))
        await until(lambda: children(first))
        os.kill(children(first)[0], signal.SIGKILL)
        assert "damaged" in (await hanging).message
        slow = asyncio.create_task(pixels(helper, of_width(toy.SLOW)))
        await until(lambda: children(first))
        child = children(first)[0]
        os.kill(first, signal.SIGKILL)
        assert (await slow).shape == (16, toy.SLOW, 3)
        assert helper_pid(helper) != first
        await until(lambda: not alive(child) and not Path(f"/proc/{first}").exists())


async def test_a_helper_that_was_killed_while_idle_is_started_again() -> None:
    async with toy_helper() as helper:
        for _ in range(3):
            await pixels(helper, GOOD)
            os.kill(helper_pid(helper), signal.SIGKILL)


@pytest.mark.slow  # 5 s
async def test_a_helper_that_stands_still_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async with toy_helper() as helper:
        await pixels(helper, GOOD)
        stopped = helper_pid(helper)
        os.kill(stopped, signal.SIGSTOP)
        monkeypatch.setattr(helper_module, "PATIENCE", 5)
        assert (await pixels(helper, GOOD)).shape == (30, 40, 3)
        assert not alive(stopped)


async def test_a_helper_that_cannot_start_is_a_503_and_not_tried_at_once_again() -> None:
    helper = PictureHelper(Path("/"), program="tests.gateway.images.no_such_program")
    for _ in range(2):
        error = await refusal(helper, GOOD)
        assert error.kind is Kind.UNAVAILABLE and error.retry_after
    await helper.close()


async def test_without_descriptors_it_is_a_503(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with toy_helper() as helper:
        await pixels(helper, GOOD)
        with monkeypatch.context() as context:
            context.setattr(os, "memfd_create", no_more)
            assert (await refusal(helper, GOOD)).kind is Kind.UNAVAILABLE
        assert (await pixels(helper, GOOD)).shape == (30, 40, 3)


async def test_a_cancelled_request_ends_its_child_and_frees_its_place() -> None:
    async with toy_helper() as helper:
        await pixels(helper, GOOD)
        hanging = [asyncio.create_task(pixels(helper, of_width(toy.HANGS))) for _ in range(helper_module.AT_ONCE)]
        await until(lambda: len(children(helper_pid(helper))) == helper_module.AT_ONCE)
        for each in hanging:
            each.cancel()
        await pixels(helper, GOOD)
        await until(lambda: not children(helper_pid(helper)))


async def test_a_cancelled_request_writes_into_no_file_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    large = saved(noise(1000, 700), "PNG")
    held, written = threading.Event(), threading.Event()
    pwrite = os.pwrite

    def late(descriptor: int, data: bytes, offset: int) -> int:
        written.set()
        assert held.wait(30)
        assert "memfd:picture" in os.readlink(f"/proc/self/fd/{descriptor}")
        return pwrite(descriptor, data, offset)

    async with toy_helper() as helper:
        await pixels(helper, GOOD)
        with no_descriptor_left(), monkeypatch.context() as context:
            context.setattr(os, "pwrite", late)
            gone = asyncio.create_task(pixels(helper, large))
            await until(written.is_set)
            for _ in range(2):
                gone.cancel()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            assert not gone.done()  # while its descriptor is in use
            held.set()
            with pytest.raises(asyncio.CancelledError):
                await gone
        assert np.array_equal(await pixels(helper, large), pillows_pixels(large))


async def test_no_more_than_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper_module, "MAX_WAITING", 2)
    async with toy_helper() as helper:
        tasks = [asyncio.create_task(pixels(helper, of_width(toy.SLOW))) for _ in range(helper_module.AT_ONCE + 3)]
        answers = await asyncio.gather(*tasks, return_exceptions=True)
    refused = [each for each in answers if isinstance(each, RequestError)]
    assert len(refused) == 1 and refused[0].kind is Kind.OVERLOADED


async def test_closing_leaves_no_process_and_refuses_what_comes() -> None:
    async with toy_helper() as helper:
        await pixels(helper, GOOD)
        hanging = asyncio.create_task(refusal(helper, of_width(toy.HANGS)))
        await until(lambda: children(helper_pid(helper)))
        pids = [helper_pid(helper), *children(helper_pid(helper))]
        await helper.close()
        assert (await hanging).kind is Kind.UNAVAILABLE
        assert (await refusal(helper, GOOD)).kind is Kind.UNAVAILABLE
    await until(lambda: not any(map(alive, pids)))


@pytest.mark.slow  # 5 s
async def test_500_pictures_leave_no_process_and_no_descriptor() -> None:
    async with toy_helper() as helper:
        await pixels(helper, GOOD)
        bad = of_width(toy.DIES)
        with no_descriptor_left():
            for _ in range(10):
                works = [pixels(helper, GOOD) if number % 5 else refusal(helper, bad) for number in range(50)]
                await asyncio.gather(*works)
            assert not children(helper_pid(helper))
            assert len(os.listdir(f"/proc/{helper_pid(helper)}/fd")) < 8


GATEWAY = """
import asyncio
import errno
from pathlib import Path
from tests.gateway.images.helpers import helper_pid, of_width, pixels, toy_helper
from tests.gateway.images.toy_helper import SPINS

async def main():
    async with toy_helper() as helper:
        helper.start()
        print(helper_pid(helper), flush=True)
        await pixels(helper, of_width(SPINS))

asyncio.run(main())
"""


async def test_nothing_outlives_a_gateway_that_was_killed() -> None:
    gateway = await asyncio.create_subprocess_exec(sys.executable, "-c", GATEWAY, stdout=asyncio.subprocess.PIPE)
    assert gateway.stdout is not None
    pid = int(await gateway.stdout.readline())
    await until(lambda: children(pid))
    pids = [pid, *children(pid)]
    gateway.kill()
    await gateway.wait()
    await until(lambda: not any(map(alive, pids)))
