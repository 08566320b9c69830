"""Drives the scheduler as the engine does, one step ahead of a fake device, and checks every plan.

`dispatch` plans and starts a step, and `collect` reads the results of the oldest one. Between the two a test can do
anything: abort, let a deadline expire, fail the step.
"""

import random
from collections import Counter, deque
from collections.abc import Callable
from collections.abc import Sequence as Ids
from dataclasses import dataclass, replace

from jaxengine.architecture.adaptation import LoadedAdapter
from jaxengine.cache.page_need import peak_pages
from jaxengine.cache.page_pool import PagePool
from jaxengine.cache.page_tables import PageTables
from jaxengine.cache.snapshots import Snapshots
from jaxengine.engine.answers import Answers
from jaxengine.request.beam_search import BeamSearch
from jaxengine.request.event import Beam, FinishReason, Token
from jaxengine.request.image import Image, place
from jaxengine.request.plan import Plan, Row
from jaxengine.request.resume import Resume
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.request.sequence import Request, Sequence
from jaxengine.rpc.page_keys import page_key, root_key, seen_in, whole_key
from jaxengine.scheduler.image_planner import ImagePlanner
from jaxengine.scheduler.scheduler import Scheduler
from jaxengine.step.results import SampledTokens
from tests.jaxengine.beam_invariants import check_forks, note_interrupted
from tests.jaxengine.fake_device import FakeDevice, Result
from tests.jaxengine.fake_images import IMAGE
from tests.jaxengine.fake_model import EOS, START, VOCAB, Reference, in_table
from tests.jaxengine.forced_drafts import ForcedDrafts
from tests.jaxengine.image_invariants import rows_read
from tests.jaxengine.invariants import PlanCheck
from tests.jaxengine.page_reader import PageReader

MAX_IN_FLIGHT = 2  # one step computes while the next is planned and queued behind it
RECENT = 20  # requests
MOST_PASSING = 1  # few, so that a short run meets the limit


@dataclass(frozen=True)
class Step:
    """A dispatched plan: its results, and the slot, adapter, pages and rows of images that each row used."""

    plan: Plan
    results: list[Result]
    slots: list[int | None]
    tables: list[list[list[int]]]
    adapters: list[tuple[int, bytes]]  # slots of the stacks, and what lay there
    image_rows: set[int]  # that it reads


