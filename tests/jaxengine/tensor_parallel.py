"""One tiny model over 1, 2, 4 and 8 devices, another with too few key/value heads over 8, a mixture of experts over 2
and 4, a model with an encoder and one of state spaces over 2, adapters of the second over 2 and 8, drafts of the second
for the first over 4, and drafts for a model with linear attention over 2, as a program:
`python -m tests.jaxengine.tensor_parallel DIRECTORY …`, in this order.

How many devices a CPU shows is fixed when JAX starts, so this is a process of its own. It prints one JSON object.
"""

import json
import sys
from pathlib import Path
from typing import Any

from convert.source import open_model
from jaxengine.grammar.grammar import Grammar
from jaxengine.options.table import EngineOptions
from jaxengine.request.beam_search import BeamSearch
from jaxengine.request.event import Token
from jaxengine.request.samplers import Samplers
from jaxengine.startup.build import load_engine
from tests.jaxengine.drafters import Watched, eager
from tests.jaxengine.drafting import drafting, speculator
from tests.jaxengine.engines import Answer, ask, load, prompt, serve
from tests.jaxengine.shared_executables import shared_executables

DEVICES = (1, 2, 4, 8)
# One step of prompts in chunks, one of decodes: all that a few requests need.
SMALL = {"max_batch_size": 2, "max_batch_prefill_tokens": 32, "max_batch_total_tokens": 256, "max_top_logprobs": 2}
WAYS: list[dict[str, object]] = [{}, {"temperature": 1.0, "top_p": 0.9}, {"logprobs": 2, "prompt_logprobs": True}]
WAYS.append({"temperature": 1.0, "grammar": Grammar("regex", "[a-z]{20}")})
WAYS += [  # samplers, which see logits that are split by vocabulary
    {
        "repetition_penalty": 1.3,
        "samplers": Samplers(dry_multiplier=1.0, dry_allowed_length=1, no_repeat_ngram_size=2, repetition_range=9),
    },
    {"temperature": 1.2, "top_k": 40, "typical_p": 0.9, "samplers": Samplers(top_a=0.01, xtc_probability=0.5)},
    {"temperature": 1.0, "min_p": 0.01, "samplers": Samplers(top_n_sigma=2.0, skew=0.1, smoothing_factor=0.2)},
    {"temperature": 1.0, "samplers": Samplers(mirostat_tau=4.0, mirostat_eta=0.3)},
]
REQUESTS = [ask(n, prompt(40, seed=n), max_tokens=8, **way) for n, way in enumerate(WAYS)]
SEARCH = ask(len(REQUESTS), prompt(30, seed=9), max_tokens=12, beams=BeamSearch(width=2))
STATES = {"max_total_tokens": 128}  # what a state counts as


def report(directory: Path, devices: int, **options: object) -> dict[str, object]:
    """What the model answers on `devices` devices, and how large one device's part of each array is."""
    engine = load(directory, tensor_parallel=devices, **SMALL, **options)  # type: ignore[arg-type]
    answers = serve(engine, [*REQUESTS, SEARCH])
    beams = answers.pop(SEARCH.id).beams
    keys, values = engine.runner.state.layers
    (head,) = engine.runner.model.head.arrays
    arrays = {"keys": keys, "values": values, "head": head}
    whole = sum(leaf.nbytes for leaf in engine.runner.model.leaves[False])
    held = sum(leaf.addressable_shards[0].data.nbytes for leaf in engine.runner.model.leaves[False])
    return {
        "ids": [answer.ids for answer in answers.values()],
        "logprobs": [token.logprob for answer in answers.values() for token in answer.tokens],
        "beams": [[token.id for token in beam.tokens] for beam in beams],
        "scores": [beam.score for beam in beams],
        "shape": {name: array.shape for name, array in arrays.items()},
        "shard": {name: array.addressable_shards[0].data.shape for name, array in arrays.items()},
        "weights_held": held / whole,
        "device_count": engine.description.device_count,
    }


def plain(directory: Path) -> dict[str, Any]:
    """What the model answers on one device."""
    served = serve(load(directory, **SMALL), REQUESTS)
    return {
        "ids": [answer.ids for answer in served.values()],
        "logprobs": [token.logprob for answer in served.values() for token in answer.tokens],
    }


