"""What verifying drafts costs a decode step: rows with so many guesses each, all of them wrong, in turns."""

from collections.abc import Sequence as Items
from dataclasses import replace

from jaxengine.engine.engine import Engine
from jaxengine.speculation.speculator import Room, Speculator
from tests.gpu.decode import fill, timed
from tests.gpu.engines import Client, measured_client
from tests.gpu.record import Record
from tests.gpu.scale import Scale

GUESSES = (0, 1, 3, 7, 15)
BUCKETS = (16, 32, 64, 128)  # tokens
ROWS = (1, 8, 32)


class SoManyGuesses(Speculator):
    """Every row has `wanted` guesses of token 1, as far as it has room."""

    wanted = 0

    def choose(self, rooms: Items[Room], rows: int) -> list[list[int]]:
        return [[1] * min(self.wanted, room.most) for room in rooms]

    def expects(self, rooms: Items[Room], rows: int) -> bool:
        return False


def run(record: Record, scale: Scale) -> None:
    full = scale.name == "full"
    buckets, guesses = (BUCKETS, GUESSES) if full else (BUCKETS[:1], GUESSES[:2])
    short = scale.brief(*ROWS)
    limits = replace(short.limits, verify_buckets=buckets, draft_tokens=guesses[-1])
    with record.part("speculation"), measured_client(short, limits=limits, speculate=guesses[-1]) as client:
        speculator = so_many_guesses(client.engine)
        for rows in short.decode_rows:
            for wanted in guesses:
                if rows * (1 + wanted) <= buckets[-1]:
                    speculator.wanted = wanted
                    measure(client, record, short, rows, wanted)


def so_many_guesses(engine: Engine) -> SoManyGuesses:
    """The engine's speculator from now on."""
    own = engine.speculator
    assert own is not None
    forced = SoManyGuesses(own.options, own.sizes, own.ready, own.plain_size)
    engine.scheduler.speculator = forced
    return forced


def measure(client: Client, record: Record, scale: Scale, rows: int, guesses: int) -> None:
    """A row of "speculation"."""
    [context] = scale.contexts
    crowd = client.submit(rows, context, scale.growth)
    fill(client, crowd)
    times = timed(client, scale.decode_steps)
    record.add("speculation", rows=rows, context=context, guesses=guesses, tokens=rows * (1 + guesses), **times)
    client.cancel(crowd)
