"""A real FLAN-T5 says what transformers made of the same weights said, token for token."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from gateway.detokenizer import Detokenizer
from gateway.tokenizer import Tokenizer as GatewayTokenizer
from tests.families.flan_t5 import write_flan_t5
from tests.jaxengine.engines import ask, load, serve

GOLDENS = json.loads((Path(__file__).parents[1] / "goldens" / "flan_t5_small_golden.json").read_text())["runs"]


@pytest.fixture(scope="module")
def flan_t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_flan_t5(tmp_path_factory.mktemp("flan_t5"))


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
