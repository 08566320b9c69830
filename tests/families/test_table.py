"""The tables of convert/README.md: every family that is registered, with the checkpoints that prove it, and every model
that sees.
"""

import re
from pathlib import Path

import pytest

from convert.families import FAMILIES
from convert.families.multimodal import MODELS
from convert.llama_cpp.architectures import ARCHITECTURES
from tests.families.seq2seq import SEQ2SEQ
from tests.families.zoo import BAICHUAN, SANTACODER, ZOO
from tests.tiny import TINY
from tests.tiny_vision import SEEN

README = Path(__file__).parents[2] / "convert" / "README.md"
ROW = re.compile(r"\| `([\w`, ]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|")
OTHER_NAMES = {
    "RefinedWeb": "falcon",
    "RefinedWebModel": "falcon",
    "kimi_k2": "deepseek_v3",
}  # further model_types of the same checkpoints
OTHER_ARCHITECTURES = {"mistral": "llama", "mixtral": "llama", "falcon_mamba": "mamba", "mt5": "t5", "umt5": "t5"}
OTHER_ARCHITECTURES |= {"granitemoeshared": "granitemoe", "olmo3": "olmo2"}
OTHER_ARCHITECTURES |= dict.fromkeys(("deepseek_v2", "glm4_moe_lite", "youtu"), "deepseek2")


def table(section: str = "The families") -> dict[str, tuple[str, str, str]]:
    """By model_type: the models, the checkpoints of the proof, the architecture of GGUF files or what it sees with."""
    found: dict[str, tuple[str, str, str]] = {}
    _, _, families = README.read_text().partition(f"\n## {section}\n")
    for types, models, proof, architecture in ROW.findall(families.partition("\n## ")[0]):
        for model_type in re.split(r"`, `", types):
            assert model_type not in found, f"{model_type} has two rows"
            found[model_type] = (models, proof, architecture)
    return found


def proofs(model_type: str) -> set[str]:
    """The tiny checkpoints of a family that are compared with its reference."""
    model_type = OTHER_NAMES.get(model_type, model_type)
    zoo = {name for name, fields in (ZOO | SEQ2SEQ).items() if fields["model_type"] == model_type}
    llamas = {name: {"model_type": "llama", **fields} for name, fields in TINY.items()}
    tiny = {name for name, fields in llamas.items() if fields["model_type"] == model_type}
    others = {"baichuan": set(BAICHUAN), "gpt2": {SANTACODER}, "mllama_text_model": {"mllama"}}
    others |= {"idefics": {"idefics", "idefics_plain"}, "qwen3_vl_moe_text": {"qwen3_vl_moe"}}
    return zoo | tiny | others.get(model_type, set())


def test_every_family_has_a_row_and_every_row_a_family() -> None:
    assert set(table()) == set(FAMILIES)


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_a_family_s_proof_is_what_the_tests_compare(model_type: str) -> None:
    _, proof, _ = table()[model_type]
    assert set(re.findall(r"`(\w+)`", proof)) == proofs(model_type) != set()


@pytest.mark.parametrize("model_type", sorted(MODELS))
def test_a_model_that_sees_has_a_row_with_its_proof(model_type: str) -> None:
    _, proof, _ = table("Models that see")[model_type]
    assert set(table("Models that see")) == set(MODELS)
    assert (
        set(re.findall(r"`(\w+)`", proof)) == {name for name in SEEN if SEEN[name]["model_type"] == model_type} != set()
    )


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_a_family_s_gguf_is_the_architecture_that_is_read(model_type: str) -> None:
    _, _, architecture = table()[model_type]
    known = OTHER_NAMES.get(model_type, model_type)
    own = [name for name, each in ARCHITECTURES.items() if each.model_type == known]
    expected = [OTHER_ARCHITECTURES[known]] if known in OTHER_ARCHITECTURES else own
    assert architecture == (", ".join(f"`{name}`" for name in expected) or "-")
