"""Trains Medusa heads for the default model, so that there are some to measure with: minutes, not hours.

python -m tests.bench.medusa_training DIRECTORY [--heads 3] [--prompts 96] [--new-tokens 200] [--epochs 12]

The heads learn from greedy answers of the model itself (Medusa-1 of Cai et al. 2024, arXiv 2401.10774): the model stays
as it is, and each head is one block in front of the model's own head. They see none of the prompts of
`tests.bench.speculation`.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy, linear, silu

from convert.cache import cache_root
from convert.source import open_model
from gateway.text.tokenizer import Tokenizer
from jaxengine.executor.compile_cache import compile_cache_in, enable_compile_cache
from jaxengine.options.table import EngineOptions
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.startup.build import load_engine
from tests.bench.speculation import ALIKE, CHAT, CODE, PROSE, answered
from tests.bench.transformers_twin import twin

BATCH = 1024  # positions
RATE = 1e-3
THINGS = ("countries", "animals", "foods", "sports", "songs", "jobs", "tools", "flowers", "trees", "films", "stars")


def asked(count: int) -> list[str]:
    """Prompts like those that are measured, but others."""
    prose = [PROSE[i * 1000 :][:1000] for i in range(2 * ALIKE, 2 * ALIKE + count)]
    code = [CODE[i * 700 :][:1000] for i in range(2 * ALIKE + 2, 2 * ALIKE + 2 + count)]
    made = []
    for text, lines, thing in zip(prose, code, THINGS * count, strict=False):
        made += [
            f"Repeat this text word by word:\n\n{text}",
            f"Summarise this text, and quote its most important sentences:\n\n{text}",
            f"Explain what this code does:\n\n```python\n{lines}\n```",
            f"List ten {thing} as a JSON array of objects with name, description and rank.",
            f"Tell me about {thing}. What should I know?",
            f"Write a story that begins so: {text[:100]}",
        ]
    return made[:count]


def texts(prompts: int, new_tokens: int) -> list[tuple[int, list[int]]]:
    """Prompts with the model's answers, in ids, and where the answers begin."""
    model = open_model(None)
    tokenizer = Tokenizer.load(model.directory)
    ids = [tokenizer.encode(CHAT.format(each, ""), add_special_tokens=False) for each in asked(prompts)]
    engine = load_engine(model, EngineOptions(max_batch_size=16))
    engine.finish_compiling()
    params = SamplingParams(temperature=0, max_tokens=new_tokens, seed=0)
    answers = [answer for i in range(0, len(ids), 16) for answer in answered(engine, ids[i : i + 16], params)[1]]
    engine.close()
    return [(len(prompt), prompt + answer) for prompt, answer in zip(ids, answers, strict=True)]


def examples(model: torch.nn.Module, known: list[tuple[int, list[int]]], heads: int) -> tuple[torch.Tensor, ...]:
    """Hidden states [N, hidden], and the ids that follow the one that the model makes of each, [N, heads]."""
    states, targets = [], []
    with torch.no_grad():
        for begin, ids in known:
            hidden = model.model(torch.tensor([ids])).last_hidden_state[0]  # type: ignore[union-attr, operator]
            for position in range(begin - 1, len(ids) - heads - 1):
                states.append(hidden[position])
                targets.append(ids[position + 2 : position + 2 + heads])
    return torch.stack(states), torch.tensor(targets)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.medusa_training", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--heads", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=96)
    parser.add_argument("--new-tokens", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args()
    enable_compile_cache(compile_cache_in(cache_root()))
    torch.manual_seed(0)
    began = time.perf_counter()
    known = texts(options.prompts, options.new_tokens)
    model = twin(open_model(None).source)
    states, targets = examples(model, known, options.heads)
    occurring, targets = targets.unique(return_inverse=True)
    head = model.lm_head.weight.detach()[occurring]  # over these ids alone: others never were the answer
    hidden = states.shape[1]
    blocks = [torch.zeros(hidden, hidden, requires_grad=True) for _ in range(options.heads)]
    biases = [torch.zeros(hidden, requires_grad=True) for _ in range(options.heads)]
    steps = options.epochs * -(-len(states) // BATCH)
    optimizer = torch.optim.AdamW([*blocks, *biases], RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    print(f"{len(states)} positions, {len(occurring)} ids, {time.perf_counter() - began:.0f} s", flush=True)
    for epoch in range(options.epochs):
        right = [0] * options.heads
        for batch in torch.randperm(len(states)).split(BATCH):
            optimizer.zero_grad()
            loss = torch.zeros(())
            for i, (block, bias) in enumerate(zip(blocks, biases, strict=True)):
                x = states[batch]
                logits = linear(x + silu(linear(x, block, bias)), head)
                loss = loss + cross_entropy(logits, targets[batch, i])
                right[i] += int((logits.argmax(-1) == targets[batch, i]).sum())
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
        rates = " ".join(f"{each / len(states):.2f}" for each in right)
        print(f"epoch {epoch}: right {rates}, {time.perf_counter() - began:.0f} s", flush=True)
    options.directory.mkdir(parents=True, exist_ok=True)
    tensors = {f"{i}.0.linear.weight": each.detach() for i, each in enumerate(blocks)}
    tensors |= {f"{i}.0.linear.bias": each.detach() for i, each in enumerate(biases)}
    save_file(tensors, options.directory / "medusa_lm_head.safetensors")
    config = {"medusa_num_heads": options.heads, "medusa_num_layers": 1, "base_model_name_or_path": "default"}
    (options.directory / "config.json").write_text(json.dumps(config))
    return 0


if __name__ == "__main__":
    sys.exit(main())
