"""A learnt drafter in a directory: heads that guess further tokens for a model which lies elsewhere.

`config.json` says of which kind it is, and with `base_model_name_or_path` perhaps for which model it was learnt.
"""

from pathlib import Path

from convert.config.config import Config
from convert.drafters import medusa, mlp_speculator
from convert.drafters.stored_drafter import StoredDrafter
from convert.errors import CheckpointError
from convert.formats.shards import has_tensors
from jaxengine.architecture.model import ModelSpec

CONFIG = "config.json"
KINDS = {
    medusa.MODEL_TYPE: medusa.open_medusa,
    mlp_speculator.MODEL_TYPE: mlp_speculator.open_mlp_speculator,
}


def is_drafter(directory: Path) -> bool:
    """Whether `directory` holds a drafter and no model. A model may have its heads beside it."""
    if not (directory / CONFIG).is_file():
        return False
    config = Config.load(directory / CONFIG)
    return config.get("model_type") in KINDS or (_kind(config) is not None and not has_tensors(directory))


def has_drafter(directory: Path) -> bool:
    """Whether there is one in `directory`, perhaps beside a model."""
    return (directory / CONFIG).is_file() and _kind(Config.load(directory / CONFIG)) is not None


def base_of(directory: Path) -> str:
    """The model for which the drafter in `directory` was learnt. Raises CheckpointError if it does not say."""
    config = Config.load(directory / CONFIG)
    if base := config.text("base_model_name_or_path", ""):
        return base
    advice = "name the base, and this as the model of --speculative-config"
    raise CheckpointError(f"{config.where}: is a drafter without base_model_name_or_path; {advice}")


def open_drafter(directory: Path, model: ModelSpec) -> StoredDrafter:
    """The drafter in `directory`, for `model`.

    Raises:
        CheckpointError: there is none, its files are incomplete, or it is for a model of other sizes.
    """
    if not (directory / CONFIG).is_file():
        raise CheckpointError(f"{directory}: no {CONFIG}")
    config = Config.load(directory / CONFIG)
    kind = _kind(config)
    if kind is None:
        known = f"{' or '.join(KINDS)}, and without medusa_num_heads it is none of them"
        raise config.error("model_type", f"of a drafter must be {known}")
    return KINDS[kind](directory, config, model)


def _kind(config: Config) -> str | None:
    """Medusa's own configurations have no model_type, or an empty one."""
    model_type = config.get("model_type")
    if model_type in KINDS:
        return str(model_type)
    return medusa.MODEL_TYPE if config.get("medusa_num_heads") is not None else None
