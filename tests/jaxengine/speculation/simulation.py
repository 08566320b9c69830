"""A server without a device: a speculator plans each step, and the clock is moved by what such a step would take."""

from collections.abc import Callable
from collections.abc import Sequence as Items
from weakref import WeakKeyDictionary

from jaxengine.options.speculation import Speculation
from jaxengine.request.plan import Plan, Row
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.request.sequence import Request, Sequence
from jaxengine.speculation.drafter import Proposal
from jaxengine.speculation.speculator import Room, Speculator

TIMES = {4: 1.33, 8: 1.55, 16: 2.0}  # of steps that verify; SmolLM2 on a CPU, where one that decodes a row takes 1
PROPOSED = 0.3  # more, for what a learnt drafter proposes
WAITED = 0.06  # more, for a step that is planned once the one before is read

Next = Callable[[Sequence, list[int]], int]  # the next token of a sequence, which knows the draft that is verified


class LearntDrafter:
    """Proposes what `guess` says of a sequence. Counts how often it is asked.

    Args:
        parts: in which it first reads a prompt, and how long it takes for each, in steps.
    """

    def __init__(self, guess: Callable[[Sequence], Proposal], parts: int = 0, reading: float = 0.0) -> None:
        self.guess = guess
        self.parts, self.reading = parts, reading
        self.left: WeakKeyDictionary[Sequence, int] = WeakKeyDictionary()  # parts
        self.asked = self.read = 0

    def can_propose(self, rows: int) -> bool:
        return True

    def catch_up(self, sequences: Items[Sequence]) -> list[Sequence]:
        """It reads a part of one prompt at a time."""
        unread = [each for each in sequences if self.left.setdefault(each, self.parts)]
        for each in unread[:1]:
            self.left[each] -= 1
            self.read += 1
        return [each for each in sequences if not self.left[each]]

    def propose(self, sequences: Items[Sequence]) -> list[Proposal]:
        self.asked += 1
        return [self.guess(sequence) for sequence in sequences]


class Server:
    """Serves sequences together until each has so many tokens more than its prompt. If layers keep states, what was
    right of a draft is computed again.
    """

    def __init__(
        self,
        drafts: int = 15,
        drafter: LearntDrafter | None = None,
        method: str | None = None,
        keeps_states: bool = False,
    ) -> None:
        self.drafter, self.keeps_states, options = drafter, keeps_states, Speculation(drafts, method)
        self.speculator = Speculator(options, sorted(TIMES), lambda size: True, lambda rows: 1, drafter)
        self.seconds = self.plain_seconds = 0.0

    @property
    def speedup(self) -> float:
        return self.plain_seconds / self.seconds

    def serve(self, prompts: Items[Items[int]], tokens: int, next_token: Next) -> None:
        params = SamplingParams(max_tokens=tokens, seed=0)
        live = [Sequence(Request(number, prompt, params), number) for number, prompt in enumerate(prompts)]
        waits = False
        while live:
            rooms = [Room(each, max(0, each.max_length - len(each.tokens) - 1)) for each in live]
            asked, read = (self.drafter.asked, self.drafter.read) if self.drafter else (0, 0)
            tokens = len(live) + sum(each.again for each in live)
            drafts = self.speculator.choose(rooms, tokens) if waits else [[] for _ in live]
            proposed = bool(self.drafter and self.drafter.asked > asked)
            reading = self._reading(read)
            plan = self._plan(live, drafts, ahead=not waits)
            waits = plan.verifies or self.speculator.expects(rooms)
            self._run(plan, next_token, (PROPOSED if proposed else 0) + reading)
            for each in [each for each in live if len(each.tokens) == each.max_length]:
                self.speculator.remember(each)
                live.remove(each)

    def _reading(self, before: int) -> float:
        """How long the drafter has read since it had read so many parts, as the speculator would have measured it."""
        taken = (self.drafter.read - before) * self.drafter.reading if self.drafter else 0.0
        self.speculator.catching_up = taken
        return taken

    def _plan(self, live: list[Sequence], drafts: list[list[int]], *, ahead: bool) -> Plan:
        plan = Plan(ahead=ahead)
        for sequence, draft in zip(live, drafts, strict=True):
            again, sequence.again = sequence.again, 0
            row = Row(sequence, len(sequence.tokens) - 1 - again, 1 + again, 1, again=again)
            row.add_draft(draft)
            plan.add(row)
        return plan

    def _run(self, plan: Plan, next_token: Next, more: float) -> None:
        size = next(size for size in TIMES if size >= plan.tokens) if not plan.decode_only else 1
        seconds = TIMES.get(size, 1.0) + (0 if plan.ahead else WAITED) + more
        answered = sum(self._verify(row, next_token) for row in plan.rows)
        self.speculator.note(plan, size, seconds, answered)
        self.seconds += seconds
        self.plain_seconds += answered / len(plan.rows)

    def _verify(self, row: Row, next_token: Next) -> int:
        """The row's sequence gets its new tokens: how many."""
        for number, guess in enumerate([*row.draft, None]):
            token = next_token(row.sequence, row.draft[number:])
            row.sequence.tokens.append(token)
            if token != guess:
                self.speculator.learn(row.sequence, row.draft, number)
                row.sequence.again = number if self.keeps_states else 0
                return number + 1
        raise AssertionError("the last token has no guess")
