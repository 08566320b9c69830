"""What a GGUF file tells of layers: how many there are, numbers in a list of the metadata, and kinds by the tensors."""

from convert.config.config import Config
from convert.formats.gguf import GgufFile


def layer_count(file: GgufFile, metadata: Config) -> int:
    """Layers of the model, without those behind them that only draft.

    Raises:
        CheckpointError: more layers than there are tensors.
    """
    count = metadata.integer("block_count") - metadata.integer("nextn_predict_layers", 0, least=0)
    if not 0 < count <= len(file.tensors):
        raise metadata.error("block_count", f"leaves {count} layers, of {len(file.tensors)} tensors")
    return count


def by_layer(metadata: Config, key: str, count: int) -> list[int]:
    """The number that `key` has for each of `count` layers; what only drafts may have more behind them."""
    value = metadata.get(key)
    if not isinstance(value, list):
        return [metadata.integer(key, least=0)] * count
    if len(value) < count or not all(type(each) is int and 0 <= each < 2**31 for each in value):
        raise metadata.error(key, f"must be a number for each of {count} layers")
    return value[:count]


def holding(file: GgufFile, count: int, name: str) -> list[bool]:
    """Of each of `count` layers, whether it has tensor `name`, in which `{i}` stands for the layer."""
    return [name.format(i=layer) in file.tensors for layer in range(count)]


def ratio(metadata: Config, key: str, divisor: str) -> int:
    """What `key` has, by what `divisor` has. Raises CheckpointError if it is no multiple."""
    whole, part = metadata.integer(key), metadata.integer(divisor)
    if whole % part:
        raise metadata.error(key, f"must be a multiple of {divisor} {part}")
    return whole // part
