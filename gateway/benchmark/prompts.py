"""The prompts of a load, by the option `--prompts`: made here, from the package bfcl-eval, or from a file."""

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from gateway.benchmark import bfcl, prompt_file
from gateway.benchmark.options import BenchmarkOptions
from gateway.benchmark.prompt import Prompt
from gateway.benchmark.words import Counts, Words

PREFIX_TIMES, PREFIX_GROUPS = 4, 8  # the defaults of --prefix-length and --prefix-groups
Prompts = Iterator[Prompt]


def prompts(options: BenchmarkOptions, tokenizer: Counts | None) -> Prompts:
    """Prompts without end. The same options give the same ones.

    Raises:
        UsageError: there is no such file or package, or a line of the file is wrong.
    """
    chance = random.Random(options.seed)
    words = Words(chance, tokenizer)
    made: dict[str, Callable[[], Prompts]] = {
        "synthetic": lambda: _synthetic(options, words),
        "shared-prefix": lambda: _shared_prefix(options, words, chance),
        "bfcl": lambda: _shuffled(bfcl.prompts(options.decode_length), chance),
    }
    if options.prompts in made:
        return made[options.prompts]()
    return _shuffled(prompt_file.read(Path(options.prompts), options.decode_length), chance)


def _synthetic(options: BenchmarkOptions, words: Words) -> Prompts:
    while True:
        yield Prompt(words.text(options.sequence_length), tokens=options.decode_length)


def _shared_prefix(options: BenchmarkOptions, words: Words, chance: random.Random) -> Prompts:
    length = options.prefix_length or PREFIX_TIMES * options.sequence_length
    prefixes = [words.text(length) for _ in range(options.prefix_groups or PREFIX_GROUPS)]
    while True:
        prefix = chance.choice(prefixes)
        behind = words.text(options.sequence_length, before=prefix)
        yield Prompt(f"{prefix}{'' if behind.startswith(' ') else ' '}{behind}", tokens=options.decode_length)


def _shuffled(found: list[Prompt], chance: random.Random) -> Prompts:
    chance.shuffle(found)
    return itertools.cycle(found)
