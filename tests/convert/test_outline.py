"""A model without its weights: known as if they were there, by what little is fetched."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType
from safetensors.torch import load_file

from convert.errors import CheckpointError
from convert.origin import hub as hub_checkpoint
from convert.origin.hub import RemoteFile
from convert.outline import CONFIGURATION, FILES, HEADER, HEADERS, open_outline
from convert.source import OpenModel, open_model
from jaxengine.architecture.parameters import parameter_table
from jaxengine.architecture.weight_format import WeightFormat
from tests.convert.fake_hub import SHA, FakeHub, fake_hub
from tests.convert.tiny_gguf import llama3_factors, write_tiny_gguf
from tests.families.seq2seq import SEQ2SEQ
from tests.families.zoo import NAMES as ZOO
from tests.tiny_adapter import write_adapter
from tests.tiny_drafters import write_medusa
from tests.tiny_quantized import FORMATS, write_gpt_oss, write_quantized

Checkpoints = Callable[[str], Path]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """With repositories that a test adds."""
    with fake_hub({}) as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        files = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", files)
        yield server


def bare(directory: Path, target: Path) -> Path:
    """The configuration in `directory`, alone."""
    target.mkdir()
    shutil.copyfile(directory / "config.json", target / "config.json")
    return target


def formats(model: OpenModel) -> dict[str, WeightFormat | None]:
    stored = {name: model.source.stored(name) for name in parameter_table(model.source.spec)}
    return {name: each.format if each else None for name, each in stored.items()}


def assert_alike(outline: OpenModel, model: OpenModel) -> None:
    """But for what only a tokenizer tells."""
    assert parameter_table(outline.source.spec) == parameter_table(model.source.spec)
    assert outline.source.dtype == model.source.dtype
    assert outline.quantization == model.quantization
    assert outline.pooling == model.pooling
    assert formats(outline) == formats(model)


@pytest.mark.parametrize("name", ZOO)
def test_a_configuration_alone_tells_everything_but_biases(name: str, zoo: Checkpoints, tmp_path: Path) -> None:
    made = open_outline(str(bare(zoo(name), tmp_path / "bare")))
    assert made.known_from == CONFIGURATION
    assert_alike_but_for_biases(made.model, open_model(str(zoo(name))))


@pytest.mark.parametrize("name", sorted(SEQ2SEQ.keys() - {"t5_own_head"}))  # a head that no configuration tells of
def test_so_does_that_of_a_model_with_an_encoder(name: str, seq2seq: Checkpoints, tmp_path: Path) -> None:
    made = open_outline(str(bare(seq2seq(name), tmp_path / "bare"))).model
    assert_alike_but_for_biases(made, open_model(str(seq2seq(name))))


def assert_alike_but_for_biases(outline: OpenModel, model: OpenModel) -> None:
    told, there = (parameter_table(each.source.spec) for each in (outline, model))
    assert told.items() <= there.items()
    assert all(name.endswith("_bias") for name in there.keys() - told.keys())


def test_weights_that_are_here_are_opened(tiny: Checkpoints) -> None:
    made = open_outline(str(tiny("llama")))
    assert made.known_from == FILES
    assert made.model.source.read("final_norm", ()).any()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "only weights tell what is quantised"),
        ({"model_type": "nemotron"}, "model_type has no family here, .* got 'nemotron'"),
        ({"num_key_value_heads": 3}, r"config\.json: num_heads 4 is not a multiple of num_kv_heads 3"),
        ({"dtype": "int8"}, "dtype must be one of float32, bfloat16, float16, got 'int8'"),
    ],
)
def test_what_a_configuration_alone_does_not_tell_is_refused(
    change: dict[str, object], said: str, tiny: Checkpoints, tmp_path: Path
) -> None:
    path = bare(tiny("llama"), tmp_path / "bare") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=said):
        open_outline(str(path.parent))


def test_no_value_of_an_outline_is_made_up(tiny: Checkpoints, tmp_path: Path) -> None:
    made = open_outline(str(bare(tiny("llama"), tmp_path / "bare")))
    with pytest.raises(CheckpointError, match="there are no weights"):
        made.model.source.read("final_norm", ())


@pytest.mark.parametrize("name", ZOO)
def test_headers_on_the_hub_tell_the_same_as_files(name: str, zoo: Checkpoints, hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories["org/model"] = zoo(name)
    made = open_outline("org/model", cache_dir=tmp_path)
    assert (made.known_from, made.model.model_id, made.model.revision) == (HEADERS, "org/model", SHA)
    assert_alike(made.model, open_model(str(zoo(name))))
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("name", FORMATS)
def test_headers_tell_how_weights_are_quantised(name: str, tiny: Checkpoints, hub: FakeHub, tmp_path: Path) -> None:
    repository = write_quantized(tiny("llama"), tmp_path, name) / name
    hub.repositories["org/model"] = repository
    assert_alike(open_outline("org/model", cache_dir=tmp_path / "cache").model, open_model(str(repository)))


def test_headers_tell_what_experts_are_quantised(tmp_path: Path, zoo: Checkpoints, hub: FakeHub) -> None:
    repository = hub.repositories["org/model"] = write_gpt_oss(zoo("gpt_oss"), tmp_path) / "mxfp4"
    assert_alike(open_outline("org/model", cache_dir=tmp_path / "cache").model, open_model(str(repository)))


def test_only_configuration_and_headers_are_fetched(tiny: Checkpoints, hub: FakeHub, tmp_path: Path) -> None:
    """100 kB at the start of each file, where headers are; a larger file's weights stay where they are."""
    repository = Path(shutil.copytree(tiny("llama"), tmp_path / "llama"))
    weights = repository / "model.safetensors"
    assert weights.stat().st_size > 200_000
    hub.repositories["org/model"] = repository
    open_outline("org/model", cache_dir=tmp_path / "cache")
    fetched = {request.rpartition("/")[2] for request in hub.requests if "resolve" in request}
    assert "tokenizer.json" not in fetched
    assert hub.sent < 120_000


