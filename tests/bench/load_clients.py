"""Our benchmark beside others' on one server: the median of each number's ratio, in rounds by turns.

python -m tests.bench.load_clients [--vllm PYTHON SOURCES] [--guidellm COMMAND] [--rounds 8] [--url URL]

Both are installed elsewhere: of vLLM the files of its package and what `vllm/benchmarks/serve.py` imports are enough,
without a GPU or kernels. Without --url the server is the launcher with the mock engine, whose steps take 20 ms. Numbers
have the same definitions, but guidellm's have other names: its inter-token latency is TPOT.

The server counts the time to the first token too. What a client counts beyond that is the client's own: the time that
it takes to connect, to send and to come round to reading.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from gateway.benchmark.markdown import table
from tests.processes import ROOT, gauges, running_launcher
from tests.tiny import tokenizer

USERS, REQUESTS, PROMPT, ANSWER = 8, 48, 30, 64
STEP = "--step-seconds=0.02"
VLLM = (
    "import sys, argparse; sys.path.insert(0, sys.argv.pop(1)); from vllm.benchmarks import serve; "
    "p = argparse.ArgumentParser(); serve.add_cli_args(p); serve.main(p.parse_args())"
)
Numbers = dict[str, float]


def ours(url: str, directory: Path, seed: int) -> Numbers:
    loads = (f"-b={USERS}", f"--requests={REQUESTS}", f"-s={PROMPT}", f"-d={ANSWER}", "-r=1", "-w=0", f"--seed={seed}")
    run(sys.executable, "-m", "gateway.benchmark.cli", f"--url={url}", *loads, f"-t={directory}", "--output=ours.json",
        directory=directory, PYTHONPATH=str(ROOT))  # fmt: skip
    [level] = json.loads((directory / "ours.json").read_text())["levels"]
    assert level["totals"]["complete"] == REQUESTS, level
    times = {f"{share} {name}, ms": level["spread"][f"{name}_ms"][field] for name in NAMES for share, field in SHARES}
    totals = level["totals"]
    return times | {"requests/s": totals["requests_per_second"], "tokens/s": totals["output_tokens_per_second"]}


def vllm(python: str, sources: str, url: str, directory: Path) -> Numbers:
    lengths = (f"--random-input-len={PROMPT - 1}", f"--random-output-len={ANSWER}")  # without the first token
    server = ("--backend=openai", f"--base-url={url}", "--endpoint=/v1/completions", "--model=mock/model")
    load = (f"--num-prompts={REQUESTS}", f"--max-concurrency={USERS}", "--ready-check-timeout-sec=0", "--ignore-eos")
    out = ("--save-result", "--result-filename=vllm.json", "--disable-tqdm", "--percentile-metrics=ttft,tpot,itl,e2el")
    prompts = (f"--tokenizer={directory}", "--dataset-name=random", *lengths)
    run(python, "-c", VLLM, sources, *server, *prompts, *load, *out, directory=directory)
    found = json.loads((directory / "vllm.json").read_text())
    assert found["completed"] == REQUESTS, found
    theirs = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
    times = {f"{share} {name}, ms": found[f"{share}_{theirs[name]}_ms"] for name in NAMES for share, _ in SHARES}
    return times | {"requests/s": found["request_throughput"], "tokens/s": found["output_throughput"]}


def guidellm(command: str, url: str, directory: Path) -> Numbers:
    run(command, "run", f"--backend=kind=openai_http,target={url},model=mock/model,request_format=/v1/completions",
        f"--profile=kind=concurrent,streams={USERS}", f"--constraint=kind=max_requests,count={REQUESTS}",
        f"--tokenizer=kind=huggingface_auto,model={directory}", "--disable-console",
        f"--data=kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={ANSWER}",
        "--output=kind=json,path=guidellm.json", directory=directory)  # fmt: skip
    [benchmark] = json.loads((directory / "guidellm.json").read_text())["benchmarks"]
    metrics, requests = benchmark["metrics"], benchmark["requests"]["successful"]
    assert len(requests) == REQUESTS
    names = {"ttft": "time_to_first_token_ms", "tpot": "inter_token_latency_ms"}
    times = {f"{s} {n}, ms": metrics[each]["successful"][s] for n, each in names.items() for s, _ in SHARES}
    times |= {f"{share} e2e, ms": 1e3 * metrics["request_latency"]["successful"][share] for share, _ in SHARES}
    ends = [each["request_end_time"] for each in requests]
    seconds = max(ends) - min(each["request_start_time"] for each in requests)
    return times | {"requests/s": REQUESTS / seconds, "tokens/s": REQUESTS * ANSWER / seconds}


NAMES = ("ttft", "tpot", "itl", "e2e")
SHARES = (("mean", "mean"), ("median", "p50"))


def run(*command: str, directory: Path, **environ: str) -> None:
    """Fails with what the command wrote."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = {**own, "HF_HUB_OFFLINE": "1", **environ}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


