"""Compiled grammars: tried by `Vetting`, compiled on threads, kept by content, and copied for each sequence."""

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask

from jaxengine.grammar.grammar import Grammar, GrammarError
from jaxengine.grammar.mask import words
from jaxengine.grammar.mask_filler import MaskFiller
from jaxengine.grammar.source import LIMITS, behind_newlines, library_text

logger = logging.getLogger(__name__)

THREADS = 16  # that compile, or wait for `Vetting`: slow grammars must not stop the others
NICE = 5  # of these threads: what they compile was tried within limits, but those allow a second
MAX_KEPT = 512  # templates; one of an ordinary schema takes 6 to 33 KiB
MAX_KEPT_BYTES = 8 << 20  # of their texts: a compiled grammar grows with its text
MASK_THREADS = 4

Delivery = Callable[[LLMatcher | GrammarError], None]


class Vet(Protocol):
    """Tries grammars where they can do no harm."""

    def start(self) -> None: ...

    def check(self, kind: str, text: str) -> str:
        """Why the grammar is refused, in one line for its sender; "" if it is fine."""
        ...

    def close(self) -> None: ...


@dataclass
class Counts:
    """Since the start."""

    grammars_compiled: int = 0
    grammar_cache_hits: int = 0
    grammar_refusals: int = 0
    grammar_compile_seconds: float = 0.0


class Grammars:
    """The grammars of one engine."""

    def __init__(self, tokenizer: LLTokenizer, vocab_size: int, vet: Vet) -> None:
        self.tokenizer = tokenizer
        self.masks = MaskFiller(vocab_size, tokenizer.vocab_size, min(MASK_THREADS, os.cpu_count() or 1))
        self.vet = vet
        self.counts = Counts()
        self._lock = threading.Lock()
        self._kept: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        self._kept_bytes = 0
        self._waiting: dict[Grammar, list[Delivery]] = {}  # for what is being compiled
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="grammar", initializer=_be_nice)

    def request(self, grammar: Grammar, deliver: Delivery) -> None:
        """Call `deliver` with a matcher of its own, at once or later from another thread, or with why there is none."""
        with self._lock:
            template = self._kept.get(grammar)
            if template is not None:
                self._kept.move_to_end(grammar)
                self.counts.grammar_cache_hits += 1
            elif grammar in self._waiting:
                self._waiting[grammar].append(deliver)
                return
            else:
                self._waiting[grammar] = [deliver]
        if template is not None:
            deliver(template.deep_copy())
        else:
            self._threads.submit(self._work, grammar)

    def forget(self, grammar: Grammar) -> None:
        """Compile `grammar` anew for its next request. The copies of a template share a lexer with it, and one that has
        reached a limit of `LIMITS` can do nothing any more.
        """
        with self._lock:
            if self._kept.pop(grammar, None) is not None:
                self._kept_bytes -= len(grammar.text)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.vet.close()

    def _work(self, grammar: Grammar) -> None:
        began = time.perf_counter()
        try:
            result: LLMatcher | GrammarError = self._compile(grammar)
        except GrammarError as error:
            result = error
        except BaseException as error:  # a panic of llguidance too: whoever waits must be told
            logger.error("a grammar was not compiled", exc_info=error)
            result = GrammarError("grammar: it could not be compiled", by_sender=False)
        with self._lock:
            self.counts.grammar_compile_seconds += time.perf_counter() - began
            deliveries = self._waiting.pop(grammar)
            if isinstance(result, GrammarError):
                self.counts.grammar_refusals += len(deliveries)
            else:
                self.counts.grammars_compiled += 1
                self.counts.grammar_cache_hits += len(deliveries) - 1
                self._keep(grammar, result)
        for deliver in deliveries:
            deliver(result if isinstance(result, GrammarError) else result.deep_copy())

    def _compile(self, grammar: Grammar) -> LLMatcher:
        """A template, which has computed its first mask. Raises GrammarError."""
        if refusal := self.vet.check(grammar.kind, grammar.text):
            raise GrammarError(f"grammar: {refusal}")
        text = library_text(grammar.kind, grammar.text)
        if grammar.behind_reasoning:
            text = behind_newlines(text)
        template = LLMatcher(self.tokenizer, text, log_level=0, limits=LIMITS)
        mask = np.zeros((1, words(self.tokenizer.vocab_size)), np.int32)
        fill_next_token_bitmask(template, mask)
        if template.is_error() or not mask.any():
            raise GrammarError("grammar: it allows no text")
        return template

    def _keep(self, grammar: Grammar, template: LLMatcher) -> None:
        self._kept[grammar] = template
        self._kept_bytes += len(grammar.text)
        while len(self._kept) > MAX_KEPT or self._kept_bytes > MAX_KEPT_BYTES:
            oldest, _ = self._kept.popitem(last=False)
            self._kept_bytes -= len(oldest.text)


def _be_nice() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
