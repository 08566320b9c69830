"""Hub ids, against a hub on localhost: fetched once, found offline, and every refusal one line with its exit code."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest
import torch
from safetensors.torch import load_file

from tests.convert.fake_hub import SHA, FakeHub, fake_hub
from tests.convert.tiny_gguf import write_tiny_gguf
from tests.onnx_exports import exported
from tests.tiny_adapter import adapted
from tests.tiny_drafters import write_medusa

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def hub(copy_of: Callable[[str], Path]) -> Iterator[FakeHub]:
    """A hub with a gated repository, and one with a tiny model and files that must not be fetched."""
    repository = copy_of("llama")
    (repository / "modeling_evil.py").write_text("raise SystemExit")
    (repository / "pytorch_model.bin").write_bytes(b"pickle")
    (repository / "consolidated.safetensors").write_bytes(b"the same weights again")
    (repository / "original").mkdir()
    (repository / "original" / "params.json").write_text("{}")
    write_tiny_gguf(repository, repository / "tiny.gguf")
    (repository / "onnx").mkdir()
    (repository / "onnx" / "model.onnx").write_bytes(b"the same weights again")
    with fake_hub({"org/tiny": repository}, frozenset({"org/gated"})) as server:
        yield server


@pytest.fixture
def download(hub: FakeHub, cache: Path) -> Command:
    """`download(arguments, **environment)` runs `download-weights` against `hub`, with `cache` as the hub's cache."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "convert.cli", "download-weights", *arguments]
        isolated = {"HF_ENDPOINT": hub.url, "HUGGINGFACE_HUB_CACHE": str(cache), "HF_HUB_DISABLE_XET": "1"}
        everything = {**os.environ, **isolated, **environment}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=everything, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


def last_line(done: "subprocess.CompletedProcess[str]") -> str:
    return done.stderr.strip().splitlines()[-1]


