"""Compiled grammars: tried by `Vetting`, whose answers are kept by content, and compiled on threads for each sequence.

Each sequence has a grammar of its own. llguidance's `deep_copy` shares a lexer with its original (1.9.1): it grows with
all texts together, at its limits every copy fails, and copies wait for each other. Compiling takes 1 to 4 ms.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask

from jaxengine.grammar.grammar import Grammar, GrammarError
from jaxengine.grammar.mask import words
from jaxengine.grammar.mask_filler import MaskFiller
from jaxengine.grammar.source import LIMITS, library_text

logger = logging.getLogger(__name__)

THREADS = 16  # that compile, or wait for `Vetting`: slow grammars must not stop the others
NICE = 5  # of these threads: what they compile was tried within limits, but those allow a second
MASK_THREADS = 4

Delivery = Callable[[LLMatcher | GrammarError], None]
BROKEN = GrammarError("grammar: it could not be compiled", by_sender=False)


class Vet(Protocol):
    """Tries grammars where they can do no harm."""

    def start(self) -> None: ...

    def knows(self, grammar: Grammar) -> bool:
        """Whether `check` has an answer already."""
        ...

    def check(self, grammar: Grammar) -> str:
        """Why it is refused, in one line for its sender; "" if it is fine."""
        ...

    def refuse(self, grammar: Grammar, reason: str) -> None:
        """From now on: `check` gives `reason`."""
        ...

    def close(self) -> None: ...


@dataclass
class Counts:
    """Since the start."""

    grammars_compiled: int = 0
    grammar_cache_hits: int = 0
    grammar_refusals: int = 0
    grammar_compile_seconds: float = 0.0


@dataclass(frozen=True)
class Trial:
    """Of a grammar that is tried now.

    verdict: what `Vet.check` returns.
    wanted: of each request that waits for it, whether it still does.
    """

    verdict: "Future[str]"
    wanted: list[Callable[[], bool]]


class Grammars:
    """The grammars of one engine."""

    def __init__(self, tokenizer: LLTokenizer, vocab_size: int, vet: Vet) -> None:
        self.tokenizer = tokenizer
        self.masks = MaskFiller(vocab_size, tokenizer.vocab_size, min(MASK_THREADS, os.cpu_count() or 1))
        self.vet = vet
        self.counts = Counts()
        self._lock = threading.Lock()
        self._trials: dict[Grammar, Trial] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="grammar", initializer=_be_nice)

    def request(self, grammar: Grammar, wanted: Callable[[], bool], deliver: Delivery) -> None:
        """Call `deliver`, from another thread, with a matcher of its own or with why there is none.

        Args:
            wanted: whether anybody still waits for it. If not, it is not tried, not compiled and not delivered.
        """
        with self._lock:
            trial = self._trials.get(grammar)
            if trial is not None or self.vet.knows(grammar):
                self.counts.grammar_cache_hits += 1
            if trial is None:
                try:
                    trial = self._trials[grammar] = Trial(self._threads.submit(self._try, grammar), [])
                except RuntimeError:  # no thread can be started
                    deliver(BROKEN)
                    return
            trial.wanted.append(wanted)
        trial.verdict.add_done_callback(
            lambda verdict: self._threads.submit(self._work, grammar, verdict, wanted, deliver)
        )

    def hand(self, deliver: Callable[[GrammarError | None], None]) -> None:
        """Call `deliver` from another thread, with an error where there is none."""
        try:
            self._threads.submit(deliver, None)
        except RuntimeError:  # no thread can be started
            deliver(BROKEN)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.vet.close()

    def _try(self, grammar: Grammar) -> str:
        """The verdict of `Vetting`; nothing is tried where nobody waits for it any more."""
        with self._lock:
            if not any(wanted() for wanted in self._trials[grammar].wanted):
                del self._trials[grammar]
                return ""
        try:
            return self.vet.check(grammar)
        finally:
            with self._lock:
                del self._trials[grammar]

    def _work(self, grammar: Grammar, verdict: "Future[str]", wanted: Callable[[], bool], deliver: Delivery) -> None:
        if not wanted():
            return
        began = time.perf_counter()
        try:
            result: LLMatcher | GrammarError = self._compile(grammar, verdict.result())
        except GrammarError as error:
            result = error
        except BaseException as error:  # a panic of llguidance too: whoever waits must be told
            logger.error("a grammar was not compiled", exc_info=error)
            result = BROKEN
        with self._lock:
            self.counts.grammar_compile_seconds += time.perf_counter() - began
            self.counts.grammar_refusals += isinstance(result, GrammarError) and result.by_sender
            self.counts.grammars_compiled += isinstance(result, LLMatcher)
        deliver(result)

    def _compile(self, grammar: Grammar, refusal: str) -> LLMatcher:
        """A matcher that has computed its first mask. Raises GrammarError."""
        if refusal:
            raise GrammarError(f"grammar: {refusal}")
        matcher = LLMatcher(self.tokenizer, library_text(grammar), log_level=0, limits=LIMITS)
        mask = np.zeros((1, words(self.tokenizer.vocab_size)), np.int32)
        fill_next_token_bitmask(matcher, mask)
        if matcher.is_error() or not mask.any():
            raise GrammarError("grammar: it allows no text")
        return matcher


def _be_nice() -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
