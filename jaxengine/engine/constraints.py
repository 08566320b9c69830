"""What grammars and bounds on reasoning do to sequences: a matcher for each, and the masks of a step."""

import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxengine.grammar.grammar import GrammarError, TooCostly
from jaxengine.grammar.matcher import TOO_COSTLY, Matcher
from jaxengine.request.event import FinishReason
from jaxengine.request.interface import Description
from jaxengine.request.sequence import Request, Sequence

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from jaxengine.grammar.grammars import Grammars

logger = logging.getLogger(__name__)


class Constraints:
    """Of one engine.

    Args:
        grammars: None where the model's vocabulary is unknown; `unsupported` says why.
        ends: ids that end a text.
    """

    def __init__(self, grammars: "Grammars | None", ends: tuple[int, ...] = (), unsupported: str = "") -> None:
        self._grammars, self._ends, self._unsupported = grammars, ends, unsupported
        self._mask_seconds = 0.0

    @classmethod
    def load(cls, directory: Path, description: Description) -> "Constraints":
        """For the model in `directory`. It works without a tokenizer, but then it refuses every grammar."""
        if not (directory / "tokenizer.json").exists():
            return cls(None, unsupported="the model has no tokenizer.json")
        # Only here, as measurements on random weights need neither llguidance nor a vocabulary.
        from jaxengine.grammar.grammars import Grammars
        from jaxengine.grammar.tokenizer import load_tokenizer
        from jaxengine.grammar.vetting import Vetting

        vocab_size, ends = description.vocab_size, description.eos_token_ids
        try:
            tokenizer = load_tokenizer(directory, vocab_size, ends)
        except ValueError as error:
            logger.warning("no grammars: %s", error)
            return cls(None, unsupported=str(error))
        except Exception as error:  # nobody may ask for a grammar: it is no reason not to serve
            logger.warning("no grammars: the tokenizer cannot be read", exc_info=error)
            return cls(None, unsupported="the model's tokenizer.json cannot be read")
        return cls(Grammars(tokenizer, vocab_size, Vetting(directory, vocab_size, ends)), ends)

    def start(self) -> None:
        """Start what the first grammar would have to wait for."""
        if self._grammars is not None:
            self._grammars.vet.start()

    def close(self) -> None:
        if self._grammars is not None:
            self._grammars.close()

    def check(self, request: Request) -> None:
        """Raises ValueError if `request` can never be served."""
        if not request.constrained:
            return
        if self._grammars is None:
            name = "reasoning.budget" if request.grammar is None else "grammar"
            raise ValueError(f"{name}: not supported: {self._unsupported}")
        if request.grammar is not None and request.params.ignore_eos:
            raise ValueError("grammar: it ends the text, so it excludes ignore_eos")

    def attach(
        self, sequence: Sequence, wanted: Callable[[], bool], done: Callable[[GrammarError | None], None]
    ) -> None:
        """Give `sequence` its matcher, which has read what a resumed request has been answered, then call `done`: at
        once, or from another thread if it is still `wanted`.
        """
        request = sequence.request

        def deliver(result: "LLMatcher | GrammarError | None") -> None:
            done(result if isinstance(result, GrammarError) else self._bind(sequence, result))

        assert self._grammars is not None
        if request.grammar is not None:
            self._grammars.request(request.grammar, wanted, deliver)
        elif request.resume is not None:
            self._grammars.hand(deliver)  # 32,000 tokens of reasoning are read in 19 ms
        else:
            deliver(None)

    def _bind(self, sequence: Sequence, document: "LLMatcher | None") -> GrammarError | None:
        """Give `sequence` a matcher of `document`; the error is why it cannot have one."""
        assert self._grammars is not None
        request, encode = sequence.request, self._grammars.tokenizer.tokenize_bytes
        matcher = Matcher(document, request.reasoning, self._ends, encode)
        try:
            matcher.catch_up(request.resume.generated if request.resume else ())
        except GrammarError as error:
            return error
        except BaseException as error:  # a panic of llguidance too: whoever waits must be told
            logger.error("a grammar did not read what had been answered", exc_info=error)
            return GrammarError("grammar: the text cannot go on", by_sender=False)
        sequence.matcher = matcher
        return None

    def masks(self, sequences: list[Sequence]) -> tuple[np.ndarray, list[tuple[Sequence, GrammarError]]]:
        """What may come next in each of `sequences`, which all have a matcher: i32 [len(sequences), ⌈V/32⌉]; and those
        that cannot go on. A grammar that proves too costly is refused from then on.
        """
        began = time.perf_counter()
        matchers = [each.matcher for each in sequences if each.matcher is not None]
        assert self._grammars is not None
        masks, broken = self._grammars.masks.fill(matchers)
        self._mask_seconds += time.perf_counter() - began
        for row, error in broken.items():
            if isinstance(error, TooCostly) and (grammar := sequences[row].request.grammar) is not None:
                self._grammars.vet.refuse(grammar, TOO_COSTLY)
        return masks, [(sequences[row], error) for row, error in broken.items()]

    def masks_behind(self, sequence: Sequence, guesses: list[int]) -> np.ndarray:
        """What may come in `sequence` behind each of `guesses`, which its matcher `allows`: i32 [guesses, ⌈V/32⌉]."""
        began = time.perf_counter()
        assert self._grammars is not None and sequence.matcher is not None
        masks = self._grammars.masks.fill_behind(sequence.matcher, guesses)
        self._mask_seconds += time.perf_counter() - began
        return masks

    def stats(self) -> dict[str, Any]:
        """The fields of `Stats` that begin with `grammar`."""
        counts = {} if self._grammars is None else dataclasses.asdict(self._grammars.counts)
        return {**counts, "grammar_mask_seconds": self._mask_seconds}


def finish_of(error: GrammarError) -> FinishReason:
    """How a request ends whose grammar is refused, or cannot go on."""
    return FinishReason.INVALID if error.by_sender else FinishReason.ERROR
