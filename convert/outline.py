"""A model as far as it is known without its weights, which is enough to tell how much room it takes.

What is here is opened as ever. Of what is on the Hub configurations and headers are fetched. A directory may have a
config.json and nothing else, and then only models in floats are known.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import huggingface_hub

from convert.adapters.adapter import CONFIG as ADAPTER
from convert.adapters.adapter import is_adapter
from convert.checkpoint import DTYPES, MANIFEST
from convert.compose import adapter_reader, compose, compose_as
from convert.config.config import Config
from convert.config.pooling import pooling_of
from convert.config.quantization import KEY
from convert.drafters.draft_model import check_same_tokens
from convert.drafters.drafter import base_of, has_drafter, is_drafter, open_drafter
from convert.drafters.mtp import find_module
from convert.errors import IO, USAGE, CheckpointError
from convert.families import FAMILIES, family_of
from convert.families.family import named
from convert.families.multimodal import eyes_of, text_config
from convert.formats.shards import SAFETENSORS, has_tensors, open_tensors, safetensors_names
from convert.formats.tensors import Tensors
from convert.llama_cpp.config import LONG, ROPE_FACTORS, SHORT
from convert.llama_cpp.model import gguf_adapters, open_gguf
from convert.mapping.described_tensors import DescribedTensors
from convert.mapping.recipes import recipes
from convert.origin import hub
from convert.origin.remote_gguf import open_header
from convert.origin.remote_tensors import RemoteTensors
from convert.quantized.methods import method_name
from convert.source import (
    DEFAULT_NAMES,
    OpenModel,
    adapter_finder,
    configuration,
    gguf_quantization,
    open_model,
    path_of,
)
from jaxengine.architecture.drafter import DraftModelSource
from jaxengine.architecture.parameters import ParameterSource

# What an outline is known from.
FILES = "its files"
HEADER = "its header"
HEADERS = "its configuration and the headers of its weights"
CONFIGURATION = "its configuration alone"


@dataclass(frozen=True)
class Outline:
    """`model` can be described but not loaded, unless `known_from` its files."""

    model: OpenModel
    known_from: str


def open_outline(
    model_id: str | None,
    revision: str | None = None,
    *,
    cache_dir: Path | None = None,
    drafter: str | None = None,
    language_model_only: bool = False,
) -> Outline:
    """What `open_model` would open.

    Raises:
        CheckpointError: nothing is known of it without its weights, and these are not here; or as `open_model`.
    """
    try:
        made = _outline(model_id, revision, cache_dir, alone=language_model_only)
        return _with_drafter(made, drafter, cache_dir) if drafter else made
    except OSError as error:  # no permission, a name too long
        shown = str(model_id)[:100]
        raise CheckpointError(f"model {shown!r} cannot be read: {error.strerror or error}", exit_code=IO) from error


def _with_drafter(made: Outline, name: str, cache_dir: Path | None) -> Outline:
    """`made` with the drafter, or draft model, that `name` means."""
    if made.model.drafter:
        message = f"model {made.model.model_id!r} is a drafter; name its base, or no other drafter"
        raise CheckpointError(message, exit_code=USAGE)
    if directory := _heads(name, cache_dir):
        return _with_heads(made, directory)
    draft = _outline(*_with_revision(name), cache_dir)
    if made.known_from == draft.known_from == FILES:
        check_same_tokens(draft.model.directory, made.model.directory)
    return replace(made, model=replace(made.model, drafter=DraftModelSource(draft.model.source)))


def _heads(name: str, cache_dir: Path | None) -> Path | None:
    """The directory of the drafter that `name` means; None if it means a model."""
    path = path_of(name)
    if path.is_file() or hub.gguf_of(name):
        return None
    directory = path if path.is_dir() else hub.fetch_description(*_with_revision(name), cache_dir)
    return directory if _has_its_shards(directory) and has_drafter(directory) else None


def _has_its_shards(directory: Path) -> bool:
    """Whether what an index names is there. Else EAGLE's layers, which are known by their tensors, cannot be told."""
    index = (directory / SAFETENSORS.index).is_file()
    return not index or all((directory / name).is_file() for name in safetensors_names(directory))


def _with_heads(made: Outline, directory: Path) -> Outline:
    """`made` with the drafter in `directory`, whose tensors tell what there is, so that they must be there."""
    try:
        return replace(made, model=replace(made.model, drafter=open_drafter(directory, made.model.source.spec)))
    except CheckpointError as error:
        if any(file.suffix in (".safetensors", ".pt", ".bin") for file in directory.iterdir()):
            raise
        message = f"{error} (of a drafter nothing is known before it is here; download-weights fetches it)"
        raise CheckpointError(message, exit_code=error.exit_code) from error


def _with_revision(name: str) -> tuple[str, str | None]:
    model_id, _, revision = (name, "", "") if path_of(name).exists() else name.partition("@")
    return model_id, revision or None


def _outline(
    model_id: str | None,
    revision: str | None,
    cache_dir: Path | None,
    added: tuple[str, ...] = (),
    *,
    alone: bool = False,
) -> Outline:
    """`added` are the adapters and drafters whose base this is; `alone` is whether only its text part is wanted."""
    path = path_of(model_id or "")
    if model_id is None or model_id in DEFAULT_NAMES or path.is_file():
        return Outline(open_model(model_id, revision, cache_dir=cache_dir), FILES)
    if model_id in added:
        raise CheckpointError(f"model {model_id!r} is its own base", exit_code=USAGE)
    if path.is_dir():
        return _of_local(path, model_id, cache_dir, added, alone)
    if gguf := hub.gguf_of(model_id):
        return _of_gguf(model_id, *gguf, revision, cache_dir)
    if not hub.is_hub_id(model_id):
        raise CheckpointError(f"model {model_id!r}: no such file or directory, and not a hub id", exit_code=USAGE)
    snapshot = hub.fetch_description(model_id, revision, cache_dir)
    return _of_snapshot(snapshot, model_id, cache_dir, added, alone)


