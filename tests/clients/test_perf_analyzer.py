"""Triton's `perf_analyzer`: it reads a model's metadata, configuration and statistics before it measures, and after."""

import ctypes
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import SCRIPT_SECONDS, interpreter
from tests.gateway.processes.test_grpc import address
from tests.servers import Server, serving

LIBRARY = "libb64.so.0d"


def has_library() -> bool:
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_library(), reason=f"perf_analyzer needs {LIBRARY}, Debian's package libb64-0d"),
]

TEXT: dict[str, Any] = {"text_input": ["the quick brown fox"], "max_tokens": [8]}
STREAMED = {**TEXT, "stream": [True]}
# As genai-perf writes vLLM's sampling parameters: numbers are texts.
GENAI = {"text_input": ["jumps"], "stream": [True], "sampling_parameters": [json.dumps({"max_tokens": "8"})]}
TOKENIZER = {"TEXT": {"content": ["the quick brown fox"], "shape": [1]}}
STREAMS = ("-i", "grpc", "--streaming", "--async")


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ("--served-model-name=tiny", "--grpc-port=0", "--max-batch-size=8")
    with serving(tmp_path_factory.mktemp("perf"), f"--model-id={tiny_model}", *options) as server:
        server.wait_ready()
        yield server


@pytest.mark.parametrize(
    ("model", "data", "options"),
    [
        ("tiny", TEXT, ("-i", "http")),
        ("tiny", TEXT, ("-i", "grpc")),
        ("tiny", STREAMED, STREAMS),
        ("tiny", GENAI, STREAMS),
        ("tiny_tokenizer", TOKENIZER, ("-i", "http")),
        ("tiny_tokenizer", TOKENIZER, ("-i", "grpc")),
    ],
)
def test_it_measures(
    server: Server, tmp_path: Path, model: str, data: dict[str, Any], options: tuple[str, ...]
) -> None:
    python = interpreter("perf_analyzer")
    [cuda] = python.parent.parent.glob("lib/python*/site-packages/nvidia/cuda_runtime/lib")
    (tmp_path / "data.json").write_text(json.dumps({"data": [data]}))
    url = address(server) if "grpc" in options else server.url.removeprefix("http://")
    chosen = ("-m", model, "-u", url, "--input-data", tmp_path / "data.json", "--concurrency-range", "2")
    quick = ("--measurement-interval", "500", "--stability-percentage", "999")
    env = {**os.environ, "LD_LIBRARY_PATH": f"{cuda}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    command = [python.parent / "perf_analyzer", *chosen, *quick, *options]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SCRIPT_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    told = {name.strip(): value for name, _, value in (line.partition(": ") for line in done.stdout.splitlines())}
    assert float(told["Throughput"].split()[0]) > 0, done.stdout
    assert int(told["Successful request count"]) == int(told["Inference count"]) > 0, done.stdout
