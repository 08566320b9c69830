"""Which ids may come next in one sequence: those of its reasoning first, then those that its grammar allows."""

import enum
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from jaxengine.grammar.allowance import Allowance
from jaxengine.grammar.grammar import GrammarError, Reasoning, TooCostly
from jaxengine.grammar.mask import ALL, allow, forbid

if TYPE_CHECKING:
    from llguidance import LLMatcher


TOO_COSTLY = "it takes too long to match each token of a text"


class Phase(enum.Enum):
    OPENING = enum.auto()  # the first id decides: it opens the reasoning or begins the answer
    REASONING = enum.auto()
    ANSWER = enum.auto()


class Matcher:
    """The constraints of one sequence, which has read the ids given to `consume`.

    document: of the answer; None where only the length of the reasoning is bounded.
    allowance: of the document.
    ends: ids that end a text, which reasoning may not do where a document is to follow.
    encode: text to the ids that the model's tokenizer makes of it.
    """

    def __init__(
        self,
        document: "LLMatcher | None",
        reasoning: Reasoning | None = None,
        ends: tuple[int, ...] = (),
        encode: Callable[[bytes], list[int]] | None = None,
    ) -> None:
        self.document = document
        self.allowance = Allowance()
        self._ends = () if document is None else ends
        self._encode = encode
        self._reasoning = reasoning
        self._last: tuple[int, ...] = ()  # ids, at most as many as the end of the reasoning has
        self._count = 0  # ids of reasoning
        if reasoning is None:
            self.phase = Phase.ANSWER
        else:
            self.phase = Phase.OPENING if reasoning.begin else Phase.REASONING

    def consume(self, token: int) -> None:
        """The sequence goes on with `token`. Raises GrammarError if the grammar cannot follow."""
        if self.phase is Phase.OPENING:
            assert self._reasoning is not None
            self.phase = Phase.REASONING if token == self._reasoning.begin[0] else Phase.ANSWER
            if self.phase is Phase.REASONING:
                return
        if self.phase is Phase.REASONING:
            self._reason(token)
        elif self.document is not None:
            with self.allowance:
                followed = self.document.consume_token(token)
            if not followed:
                raise GrammarError(f"grammar: the text cannot go on: {_reason(self.document)}")

    def catch_up(self, tokens: Iterable[int]) -> None:
        """The sequence begins with `tokens`, each of which was allowed when it came. Raises as `consume` and `complete`
        do.
        """
        for token in tokens:
            if self.asked is not None:
                self._earn()
            self.consume(token)

    @property
    def foresees(self) -> bool:
        """Whether it can say what may come behind guesses: within the answer, where a grammar alone decides."""
        return self.phase is Phase.ANSWER and self.document is not None

    def allows(self, guesses: list[int]) -> int:
        """How many of `guesses` can follow, one behind the other."""
        return self.document.validate_tokens(guesses) if self.document is not None and self.foresees else 0

    def forced(self) -> list[int]:
        """What must come next, as far as the grammar leaves no choice: the tokens that the tokenizer makes of it.

        It is asked of a copy: where very much must come, thousands of items say, llguidance gives a part of it, and the
        matcher is broken from then on (1.9.1).
        """
        if self.document is None or self._encode is None or not self.foresees:
            return []
        text = self.document.deep_copy().compute_ff_bytes()
        return self._encode(text) if text else []

    def behind(self, guesses: list[int]) -> Iterator["LLMatcher"]:
        """The grammar as it is behind each of `guesses`, which it `allows`. The sequence itself does not go on.

        What that takes is not charged to its allowance: nobody may pay for guesses. It is done to a copy, as rolling
        back forgets that an end was read and takes one token more (llguidance 1.9.1).
        """
        assert self.document is not None
        ahead = self.document.deep_copy()
        for guess in guesses:
            ahead.consume_token(guess)
            yield ahead

    def _reason(self, token: int) -> None:
        assert self._reasoning is not None
        end = self._reasoning.end
        self._count += 1
        self._last = (*self._last, token)[-len(end) :]
        if self._last == end:
            self.phase = Phase.ANSWER

    @property
    def asked(self) -> "LLMatcher | None":
        """The grammar, if it takes part in the next mask."""
        return None if self.phase is Phase.REASONING else self.document

    def complete(self, mask: np.ndarray) -> None:
        """Make of i32 [W], which holds what the grammar allows if it is asked, the mask of the next id.

        Raises:
            GrammarError: the grammar became too complex at this point of the text, or leaves nothing.
            TooCostly: it has used up its allowance.
        """
        if self.asked is not None:
            self._earn()
            _check(self.asked, mask)
        else:
            mask[:] = ALL
        if self.phase is Phase.OPENING:
            assert self._reasoning is not None
            allow(mask, self._reasoning.begin[0])
        elif self.phase is Phase.REASONING:
            self._bound(mask)

    def _earn(self) -> None:
        self.allowance.earn()
        if self.allowance.exceeded:
            raise TooCostly(f"grammar: {TOO_COSTLY}")

    def _bound(self, mask: np.ndarray) -> None:
        """What reasoning leaves of a mask that allows everything."""
        if (forced := self._forced) is not None:
            mask[:] = 0
            allow(mask, forced)
        for id in self._ends:
            forbid(mask, id)

    @property
    def _forced(self) -> int | None:
        """The next id of the end of reasoning that has used up its budget."""
        assert self._reasoning is not None
        end, budget = self._reasoning.end, self._reasoning.budget
        if budget is None or self._count < budget:
            return None
        read = len(self._last)
        return end[max(count for count in range(len(end)) if self._last[max(0, read - count) :] == end[:count])]


def _check(document: "LLMatcher", mask: np.ndarray) -> None:
    if document.is_error():
        raise GrammarError(f"grammar: the text cannot go on: {_reason(document)}")
    if not mask.any():
        raise GrammarError("grammar: no token of the model can continue the text")


def _reason(document: "LLMatcher") -> str:
    """llguidance's reason in one word, as its sentences may repeat the grammar."""
    return str(document.stop_reason())
