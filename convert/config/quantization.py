"""Where a checkpoint says how its weights are quantised: config.json, or a file of the quantising tool beside it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convert.config.config import Config, read_json
from convert.errors import CheckpointError

KEY = "quantization_config"
OLD_KEY = "compression_config"  # of compressed-tensors before 0.6
METHOD = "quant_method"
FILES: Mapping[str, str] = {  # with the method they are of, where they do not say it
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}


def add_quantization(config: Config, directory: Path) -> None:
    """Set `quantization_config` of `config`, where another key of it or a file in `directory` describes it.

    Raises:
        CheckpointError: that file or key does not hold an object.
    """
    if config.get(KEY) is not None:
        return
    text = config.section("text_config")
    if text is not None and text.get(KEY) is not None:
        _add(config, text.get(KEY), f"{text.where}: {KEY}")
    elif config.get(OLD_KEY) is not None:
        _add(config, config.get(OLD_KEY), f"{config.where}: {OLD_KEY}", "compressed-tensors")
    elif name := next((name for name in FILES if (directory / name).is_file()), None):
        settings = read_json(directory / name)
        whole = settings.get("quantization") if name == "hf_quant_config.json" else settings
        _add(config, whole, str(directory / name), FILES[name])


def _add(config: Config, settings: Any, where: str, method: str | None = None) -> None:
    if not isinstance(settings, dict):
        raise CheckpointError(f"{where}: must hold an object that describes the quantisation")
    config.values[KEY] = settings if method is None else {METHOD: method, **settings}
    config.places[KEY] = where