class FakeEngine:
    """One scheduler, one fake device, and the truth about every request it was given."""

    def __init__(
        self,
        *,
        pages: int,
        page_size: int,
        slots: int,
        token_budget: int,
        prefix_cache: bool = True,
        encoder: bool = False,
        windows: Ids[int] = (0,),
        adapter_slots: int = 0,
        rope_switch_length: int = 0,
        drafts: random.Random | None = None,
        images: ImagePlanner | None = None,
        snapshots: int | None = None,
        least_saved: int = 1,
    ) -> None:
        """Without `drafts` no step verifies any; else chance decides which. With so many `snapshots`, or none, layers
        keep states; without a number they do not.
        """
        self.encoder = encoder
        self.pool = PagePool(pages, page_size)
        self.whole = images is not None and images.horizon == "prompt"
        self.run = images.run if images else 0
        kept = None if snapshots is None else Snapshots(range(slots + 1, slots + 1 + snapshots))
        tables = PageTables(
            self.pool,
            windows,
            token_budget,
            model="m",
            prefix_cache=prefix_cache,
            whole_prompts=self.whole,
            snapshots=kept,
        )
        speculator = ForcedDrafts(self._future, drafts, vocab=VOCAB) if drafts else None
        self.scheduler = Scheduler(
            tables,
            slots,
            rope_switch_length=rope_switch_length,
            adapters=adapter_slots,
            speculator=speculator,
            images=images,
            keeps_states=snapshots is not None,
        )
        self.scheduler.admission.most_passing = MOST_PASSING
        self.scheduler.saving.least_tokens = least_saved
        sees = {"whole": self.whole, "run": self.run}
        self.device = FakeDevice(pages, page_size, slots, rope_switch_length, **sees, states=kept is not None)
        self.answers = Answers([EOS])
        self.clock = 0.0
        self.steps: deque[Step] = deque()
        self.sequences: list[Sequence] = []
        self.references: dict[int, Reference] = {}
        self.found: dict[int, list[Beam]] = {}  # by request, the answers of searches that are done
        self.truth: dict[tuple[int, bytes], tuple[tuple[int, ...], list[int]]] = {}  # (table, key) -> (ids, contents)
        self.decisions: list[tuple[object, ...]] = []
        self.drafted: dict[Sequence, int] = {}  # the length up to which guesses had pages since it took its slot
        self.passed: Counter[int] = Counter()  # by request: later ones with adapters that were admitted before it
        self.read: dict[Sequence, int] = {}  # positions that steps have computed since it took its slot, or found
        self.started: dict[Sequence, int] = {}  # positions that it found when it took its slot
        self.reader = PageReader()
        self.events: Counter[str] = Counter()  # what has happened in this run, counted

    @property
    def live(self) -> list[Sequence]:
        """One sequence of each request that has not ended."""
        return [sequence for sequence in self.scheduler.sequences() if sequence.first]

    @property
    def recent(self) -> list[Sequence]:
        """One sequence of each request that has not ended or came late."""
        last = len(self.sequences) - RECENT
        return [s for i, s in enumerate(self.sequences) if i >= last or s.finish is FinishReason.NOT_FINISHED]

    @property
    def members(self) -> list[Sequence]:
        """All sequences of recent requests, and whatever has a slot."""
        recent = [member for sequence in self.recent for member in sequence.members]
        return list(dict.fromkeys([*recent, *self.placed]))

    @property
    def placed(self) -> list[Sequence]:
        """Those that should have a slot."""
        asleep = [
            member
            for sequence in self.live
            for member in sequence.members
            if member.asleep and sequence.slot is not None
        ]
        return [*self.scheduler.batch.running, *self.scheduler.batch.leaving, *asleep]

    def fits(self, prompt_length: int, max_tokens: int, width: int = 1) -> bool:
        """Whether the request can be served at all. The last token is never fed, so it needs no page."""
        encoder_length, own = (prompt_length, 1) if self.encoder else (0, prompt_length)
        pages = self.pool.pages_for(encoder_length) + sum(self.peak(own + max_tokens - 1))
        return width * pages < self.pool.total and width <= self.scheduler.slots

    def peak(self, tokens: int) -> list[int]:
        """The most pages that each table of a sequence of `tokens` ever holds, without those of an encoder input."""
        size, budget = self.pool.page_size, self.scheduler.token_budget
        return [peak_pages(tokens, size, window, budget) for window in self.scheduler.tables.windows]

    def takes(self, prompt: Ids[int], images: Ids[Image]) -> bool:
        """Whether what must be computed, or encoded, at once is not too much for a step, nor for the pool."""
        try:
            self.scheduler.check(Request(0, prompt, SamplingParams(max_tokens=1, seed=0), images=tuple(images)))
        except ValueError:
            return False
        if self.run:
            return True
        rows = [len(each.places) for each in place(prompt, images, IMAGE)]
        return (sum(rows) if self.whole else max(rows, default=0)) <= self.scheduler.images.pool.total

    # --- what clients do ----------------------------------------------------------------------------------------

    def add(
        self,
        prompt: Ids[int],
        max_tokens: int = 4,
        *,
        seed: int = 0,
        salt: bytes = b"",
        caller: int = 0,
        priority: int = 0,
        timeout: float | None = None,
        prompt_logprobs: bool = False,
        ignore_eos: bool = False,
        adapter: str = "",
        search: BeamSearch | None = None,
        stop_token_ids: tuple[int, ...] = (),
        resumed: int = 0,
        images: tuple[Image, ...] = (),
    ) -> Sequence:
        """With so many tokens of its answer at most, but not the last, it is resumed."""
        assert self.fits(len(prompt), max_tokens, search.width if search else 1)
        ends = {"ignore_eos": ignore_eos, "stop_token_ids": stop_token_ids}
        params = SamplingParams(max_tokens=max_tokens, seed=seed, prompt_logprobs=prompt_logprobs, **ends)
        number = len(self.sequences)
        how = {"caller": caller, "priority": priority, "timeout": timeout, "adapter": adapter, "beam_search": search}
        request = Request(number, tuple(prompt), params, salt=salt, arrived=self.clock, images=images, **how)
        self.scheduler.check(request)
        self._learn(request)
        request = self._resumed(request, resumed)
        loaded = LoadedAdapter(adapter.encode(), {}) if adapter else None
        start, cross = START if self.encoder else None, self.run > 0
        sequence = Sequence(request, number, start, loaded, image_token=IMAGE, cross=cross)
        if search is not None:
            sequence.fan_out(self.answers.beams_of(search, params))
        self.sequences.append(sequence)
        self.scheduler.add(sequence)
        return sequence

    def abort(self, sequence: Sequence, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """End `sequence`, in whatever state it is."""
        note_interrupted(self, [sequence])
        self.scheduler.finish(sequence, reason)

    def advance(self, seconds: float) -> None:
        self.clock += seconds
        for sequence in [s for s in self.live if s.expired(self.clock)]:
            self.abort(sequence, FinishReason.DEADLINE)

    def _resumed(self, request: Request, most: int) -> Request:
        reference = self.references[request.id]
        answer = reference.tokens[1 if self.encoder else len(request.prompt) :]
        generated = tuple(answer[: min(most, len(answer) - 1)])
        self.events["resumed"] += bool(generated)
        return replace(request, resume=Resume(generated)) if generated else request

    def _learn(self, request: Request) -> None:
        """Note the key, the ids and the contents of each full page that the request may ever offer."""
        adapter, size, switch = request.adapter.encode(), self.pool.page_size, self.scheduler.rope_switch_length
        reference = Reference(
            request,
            encoder=self.encoder,
            adapter=adapter,
            rope_switch_length=switch,
            whole=self.whole,
            cross=self.run > 0,
        )
        self.references[request.id] = reference
        keys = {(): self.root(request)}
        for text, contents in reference.texts():
            if len(text) % size == 0:
                ids = text[-size:]
                seen = seen_in(request.images, len(text) - size, len(text))
                keys[text] = key = page_key(keys[text[:-size]], ids, seen)
                for table in range(len(self.scheduler.tables.windows)):
                    self.truth[table, key] = (ids, [in_table(content, table) for content in contents[-size:]])

    def root(self, request: Request) -> bytes:
        """The parent key of its first page."""
        root = root_key("m", request.salt, request.adapter.encode())
        return whole_key(root, request.prompt, request.images) if self.whole else root

    # --- what the engine's loop does ----------------------------------------------------------------------------

    def dispatch(self, only: Callable[[Sequence], bool] | None = None) -> Plan:
        """Plan a step and start it. If the plan asks to drain, complete all steps in flight; before, if it needs their
        tokens.
        """
        if self.steps and self.scheduler.needs_tokens(self.steps[-1].plan):
            self.collect_all()
        check = PlanCheck(self, only)
        plan = self.scheduler.plan(only) if only else self.scheduler.plan()
        check(plan)
        self._note(plan, check)
        if plan.rows:
            self._note_drafts(plan)
            self.read = {s: self.read[s] for s in self.scheduler.batch.running if s in self.read}
            self.read |= {row.sequence: row.start + row.count for row in plan.rows}
            slots = [row.sequence.slot for row in plan.rows]
            tables = [[list(table.pages) for table in row.sequence.tables] for row in plan.rows]
            starts = {row.sequence: row.start for row in plan.rows}
            self.started = {s: at for s, at in self.started.items() if s.slot is not None}
            self.started |= {s: starts.get(s, s.computed) for s in plan.admitted}
            results = self.device.run(plan)
            users = [row.sequence for row in plan.rows if row.sequence.adapter_slot is not None]
            adapters = [(s.adapter_slot or 0, self.device.adapter(s)) for s in users]
            seen = {image_row for row in plan.rows for image_row in rows_read(row, self.run)}
            self.steps.append(Step(plan, results, slots, tables, adapters, seen))
        if plan.drain:
            self.collect_all()
        return plan

    def collect(self) -> None:
        """Read the oldest step's tokens, finish the sequences that stop, then complete the step."""
        step = self.steps.popleft()
        for row, result in zip(step.plan.rows, step.results, strict=True):
            self.events["rows of ended requests"] += row.sequence.finish is not FinishReason.NOT_FINISHED
            if not result.finite:
                self.scheduler.finish(row.sequence, FinishReason.ERROR)
        sampled = [Token(token, 0.0, result.top) for result in step.results for token in result.tokens]
        for row, tokens, _ in SampledTokens(sampled, [True] * len(sampled)).by_row(step.plan.rows):
            self._accept(row, tokens)
        self.scheduler.complete(step.plan)
        self._grow_beams(step.plan)

    def collect_all(self) -> None:
        while self.steps:
            self.collect()

    def fail(self) -> None:
        """A step raises: all dispatched steps and the cache are lost."""
        self.events["failures"] += 1
        note_interrupted(self, self.live)
        self.steps.clear()
        self.device.wipe()
        self.scheduler.reset()

    def serve(self) -> None:
        """One turn of the engine's loop: plan ahead, then read the step before."""
        plan = self.dispatch()
        if len(self.steps) > bool(plan.rows):
            self.collect()

    def serve_until_idle(self, limit: int = 5000) -> None:
        for _ in range(limit):
            if self.scheduler.idle:
                return
            self.serve()
        raise AssertionError(f"I16: {len(self.live)} requests still alive after {limit} more steps")

    def _note_drafts(self, plan: Plan) -> None:
        self.drafted = {s: end for s, end in self.drafted.items() if s not in plan.admitted}
        for row in [row for row in plan.rows if row.draft]:
            self.drafted[row.sequence] = max(row.start + row.count, self.drafted.get(row.sequence, 0))

    def _future(self, sequence: Sequence) -> list[int]:
        return self.references[sequence.request.id].tokens[len(sequence.tokens) :]

    def _grow_beams(self, plan: Plan) -> None:
        """Go on with the searches all of whose beams have been sampled."""
        for first in dict.fromkeys(row.sequence.members[0] for row in plan.rows if row.sequence.beams):
            beams = first.beams
            if beams is None or not beams.ready or first.finish is not FinishReason.NOT_FINISHED:
                continue
            moves = beams.advance()
            if beams.done:
                self.found[first.request.id] = beams.answers
                self.scheduler.finish(first, beams.answers[0].finish)
            else:
                forks = self.scheduler.grow_beams(first, moves)
                check_forks(self, first, moves, forks)
                self.device.regrow(forks)

    def _accept(self, row: Row, tokens: list[Token]) -> None:
        """Append the tokens that count, up to the sequence's end. Those of a beam are only noted."""
        before, sequence = len(row.sequence.tokens), row.sequence
        if sequence.beams is not None:
            if sequence.finish is FinishReason.NOT_FINISHED:
                sequence.beams.note(sequence.members.index(sequence), tokens[0].top)
            return
        for token in tokens:
            if sequence.finish is FinishReason.NOT_FINISHED:
                self._append(sequence, token.id)
        if row.draft:
            accepted = len(sequence.tokens) - before
            self.events["right guesses"] += max(0, accepted - 1)
            self.events["wrong guesses"] += len(row.draft) + 1 - len(tokens)
            self.events["drafts of ended requests"] += accepted == 0
            self.events["ends inside a draft"] += 0 < accepted < len(tokens)

    def _append(self, sequence: Sequence, token: int) -> None:
        sequence.tokens.append(token)
        if token == EOS and not sequence.params.ignore_eos:
            self.scheduler.finish(sequence, FinishReason.EOS)
        elif token in sequence.params.stop_token_ids:
            self.scheduler.finish(sequence, FinishReason.STOP_TOKEN)
        elif len(sequence.tokens) - sequence.prompt_length == sequence.params.max_tokens:
            self.scheduler.finish(sequence, FinishReason.LENGTH)

    def _note(self, plan: Plan, check: PlanCheck) -> None:
        rows = [
            (r.sequence.request.id, r.sequence.slot, r.start, r.count, r.samples)
            for r in (*plan.encoder_rows, *plan.rows)
        ]
        tables = [[tuple(table.pages) for table in r.sequence.tables] for r in plan.rows]
        self.decisions.append((rows, tables, [s.request.id for s in plan.admitted], plan.drain))
        self.events["drains"] += plan.drain
        self.events["saves"] += len(plan.saves)
        self.events["restores"] += len(plan.restores)
        self.events["guesses computed again"] += sum(row.again for row in plan.rows)
        self.events["evictions"] += check.evictions
        self.events["hits"] += sum(s.cached_tokens > 0 for s in plan.admitted)
        self.events["released pages"] += sum(table.released for s in self.live for table in s.tables)
        behind = [s for s in plan.admitted if any(table.released for table in s.tables)]
        self.events["hits behind a window"] += len(behind)
        self.events["hits behind one of several windows"] += sum(s.tables[0].released == 0 for s in behind)
        self.events["encoder inputs"] += len(plan.encoder_rows)
        self.events["encoder inputs again"] += sum(r.sequence.preemptions > 0 for r in plan.encoder_rows)
        self.events["chunks"] += sum(not r.samples for r in plan.rows)
        self.events["drafts"] += sum(bool(r.draft) for r in plan.rows)
        self.events["pages for drafts"] += check.drafts.pages
        self.events["placements"] += len(plan.placements)
        self.events["adapters replaced"] += check.adapters.replaced
        self.events["hits of an adapter's own"] += sum(s.cached_tokens > 0 and bool(s.adapter) for s in plan.admitted)
