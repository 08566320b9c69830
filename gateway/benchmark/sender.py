"""One request after another to one server: each becomes an `Answer`, whatever happens to it."""

import asyncio
import json
from time import perf_counter

from gateway.benchmark.answer import Answer, Outcome
from gateway.benchmark.connection import ConnectionLost, Reply
from gateway.benchmark.dialect import DONE, Dialect
from gateway.benchmark.event_reader import EventReader
from gateway.benchmark.http_client import HttpClient, Unreachable
from gateway.benchmark.one_line import readable
from gateway.benchmark.prompt import Prompt

TIMEOUT = 600.0  # seconds, unless --timeout says otherwise
TOO_MANY = 429
UNREADABLE = (ValueError, TypeError, AttributeError, KeyError, IndexError, OverflowError, RecursionError)


class Sender:
    """Args:
    timeout: seconds after which an answer is given up.
    patience: connections in a row that may fail before the server is given up.
    """

    def __init__(self, client: HttpClient, dialect: Dialect, *, timeout: float = TIMEOUT, patience: int = 16) -> None:
        self._client, self._dialect = client, dialect
        self._timeout, self.patience = timeout, patience
        self._failed = 0
        self.gone = ""  # why the server was given up; it stays so, whatever answers come after

    @property
    def given_up(self) -> bool:
        """Whether the server has gone away."""
        return bool(self.gone)

    async def send(self, prompt: Prompt, due: float | None = None) -> Answer:
        """Ask for an answer to `prompt`. Its times count from `due`, a moment of `perf_counter`, or from now."""
        now = perf_counter()
        answer = Answer(start=now if due is None else due, late=0.0 if due is None else now - due)
        try:
            async with asyncio.timeout(self._timeout):
                await self._ask(prompt, answer)
        except TimeoutError:
            answer.fail(Outcome.TIMEOUT, f"no whole answer within {self._timeout:g} s")
        except Unreachable as error:
            answer.fail(Outcome.UNREACHABLE, str(error))
        except ConnectionLost as error:
            answer.fail(Outcome.BROKEN if error.begun else Outcome.UNREACHABLE, str(error))
        self._failed = self._failed + 1 if answer.outcome is Outcome.UNREACHABLE else 0
        if self._failed >= self.patience and not self.gone:
            self.gone = answer.detail
        return answer

    async def _ask(self, prompt: Prompt, answer: Answer) -> None:
        reader = EventReader()

        def take(now: float, part: bytes) -> None:
            for data in reader.feed(part):
                self._read(data, answer, now)

        reply = await self._client.post(self._dialect.path, self._dialect.body(prompt), take)
        if reply.status != 200:
            _refuse(answer, reply)
            return
        if not reply.streams:
            self._whole(answer, reply)
        answer.close()

    def _read(self, data: bytes, answer: Answer, now: float) -> None:
        if data == DONE:
            answer.ended = True
            return
        try:
            event = json.loads(data.decode())  # of bytes it would have to find out their encoding
            self._dialect.read(event, answer, now)
        except UNREADABLE:
            answer.fail(Outcome.BROKEN, f"an event that cannot be read: {readable(data)}")

    def _whole(self, answer: Answer, reply: Reply) -> None:
        answer.streamed = False
        try:
            self._dialect.whole(json.loads(bytes(reply.body)), answer, reply.received)
        except UNREADABLE:
            answer.fail(Outcome.BROKEN, f"an answer that cannot be read: {readable(bytes(reply.body))}")


def _refuse(answer: Answer, reply: Reply) -> None:
    if reply.status == TOO_MANY:
        asked = reply.headers.get("retry-after", "")
        answer.retry_after = float(asked) if asked.isdecimal() else 0.0
    outcome = Outcome.REJECTED if reply.status == TOO_MANY else Outcome.REFUSED
    answer.fail(outcome, f"{reply.status} {readable(bytes(reply.body))}".strip())
