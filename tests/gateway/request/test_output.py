"""The text of one sequence from the engine's tokens: which special tokens show in it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.request.output import OutputPolicy, OutputProcessor
from gateway.text.model_text import ModelText
from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.toys import BOS, END_THINK, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelText:
    directory: Path = write_model(tmp_path_factory.mktemp("model"))
    return ModelText(directory, 1024, ThreadPoolExecutor(1), payload_limit=1 << 20)


def texts(model: ModelText, visible: frozenset[int]) -> tuple[str, list[str]]:
    """The running text, and that of each token."""
    policy = OutputPolicy(keep_stop=False, show_end=False, skip_special=True, length_first=False, visible=visible)
    output = OutputProcessor(model, pb.Generate(max_new_tokens=9), [], [], policy)
    ids = [*model.tokenizer.encode("lo", add_special_tokens=False), END_THINK, BOS]
    delta = output.push(pb.RequestEvent(tokens=[pb.Token(id=id) for id in ids]))
    return output.text, [token.text for token in delta.tokens]


def test_chosen_special_tokens_stay_in_the_text_and_others_do_not(model: ModelText) -> None:
    mark = model.tokenizer.token_text(END_THINK)
    assert texts(model, frozenset()) == ("lo", ["lo", mark, "<s>"])
    assert texts(model, frozenset({END_THINK})) == (f"lo{mark}", ["lo", mark, "<s>"])