def rounds(url: str, directory: Path, others: dict[str, Callable[[], Numbers]], count: int) -> list[list[str]]:
    found: dict[str, list[Numbers]] = {name: [] for name in ("ours", *others)}
    for number in range(count):
        turns: list[tuple[str, Callable[[], Numbers]]] = [("ours", lambda n=number: ours(url, directory, n))]  # type: ignore[misc]
        turns += others.items()
        for name, measure in turns if number % 2 else turns[::-1]:
            before = first_tokens(url)
            numbers = measure()
            seconds, count = (b - a for a, b in zip(before, first_tokens(url), strict=True))
            served = 1e3 * seconds / count
            own = numbers["mean ttft, ms"] - served
            found[name].append(numbers | {"mean ttft at the server, ms": served, "mean ttft, client's own ms": own})
    return [_row(name, measure, found) for name in others for measure in found[name][0]]


def first_tokens(url: str) -> tuple[float, float]:
    """The seconds to the first token, arrival to event, that the server has counted, and of how many requests."""
    counted, name = gauges(url), "textgen_time_to_first_token_seconds"
    return counted[f"{name}_sum"], counted[f"{name}_count"]


def _row(name: str, measure: str, found: dict[str, list[Numbers]]) -> list[str]:
    mine, theirs = ([each[measure] for each in found[who]] for who in ("ours", name))
    ratios = sorted(a / b for a, b in zip(mine, theirs, strict=True))
    shown = (f"{median(mine):.2f}", f"{median(theirs):.2f}", f"{median(ratios):.4f}")
    return [name, measure, *shown, f"{ratios[0]:.3f} … {ratios[-1]:.3f}"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.load_clients", description=__doc__)
    parser.add_argument("--vllm", nargs=2, metavar=("PYTHON", "SOURCES"), help="an interpreter, and where vllm/ lies")
    parser.add_argument("--guidellm", help="its command")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--url", help="of another server, whose model is mock/model")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        tokenizer().save_pretrained(directory)
        if options.url:
            _compare(options, options.url, directory)
            return
        script = ("--script", *map(str, tokenizer().encode("hello", add_special_tokens=False)))
        with running_launcher(directory, mock=(STEP, *script)) as launcher:
            launcher.wait_for(200)
            _compare(options, launcher.url, directory)


def _compare(options: Any, url: str, directory: Path) -> None:
    others: dict[str, Callable[[], Numbers]] = {}
    if options.vllm:
        others["vllm"] = lambda: vllm(*options.vllm, url, directory)
    if options.guidellm:
        others["guidellm"] = lambda: guidellm(options.guidellm, url, directory)
    columns = ("beside", "number", "ours", "theirs", "ratio, median", "of all rounds")
    print(table(columns, rounds(url, directory, others, options.rounds)))


if __name__ == "__main__":
    main()
