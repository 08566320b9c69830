"""A seeded run of random events against the scheduler, with all invariants checked after each event."""

import random
from typing import Self

from jaxengine.architecture.vision import Horizon
from jaxengine.request.beam_search import BeamSearch
from jaxengine.request.sequence import Sequence
from jaxengine.scheduler.image_planner import ImagePlanner
from tests.jaxengine.fake_engine import MAX_IN_FLIGHT, FakeEngine
from tests.jaxengine.fake_images import MOST_ROWS, MOST_TILES, Prompt, beginning, illustrated
from tests.jaxengine.fake_model import EOS, VOCAB
from tests.jaxengine.invariants import check_state

MAX_ALIVE = 12
WHOLE_ANSWERS = 120  # seeds: in the walks of later ones, many requests were begun elsewhere
SEEING = 150  # seeds: in the walks of later ones, prompts have images
ATTENDING = 200  # seeds: in the walks of later ones, layers attend to them
KEEPING = 225  # seeds: in the walks of later ones, layers keep states; in every other prompts have images
BUDGETS = {  # of tokens beyond the slots
    "token": [0, 1, 8, 500],
    "image": [2 * MOST_ROWS - 1, 20, 500],
    "prompt": [24, 64, 500],
}
WHOLE = 128  # a page size that holds any sequence whole, as with state spaces
WINDOWS = [(0,), (0,), (2,), (5,), (12,), (0, 2), (0, 5, 5), (0, 3, 12)]
EVENTS = {"dispatch": 40, "collect": 35, "add": 18, "abort": 2, "advance": 3, "poison": 0.5, "probe": 0.7, "fail": 0.4}
INTERRUPTIONS = {"probe": 4, "fail": 2}  # of searches, which take long to be where they were
CROWDS = {"add": 30, "poison": 1}  # many requests whose images are to be encoded


