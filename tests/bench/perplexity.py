"""What quantised weights do to a real model: the perplexity of a text by format, and whether greedy ids stay the same.

python -m tests.bench.perplexity [--windows 4] [--formats nf4 AWQ] [--roofline]

SmolLM2-135M-Instruct is rounded to nearest in each format, written as a checkpoint in Hugging Face's names, and opened
as any other. Three models are compared by their perplexity: the original in f32, what a format made of it, in f32
(`--quantize none`), and what a CPU computes with by default. The original is distributed in 4 bits (Q4_1, groups of
32): a format that has those levels loses nothing.

The text, `time_machine.txt`, is chapter IV of H. G. Wells, The Time Machine (1895), in the public domain.
"""

import argparse
import gc
import math
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import torch

from convert.source import open_model
from gateway.benchmark.markdown import table
from jaxengine.llm import LLM, SamplingParams
from tests.bench.machine import described
from tests.bench.transformers_twin import of_tensors, tensors
from tests.quantized_formats import published
from tests.tiny_quantized import write_quantized

TEXT = Path(__file__).parent / "time_machine.txt"
WINDOW = 1024  # tokens that are scored with nothing before them; the first of each is not scored
GROUP = 64  # divides SmolLM2's 576 inputs; 128 does not
CLEAR = 1e-3  # margin of the best logit over the second, above which f32 arithmetic decides it
ANSWER = 32  # tokens
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):",
    "Once upon a time, in a village by the sea,",
    "Water boils at 100 degrees because",
)
AT_LOAD = ("int8", "fp8")
COLUMNS = (
    "format",
    "bits",
    "perplexity",
    "of the original",
    "on a CPU",
    "of its own f32",
    "greedy ids of transformers",
)


@dataclass(frozen=True)
class Figures:
    """of_text: the perplexity. answers: greedy ids behind each of `PROMPTS`."""

    of_text: float
    answers: list[tuple[list[int], list[int]]]


@contextmanager
def running(model: Path | None, quantize: str | None, tokens: int = WINDOW) -> Iterator[LLM]:
    """The engine, with room for one text of `tokens`; afterwards its memory is free."""
    llm = LLM(model, quantize=quantize, max_batch_size=1, max_total_tokens=tokens + 64, prefix_cache=False)
    llm.engine.finish_compiling()
    try:
        yield llm
    finally:
        del llm
        jax.clear_caches()
        gc.collect()


def perplexity(llm: LLM, windows: Sequence[Sequence[int]]) -> float:
    """exp of the mean negative log-likelihood of all tokens of `windows` but the first of each."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=True, seed=0)
    scored = [made.prompt_tokens[1:] for made in llm.generate(list(windows), params, use_tqdm=False)]
    return math.exp(-np.mean([token.logprob for tokens in scored for token in tokens]))


def windows_of_text(llm: LLM, count: int, size: int = WINDOW) -> list[list[int]]:
    ids = llm.tokenizer.encode(TEXT.read_text(), add_special_tokens=False)
    if len(ids) < count * size:
        raise ValueError(f"the text has {len(ids)} tokens, not {count} windows of {size}")
    return [ids[at : at + size] for at in range(0, count * size, size)]


def measure(model: Path | None, quantize: str | None, count: int, answers: bool = False) -> Figures:
    with running(model, quantize) as llm:
        params = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True, seed=0)
        made = llm.generate(list(PROMPTS), params, use_tqdm=False) if answers else []
        return Figures(
            perplexity(llm, windows_of_text(llm, count)), [(each.prompt_ids, each.token_ids) for each in made]
        )


def agreement(model: torch.nn.Module, answers: list[tuple[list[int], list[int]]]) -> tuple[int, int]:
    """How many ids of `answers` are the ones that transformers' `model` finds likeliest, and of how many: those where
    its margin is clear.
    """
    equal = clear = 0
    for prompt, answer in answers:
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        best = logits.topk(2)
        decided = best.values[:, 0] - best.values[:, 1] > CLEAR
        clear += int(decided.sum())
        equal += int((best.indices[:, 0] == torch.tensor(answer))[decided].sum())
    return equal, clear


def write_original(directory: Path) -> Path:
    """The default model in f32 as a checkpoint in Hugging Face's names."""
    opened = open_model(None)
    of_tensors(opened.source.spec, tensors(opened.source)).save_pretrained(directory)
    for file in opened.directory.glob("*token*"):
        shutil.copy(file, directory)
    return directory


def rows(names: Sequence[str], count: int, directory: Path) -> Iterator[list[str]]:
    """One row a format. The first two are what the engine makes of the original when it is told to."""
    original = write_original(directory / "original")
    floats = measure(original, None, count, answers=True)
    yield ["f32", "32", f"{floats.of_text:.3f}", "", "", "", _agreed(original, floats)]
    for quantize in AT_LOAD:
        made = measure(original, quantize, count).of_text
        yield [f"at load: {quantize}", "8", "", "", f"{made:.3f}", _ratio(made, floats.of_text), ""]
    formats = published(GROUP)
    for name in names:
        target = write_quantized(original, directory / "quantised", formats[name].format)
        own = measure(target / "quantised", "none", count, answers=True)
        default = measure(target / "quantised", None, count).of_text
        yield [
            name,
            f"{formats[name].bits:.2f}",
            f"{own.of_text:.3f}",
            _ratio(own.of_text, floats.of_text),
            f"{default:.3f}",
            _ratio(default, own.of_text),
            _agreed(target / "dense", own),
        ]
        shutil.rmtree(target)


def _ratio(one: float, other: float) -> str:
    return f"{one / other - 1:+.2%}"


def _agreed(directory: Path, figures: Figures) -> str:
    from transformers import AutoModelForCausalLM

    equal, clear = agreement(AutoModelForCausalLM.from_pretrained(directory).eval(), figures.answers)
    return f"{equal} of {clear}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.perplexity", description=__doc__)
    parser.add_argument("--windows", type=int, default=4, help=f"of {WINDOW} tokens")
    parser.add_argument("--formats", nargs="*", default=[""], help="parts of their names")
    options = parser.parse_args()
    names = [name for part in options.formats for name in published(GROUP) if part in name]
    print(f"{described()}, {options.windows} windows of {WINDOW} tokens\n")
    with tempfile.TemporaryDirectory() as directory:
        made = []
        for row in rows(names, options.windows, Path(directory)):
            made.append(row)
            print("  ".join(row), flush=True)
    print("\n" + table(COLUMNS, made))
    return 0


if __name__ == "__main__":
    sys.exit(main())
