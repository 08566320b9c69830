"""How many tokens of which requests a step verifies: as many as make the most tokens per second.

A step of more tokens takes longer, and gives more tokens as far as the drafts in it are right. Both are measured: the
steps' times by size, the drafts' rates by request. A step that verifies must give at least `WORTH` times as many tokens
per second, and where such steps do not keep what was expected of them they stop for a while (`Balance`).

What a learnt drafter proposes takes time too, whether or not a step then verifies it. So it is asked only while there
is something to lose, and the balance pays for each time that it was asked. It lends what a draft model takes to read a
prompt, which may be much and is done once.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from itertools import accumulate
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from jaxengine.options.speculation import SUFFIX, Speculation
from jaxengine.request.plan import Plan
from jaxengine.request.sequence import Sequence
from jaxengine.speculation.acceptance import CHANCE, FORCED, LENGTH, Rates
from jaxengine.speculation.answer_drafter import AnswerDrafter
from jaxengine.speculation.balance import Balance
from jaxengine.speculation.drafter import Drafter, Proposal
from jaxengine.speculation.forced_drafter import ForcedDrafter
from jaxengine.speculation.proposal_drafter import ProposalDrafter
from jaxengine.speculation.recent_answers import RecentAnswers
from jaxengine.speculation.step_times import StepTimes
from jaxengine.speculation.suffix_drafter import SuffixDrafter
from jaxengine.speculation.text_drafter import TextDrafter

WORTH = 1.05


class Proposer(Protocol):
    """A learnt drafter on the device."""

    def can_propose(self, rows: int) -> bool:
        """Whether it could now, for so many requests."""
        ...

    def catch_up(self, sequences: Items[Sequence]) -> list[Sequence]:
        """Those behind whose tokens it could propose something now. It may read some of the others' first. Waits for
        the device.
        """
        ...

    def propose(self, sequences: Items[Sequence]) -> list[Proposal]:
        """Behind the tokens of each, all of which the host knows, and which `catch_up` has just returned. Waits for the
        device.
        """
        ...


class Room(NamedTuple):
    """A request that a step decodes, and how many tokens of a draft it may have."""

    sequence: Sequence
    most: int


class Speculator:
    """
    Args:
        sizes: of steps that verify, in tokens, ascending.
        ready: whether a step of such a size can run now.
        plain_size: of a step that only decodes so many rows.
        proposer: drafts in place of the requests' own texts.
    """

    def __init__(
        self,
        options: Speculation,
        sizes: Items[int],
        ready: Callable[[int], bool],
        plain_size: Callable[[int], int],
        proposer: Proposer | None = None,
    ) -> None:
        self.options = options
        self.most = options.num_speculative_tokens or 0
        self.sizes = tuple(sizes)
        self.ready = ready
        self.plain_size = plain_size
        self.times = StepTimes()
        self.balance = Balance()
        self.proposer = proposer
        self.proposing = self.catching_up = 0.0  # seconds that the last proposals took, and the reading before
        self.rates, self.forced = Rates(CHANCE if proposer else LENGTH), Rates(FORCED)
        self.answer_rates, self.answers = Rates(LENGTH), _recent_answers(options)
        self.drafters: WeakKeyDictionary[Sequence, Drafter] = WeakKeyDictionary()
        self.start_counting()

    def start_counting(self) -> None:
        self.drafts = self.draft_tokens = 0
        self.accepted = [0] * self.most  # by position in the draft

    def stats(self) -> dict[str, Any]:
        """Its part of the engine's `Stats`."""
        return {
            "drafts": self.drafts,
            "draft_tokens": self.draft_tokens,
            "accepted_draft_tokens": tuple(self.accepted),
        }

    def choose(self, rooms: Items[Room], tokens: int) -> list[list[int]]:
        """The draft of each of `rooms`, empty where none pays, in a step that computes `tokens` tokens beside them: one
        of each, and those that are computed again.
        """
        has_room = tokens < self.sizes[-1]
        self._propose([room.sequence for room in rooms if room.most > 0 and has_room], len(rooms))
        counts = self._counts(rooms, tokens)
        return [self._drafter(room.sequence).draft(n) if n else [] for room, n in zip(rooms, counts, strict=True)]

    def expects(self, rooms: Items[Room]) -> bool:
        """Whether drafts are likely to pay once the token of each request that the device computes now is known."""
        if self.may_propose(len(rooms)) and any(room.most > 1 for room in rooms):
            return True
        return any(self._counts(rooms, len(rooms), first=1))

    def note(self, plan: Plan, size: int, seconds: float, answered: int) -> None:
        """The step of `plan`, of `size` tokens with padding, took so long and gave so many tokens.

        A step that waited for the one before but verifies nothing is no measure of steps that only decode.
        """
        if plan.admitted or not (plan.decodes or plan.verifies):
            return
        rows = len(plan.rows)
        usual = self._plain_seconds(rows)
        if (plan.ahead and plan.decode_only) or plan.verifies:
            drafting = self.proposing + self.catching_up if plan.verifies else 0.0
            self.times.note((size, plan.verifies), seconds - drafting)
        if plan.ahead or usual is None:
            self.balance.note(1, 1)
        else:
            lent, self.catching_up = self.catching_up, 0.0
            self.balance.note(answered / rows, (seconds - lent) / usual, lent / usual)

    def learn(self, sequence: Sequence, draft: Items[int], accepted: int) -> None:
        """A step has verified `draft`, and its first `accepted` tokens were right."""
        sequence.draft_tokens += len(draft)
        sequence.accepted_draft_tokens += accepted
        self.drafts += bool(draft)
        self.draft_tokens += len(draft)
        for position in range(accepted):
            self.accepted[position] += 1

    def remember(self, sequence: Sequence) -> None:
        """It has ended: what it was answered may be drafted for others."""
        if self.answers is None or not sequence.wants_text or sequence.beams is not None or sequence.nonfinite:
            return
        prompt, answer = sequence.tokens[: sequence.prompt_length], sequence.tokens[sequence.prompt_length :]
        self.answers.add(sequence.scope, prompt, answer)

    def may_propose(self, rows: int) -> bool:
        """Whether something learnt may be asked to draft for a step of `rows` rows."""
        return self.proposer is not None and self._affords(rows) and self.proposer.can_propose(rows)

    def _propose(self, sequences: Items[Sequence], rows: int) -> None:
        """Have drafts for `sequences` proposed, if anything can and may."""
        self.proposing = self.catching_up = 0.0
        if self.proposer is None or not sequences or not self.may_propose(rows):
            return
        began = time.perf_counter()
        ready = self.proposer.catch_up(sequences)
        caught_up = time.perf_counter()
        for sequence, proposal in zip(ready, self.proposer.propose(ready) if ready else [], strict=True):
            self._drafter(sequence).offer(proposal)
        self.catching_up, self.proposing = caught_up - began, time.perf_counter() - caught_up

    def _affords(self, rows: int) -> bool:
        """Whether steps of `rows` rows may verify anything for now."""
        return self._plain_seconds(rows) is not None and rows < self.sizes[-1] and self.balance.allows

    def _plain_seconds(self, rows: int) -> float | None:
        """How long a step takes that only decodes `rows` rows."""
        return self.times.seconds.get((self.plain_size(rows), False))

    def _drafter(self, sequence: Sequence) -> Drafter:
        """That of `sequence`, which has read all of its tokens."""
        drafter = self.drafters.get(sequence)
        if drafter is None:
            drafter = self._new_drafter(sequence)
            self.drafters[sequence] = drafter
        drafter.read()
        return drafter

    def _new_drafter(self, sequence: Sequence) -> Drafter:
        drafter: Drafter
        if self.proposer is not None:
            drafter = ProposalDrafter(sequence.tokens, self.rates)
        else:
            drafter = self._text_drafter(sequence)
        if sequence.matcher is None:
            return drafter
        return ForcedDrafter(sequence.tokens, sequence.matcher, self.forced, drafter)

    def _text_drafter(self, sequence: Sequence) -> Drafter:
        own = TextDrafter(sequence.tokens, self.options, self.rates, sequence.encoder_input)
        if self.options.method != SUFFIX:
            return own
        if self.answers is None:
            return SuffixDrafter(sequence.tokens, self.options, own)
        answers = AnswerDrafter(sequence.tokens, sequence.scope, self.answers, self.answer_rates)
        return SuffixDrafter(sequence.tokens, self.options, own, answers)

    def _counts(self, rooms: Items[Room], tokens: int, first: int = 0) -> list[int]:
        """How many tokens of each draft make the fastest step; 0 if that has none of them.

        Args:
            tokens: as of `choose`.
            first: the number of the draft's first token in such a step; those in front will be known by then.
        """
        rows = len(rooms)
        counts, plain = [0] * rows, self._plain_seconds(rows)
        if plain is None or not self._affords(rows):
            return counts
        most = min(self.most, self.sizes[-1] - tokens)
        each = [self._chances(room.sequence, first, min(room.most - first, most)) for room in rooms]
        ranked = sorted(((chance, i) for i, chances in enumerate(each) for chance in chances), reverse=True)
        gained = [0.0, *accumulate(chance for chance, _ in ranked)]
        best, taken, seconds = WORTH * rows / plain, 0, plain
        for size in self.sizes if ranked else ():
            if size > tokens and self.ready(size):
                count = min(size - tokens, len(ranked))
                seconds = max(seconds, self.times.seconds.get((size, True), 0.0))  # not below that of a smaller size
                best, taken = max((best, taken), ((rows + gained[count]) / seconds, count))
                if count == len(ranked):
                    break
        for _, i in ranked[:taken]:
            counts[i] += 1
        return counts

    def _chances(self, sequence: Sequence, first: int, count: int) -> list[float]:
        """Those of `count` tokens of its draft, from number `first` on."""
        return self._drafter(sequence).chances(first + count)[first:] if count > 0 else []


def _recent_answers(options: Speculation) -> RecentAnswers | None:
    """Those that requests share, if `options` say so."""
    most = options.suffix_decoding_max_cached_requests if options.method == SUFFIX else 0
    return RecentAnswers(most, options.suffix_decoding_max_tree_depth) if most else None
