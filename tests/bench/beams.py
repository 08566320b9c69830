"""Beam search beside that of transformers, and beside as many plain requests as it has beams, in turns.

python -m tests.bench.beams [--rounds 3] [--widths 4 8] [--new-tokens 64]

Both run SmolLM2-135M in f32. The answers of both searches are compared too.
"""

import argparse
import time
from statistics import median

import torch

from convert.cache import cache_root
from convert.source import open_model
from gateway.benchmark.markdown import table
from gateway.text.tokenizer import Tokenizer
from jaxengine.engine.engine import Engine
from jaxengine.executor.compile_cache import compile_cache_in, enable_compile_cache
from jaxengine.options.table import EngineOptions
from jaxengine.request.beam_search import BeamSearch
from jaxengine.request.event import Event
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.request.sequence import Request
from jaxengine.startup.build import load_engine
from tests.bench.machine import described
from tests.bench.transformers_twin import twin

COLUMNS = ("width", "prompt", "searches a second", "ratio to transformers", "ratio to plain requests", "equal")
WISHES = (
    "Write a story about a sailor who finds an island.",
    "Explain how a car engine works.",
    "Describe a sunset over the sea in the style of a novel.",
)
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--widths", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--new-tokens", type=int, default=64)
    given = parser.parse_args()
    enable_compile_cache(compile_cache_in(cache_root()))
    opened = open_model(None)
    tokenizer = Tokenizer.load(opened.directory)
    reference = twin(opened.source)
    options = EngineOptions(dtype="float32", max_batch_size=max(given.widths), max_total_tokens=1024)
    engine = load_engine(opened, options)
    engine.finish_compiling()
    rows = []
    for width in given.widths:
        for wish in WISHES:
            ids = tokenizer.encode(CHAT.format(wish), add_special_tokens=False)
            rows.append(compared(engine, reference, ids, width, given.new_tokens, given.rounds))
            print(table(COLUMNS, rows), flush=True)
    print(described())


def compared(engine: Engine, reference: object, ids: list[int], width: int, new: int, rounds: int) -> tuple[str, ...]:
    """A row of the table."""
    ours, theirs, plain, equal = [], [], [], []
    for _ in range(rounds):
        seconds, event = searched(engine, ids, width, new)
        ours.append(seconds)
        plain.append(answered(engine, ids, width, new))
        begun = time.perf_counter()
        found = searched_by(reference, ids, width, new, engine.description.eos_token_ids)
        theirs.append(time.perf_counter() - begun)
        equal.append([token.id for token in event.beams[0].tokens] == found)
    ratio = median(a / b for a, b in zip(theirs, ours, strict=True))
    beside = median(a / b for a, b in zip(plain, ours, strict=True))
    same = f"{sum(equal)}/{len(equal)}"
    return str(width), str(len(ids)), f"{1 / median(ours):.2f}", f"{ratio:.2f}", f"{beside:.2f}", same


def searched(engine: Engine, ids: list[int], width: int, new: int) -> tuple[float, Event]:
    """Seconds of a search, and what it found."""
    params = SamplingParams(temperature=0, max_tokens=new, seed=0)
    begun = time.perf_counter()
    engine.submit(Request(1, ids, params, beam_search=BeamSearch(width=width, early_stopping="never")))
    (event,) = [event for event in drained(engine) if event.finish]
    return time.perf_counter() - begun, event


def answered(engine: Engine, ids: list[int], count: int, new: int) -> float:
    """Seconds of `count` requests at once."""
    params = SamplingParams(temperature=0, max_tokens=new, seed=0, ignore_eos=True)
    begun = time.perf_counter()
    for number in range(count):
        engine.submit(Request(number, ids, params))
    drained(engine)
    return time.perf_counter() - begun


def drained(engine: Engine) -> list[Event]:
    events: list[Event] = []
    while not engine.idle:
        result = engine.step()
        events += result.events if result else []
    return events


@torch.inference_mode()
def searched_by(model: object, ids: list[int], width: int, new: int, ends: tuple[int, ...]) -> list[int]:
    """The best answer of transformers."""
    bounds = {"num_beams": width, "max_new_tokens": new, "early_stopping": "never", "eos_token_id": list(ends)}
    prompt = torch.tensor([ids])
    found = model.generate(prompt, attention_mask=torch.ones_like(prompt), pad_token_id=ends[0], **bounds)  # type: ignore[attr-defined]
    answer = found[0, len(ids) :].tolist()
    return answer[: next((i + 1 for i, id in enumerate(answer) if id in ends), len(answer))]


if __name__ == "__main__":
    main()