def test_a_model_is_fetched_into_the_hubs_own_cache(download: Command, cache: Path) -> None:
    done = download("org/tiny")
    snapshot = cache / "models--org--tiny" / "snapshots" / SHA
    assert (done.returncode, done.stdout) == (0, f"org/tiny is ready in {snapshot}\n")
    fetched = {path.name for path in snapshot.iterdir()}
    assert fetched >= {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"}
    others = {"pytorch_model.bin", "consolidated.safetensors", "original", "onnx", "tiny.gguf"}
    assert not fetched & {"modeling_evil.py", *others}


def test_a_fetch_is_one_line_where_there_is_no_terminal(download: Command, hub: FakeHub) -> None:
    told = download("org/tiny").stderr.splitlines()
    assert [line for line in told if "fetching" in line] == told[:1]
    assert re.fullmatch(rf"fetching org/tiny \([\d.]+ MB\) from {hub.url}", told[0])
    assert "fetching" not in download("org/tiny").stderr
    assert download("org/tiny/tiny.gguf").stderr.startswith(f"fetching org/tiny/tiny.gguf from {hub.url}\n")
    assert "fetching" not in download("org/tiny/tiny.gguf").stderr


def test_pickled_weights_are_fetched_where_there_are_no_others(download: Command, hub: FakeHub, cache: Path) -> None:
    repository = hub.repositories["org/tiny"]
    torch.save(load_file(repository / "model.safetensors"), repository / "pytorch_model.bin")
    (repository / "model.safetensors").unlink()
    (repository / "consolidated.safetensors").unlink()
    done = download("org/tiny")
    assert done.returncode == 0, done.stderr
    assert (cache / "models--org--tiny" / "snapshots" / SHA / "pytorch_model.bin").is_file()
    assert download("org/tiny", HF_HUB_OFFLINE="1").returncode == 0


def test_of_several_onnx_files_one_is_fetched_where_there_are_no_other_weights(
    download: Command, hub: FakeHub, cache: Path, tiny: Callable[[str], Path]
) -> None:
    repository, directory = hub.repositories["org/tiny"], exported(tiny("llama"), dynamo=False)
    for name in ("model.safetensors", "consolidated.safetensors", "pytorch_model.bin"):
        (repository / name).unlink()
    model, folder = onnx.load(directory / "model.onnx"), repository / "onnx"
    onnx.save_model(model, folder / "model.onnx", save_as_external_data=True, location="model.onnx_data")
    for name in ("model_q4.onnx", "model_q4.onnx_data", "decoder_model_merged.onnx"):
        (folder / name).write_bytes(b"never fetched")
    done = download("org/tiny")
    assert done.returncode == 0, done.stderr
    snapshot = cache / "models--org--tiny" / "snapshots" / SHA
    assert {path.name for path in (snapshot / "onnx").iterdir()} == {"model.onnx", "model.onnx_data"}
    assert download("org/tiny", HF_HUB_OFFLINE="1").returncode == 0


def test_a_fetched_model_needs_no_hub(download: Command, hub: FakeHub) -> None:
    assert download("org/tiny").returncode == 0
    hub.requests.clear()
    assert download("org/tiny", HF_HUB_OFFLINE="1").returncode == 0
    assert hub.requests == []
    assert download("org/tiny", HF_ENDPOINT="http://127.0.0.1:9").returncode == 0


def test_a_revision_can_be_a_commit(download: Command) -> None:
    assert download("org/tiny", "--revision", SHA).returncode == 0


def test_one_gguf_of_a_repository_is_fetched_and_served_from_where_it_lies(download: Command, cache: Path) -> None:
    done = download("org/tiny/tiny.gguf")
    assert done.returncode == 0, done.stderr
    assert len(list((cache / "text-generation-jax" / "tokenizers").glob("tiny-*/tokenizer.json"))) == 1
    assert len(list(cache.rglob(f"snapshots/{SHA}/tiny.gguf"))) == 1


def test_a_converted_gguf_of_a_repository_tells_its_commit(hub: FakeHub, cache: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "convert.cli", "convert", "org/tiny/tiny.gguf", str(tmp_path / "out")]
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HUGGINGFACE_HUB_CACHE": str(cache)}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)
    assert f'"revision": "{SHA}"' in (tmp_path / "out" / "manifest.json").read_text()


def test_a_download_that_breaks_off_is_resumed(download: Command, hub: FakeHub) -> None:
    hub.cuts = 1
    done = download("org/tiny")
    assert done.returncode == 0, done.stderr
    assert hub.cuts == 0


def test_an_adapter_is_fetched_with_the_token_that_was_there_when_its_model_was_opened(
    hub: FakeHub, cache: Path, tmp_path: Path
) -> None:
    """An engine drops the token from its environment before it reads adapters, which may come days later."""
    base = hub.repositories["org/tiny"]
    adapted(base).save_pretrained(tmp_path / "adapter")
    hub.repositories["me/secret"], hub.private["me/secret"] = tmp_path / "adapter", "hf_mine"
    code = (
        "import os; from pathlib import Path; from convert.source import open_model\n"
        f"reader = open_model({str(base)!r}, cache_dir=Path({str(cache)!r})).adapters\n"
        "del os.environ['HF_TOKEN']\n"
        "assert reader.read('me/secret').matrices"
    )
    isolated = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "home")}

    def run(token: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **isolated, "HF_TOKEN": token}
        return subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
        )

    refused = run("hf_theirs")
    assert "MissingAdapter: adapter 'me/secret' is neither a local path nor on the hub" in refused.stderr
    done = run("hf_mine")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("stored", ["safetensors", "pt"])
