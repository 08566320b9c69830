"""Where layers keep states, prompts start from snapshots of them: which are made, and who starts from which."""

import random
from typing import Any

import pytest

from jaxengine.cache.page_tables import PageTables
from jaxengine.request.plan import Plan, Row
from jaxengine.request.sequence import Sequence
from jaxengine.scheduler.image_planner import ImagePlanner
from jaxengine.scheduler.state_saving import in_common
from tests.jaxengine.fake_engine import FakeEngine
from tests.jaxengine.fake_images import IMAGE, image_at
from tests.jaxengine.forced_drafts import ForcedDrafts
from tests.jaxengine.invariants import check_idle

SIZE = 4
TEXT = [1 + i % 7 for i in range(60)]
Chunks = list[tuple[int, int]]


def engine_of(snapshots: int = 4, least_saved: int = 8, token_budget: int = 64) -> FakeEngine:
    sizes = {"pages": 200, "page_size": SIZE, "slots": 4, "token_budget": token_budget}
    return FakeEngine(**sizes, snapshots=snapshots, least_saved=least_saved)


def served(engine: FakeEngine, *prompts: list[int]) -> list[Chunks]:
    """The rows of each prompt that it is computed in, start and count each, if all come at once."""
    sequences = [engine.add(prompt, max_tokens=2) for prompt in prompts]
    begun = len(engine.decisions)
    engine.serve_until_idle()
    check_idle(engine)
    rows = [row for step, *_ in engine.decisions[begun:] for row in step]
    return [[(start, count) for of, _, start, count, _ in rows if of == each.request.id] for each in sequences]


def prompt_rows(chunks: Chunks, prompt: list[int]) -> Chunks:
    return [each for each in chunks if each[0] < len(prompt)]


def test_a_prompt_ends_a_chunk_with_its_last_page_and_the_next_turn_starts_there() -> None:
    engine = engine_of()
    (first,) = served(engine, TEXT[:18])
    assert prompt_rows(first, TEXT[:18]) == [(0, 16), (16, 2)]
    (second,) = served(engine, TEXT[:31])
    assert prompt_rows(second, TEXT[:31]) == [(16, 12), (28, 3)]
    assert engine.sequences[1].cached_tokens == 16


def test_a_token_is_always_left_to_compute() -> None:
    engine = engine_of()
    (first,), (again,) = served(engine, TEXT[:16]), served(engine, TEXT[:16])
    assert prompt_rows(first, TEXT[:16]) == [(0, 12), (12, 4)]
    assert prompt_rows(again, TEXT[:16]) == [(12, 4)]


def test_what_prompts_have_in_common_is_saved_by_the_second_and_found_by_the_third() -> None:
    engine = engine_of()
    prompts = [TEXT[:24] + [tail] * 12 for tail in (1, 2, 3)]
    chunks = [prompt_rows(served(engine, prompt)[0], prompt) for prompt in prompts]
    assert chunks == [[(0, 32), (32, 4)], [(0, 24), (24, 8), (32, 4)], [(24, 8), (32, 4)]]


def test_of_a_burst_with_a_common_beginning_two_compute_it() -> None:
    engine = engine_of(token_budget=256)
    prompts = [TEXT[:24] + [tail] * 12 for tail in (1, 2, 3, 4)]
    chunks = served(engine, *prompts)
    assert [each[0][0] for each in chunks] == [0, 0, 24, 24]
    assert [each.cached_tokens for each in engine.sequences] == [0, 0, 24, 24]


def test_of_a_burst_of_one_prompt_one_computes_it() -> None:
    chunks = served(engine_of(token_budget=256), *[TEXT[:30]] * 4)
    assert [each[0][0] for each in chunks] == [0, 28, 28, 28]


def test_what_is_soon_computed_again_is_not_saved() -> None:
    engine = engine_of(least_saved=16)
    (short,) = served(engine, TEXT[:15])
    assert prompt_rows(short, TEXT[:15]) == [(0, 15)]
    (long,), (longer,) = served(engine, TEXT[:30]), served(engine, TEXT[:40])
    assert prompt_rows(long, TEXT[:30]) == [(0, 28), (28, 2)]
    assert prompt_rows(longer, TEXT[:40]) == [(28, 12)]  # 8 tokens behind the snapshot


def test_the_snapshot_whose_use_is_the_longest_ago_is_taken_over() -> None:
    engine = engine_of(snapshots=2)
    texts = [[tail] * 30 for tail in (1, 2, 3)]
    served(engine, texts[0]), served(engine, texts[1])
    served(engine, texts[0])
    served(engine, texts[2])
    starts = [served(engine, text)[0][0][0] for text in (texts[0], texts[2], texts[1])]
    assert starts == [28, 28, 0]


def test_who_wants_all_logprobs_neither_starts_from_a_snapshot_nor_makes_one() -> None:
    engine = engine_of()
    asking: list[Sequence] = []
    for wanted in (True, False, True):
        asking.append(engine.add(TEXT[:30], max_tokens=2, prompt_logprobs=wanted))
        engine.serve_until_idle()
    assert [each.cached_tokens for each in asking] == [0, 0, 0]
    assert engine.events["saves"] == 1


