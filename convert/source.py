"""From a model's name to its parameters and files: from what a user types to what the engine loads.

A name is a local directory, a `.gguf` file, an id on the Hugging Face Hub, or nothing: the default model. A directory
or an id may be a PEFT adapter, which is merged with the model that it names, or a learnt drafter, which drafts for that
model. A local path never touches the network.
Weights are served in place. Of a GGUF file the tokenizer, which is in its metadata, is written out, into the cache.
"""

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from convert import checkpoint
from convert.adapters.adapter import CONFIG, Adapter, is_adapter, open_adapter
from convert.announce import announce
from convert.cache import cache_root, made_once, stamp
from convert.compose import adapter_reader, compose
from convert.config.config import Config, read_json
from convert.config.generation_config import announce_unread
from convert.config.pooling import DEFAULT as DEFAULT_POOLING
from convert.config.pooling import pooling_of
from convert.config.quantization import add_quantization
from convert.config.rope_override import Scaling, override_rope
from convert.drafters.draft_model import check_same_tokens
from convert.drafters.drafter import base_of, has_drafter, is_drafter, open_drafter
from convert.drafters.mtp import find_module
from convert.errors import BAD_DATA, IO, UNREACHABLE, USAGE, CheckpointError, MissingAdapter
from convert.families.multimodal import text_config
from convert.families.unserved import OPTION
from convert.formats.gguf import GgufFile
from convert.formats.gguf_blocks import NAME as GGUF
from convert.formats.gguf_tokenizer import VERSION, write_tokenizer
from convert.formats.shards import open_tensors
from convert.llama_cpp.model import gguf_adapters, open_gguf
from convert.mapping.composition import SourceWithSpec
from convert.origin import default_model, hub
from convert.quantized.methods import method_name
from convert.tokenizer.slow_tokenizer import tokenizer_directory
from convert.tokenizer.tokenizer import PICTURE_FILES, TOKENIZER_FILES, check_tokenizer, end_of_text_ids, gateway_files
from jaxengine.architecture.adaptation import AdapterReader
from jaxengine.architecture.drafter import DrafterSource, DraftModelSource
from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import ParameterSource

DEFAULT_NAMES = ("", "default")
GENERATION = "generation_config.json"


@dataclass(frozen=True)
class OpenModel:
    """A model ready to load. `directory` has tokenizer.json, tokenizer_config.json and, where the model has them,
    chat_template.jinja and generation_config.json. `checkpoint` is what it was read from: a directory, or a GGUF file.
    `quantization` is the method by which the weights are quantised, `adapter` is merged with them. `adapters` reads
    those that requests may name; None where there cannot be any. `drafter` was learnt to draft for it, `module` opens
    that among its own tensors, for what it is now. `pooling` is how its authors make embeddings, see `pooling_of`."""

    source: ParameterSource
    directory: Path
    model_id: str
    revision: str  # commit sha of a hub snapshot, else empty
    eos_token_ids: tuple[int, ...]
    checkpoint: Path
    quantization: str | None = None
    adapter: Adapter | None = None
    adapters: AdapterReader | None = None
    drafter: DrafterSource | None = None
    module: Callable[[ModelSpec], DrafterSource] | None = None
    pooling: str = DEFAULT_POOLING


@dataclass(frozen=True)
class Added:
    """What is asked for beside a model: an adapter to merge, and the directory of a drafter."""

    adapter: Adapter | None = None
    drafter: Path | None = None
    text_alone: bool = False  # whether nothing but the text part is wanted


def open_model(
    model_id: str | None,
    revision: str | None = None,
    *,
    cache_dir: Path | None = None,
    adapter: str | None = None,
    drafter: str | None = None,
    language_model_only: bool = False,
) -> OpenModel:
    """Find, fetch, convert and check a model; None or "default" means the default model.

    The name of a PEFT adapter means the model that it was trained on, with the adapter merged. That of a learnt drafter
    means the model that it was learnt for, with it as `drafter`.

    Args:
        cache_dir: where the hub's cache and our own are both kept (`HF_HUB_CACHE` and `$XDG_CACHE_HOME` otherwise).
        adapter: a PEFT adapter to merge: a directory, or an id on the hub, with `@revision` or without.
        drafter: Medusa heads or an MLP speculator, named likewise; or a draft model, named as a model, which may have
            `@revision`.
        language_model_only: of a model that takes pictures or sound, open the text part alone.

    Raises:
        CheckpointError: whatever is wrong, in one line, with the exit code for it.
    """
    try:
        added = Added(
            _find_adapter(adapter, cache_dir) if adapter else None,
            _find_heads(drafter, cache_dir) if drafter else None,
            language_model_only,
        )
        model = _with_drafter(_open(model_id, revision, cache_dir, added), added.drafter)
        return _with_draft_model(model, drafter, cache_dir) if drafter and not added.drafter else model
    except OSError as error:  # no permission, a name too long, a disk that fails
        shown = str(model_id)[:100]
        raise CheckpointError(f"model {shown!r} cannot be read: {error.strerror or error}", exit_code=IO) from error


