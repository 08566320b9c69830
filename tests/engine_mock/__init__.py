"""An engine without a model, for tests that are not about models.

`MockEngine` implements `jaxengine.request.interface.DrivenEngine`. Every id is a known function of the ids before it,
so a test can tell an exact answer from a nearly exact one. `python -m tests.engine_mock` serves it as a process through
the real gRPC service.
"""

from tests.engine_mock.answers import (
    CRASH,
    CRASH_LATER,
    EOS,
    FAIL,
    HANG,
    RAISE,
    VOCABULARY,
    continuation,
    embedding_of,
    logits_of,
    next_id,
)
from tests.engine_mock.engine import MockEngine
from tests.engine_mock.live import Live
from tests.engine_mock.options import MockOptions

__all__ = [
    "CRASH",
    "CRASH_LATER",
    "EOS",
    "FAIL",
    "HANG",
    "RAISE",
    "VOCABULARY",
    "Live",
    "MockEngine",
    "MockOptions",
    "continuation",
    "embedding_of",
    "logits_of",
    "next_id",
]
