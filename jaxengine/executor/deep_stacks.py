"""Threads whose stacks are deep enough to compile in: XLA's passes recurse over the graph."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

STACK_BYTES = 64 << 20


@contextmanager
def deep_stacks() -> Iterator[None]:
    """Threads started inside get stacks that XLA's recursion does not overflow."""
    before = threading.stack_size(STACK_BYTES)
    try:
        yield
    finally:
        threading.stack_size(before)
