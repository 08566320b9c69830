"""A learnt drafter in a directory: what guesses further tokens for a model which lies elsewhere.

`config.json` says of which kind it is, and with `base_model_name_or_path` perhaps for which model it was learnt. Only
EAGLE's layers may be described as if they were a model, and are known by their tensors.
"""

from pathlib import Path

from convert.config.config import Config
from convert.drafters import eagle, medusa, mlp_speculator
from convert.drafters.stored_drafter import StoredDrafter
from convert.errors import CheckpointError
from convert.formats.shards import has_tensors
from jaxengine.architecture.model import ModelSpec

CONFIG = "config.json"
KINDS = {
    medusa.MODEL_TYPE: medusa.open_medusa,
    mlp_speculator.MODEL_TYPE: mlp_speculator.open_mlp_speculator,
    eagle.MODEL_TYPE: eagle.open_eagle,
}


def is_drafter(directory: Path) -> bool:
    """Whether `directory` holds a drafter and no model. A model may have its Medusa heads beside it."""
    kind = _kind_in(directory)
    if kind != medusa.MODEL_TYPE:
        return kind is not None
    return Config.load(directory / CONFIG).get("model_type") == kind or not has_tensors(directory)


def has_drafter(directory: Path) -> bool:
    """Whether there is one in `directory`, perhaps beside a model."""
    return _kind_in(directory) is not None


def base_of(directory: Path) -> str:
    """The model for which the drafter in `directory` was learnt. Raises CheckpointError if it does not say."""
    config = Config.load(directory / CONFIG)
    if base := config.text("base_model_name_or_path", "") or eagle.base_of_speculators(config):
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
    kind = _kind(directory, config)
    if kind is None:
        known = f"one of {', '.join(KINDS)}, and without medusa_num_heads or a tensor fc.weight it is none of them"
        raise config.error("model_type", f"of a drafter must be {known}")
    return KINDS[kind](directory, config, model)


def _kind_in(directory: Path) -> str | None:
    return _kind(directory, Config.load(directory / CONFIG)) if (directory / CONFIG).is_file() else None


def _kind(directory: Path, config: Config) -> str | None:
    """Medusa's own configurations have no model_type, or an empty one."""
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in KINDS:
        return model_type
    if config.get("medusa_num_heads") is not None:
        return medusa.MODEL_TYPE
    return eagle.MODEL_TYPE if eagle.is_eagle(directory, config) else None
