"""What samplers cost a decode step: greedy rows, plain sampled ones, and those that ask for more, in turns."""

from typing import Any

from jaxengine.request.samplers import Samplers
from tests.gpu.decode import fill, timed
from tests.gpu.engines import measured_client
from tests.gpu.record import Record
from tests.gpu.scale import Scale

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": {"temperature": 0.8},
    "top-p": {"temperature": 0.8, "top_p": 0.9},
    "min-p and XTC": {"temperature": 0.8, "min_p": 0.05, "samplers": Samplers(xtc_probability=0.5)},
    "six filters": {
        "temperature": 0.8,
        "min_p": 0.02,
        "samplers": Samplers(
            top_n_sigma=2.0, top_a=0.01, eta_cutoff=1e-4, smoothing_factor=0.1, dynatemp_range=0.3, skew=0.1
        ),
    },
    "DRY": {"temperature": 0.8, "samplers": Samplers(dry_multiplier=0.8)},
    "no 3-gram twice": {"samplers": Samplers(no_repeat_ngram_size=3)},
}


def run(record: Record, scale: Scale) -> None:
    short = scale.brief(*scale.decode_rows[-2:])
    with record.part("samplers"), measured_client(short) as client:
        [context] = short.contexts
        for rows in short.decode_rows:
            for asked, sampling in WAYS.items():
                crowd = client.submit(rows, context, short.growth, **sampling)
                fill(client, crowd)
                record.add("samplers", rows=rows, asked=asked, tokens=rows, **timed(client, short.decode_steps))
                client.cancel(crowd)
