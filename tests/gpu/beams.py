"""What a beam search costs a decode step: as many rows as beams of searches of some widths, and without, in turns."""

from jaxengine.request.beam_search import BeamSearch
from tests.gpu.decode import WARM_UP_STEPS, fill, timed
from tests.gpu.engines import Client, measured_client
from tests.gpu.record import Record
from tests.gpu.scale import Scale

WIDTHS = (0, 4, 8)
ROWS = (8, 32, 128)


def run(record: Record, scale: Scale) -> None:
    short = scale.brief(*ROWS)
    with record.part("beams"), measured_client(short) as client:
        for rows in short.decode_rows:
            for width in WIDTHS:
                if rows % max(1, width) == 0:
                    measure(client, record, short, rows, width)


def measure(client: Client, record: Record, scale: Scale, rows: int, width: int) -> None:
    """A row of "beams": steps of `rows` rows, which are beams of searches of `width`, or without that of requests."""
    [context] = scale.contexts
    search = BeamSearch(width=width, early_stopping="never") if width else None
    crowd = client.submit(rows // max(1, width), context, scale.growth, beams=search)
    if search is None:
        fill(client, crowd)
    else:
        client.step()
        while not all((beams := client.engine.requests.live[number].beams) and beams.begun for number in crowd):
            client.step()
        for _ in range(WARM_UP_STEPS):
            client.step()
    record.add("beams", rows=rows, width=width, tokens=rows, **timed(client, scale.decode_steps))
    client.cancel(crowd)