class Walk:
    """An engine of random sizes, and the random events that happen to it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.resuming = seed >= WHOLE_ANSWERS
        keeping = seed >= KEEPING
        self.seeing = seed >= SEEING and not (keeping and seed % 2)
        self.searching = self.random.random() < 0.3  # most requests are beam searches, which go on for long
        page_size = self.random.choice([1, 2, 3, 4, *(() if self.searching else (16, WHOLE))])
        slots = self.random.randint(2 if self.searching else 1, 6)
        encoder = self.random.random() < 0.2 and seed < SEEING
        windows = (0,) if encoder else self.random.choice(WINDOWS)
        rope_switch_length = 0 if encoder or keeping else self.random.choice([0, 0, 0, 0, 0, 0, 12, 30])
        by_position = not (encoder or rope_switch_length)
        self.cross = ATTENDING <= seed < KEEPING
        images = self._runs() if self.cross else self._images() if self.seeing else None
        budgets = [slots, slots + 1, 8, *(() if self.searching else (16, 512))]
        most_tokens = 160 if self.searching else 300 if self.seeing else 80
        self.engine = FakeEngine(
            pages=1 + len(windows) * (self.random.randint(12, most_tokens) // page_size + 2),
            page_size=page_size,
            slots=slots,
            token_budget=slots + self.random.choice(BUDGETS[images.horizon]) if images else self.random.choice(budgets),
            prefix_cache=self.random.random() < (0.6 if self.searching else 0.9) and by_position,
            encoder=encoder,
            windows=windows,
            adapter_slots=self.random.choice([0, 0, 1, 1, 2]),
            rope_switch_length=rope_switch_length,
            drafts=random.Random(seed) if seed % (4 if keeping else 2) in (1, 2) else None,
            images=images,
            snapshots=self.random.choice([1, 2, 5]) if keeping else None,
            least_saved=self.random.choice([1, 1, 5]) if keeping else 1,
        )
        texts = [self.random.choices(range(1, 8), k=60) for _ in range(2)]
        self.texts: list[Prompt] = [(text, ()) for text in texts]
        if images:
            self.texts = [illustrated(text, self.random, cross=self.cross) for text in texts]

    def _images(self) -> ImagePlanner:
        """A pool that holds one large image or a few, and an encoder that reads one or a few in a step."""
        horizon: Horizon = self.random.choice(["token", "token", "token", "image", "prompt"])
        few = self.random.choice([MOST_ROWS, MOST_ROWS + 2, MOST_ROWS + 2, 3 * MOST_ROWS])
        rows = 3 * few if horizon == "prompt" else few
        most = self.random.choice([MOST_ROWS * 3 // 2, 12, 40])
        return ImagePlanner(rows, horizon, lambda pictures: sum(each.patches for each in pictures) <= most)

    def _runs(self) -> ImagePlanner:
        """A pool that holds one run of images or a few, and an encoder that reads one image or a few in a call."""
        run = self.random.choice([MOST_TILES, 2 * MOST_TILES])
        rows = run + self.random.choice([0, 1, run, 3 * run])
        most = self.random.choice([MOST_TILES, 2 * MOST_TILES, 40])
        return ImagePlanner(rows, "token", lambda pictures: sum(each.patches for each in pictures) <= most, run)

    def run(self, events: int) -> Self:
        for _ in range(events):
            self._event()
            check_state(self.engine)
        return self

    def _event(self) -> None:
        events = EVENTS | (INTERRUPTIONS if self.searching else {}) | (CROWDS if self.seeing else {})
        name = self.random.choices(list(events), list(events.values()))[0]
        getattr(self, f"_{name}")()

    def _dispatch(self) -> None:
        if len(self.engine.steps) < MAX_IN_FLIGHT:
            self.engine.dispatch()

    def _collect(self) -> None:
        if self.engine.steps:
            self.engine.collect()

    def _add(self) -> None:
        engine, (prompt, images), max_tokens = self.engine, self._prompt(), self.random.choice([1, 2, 5, 12, 25, 40])
        ends = () if self.searching else self.random.choice([(), (), (2,), (EOS, 3)])
        search = self._search(len(prompt), max_tokens, len({EOS, *ends}))
        if len(engine.live) < MAX_ALIVE and engine.fits(len(prompt), max_tokens) and engine.takes(prompt, images):
            engine.add(
                prompt,
                max_tokens,
                seed=self.random.randrange(3),
                salt=self.random.choice([b"", b"", b"a"]),
                caller=self.random.choice([0, 0, 1, 2]),
                priority=self.random.choice([0, 0, 0, -1, 1]),
                timeout=self.random.choice([None, None, 40.0]),
                prompt_logprobs=self.random.random() < 0.1 and search is None,
                ignore_eos=self.random.random() < (0.8 if self.searching else 0.5),
                adapter=self._adapter(),
                search=search,
                stop_token_ids=ends,
                resumed=self.random.choice([0, 1, 3, 20]) if self.resuming and search is None else 0,
                images=images,
            )

    def _search(self, prompt_length: int, max_tokens: int, ends: int) -> BeamSearch | None:
        """None, or one as wide as fits, or narrower."""
        widest = min(self.engine.scheduler.slots, VOCAB - ends)
        while widest and not self.engine.fits(prompt_length, max_tokens, widest):
            widest -= 1
        if not widest or self.random.random() > (0.8 if self.searching else 0.15):
            return None
        width = self.random.choice([widest, self.random.randint(1, widest), min(3, widest)])
        return BeamSearch(
            width=width,
            answers=self.random.choice([0, 1, width]),
            length_penalty=self.random.choice([0.0, 1.0, -0.5, 2.0]),
            early_stopping=self.random.choice([True, False, "never"]),
        )

    def _adapter(self) -> str:
        """Of one more than there are slots, or none."""
        adapters = [f"adapter {number}" for number in range(self.engine.scheduler.batch.adapters.slots + 1)]
        return self.random.choice(["", *adapters]) if len(adapters) > 1 else ""

    def _prompt(self) -> Prompt:
        """The beginning of a shared text or of what an earlier request has, and a few tokens of its own."""
        earlier = [self.random.choice(sequence.members) for sequence in self.engine.sequences[-4:]]
        texts = [*self.texts, *((sequence.tokens, sequence.request.images) for sequence in earlier)]
        text = self.random.choice(texts)
        ids, images = beginning(text, self.random.randint(0, len(text[0])), self.random, cross=self.cross)
        ids += self.random.choices(range(1, 8), k=self.random.randint(1, 3))
        if not self.seeing:
            return ids, images
        return illustrated(ids[-1:], self.random, behind=(ids[:-1], images), cross=self.cross)

    def _abort(self) -> None:
        """End one of the requests, whether it is waiting, running, leaving or has ended."""
        chosen = self.random.choice([self.engine.live, self.engine.recent])
        if chosen:
            self.engine.abort(self.random.choice(chosen))

    def _advance(self) -> None:
        self.engine.advance(self.random.choice([0.5, 5.0, 30.0]))

    def _poison(self) -> None:
        """From now on the rows of one request are NaN."""
        scheduler = self.engine.scheduler
        if chosen := [*scheduler.sequences()] if self.seeing else scheduler.batch.running:
            self.engine.device.poisoned.add(self.random.choice(chosen).request.id)

    def _probe(self) -> None:
        """Serve some requests without the others, as fault isolation does."""
        self.engine.collect_all()
        parity = self.random.randrange(2)

        def chosen(sequence: Sequence) -> bool:
            return sequence.request.id % 2 == parity

        self.engine.dispatch(chosen)

    def _fail(self) -> None:
        self.engine.fail()
