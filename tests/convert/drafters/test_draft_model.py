"""A model drafts for another if every id means the same to both, whatever their files look like."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.drafters.draft_model import check_same_tokens
from convert.errors import CheckpointError
from convert.source import open_model
from jaxengine.architecture.drafter import DRAFTER, DraftModel, DraftModelSource
from jaxengine.architecture.parameters import parameter_table
from tests.convert.drafters.opened import HIDDEN, VOCAB
from tests.convert.tiny_gguf import write_tiny_gguf
from tests.tiny_drafters import write_medusa

BASE = "llama2_gqa"


def assert_drafts(model: str, draft: str, source: str, cache: Path | None = None) -> None:
    """`draft` drafts for `model` with the parameters of the model `source`."""
    drafter, alone = (
        open_model(model, cache_dir=cache, drafter=draft).drafter,
        open_model(source, cache_dir=cache).source,
    )
    assert isinstance(drafter, DraftModelSource) and drafter.spec == DraftModel(alone.spec)
    assert drafter.spec.parameters().keys() == {f"{DRAFTER}{name}" for name in parameter_table(alone.spec)}
    for name in parameter_table(alone.spec):
        np.testing.assert_array_equal(drafter.read(f"{DRAFTER}{name}", ()), alone.read(name, ()))


@pytest.mark.slow
def test_a_directory_and_a_gguf_file_draft(tiny: Callable[[str], Path], cache: Path, tmp_path: Path) -> None:
    base, draft = str(tiny(BASE)), tiny("llama3")
    assert_drafts(base, str(draft), str(draft))
    file = str(write_tiny_gguf(draft, tmp_path / "tiny.gguf"))
    assert_drafts(base, file, file, cache)
    assert_drafts(file, str(draft), str(draft), cache)


@pytest.mark.slow
def test_of_a_model_with_heads_beside_it_the_heads_draft(copy_of: Callable[[str], Path], tmp_path: Path) -> None:
    model, heads = copy_of(BASE), write_medusa(tmp_path / "heads", "", HIDDEN, VOCAB)
    for name in ("config.json", "medusa_lm_head.safetensors"):
        merged = (heads / name).read_bytes()
        if name == "config.json":
            merged = json.dumps(json.loads((model / name).read_text()) | json.loads(merged)).encode()
        (model / name).write_bytes(merged)
    drafter = open_model(str(model), drafter=str(model)).drafter
    assert drafter is not None and drafter.spec.method == "medusa"


@pytest.mark.slow
def test_a_drafter_s_name_does_not_go_with_a_draft_model(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    heads = write_medusa(tmp_path / "heads", str(tiny(BASE)), HIDDEN, VOCAB)
    with pytest.raises(CheckpointError, match="is a drafter; name its base, or no other drafter"):
        open_model(str(heads), drafter=str(tiny("llama")))


@pytest.mark.slow
def test_what_is_wrong_with_a_draft_model_is_said_of_it(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"missing: no config\.json and no \.gguf file"):
        (tmp_path / "missing").mkdir()
        open_model(str(tiny(BASE)), drafter=str(tmp_path / "missing"))
    with pytest.raises(CheckpointError, match="no-such-file"):
        open_model(str(tiny(BASE)), drafter=str(tmp_path / "no-such-file.gguf"))


# --- tokens -------------------------------------------------------------------------------------------------------

Changed = Callable[[dict[str, Any]], Any]


@pytest.fixture
def changed(tiny: Callable[[str], Path], tmp_path: Path) -> Callable[[Changed], tuple[Path, Path]]:
    """A directory whose tokenizer is that of the other, changed."""

    def change(how: Changed) -> tuple[Path, Path]:
        tokenizer = json.loads((tiny(BASE) / "tokenizer.json").read_text())
        how(tokenizer)
        (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
        return tmp_path, tiny(BASE)

    return change


def rename(tokenizer: dict[str, Any]) -> None:
    tokenizer["added_tokens"][0]["content"] = "<padding>"
    vocab = tokenizer["model"]["vocab"]
    vocab["<padding>"] = vocab.pop("<pad>")


def swap(tokenizer: dict[str, Any]) -> None:
    vocab = tokenizer["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]


def add(tokenizer: dict[str, Any]) -> None:
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": VOCAB, "content": "<more>"})


def shorten(tokenizer: dict[str, Any]) -> None:
    tokenizer["model"]["merges"].reverse()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (rename, "has no token '<pad>', which is 0 in"),
        (swap, "token 'a' is 69, and 68 in"),
        (add, "token '<more>' is 320, and none in"),
        (shorten, "its merges are not those of"),
    ],
)
def test_other_tokens_are_refused_naming_both_files(
    changed: Callable[[Changed], tuple[Path, Path]], how: Changed, said: str
) -> None:
    draft, model = changed(how)
    with pytest.raises(CheckpointError) as error:
        check_same_tokens(draft, model)
    assert str(error.value).startswith(f"{draft / 'tokenizer.json'}: {said} ")
    assert str(model / "tokenizer.json") in str(error.value)


def respell(tokenizer: dict[str, Any]) -> None:
    """As older versions of the library write it, and other tools."""
    tokenizer["model"]["merges"] = [" ".join(pair) for pair in tokenizer["model"]["merges"]]
    tokenizer["model"]["vocab"] = dict(reversed(tokenizer["model"]["vocab"].items()))
    tokenizer["padding"] = tokenizer["post_processor"] = None
    tokenizer["added_tokens"][1]["special"] = False


def test_the_same_tokens_may_be_written_otherwise(changed: Callable[[Changed], tuple[Path, Path]]) -> None:
    check_same_tokens(*changed(respell))
