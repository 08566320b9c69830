"""`text-generation-server quantize`: a checkpoint in floats → one in GPTQ's format, calibrated on a text.

The third place where engine and converters meet: `convert` reads and writes, the engine's own layers compute.
"""

import math
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from convert.errors import USAGE, CheckpointError
from convert.formats.shard_writer import ShardWriter
from convert.hub_checkpoint import read_whole, written
from convert.original import Original, original_of
from convert.progress import Progress
from convert.quantized.gptq_writer import configuration, divisor, module_bytes, module_tensors
from convert.source import OpenModel
from convert.tokenizer.tokenizer import check_tokenizer
from jaxengine.architecture.parameters import parameter_table
from jaxengine.device import DeviceTraits
from jaxengine.gptq.layers import PROJECTIONS, round_layers, unsupported
from jaxengine.gptq.solver import WHOLE, Rounded, Settings
from jaxengine.ops import Ops
from jaxengine.sharding import make_mesh

TEXTS, LENGTH = 128, 2048  # texts and tokens of each, as TGI's command takes them of its data set
LEAST = 64  # tokens
MOST = 100 * 2**20  # bytes
CONFIGURATION, OWN_FILE = "quantization_config", "quantize_config.json"


def settings_of(bits: int, group: int, damping: float, by_activation: bool) -> Settings:
    """Raises CheckpointError where the command's option has a value that the format does not know."""
    try:
        return Settings(bits, group, damping, by_activation)
    except ValueError as error:
        raise CheckpointError(f"--{error}", exit_code=USAGE) from error


def quantize(model: OpenModel, target: Path, settings: Settings, calibration: Path | None = None) -> float:
    """Write `model` to `target` with the projections of its layers in GPTQ's format. Returns the mean over these of the
    squared error of their products, as a fraction.

    Args:
        calibration: a text in UTF-8; None for our own.

    Raises:
        CheckpointError: a model that cannot be quantised so, or a text that cannot be read; the disk is too small.
    """
    original = original_of(model)
    _check(original, divisor(settings.bits))
    texts = calibration_texts(model, _read(calibration))
    described = configuration(settings.bits, settings.group, settings.damping, settings.by_activation)
    files = {OWN_FILE: described}
    try:
        with written(original, target, _bytes(original, settings), {CONFIGURATION: described}, files) as writer:
            error = _write_rounded(original, texts, settings, writer)
            _write_others(original, writer)
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"quantize {model.model_id}: {error}") from error
    return error


def calibration_texts(model: OpenModel, text: str) -> list[list[int]]:
    """Token ids of `text`, cut into texts of equal length; each begins with what the tokenizer puts in front of one.

    Of a long text as many as TGI takes, evenly spread.
    """
    spec = model.source.spec
    tokenizer, _ = check_tokenizer(model.directory, spec.vocab_size)
    front = tokenizer.encode("").ids
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    length = min(LENGTH, spec.max_positions) - len(front)
    parts = [ids[first : first + length] for first in range(0, len(ids), length)]
    if len(ids) < min(LEAST, length):
        raise CheckpointError(f"calibration: {len(ids)} tokens of text, at least {LEAST} are needed", exit_code=USAGE)
    if len(parts) > 1 and len(parts[-1]) < length:
        parts.pop()
    chosen = np.linspace(0, len(parts) - 1, min(TEXTS, len(parts))).astype(int)
    return [[*front, *parts[i]] for i in chosen]


def _read(path: Path | None) -> str:
    if path is None:
        return (files("jaxengine.gptq") / "calibration.txt").read_text("utf-8")
    try:
        if (size := path.stat().st_size) > MOST:
            raise CheckpointError(f"calibration {path}: has {size} bytes, at most {MOST}", exit_code=USAGE)
        return path.read_text("utf-8")
    except OSError as error:
        raise CheckpointError(f"calibration {path}: cannot be read: {error.strerror}", exit_code=USAGE) from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"calibration {path}: is not UTF-8 at byte {error.start}", exit_code=USAGE) from error


def _check(original: Original, divisor: int) -> None:
    """Raises CheckpointError where the model, or a matrix whose sizes `divisor` does not divide, can't be quantised."""
    if what := unsupported(original.source.spec):
        raise CheckpointError(f"quantize: a model with {what} is not supported")
    for name, (outputs, inputs) in _matrices(original).items():
        if outputs % divisor or inputs % divisor:
            shape = f"{outputs} outputs and {inputs} inputs"
            raise CheckpointError(f"quantize: tensor {name!r} has {shape}, both must be multiples of {divisor}")


def _projections(original: Original) -> list[str]:
    return [name for name in parameter_table(original.source.spec) if name.rpartition(".")[2] in PROJECTIONS]


def _matrices(original: Original) -> dict[str, tuple[int, int]]:
    """The tensors that are quantised, and of each [out, in]."""
    return {name: shape for each in _projections(original) for name, shape in original.matrices(each).items()}


def _bytes(original: Original, settings: Settings) -> int:
    """Of all tensors that will be written."""
    matrices, tensors = _matrices(original), original.tensors
    total = 0
    for outputs, inputs in matrices.values():
        groups = 1 if settings.group == WHOLE else -(-inputs // settings.group)
        total += module_bytes(outputs, inputs, settings.bits, groups)
    others = (name for name in tensors if name not in matrices)
    return total + sum(math.prod(tensors.shape(name)) * jnp.dtype(tensors.dtype(name)).itemsize for name in others)


def _write_rounded(
    original: Original, texts: Sequence[Sequence[int]], settings: Settings, writer: ShardWriter
) -> float:
    """Returns the mean error."""
    mesh = make_mesh()
    device, errors = DeviceTraits.of(mesh.devices.flat[0]), []
    rounded = round_layers(original.source, texts, settings, Ops("reference", mesh), device)
    with (
        jax.default_matmul_precision("highest"),  # a GPU's own is too coarse for Hessians
        Progress(rounded, total=len(_projections(original)), unit="matrix", desc="quantising") as bar,
    ):
        for name, matrix in bar:
            _write_modules(original, name, matrix, settings, writer)
            errors.append(float(matrix.error))
            bar.set_postfix(error=f"{errors[-1]:.2%}")
    return float(np.mean(errors))


def _write_modules(original: Original, name: str, matrix: Rounded, settings: Settings, writer: ShardWriter) -> None:
    """The modules that parameter `name` is made of."""
    groups = np.asarray(matrix.groups)
    codes, scales = (original.rows(name, np.asarray(each)) for each in (matrix.codes, matrix.scales))
    for tensor in codes:
        module = tensor.removesuffix(".weight")
        for suffix, array in module_tensors(codes[tensor], scales[tensor], groups, settings.bits).items():
            writer.add(module + suffix, array)


def _write_others(original: Original, writer: ShardWriter) -> None:
    matrices = _matrices(original)
    for name in original.tensors:
        if name not in matrices:
            writer.add(name, read_whole(original.tensors, name))
