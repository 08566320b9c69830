"""What XLA makes of models, as the table in jaxengine/README.md: `python -m tests.gpu_compile table` prints it.

Of a step's program: its operations as the engine gives them to XLA, what is left of these, and what a GPU is given to
do. Every model is compiled whole, and cut to four layers, so the difference tells a layer's kernels. Run by
`toolchain.run`; writes the facts as JSON.
"""

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.gpu_compile import h200
from tests.gpu_compile.steps import ROWS, TOKENS, cut, decode, mixed
from tests.shapes import BLOOM_3B, GPT2, LLAMA_8B, OPT_6_7B, PYTHIA_6_9B

MODELS = {
    "Llama-3.1-8B": LLAMA_8B,
    "BLOOM-3b": BLOOM_3B,
    "GPT-2": GPT2,
    "Pythia-6.9b (GPT-NeoX)": PYTHIA_6_9B,
    "OPT-6.7b": OPT_6_7B,
}
STEPS = {f"decode, {ROWS} rows": decode, f"prompts, {TOKENS} tokens": mixed}
FEW = 4  # layers
HEADER = (
    "| model | step | operations | after XLA | of them fusions | products | own kernels | kernels | temporaries | "
    "host launches |"
)


def facts() -> Iterator[dict[str, Any]]:
    """Of each row: the names, and the facts of the whole model and of its few layers."""
    for model, spec in MODELS.items():
        for step, compiled in STEPS.items():
            longest = min(spec.max_positions, 8192)
            whole, few = (compiled(each, 1, longest=longest) for each in (spec, cut(spec, FEW)))
            found = {"whole": dataclasses.asdict(whole), "few": dataclasses.asdict(few)}
            yield {"model": model, "layers": spec.num_layers, "step": step, **found}


def line(row: dict[str, Any]) -> str:
    whole, layers = row["whole"], row["layers"]
    each = round(
        (whole["kernels"] - row["few"]["kernels"]) / (layers - FEW)
    )  # the first and the last may differ by one
    kernels = f"{whole['kernels']} = {each} a layer + {whole['kernels'] - each * layers}"
    launches = "one graph" if whole["launched"] == ["CommandBuffer"] else len(whole["launched"])
    counts = [whole[name] for name in ("lowered", "optimised", "fusions", "products", "custom")]
    memory = f"{whole['temporaries'] / h200.MIB:.1f} MiB"
    return f"| {' | '.join(map(str, (row['model'], row['step'], *counts, kernels, memory, launches)))} |"


def text(rows: list[dict[str, Any]]) -> str:
    return "\n".join([HEADER, "| --- " * HEADER.count(" | ") + "| --- |", *map(line, rows)])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps([*facts()], indent=1))
