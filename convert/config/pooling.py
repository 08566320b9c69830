"""How a checkpoint of sentence-transformers pools: `modules.json`, and the settings of its module `Pooling`."""

from pathlib import Path

from convert.config.config import read_json, read_json_list
from convert.errors import CheckpointError

MODULES = "modules.json"
SETTINGS = "1_Pooling/config.json"  # where they are, unless MODULES names another folder
DEFAULT = "last"
KNOWN = ("Transformer", "Pooling", "Normalize")  # embeddings are made of unit length by whoever answers with them
FLAG = "pooling_mode_"
MODES = {"lasttoken": "last", "mean": "mean", "mean_tokens": "mean"}  # by its names, old and new


def pooling_of(directory: Path) -> str:
    """ "last" or "mean", which is "last" if the checkpoint says nothing; or in its own words what else it does with
    hidden states.

    Raises:
        CheckpointError: a file is not what it ought to be.
    """
    path = directory / MODULES
    if not path.is_file():
        return DEFAULT
    modules = read_json_list(path)
    if not all(isinstance(each, dict) and isinstance(each.get("type"), str) for each in modules):
        raise CheckpointError(f"{path}: must be a list of modules, each with a type")
    kinds = {each["type"].rpartition(".")[2]: each for each in modules}
    if unknown := next((kind for kind in kinds if kind not in KNOWN), None):
        return unknown
    return _mode(directory / str(kinds["Pooling"].get("path", "")) / "config.json") if "Pooling" in kinds else DEFAULT


def _mode(path: Path) -> str:
    """The mode that the settings at `path` have: `pooling_mode`, or a flag `pooling_mode_…` that is true."""
    settings = read_json(path)
    modes = settings.get("pooling_mode")
    if modes is None:
        flags = [key for key, value in settings.items() if key.startswith(FLAG) and value is True]
        modes = [flag.removeprefix(FLAG) for flag in flags]
    modes = modes if isinstance(modes, list) else [modes]
    return "+".join(MODES.get(str(mode), str(mode)) for mode in modes) or DEFAULT