def test_a_drafter_is_fetched_and_so_is_the_model_that_it_was_learnt_for(
    stored: str, download: Command, hub: FakeHub, cache: Path, tmp_path: Path
) -> None:
    heads = write_medusa(tmp_path / "heads", "org/tiny", 64, 320)
    if stored == "pt":
        torch.save(load_file(heads / "medusa_lm_head.safetensors"), heads / "medusa_lm_head.pt")
        (heads / "medusa_lm_head.safetensors").unlink()
    hub.repositories["org/heads"] = heads
    done = download("org/heads")
    base = cache / "models--org--tiny" / "snapshots" / SHA
    assert (done.returncode, done.stdout) == (0, f"org/heads is ready in {base}\n"), done.stderr
    fetched = {path.name for path in (cache / "models--org--heads" / "snapshots" / SHA).iterdir()}
    assert fetched == {"config.json", f"medusa_lm_head.{stored}"}


def test_a_drafter_may_be_named_by_its_id_and_revision(hub: FakeHub, cache: Path, tmp_path: Path) -> None:
    hub.repositories["org/heads"] = write_medusa(tmp_path / "heads", "", 64, 320)
    code = (
        "import sys; from pathlib import Path; from convert.source import open_model\n"
        "model = open_model('org/tiny', cache_dir=Path(sys.argv[1]), drafter=sys.argv[2])\n"
        "print(model.drafter.spec.guesses, model.model_id)"
    )
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1"}

    def run(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, str(cache), name]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)

    assert run("org/heads").stdout == run(f"org/heads@{SHA}").stdout == "3 org/tiny\n"
    assert "CheckpointError: drafter 'org/heads' has no revision 'v9'" in run("org/heads@v9").stderr
    assert "CheckpointError: drafter 'org/none' is neither a local path nor on the hub" in run("org/none").stderr


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "message"),
    [
        (["org/none"], {}, 2, "model 'org/none' is neither a local path nor on the hub (private models need HF_TOKEN)"),
        (["org/tiny", "--revision", "v9"], {}, 2, "model 'org/tiny' has no revision 'v9'"),
        (["org/tiny/no.gguf"], {}, 2, "'org/tiny/no.gguf' is not on the hub"),
        (
            ["org/tiny/tiny-00001-of-00002.gguf"],
            {},
            2,
            "org/tiny/tiny-00001-of-00002.gguf: is one of several parts; fetch and join them with llama.cpp's "
            "llama-gguf-split --merge",
        ),
        (["org/gated"], {}, 77, "model 'org/gated' is gated: accept its licence on the hub and set HF_TOKEN"),
        (
            ["org/tiny"],
            {"HF_HUB_OFFLINE": "1"},
            69,
            "model 'org/tiny' is not in the cache and offline mode is set",
        ),
        (
            ["org/tiny"],
            {"HF_ENDPOINT": "http://127.0.0.1:9"},
            69,
            "model 'org/tiny' is not in the cache and http://127.0.0.1:9 cannot be reached",
        ),
    ],
)
def test_every_refusal_is_one_line_with_its_exit_code(
    arguments: list[str], environment: dict[str, str], code: int, message: str, download: Command
) -> None:
    done = download(*arguments, **environment)
    assert (done.returncode, last_line(done)) == (code, f"error: {message}")


def test_a_variable_of_the_hub_with_a_unit_is_named_and_no_traceback(download: Command) -> None:
    done = download("org/tiny", HF_HUB_DOWNLOAD_TIMEOUT="10s")
    assert done.returncode == 2
    assert last_line(done).startswith("error: the hub's library refuses HF_HUB_DOWNLOAD_TIMEOUT='10s': ")


def test_a_proxy_that_needs_another_library_is_one_line_that_names_its_variable(download: Command) -> None:
    if importlib.util.find_spec("socksio"):
        pytest.skip("the package socksio is installed, so that SOCKS proxies can be used")
    done = download("org/tiny", ALL_PROXY="socks5://user:secret@127.0.0.1:9", NO_PROXY="", no_proxy="")
    assert done.returncode == 69 and "ALL_PROXY" in last_line(done) and "secret" not in done.stderr
    assert last_line(done).startswith("error: fetching 'org/tiny' failed: ")
