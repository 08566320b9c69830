"""The families we can convert, by `model_type`."""

from convert.composition import ComposedSource, recipes
from convert.config import Config
from convert.errors import CheckpointError
from convert.families.family import Family
from convert.families.llama import LLAMA, MISTRAL
from convert.formats.tensors import Tensors

FAMILIES: dict[str, Family] = {"llama": LLAMA, "mistral": MISTRAL}


def compose(config: Config, tensors: Tensors) -> ComposedSource:
    """The parameters of the checkpoint that `config` describes and `tensors` holds.

    Raises:
        CheckpointError: an unknown model_type, an unsupported feature, or tensors that do not fit the configuration.
    """
    model_type = config.text("model_type")
    if model_type not in FAMILIES:
        raise config.error("model_type", f"is not supported; supported are {', '.join(FAMILIES)}")
    family = FAMILIES[model_type]
    try:
        spec = family.spec(config, tensors)
    except CheckpointError:
        raise
    except ValueError as error:  # ModelSpec's and Rope's own checks name field, value and limit
        raise CheckpointError(f"{config.where}: {error}") from error
    return ComposedSource(spec, tensors, recipes(spec, family.tensors), family.ignore)