def with_rope(model: OpenModel, scaling: Scaling, factor: float) -> OpenModel:
    """`model` with other rotary positions, see `override_rope`. Raises CheckpointError where it has none."""
    return replace(model, source=SourceWithSpec(model.source, override_rope(model.source.spec, scaling, factor)))


def _open(model_id: str | None, revision: str | None, cache_dir: Path | None, added: Added) -> OpenModel:
    if model_id is None or model_id in DEFAULT_NAMES:
        file = default_model.gguf_file(cache_root(cache_dir), _verified(cache_dir))
        return _open_file(file, default_model.NAME, "", cache_dir, added.adapter)
    path = path_of(model_id)
    _check_name(path)
    if path.is_dir():
        return _open_directory(path, model_id, "", cache_dir, added)
    if path.is_file():
        return _open_file(path, model_id, "", cache_dir, added.adapter)
    if gguf := hub.gguf_of(model_id):
        file = hub.fetch_file(*gguf, revision, cache_dir)
        return _open_file(file, model_id, _commit(file), cache_dir, added.adapter)
    snapshot = _snapshot(model_id, revision, cache_dir)
    return _open_directory(snapshot, model_id, snapshot.name, cache_dir, added)


def _check_name(path: Path) -> None:
    """Raises CheckpointError where `path` or the working directory has bytes that are no text: Python opens such files,
    the tokenizers' library does not, and no answer could name the model.
    """
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        raise CheckpointError(f"{str(path.absolute())!r} is not UTF-8: rename it", exit_code=USAGE) from None


def path_of(name: str) -> Path:
    """`name` as a path; "~" of a user who is not there stays as it is."""
    return Path(os.path.expanduser(name))


def _snapshot(
    model_id: str, revision: str | None, cache_dir: Path | None, kind: str = "model", token: str | None = None
) -> Path:
    if not hub.is_hub_id(model_id):
        raise CheckpointError(f"{kind} {model_id!r}: no such file or directory, and not a hub id", exit_code=USAGE)
    return hub.fetch_snapshot(model_id, revision, cache_dir, kind, token)


def _find(kind: str, name: str, cache_dir: Path | None, token: str | None = None) -> Path:
    """The directory that `name` means: a local one, or an id on the hub, with `@revision` or without."""
    path = path_of(name)
    if path.is_dir():
        return path
    model_id, _, revision = name.partition("@")
    return _snapshot(model_id, revision or None, cache_dir, kind, token)


def _find_heads(name: str, cache_dir: Path | None) -> Path | None:
    """The directory of the drafter that `name` means; None if it means a model."""
    directory = None if name.endswith(".gguf") else _find("drafter", name, cache_dir)
    return directory if directory and has_drafter(directory) else None


def _find_adapter(name: str, cache_dir: Path | None, token: str | None = None) -> Adapter:
    return open_adapter(_find("adapter", name, cache_dir, token))


def adapter_finder(model_id: str, cache_dir: Path | None) -> Callable[[str], Adapter]:
    """`_find_added` for `model_id`, with the hub's token of now: an engine drops it from its environment before
    adapters come.
    """
    return partial(_find_added, model_id=model_id, cache_dir=cache_dir, token=hub.token())


def _find_added(name: str, model_id: str, cache_dir: Path | None, token: str | None) -> Adapter:
    """`_find_adapter` for the model `model_id`, which runs already. Shapes decide whether it fits; that it was trained
    on a model of another name is only said. Raises MissingAdapter where there is none, CheckpointError.
    """
    try:
        adapter = _find_adapter(name, cache_dir, token)
        ids = {each.lower() for each in (adapter.base, model_id) if "/" in each and hub.is_hub_id(each)}
        if len(ids) == 2:
            announce(f"adapter {name!r} was trained on {adapter.base!r}, and is added to {model_id!r}")
        return adapter
    except CheckpointError as error:
        if error.exit_code not in (USAGE, UNREACHABLE):
            raise
        raise MissingAdapter(str(error), exit_code=error.exit_code) from error
    except OSError as error:
        message = f"adapter {name[:100]!r} cannot be read: {error.strerror or error}"
        raise CheckpointError(message, exit_code=IO) from error


