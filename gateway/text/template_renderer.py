"""Renders chat templates in a helper process, because only a process can be stopped.

No sandbox bounds the time or memory of a template, and a thread that hangs keeps its core. So a helper process with
limited memory reads a line of JSON per chat and answers with one. The kernel ends a helper that spends more than
`CPU_LIMIT` on one chat, and the next chat starts a new helper (0.15 s). The limit is of CPU time: a template only
computes, and a busy machine is not its fault. Rendering a chat, with both ways through the pipe, takes about 0.2 ms.

The helper inherits only the environment that Python needs: no keys, no tokens. Templates that come with a request run
in a second helper, so that they waste only the time of other such templates.
"""

import asyncio
import contextlib
import json
import os
import resource
import signal
import sys
from collections.abc import Mapping
from typing import Any

from gateway import child_process
from gateway.errors import TOO_LONG, Kind, RequestError
from gateway.text.chat_template import ChatTemplate, TemplateError, TooLongError

CPU_LIMIT = 2.0  # seconds of CPU time per chat
TIME_LIMIT = 30.0  # seconds for an answer, or for the start of a helper, on a busy machine
MEMORY_LIMIT = 512 << 20  # bytes of address space
MAX_LINE = 64 << 20


class TemplateRenderer:
    """One helper process, started on first use, for the template `source`; if it is None every chat brings its own."""

    def __init__(self, source: str | None, special_tokens: dict[str, str], max_characters: int) -> None:
        self._setup = [source, special_tokens, max_characters]
        self._helper: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def render(self, **chat: Any) -> str:
        """`ChatTemplate.render(**chat)`, of the template `source` if `chat` has one. Raises RequestError."""
        async with self._turn:
            helper = self._helper
            if helper is None or helper.returncode is not None:  # the kernel may have ended it since, for its memory
                helper = await self._start()
            try:
                answer = await asyncio.wait_for(_ask(helper, chat), TIME_LIMIT)
            except BaseException as error:  # cancellation too: the next request would read this one's answer
                await self.close()
                if isinstance(error, TimeoutError | asyncio.IncompleteReadError | ConnectionError | ValueError):
                    raise _failed("the chat template took too much time or memory on these messages", chat) from error
                raise
        if "too_long" in answer:
            raise _failed(f"{TOO_LONG}: {answer['too_long']}", chat, Kind.CONTEXT_LENGTH)
        if "error" in answer:
            raise _failed(answer["error"], chat)
        return str(answer["text"])

    async def close(self) -> None:
        helper, self._helper = self._helper, None
        if helper is not None:
            with contextlib.suppress(ProcessLookupError):
                helper.kill()
            await helper.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        helper = await asyncio.create_subprocess_exec(
            *child_process.python("gateway.text.template_renderer"),
            cwd=child_process.NEUTRAL_DIRECTORY,
            env=child_process.environment(os.environ),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=MAX_LINE,
        )
        self._helper = helper
        try:
            answer = await asyncio.wait_for(_ask(helper, self._setup), TIME_LIMIT)
            if "error" in answer:
                raise _failed(answer["error"], {})
        except BaseException:
            await self.close()
            raise
        return helper


def _failed(message: str, chat: Mapping[str, Any], kind: Kind = Kind.TEMPLATE) -> RequestError:
    return RequestError(kind, message, param="chat_template" if "source" in chat else "messages")


async def _ask(helper: asyncio.subprocess.Process, question: Any) -> dict[str, Any]:
    assert helper.stdin is not None and helper.stdout is not None
    helper.stdin.write(json.dumps(question).encode() + b"\n")
    await helper.stdin.drain()
    line = await helper.stdout.readline()
    if not line.endswith(b"\n"):
        raise asyncio.IncompleteReadError(line, None)
    answer: dict[str, Any] = json.loads(line)
    return answer


def main() -> None:
    """The helper process: it reads a line of settings, then answers one chat a line until its input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    source, special_tokens, max_characters = json.loads(sys.stdin.buffer.readline())
    try:
        own = ChatTemplate(source or "", special_tokens, max_characters)
    except TemplateError as error:
        _answer({"error": str(error)})
        return
    _answer({"text": ""})
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT)  # SIGPROF ends the process
        try:
            chat = json.loads(line)
            given = chat.pop("source", None)
            template = own if given is None else ChatTemplate(given, special_tokens, max_characters)
            _answer({"text": template.render(**chat)})
        except TooLongError as error:
            _answer({"too_long": str(error)})
        except TemplateError as error:
            _answer({"error": str(error)})
        signal.setitimer(signal.ITIMER_PROF, 0)


def _answer(value: dict[str, str]) -> None:
    sys.stdout.buffer.write(json.dumps(value).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