def _of_local(directory: Path, model_id: str, cache_dir: Path | None, added: tuple[str, ...], alone: bool) -> Outline:
    """Of a directory, opened unless what it needs is not here: `open_model` would fetch an adapter's base."""
    base = _of_base(directory, model_id, "", cache_dir, added, alone)
    if base and base.known_from != FILES:
        return base
    if not base and _is_bare(directory):
        return _of_directory(directory, model_id, "", None, cache_dir, alone)
    return Outline(open_model(model_id, cache_dir=cache_dir, language_model_only=alone), FILES)


def _is_bare(directory: Path) -> bool:
    """Whether there is a configuration, and nothing that it is of."""
    files = any(directory.glob("*.gguf")) or (directory / MANIFEST).is_file() or has_tensors(directory)
    return (directory / "config.json").is_file() and not files


def _of_gguf(model_id: str, repository: str, name: str, revision: str | None, cache_dir: Path | None) -> Outline:
    """Of a file on the Hub."""
    found = huggingface_hub.try_to_load_from_cache(repository, name, cache_dir=cache_dir, revision=revision)
    if isinstance(found, str):
        return Outline(open_model(model_id, revision, cache_dir=cache_dir), FILES)
    file = open_header(hub.RemoteFile(repository, name, revision or "main"), (ROPE_FACTORS, LONG, SHORT))
    source = open_gguf(file)
    adapters = gguf_adapters(file, source.spec, adapter_finder(model_id, cache_dir))
    quantization = gguf_quantization(file)
    made = OpenModel(source, file.path, model_id, "", (), file.path, quantization, adapters=adapters)
    return Outline(made, HEADER)


def _of_snapshot(
    directory: Path, model_id: str, cache_dir: Path | None, added: tuple[str, ...], alone: bool
) -> Outline:
    """Of what is described in `directory`, the snapshot of a repository."""
    if base := _of_base(directory, model_id, directory.name, cache_dir, added, alone):
        return base
    if not (directory / "config.json").is_file():
        raise CheckpointError(f"model {model_id!r}: no config.json on the hub; of .gguf files, name one")
    names = safetensors_names(directory)
    if all((directory / name).is_file() for name in names):
        tensors: Tensors | None = open_tensors(directory)
    else:
        tensors = _remote(directory, model_id, names)
    return _of_directory(directory, model_id, directory.name, tensors, cache_dir, alone)


def _of_base(
    directory: Path, model_id: str, revision: str, cache_dir: Path | None, added: tuple[str, ...], alone: bool
) -> Outline | None:
    """If there is an adapter or a drafter in `directory`, the model that it names, under its own name."""
    added = (*added, model_id)
    if is_adapter(directory):  # which is merged, and takes no room
        config = Config.load(directory / ADAPTER)
        base = config.text("base_model_name_or_path"), config.text("revision", "") or None
        made = _outline(*base, cache_dir, added, alone=alone)
    elif _has_its_shards(directory) and is_drafter(directory):
        made = _with_heads(_outline(base_of(directory), None, cache_dir, added, alone=alone), directory)
    else:
        return None
    return replace(made, model=replace(made.model, model_id=model_id, revision=revision))


def _remote(directory: Path, model_id: str, names: Sequence[str]) -> Tensors | None:
    """The tensors of a repository, if it has safetensors: an index says so, a single file may be none."""
    files = [hub.RemoteFile(model_id, name, directory.name) for name in names]
    return RemoteTensors(files) if (directory / SAFETENSORS.index).is_file() or files[0].exists() else None


def _of_directory(
    directory: Path, model_id: str, revision: str, tensors: Tensors | None, cache_dir: Path | None, alone: bool
) -> Outline:
    """Of the config.json in `directory`, and of `tensors` if these are known."""
    config = configuration(directory, text_alone=alone)
    source = compose(config, tensors) if tensors else _described(config)
    made = OpenModel(source, directory, model_id, revision, (), directory, method_name(config) if tensors else None)
    adapters = adapter_reader(config, source.spec, adapter_finder(model_id, cache_dir))
    module = find_module(config, tensors, directory) if tensors else None
    model = replace(made, adapters=adapters, module=module, pooling=pooling_of(directory))
    return Outline(model, HEADERS if tensors else CONFIGURATION)


def _described(config: Config) -> ParameterSource:
    """A model in floats, as `config` describes it."""
    if config.get(KEY) is not None:
        raise config.error(KEY, "is there, and only weights tell what is quantised, and how: name what has them")
    text = text_config(config)
    if text.text("model_type") not in FAMILIES:
        raise text.error("model_type", "has no family here, and of other models only weights tell what there is")
    family = family_of(text)
    with named(text):
        spec = family.spec(text)
    dtype = config.text(config.spelled("dtype", "torch_dtype"), "float32")
    if dtype not in DTYPES:
        raise config.error("dtype", f"must be one of {', '.join(DTYPES)}")
    tensors = DescribedTensors(recipes(spec, family.tensors, family.layout), dtype, config.where)
    if (eyes := eyes_of(config)) is not None:
        seen = DescribedTensors(eyes.recipes(eyes.given_to(spec)), dtype, config.where)
        eyes = replace(eyes, tensors=seen)
    return compose_as(text, family, tensors, eyes=eyes)