def test_a_header_may_be_longer_than_what_is_fetched_at_once(
    tiny: Checkpoints, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convert.origin.remote_tensors.FIRST", 100)
    hub.repositories["org/model"] = tiny("llama")
    assert_alike(open_outline("org/model", cache_dir=tmp_path).model, open_model(str(tiny("llama"))))


def test_a_hub_that_falls_silent_is_not_waited_for(
    tiny: Checkpoints, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    hub.repositories["org/model"] = tiny("llama")
    hub.answers.clear()
    try:
        with pytest.raises(CheckpointError, match=r"model\.safetensors' .* failed: timed out"):
            RemoteFile("org/model", "model.safetensors", SHA).read(0, 8)
    finally:
        hub.answers.set()


def test_layers_that_are_alike_are_read_once(tiny: Checkpoints, hub: FakeHub, tmp_path: Path) -> None:
    """GPTQ's zero points, scales and order are looked at before a weight is, here of the 14 matrices of two layers."""
    repository = write_quantized(tiny("llama"), tmp_path, "gptq") / "gptq"
    layers = {name for name in load_file(repository / "model.safetensors") if name.endswith("qweight")}
    hub.repositories["org/model"] = repository
    open_outline("org/model", cache_dir=tmp_path / "cache")
    reads = [request for request in hub.requests if request.startswith("GET") and request.endswith(".safetensors")]
    assert len(layers) == 14
    assert len(reads) == 1 + 3 * 7


def test_weights_that_were_fetched_before_are_opened(tiny: Checkpoints, hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories["org/model"] = tiny("llama")
    open_model("org/model", cache_dir=tmp_path)
    hub.requests.clear()
    assert_alike(open_outline("org/model", cache_dir=tmp_path).model, open_model(str(tiny("llama"))))
    assert not any("safetensors" in request for request in hub.requests if request.startswith("GET"))


def test_an_adapter_is_known_as_the_model_that_it_is_merged_with(
    tiny: Checkpoints, hub: FakeHub, tmp_path: Path
) -> None:
    adapter = write_adapter(tmp_path, tiny("llama")) / "adapter"
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": "org/model"}))
    hub.repositories |= {"org/model": tiny("llama"), "org/adapter": adapter}
    made = open_outline("org/adapter", cache_dir=tmp_path / "cache").model
    assert made.model_id == "org/adapter"
    assert parameter_table(made.source.spec) == parameter_table(open_model(str(tiny("llama"))).source.spec)


def test_pickled_weights_are_known_from_their_configuration(tiny: Checkpoints, hub: FakeHub, tmp_path: Path) -> None:
    repository = bare(tiny("llama"), tmp_path / "pickled")
    (repository / "pytorch_model.bin").write_bytes(b"pickle")
    hub.repositories["org/model"] = repository
    assert open_outline("org/model", cache_dir=tmp_path / "cache").known_from == CONFIGURATION


def test_a_hub_that_sends_whole_files_is_not_downloaded(tiny: Checkpoints, hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories["org/model"], hub.ranges = tiny("llama"), False
    with pytest.raises(CheckpointError, match="sends no parts of files; fetch the model first"):
        open_outline("org/model", cache_dir=tmp_path)


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q4_0, GGMLQuantizationType.BF16])
def test_a_header_on_the_hub_tells_the_same_as_a_gguf_file(
    kind: GGMLQuantizationType, tiny: Checkpoints, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is longer than what is fetched first. Factors of positions are read from among the weights."""
    repository = hub.repositories["org/model"] = tmp_path / "repository"
    repository.mkdir()
    factors = {"rope_freqs.weight": llama3_factors(32.0)}
    path = write_tiny_gguf(tiny("llama"), repository / "tiny.gguf", kind=kind, extra=factors)
    monkeypatch.setattr("convert.origin.remote_gguf.STARTS", (1000, 5000, 20_000))
    made = open_outline("org/model/tiny.gguf", cache_dir=tmp_path / "cache")
    assert (made.known_from, made.model.model_id) == (HEADER, "org/model/tiny.gguf")
    assert_alike(made.model, open_model(str(path)))
    assert made.model.source.spec.kinds == open_model(str(path)).source.spec.kinds
    assert hub.sent < path.stat().st_size / 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("org/other", "model 'org/other' is neither a local path nor on the hub"),
        (
            "org/model/tiny.gguf",
            "model 'org/model/tiny.gguf' is neither a local path nor on the hub",
        ),
        ("no such model!", "no such file or directory, and not a hub id"),
    ],
)
def test_what_is_not_to_be_had_is_refused(name: str, said: str, hub: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=said):
        open_outline(name, cache_dir=tmp_path)


def test_a_header_that_does_not_fit_its_file_is_refused(
    copy_of: Callable[[str], Path], hub: FakeHub, tmp_path: Path
) -> None:
    repository = copy_of("llama")
    weights = repository / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    hub.repositories["org/model"] = repository
    with pytest.raises(CheckpointError, match=r"ends at byte .*: truncated"):
        open_outline("org/model", cache_dir=tmp_path / "cache")


def test_a_draft_model_is_known_likewise(tiny: Checkpoints, hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories["org/model"] = tiny("llama")
    drafter = open_outline("org/model", cache_dir=tmp_path, drafter="org/model@main").model.drafter
    assert drafter is not None
    assert drafter.spec.method == "draft_model"


def test_a_base_on_the_hub_is_not_fetched_for_what_is_added_to_it(
    tiny: Checkpoints, hub: FakeHub, tmp_path: Path
) -> None:
    """By an adapter or a drafter in a directory."""
    hub.repositories["org/model"] = tiny("llama")
    base = open_model(str(tiny("llama"))).source.spec
    adapter = write_adapter(tmp_path, tiny("llama")) / "adapter"
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": "org/model"}))
    medusa = write_medusa(tmp_path / "medusa", "org/model", base.hidden_size, base.vocab_size)
    for directory in (adapter, medusa):
        made = open_outline(str(directory), cache_dir=tmp_path / "cache")
        assert (made.known_from, made.model.model_id) == (HEADERS, str(directory))
        assert (made.model.drafter is not None) == (directory == medusa)
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_a_drafter_is_known_once_it_is_here(tiny: Checkpoints, hub: FakeHub, tmp_path: Path) -> None:
    """By its own name and by that of its base."""
    base = open_model(str(tiny("llama"))).source.spec
    medusa = write_medusa(tmp_path / "medusa", "org/model", base.hidden_size, base.vocab_size)
    hub.repositories |= {"org/model": tiny("llama"), "org/medusa": medusa}
    ways: tuple[dict[str, str], ...] = (
        {"model_id": "org/medusa"},
        {"model_id": "org/model", "drafter": "org/medusa@main"},
    )
    for way in ways:
        with pytest.raises(CheckpointError, match=r"no medusa_lm_head\.safetensors.*download-weights fetches it"):
            open_outline(**way, cache_dir=tmp_path / "cache")
    hub_checkpoint.fetch_snapshot("org/medusa", None, tmp_path / "cache")
    for way in ways:
        drafter = open_outline(**way, cache_dir=tmp_path / "cache").model.drafter
        assert drafter is not None and drafter.spec.method == "medusa"
    with pytest.raises(CheckpointError, match="'org/medusa' is a drafter; name its base, or no other drafter"):
        open_outline("org/medusa", drafter="org/medusa", cache_dir=tmp_path / "cache")


def test_an_adapter_of_itself_is_refused(tiny: Checkpoints, hub: FakeHub, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path, tiny("llama")) / "adapter"
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": "org/adapter"}))
    hub.repositories["org/adapter"] = adapter
    with pytest.raises(CheckpointError, match="'org/adapter' is its own base"):
        open_outline("org/adapter", cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("name", ["a" * 300, "~nobody-of-that-name/model", "."])
def test_no_name_is_too_strange(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"File name too long|not a hub id|no config\.json"):
        open_outline(name, cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("shards", "said"),
    [
        (["model-1.safetensors"], "model-2.safetensors' at revision .* is not on the hub"),
        (["model-2.safetensors"], "model-1.safetensors' at revision .* is not on the hub"),
        (["model-1.safetensors", "model-2.safetensors"], "model-2.safetensors: tensor '.*' is also in model-1"),
    ],
)
def test_shards_on_the_hub_must_be_what_the_index_says(
    shards: list[str], said: str, tiny: Checkpoints, hub: FakeHub, tmp_path: Path
) -> None:
    repository = hub.repositories["org/model"] = bare(tiny("llama"), tmp_path / "sharded")
    placed = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (repository / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    for shard in shards:
        shutil.copyfile(tiny("llama") / "model.safetensors", repository / shard)
    with pytest.raises(CheckpointError, match=said):
        open_outline("org/model", cache_dir=tmp_path / "cache")


def test_gguf_files_on_the_hub_must_be_named(hub: FakeHub, tmp_path: Path) -> None:
    repository = hub.repositories["org/model"] = tmp_path / "gguf"
    repository.mkdir()
    (repository / "tiny.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"'org/model': no config\.json on the hub; of \.gguf files, name one"):
        open_outline("org/model", cache_dir=tmp_path / "cache")