def _open_adapted(directory: Path, model_id: str, revision: str, cache_dir: Path | None, added: Added) -> OpenModel:
    """The model that the adapter in `directory` was trained on, with it merged, under the adapter's name."""
    found = open_adapter(directory)
    where = directory / CONFIG
    if added.adapter:
        raise CheckpointError(f"{where}: is an adapter itself; merge one adapter, or name its base", exit_code=USAGE)
    if not found.base:
        raise CheckpointError(f"{where}: has no base_model_name_or_path; name the base, and this to --merge-adapter")
    announce(f"merging {model_id} with {found.base!r}")
    base = _open(found.base, found.revision, cache_dir, replace(added, adapter=found))
    model = replace(base, model_id=model_id, revision=revision)
    if not (directory / "tokenizer.json").is_file():
        return model
    tokenizer = _own_tokenizer(directory, base.directory, cache_dir)
    return _with_tokenizer(replace(model, directory=tokenizer), base.checkpoint)


def _open_drafted(directory: Path, model_id: str, revision: str, cache_dir: Path | None, added: Added) -> OpenModel:
    """The model that the drafter in `directory` was learnt for, with it, under the drafter's name."""
    if added.drafter:
        raise CheckpointError(f"{directory}: is a drafter itself; name one drafter, or its base", exit_code=USAGE)
    base = base_of(directory)
    announce(f"{model_id} drafts for {base!r}")
    model = _open(base, None, cache_dir, replace(added, drafter=directory))
    return replace(_with_drafter(model, directory), model_id=model_id, revision=revision)


def _with_drafter(model: OpenModel, directory: Path | None) -> OpenModel:
    return replace(model, drafter=open_drafter(directory, model.source.spec)) if directory else model


def _with_draft_model(model: OpenModel, name: str, cache_dir: Path | None) -> OpenModel:
    """`model` with that of `name`, which drafts for it. Raises CheckpointError where they have other tokens."""
    if model.drafter:
        message = f"model {model.model_id!r} is a drafter; name its base, or no other drafter"
        raise CheckpointError(message, exit_code=USAGE)
    model_id, _, revision = (name, "", "") if path_of(name).exists() else name.partition("@")
    draft = _open(model_id, revision or None, cache_dir, Added())
    check_same_tokens(draft.directory, model.directory)
    return replace(model, drafter=DraftModelSource(draft.source))


def _own_tokenizer(directory: Path, base: Path, cache_dir: Path | None) -> Path:
    """An adapter's tokenizer files, its base's files about pictures and, unless it has its own, its base's settings of
    generation, in the cache.
    """
    places = {name: directory / name for name in TOKENIZER_FILES} | {name: base / name for name in PICTURE_FILES}
    places[GENERATION] = next(filter(Path.is_file, (directory / GENERATION, base / GENERATION)), directory / GENERATION)
    found = [path for path in places.values() if path.is_file()]
    key = hashlib.sha256("|".join(map(stamp, found)).encode()).hexdigest()[:16]

    def copy(made: Path) -> None:
        for path in found:
            shutil.copyfile(path, made / path.name)

    return made_once(cache_root(cache_dir) / "tokenizers" / f"{directory.name[:80]}-{key}", copy)


def _open_directory(directory: Path, model_id: str, revision: str, cache_dir: Path | None, added: Added) -> OpenModel:
    source: ParameterSource
    adapter, quantization, adapters, pooling = added.adapter, None, None, pooling_of(directory)
    module: Callable[[ModelSpec], DrafterSource] | None = None
    if is_adapter(directory):
        return _open_adapted(directory, model_id, revision, cache_dir, added)
    if is_drafter(directory):
        return _open_drafted(directory, model_id, revision, cache_dir, added)
    if (directory / checkpoint.MANIFEST).is_file():
        _refuse_adapter(adapter, directory, "has the engine's own layout")
        source = checkpoint.open_checkpoint(directory, _verified(cache_dir))
        origin = checkpoint.origin(directory)
        revision, pooling = revision or origin.get("revision", ""), origin.get("pooling", pooling)
    elif (directory / "config.json").is_file():
        config, tensors = configuration(directory, text_alone=added.text_alone), open_tensors(directory)
        source, quantization = compose(config, tensors, adapter), method_name(config)
        module = find_module(config, tensors, directory)
        adapters = adapter_reader(config, source.spec, adapter_finder(model_id, cache_dir))
    else:
        return _open_file(_only_gguf(directory), model_id, revision, cache_dir, adapter)
    files = tokenizer_directory(directory, gateway_files(source.spec.vision is not None), cache_dir)
    model = OpenModel(source, files, model_id, revision, (), directory, quantization, adapter, adapters)
    return replace(_with_tokenizer(model, directory), module=module, pooling=pooling)


