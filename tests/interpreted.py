"""The kernels of weights in few bits, run as plain JAX: what a GPU holds is then computed with on a CPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

from jaxengine.model import linear
from jaxengine.ops import experts


@contextmanager
def interpreted_kernels() -> Iterator[None]:
    product = partial(linear.grouped.product, interpret=True)
    pairs = partial(experts.triton.apply, interpret=True)
    with patch.object(linear.grouped, "product", product), patch.object(experts.triton, "apply", pairs):
        yield