def test_a_request_that_is_computed_again_starts_from_its_own_snapshot() -> None:
    engine = engine_of()
    sequence = engine.add(TEXT[:30], max_tokens=12, ignore_eos=True)
    for _ in range(6):
        engine.serve()
    engine.collect_all()
    engine.dispatch(only=lambda _: False)  # nobody, so it is preempted
    assert sequence.preemptions == 1 and len(sequence.tokens) > 32
    (row,) = engine.dispatch().rows
    assert row.start == 28
    engine.serve_until_idle()
    check_idle(engine)


def test_who_can_start_behind_more_does_not_wait_for_less() -> None:
    engine = engine_of(token_budget=8)
    served(engine, TEXT[:40])
    engine.add(TEXT[:24] + [1] * 20)  # it is about to save what it has in common with the first
    engine.serve()
    sequence = engine.add(TEXT[:44])
    assert engine.dispatch().admitted == [sequence] and sequence.computed >= 36
    engine.serve_until_idle()
    check_idle(engine)


def test_an_image_that_must_not_be_cut_passes_where_states_would_be_saved() -> None:
    images = ImagePlanner(rows=8, horizon="image", fits=lambda _: True)
    engine = FakeEngine(pages=40, page_size=SIZE, slots=2, token_budget=32, images=images, snapshots=4)
    ids = TEXT[:5] + [IMAGE] * 6 + TEXT[:1]
    sequence = engine.add(ids, images=(image_at(5, ids[5:11], 0),), max_tokens=2)
    rows = [(row.start, row.count) for _ in range(4) for row in engine.dispatch().rows]
    assert rows[:3] == [(0, 5), (5, 6), (11, 1)] and not sequence.saves
    engine.serve_until_idle()
    check_idle(engine)


def test_what_two_long_prompts_have_in_common_is_found_by_halving() -> None:
    looked: list[int] = []

    class Keys(list[bytes]):
        def __getitem__(self, at: Any) -> Any:
            looked.append(at)
            return super().__getitem__(at)

    keys = Keys(i.to_bytes(2) for i in range(6000))
    for shared in (0, 1, 4321, 6000):
        assert in_common(keys, [*keys][:shared] + [b"other"] * 100) == shared
    assert len(looked) <= 4 * 13


def test_who_has_no_room_is_not_looked_up_in_each_step_for_pages_without_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pages that it could share are held, but it would have to compute them again, for which there is no room."""
    looked: list[Sequence] = []
    find = PageTables.cached_prefix
    engine = FakeEngine(pages=20, page_size=SIZE, slots=2, token_budget=64, snapshots=4, least_saved=100)
    running = engine.add(TEXT[:40], max_tokens=30, ignore_eos=True)
    engine.serve()
    engine.serve()
    monkeypatch.setattr(
        PageTables, "cached_prefix", lambda tables, sequence: looked.append(sequence) or find(tables, sequence)
    )
    waiting = engine.add(TEXT[:48])
    while running.slot is not None:
        assert waiting not in looked
        engine.serve()
    engine.serve_until_idle()
    assert looked.count(waiting) == 1
    check_idle(engine)


def test_of_two_snapshots_one_stays_where_questions_leave_their_document() -> None:
    """So an engine of one request at a time has two."""
    prompts = [TEXT[:24] + [tail] * 16 for tail in (1, 2, 3, 5)]

    def starts(snapshots: int) -> list[int]:
        engine = engine_of(snapshots=snapshots, token_budget=8)
        return [served(engine, prompt)[0][0][0] for prompt in prompts]

    assert starts(2) == [0, 0, 24, 24]
    assert starts(1) == [0, 0, 0, 0]


def test_the_keys_of_those_that_wait_are_computed_few_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxengine.cache.page_tables.KEYS_AT_ONCE", 2)
    engine = engine_of(token_budget=8)
    engine.add(TEXT[:48])
    waiting, unlike = engine.add(TEXT[:50]), engine.add(TEXT[:4] + [1] * 46)
    plan = engine.dispatch()
    assert unlike in plan.admitted and plan.waiting_for_prefix == [waiting]
    known = [len(waiting.prefix_keys)]
    while waiting.slot is None:
        engine.serve()
        known.append(len(waiting.prefix_keys))
    assert known[:4] == [2, 4, 6, 8] and waiting.cached_tokens == 44
    engine.serve_until_idle()
    check_idle(engine)


@pytest.mark.parametrize(("waiting", "tokens"), [(0, 8), (3, 5), (6, 2)])
def test_drafts_leave_a_token_of_the_next_step_to_each_that_this_one_leaves_out(waiting: int, tokens: int) -> None:
    """As beams that wait for others of their search: what is right of the drafts is computed again beside them."""
    engine = FakeEngine(pages=200, page_size=SIZE, slots=8, token_budget=8, snapshots=2, drafts=random.Random(0))
    speculator = engine.scheduler.speculator
    assert isinstance(speculator, ForcedDrafts)
    speculator.share, speculator.kinds = 0.0, ("right",)
    decoding, plan = [engine.add(TEXT[:3], max_tokens=40, seed=seed) for seed in (1, 2)], Plan()
    while any(len(each.tokens) < 5 for each in decoding):
        engine.dispatch()
        engine.collect_all()
    speculator.share = 1.0
    for each in decoding:
        plan.add(Row(each, each.computed, 1, 1))
    engine.scheduler.drafting.add(plan, speculator, len(decoding) + waiting)
    assert plan.tokens == sum(row.count for row in plan.rows) == tokens