def _refuse_adapter(adapter: Adapter | None, path: Path, problem: str) -> None:
    if adapter:
        message = f"{path}: {problem}, so no adapter can be merged; name the checkpoint that it was made of"
        raise CheckpointError(message, exit_code=USAGE)


def _with_tokenizer(model: OpenModel, directory: Path) -> OpenModel:
    """`model` as its tokenizer has it; `directory` has the settings of generation."""
    source, files = model.source, model.directory
    tokenizer, tokens = check_tokenizer(files, source.spec.vocab_size)
    if tokens < source.spec.tokens:
        source = SourceWithSpec(source, replace(source.spec, head=replace(source.spec.head, tokens=tokens)))
    ids = end_of_text_ids(directory, tokenizer, source.spec.vocab_size)
    return replace(model, source=source, eos_token_ids=ids)


def configuration(directory: Path, *, text_alone: bool = False) -> Config:
    """config.json, and what else describes the model. generation_config.json wins where both have a setting of
    generation, as in transformers."""
    config, path = Config.load(directory / "config.json"), directory / GENERATION
    config.text_alone = text_alone
    if text_alone and text_config(config) is not config:
        announce(f"{config.where}: the text part is served alone, as {OPTION} says; pictures and sound are refused")
    add_quantization(config, directory)
    generation = read_json(path) if path.is_file() else {}
    if generation.get("decoder_start_token_id") is not None:
        config.values["decoder_start_token_id"] = generation["decoder_start_token_id"]
    announce_unread({**config.values, **generation}, config.where)
    return config


def _open_file(path: Path, model_id: str, revision: str, cache_dir: Path | None, adapter: Adapter | None) -> OpenModel:
    if path.suffix != ".gguf":
        raise CheckpointError(f"model {model_id!r} is a file; files must end in .gguf", exit_code=USAGE)
    _refuse_adapter(adapter, path, "is a GGUF file")
    file = GgufFile(path)
    source, files = open_gguf(file), _tokenizer_files(file, cache_dir)
    adapters = gguf_adapters(file, source.spec, adapter_finder(model_id, cache_dir))
    model = OpenModel(source, files, model_id, revision, (), path, gguf_quantization(file), adapters=adapters)
    return _with_tokenizer(model, files)


def gguf_quantization(file: GgufFile) -> str | None:
    return GGUF if any(tensor.in_blocks for tensor in file.tensors.values()) else None


def _tokenizer_files(file: GgufFile, cache_dir: Path | None) -> Path:
    """The tokenizer in the metadata of `file`, as files in the cache. The entry's key changes with the file."""
    key = hashlib.sha256(f"{stamp(file.path)}|{VERSION}".encode()).hexdigest()[:16]

    def write(made: Path) -> None:
        announce(f"writing tokenizer.json of {file.path.name}")
        write_tokenizer(file.metadata, made, file.path.name)

    return made_once(cache_root(cache_dir) / "tokenizers" / f"{file.path.stem[:80]}-{key}", write)


def _verified(cache_dir: Path | None) -> Path:
    """Where it is remembered which files have the sha256 that they ought to have."""
    return cache_root(cache_dir) / "verified"


def _only_gguf(directory: Path) -> Path:
    files = sorted(directory.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if files:
        raise CheckpointError(f"{directory}: {len(files)} .gguf files; name the one to serve", exit_code=USAGE)
    raise CheckpointError(f"{directory}: no config.json and no .gguf file", exit_code=BAD_DATA)


def _commit(file: Path) -> str:
    """The commit sha in a hub cache path `…/snapshots/<sha>/file`."""
    parts = file.parts
    return parts[parts.index("snapshots") + 1] if "snapshots" in parts else ""
