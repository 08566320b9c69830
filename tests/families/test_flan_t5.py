"""A real FLAN-T5 gives transformers' answers with the same weights, token for token."""

import base64
import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from convert.formats.gguf_tokenizer import write_tokenizer
from gateway.text.detokenizer import Detokenizer
from gateway.text.tokenizer import Tokenizer as GatewayTokenizer
from tests.families.flan_t5 import fetch_flan_t5
from tests.jaxengine.engines import ask, load, serve

pytestmark = pytest.mark.slow

GOLDENS = json.loads((Path(__file__).parents[1] / "goldens" / "flan_t5_small_golden.json").read_text())["runs"]


@pytest.fixture(scope="module")
def flan_t5() -> Path:
    return fetch_flan_t5()


def test_the_goldens_come_out_together(flan_t5: Path) -> None:
    tokenizer = Tokenizer.from_file(str(flan_t5 / "tokenizer.json"))
    prompts = [tokenizer.encode(golden["text"]).ids for golden in GOLDENS]
    assert prompts == [golden["input_ids"] for golden in GOLDENS]
    engine = load(flan_t5, max_batch_size=3, max_total_tokens=64, max_top_logprobs=1)
    answers = serve(engine, [ask(i, ids, max_tokens=32, ignore_eos=False) for i, ids in enumerate(prompts)])
    assert [answers[i].ids for i in range(len(GOLDENS))] == [golden["greedy_ids"] for golden in GOLDENS]


@pytest.mark.parametrize("golden", GOLDENS, ids=["summarize", "translate", "title"])
def test_their_text_is_streamed_as_it_decodes(golden: dict[str, object], flan_t5: Path) -> None:
    detokenizer = Detokenizer(GatewayTokenizer.load(flan_t5), [], skip_special_tokens=True)
    pieces = [detokenizer.push(id) for id in golden["greedy_ids"]]  # type: ignore[attr-defined]
    assert "".join(pieces) + detokenizer.flush() == golden["output"]


def test_a_gguf_s_tokenizer_is_the_real_one(flan_t5: Path, tmp_path: Path) -> None:
    """llama.cpp's converter writes it so: the 100 extra ids, which sentencepiece does not know, become padding."""
    original = json.loads((flan_t5 / "tokenizer.json").read_text())
    known = original["model"]["vocab"][:32000]
    tokens, scores = zip(*known, *((f"[PAD{n}]", -10000.0) for n in range(32000, 32128)), strict=True)
    characters = base64.b64decode(original["normalizer"]["normalizers"][0]["precompiled_charsmap"])
    fields = {
        "model": "t5",
        "tokens": list(tokens),
        "scores": list(scores),
        "token_type": [3, 3, 2] + [1] * 31997 + [5] * 128,
        "precompiled_charsmap": [byte - 256 if byte > 127 else byte for byte in characters],
        "add_space_prefix": True,
        "remove_extra_whitespaces": True,
    }
    write_tokenizer({f"tokenizer.ggml.{key}": value for key, value in fields.items()}, tmp_path, "x.gguf")
    rebuilt, real = (Tokenizer.from_file(str(where / "tokenizer.json")) for where in (tmp_path, flan_t5))
    real.no_truncation()
    for text in (
        *(golden["text"] for golden in GOLDENS),
        "Ünïcödé 日本語 🙂 ½ ٣ ﬁne ①",
        "two  spaces\t\n x = 12",
        "a</s>b",
    ):
        assert rebuilt.encode(text).ids == real.encode(text).ids, text