def speculated(directory: Path, devices: int, answers: list[list[int]]) -> dict[str, object]:
    """What the model answers on `devices` devices where steps verify drafts, most of them begun as in `answers`."""
    engine = load(directory, every_bucket=True, tensor_parallel=devices, speculate=3, **SMALL)
    expected = {n: Answer([Token(token, 0.0) for token in ids]) for n, ids in enumerate(answers)}
    with drafting(engine, expected, kinds=("turning", "right"), share=1.0, waiting=1.0) as drafts:
        served = serve(engine, REQUESTS)
    return {
        "ids": [answer.ids for answer in served.values()],
        "logprobs": [token.logprob for answer in served.values() for token in answer.tokens],
        "accepted": sum(drafts.accepted),
    }


def drafted(directory: Path, draft: Path, devices: int) -> dict[str, object]:
    """What the model answers on `devices` devices, and what a draft model or EAGLE's layers have proposed for it."""
    model = open_model(str(directory), drafter=str(draft))
    config = {"model": str(draft), "num_speculative_tokens": 3}
    chosen: dict[str, Any] = {**SMALL, "tensor_parallel": devices, "speculative_config": config}
    with shared_executables():
        engine = load_engine(model, EngineOptions(**chosen))
    engine.finish_compiling()
    draft_runner = engine.runner.draft
    assert draft_runner is not None
    watched = Watched(draft_runner)
    with speculator(engine, eager(engine, watched)):
        served = serve(engine, REQUESTS[:3])  # without a grammar, which is there when it is compiled
    return {
        "ids": [answer.ids for answer in served.values()],
        "proposed": sorted((asked.request, len(asked.tokens), asked.proposal.ids) for asked in watched.asked),
        "shard": draft_runner.state.draft_layers[0].addressable_shards[0].data.shape,
    }


def mixed(directory: Path, adapters: Path, devices: int) -> dict[str, object]:
    """What the model and its `adapters` answer on `devices` devices, in steps that mix them."""
    named = {path.name: path for path in sorted(adapters.iterdir())}
    engine = load(directory, adapters=named, max_loras=2, tensor_parallel=devices, **{**SMALL, "max_batch_size": 4})
    whose = ("", *named)
    answers = serve(engine, [ask(n, prompt(30, seed=n), max_tokens=6, adapter=name) for n, name in enumerate(whose)])
    return {
        "ids": [answer.ids for answer in answers.values()],
        "logprobs": [token.logprob for answer in answers.values() for token in answer.tokens],
        "shard": [stack.b.addressable_shards[0].data.shape for stack in engine.runner.state.adapters.values()],
    }


def refusal(directory: Path, devices: int) -> str:
    try:
        load(directory, tensor_parallel=devices, **SMALL)
    except ValueError as error:
        return str(error)
    return "served"


def main(
    directory: Path,
    few_heads: Path,
    experts: Path,
    encoder: Path,
    states: Path,
    adapters: Path,
    eagle: Path,
    linear: Path,
) -> None:
    reports = {devices: report(directory, devices) for devices in DEVICES}
    refusals = {devices: refusal(directory, devices) for devices in (3, 16)}
    refusals["experts"] = refusal(experts, 8)
    copied = {devices: report(few_heads, devices) for devices in (1, 8)}
    mixture = {devices: report(experts, devices) for devices in (1, 2, 4)}
    few_bits = {devices: report(directory, devices, quantize="int8", kv_cache_dtype="fp8") for devices in (1, 4)}
    stored = {devices: report(experts, devices, quantize="int8") for devices in (1, 2)}
    outcome = {"reports": reports, "refusals": refusals, "copied": copied, "mixture": mixture, "few_bits": few_bits}
    outcome["mixture_in_8_bits"] = stored
    outcome["encoder"] = {devices: report(encoder, devices) for devices in (1, 2)}
    outcome["adapters"] = {devices: mixed(few_heads, adapters, devices) for devices in (1, 2, 8)}
    outcome["speculated"] = speculated(directory, 2, reports[1]["ids"])  # type: ignore[arg-type]
    outcome["drafted"] = {devices: drafted(directory, few_heads, devices) for devices in (1, 4)}
    outcome["eagle"] = {devices: drafted(directory, eagle, devices) for devices in (1, 4)}
    outcome["states"] = {devices: report(states, devices, **STATES) for devices in (1, 2)}
    alone = plain(linear)
    outcome["linear"] = {1: alone, 2: speculated(linear, 2, alone["ids"])}
    print(json.dumps(outcome))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
