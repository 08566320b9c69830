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


RAW = OutputPolicy(keep_stop=False, show_end=False, skip_special=True, length_first=False)


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


def test_a_delta_of_several_tokens_is_those_of_its_tokens_one_by_one(model: ModelText) -> None:
    ids = model.tokenizer.encode("a stop world", add_special_tokens=False)
    made = [OutputProcessor(model, pb.Generate(max_new_tokens=9), [], ["stopped", "wor"], RAW) for _ in range(2)]
    tokens = [pb.Token(id=id) for id in ids]
    prompt = pb.Prompt(cached_tokens=1)
    together = made[0].push(pb.RequestEvent(tokens=tokens, prompt=prompt, finish=pb.LENGTH))
    apart = [made[1].push(pb.RequestEvent(tokens=tokens[:1], prompt=prompt))]
    while apart[-1].finish is None:
        apart.append(made[1].push(pb.RequestEvent(tokens=[tokens[len(apart)]])))
    assert together.singles() == apart and len(apart) < len(tokens)
    assert together.text == "".join(single.text for single in apart) == "a stop "


@pytest.mark.parametrize(("stop", "kept"), [("h", 1), ("lo", 2), ("o w", 3), ("r", 4), ("d", 5), ("never", 5)])
def test_drafts_behind_a_stop_string_are_none_of_the_answers(model: ModelText, stop: str, kept: int) -> None:
    """Two steps give one token each, the third gives five, four of which were drafts."""
    output = OutputProcessor(model, pb.Generate(max_new_tokens=9), [], [stop], RAW)
    ids = model.tokenizer.encode("hello world", add_special_tokens=False)
    for accepted, run in ((0, [BOS]), (0, [BOS]), (4, ids)):
        output.push(pb.RequestEvent(tokens=[pb.Token(id=id) for id in run], accepted_draft_tokens=accepted))
    assert (output.generated, output.accepted_draft_tokens) == (2 + kept, kept - 1)
