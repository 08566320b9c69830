"""`text-generation-server`: TGI's second command, with its sub-commands and arguments.

    download-weights MODEL_ID          fetch (and convert, where needed) ahead of time
    convert MODEL_ID OUTPUT_DIR        write a checkpoint in the engine's own layout
    serve --uds-path PATH …            run one engine process; its options are in `jaxengine/options/table.py`
    plan MODEL_ID                      tell whether it fits on some devices; options are in `jaxengine/options/plan.py`
    quantize MODEL_ID OUTPUT_DIR       round to 4 bits by GPTQ, and write a checkpoint that other servers read too
    export MODEL_ID OUTPUT_DIR         write a program of StableHLO and its weights, which run without this package

Every failure a user can cause is one line on stderr and a non-zero exit code.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from convert.arguments import FORMAT, parse
from convert.checkpoint import write_checkpoint
from convert.errors import USAGE, CheckpointError
from jaxengine.options.option import UsageError
from jaxengine.telemetry import standard_streams

if TYPE_CHECKING:
    from convert.source import OpenModel

INTERRUPTED = 130  # as shells have it: 128 and the signal


def main(argv: list[str] | None = None) -> int:
    if argv is None:
        standard_streams.hold()
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["serve"]:
        from jaxengine.server import main as serve  # imports JAX, which the other commands never need

        return int(serve(arguments[1:]))
    try:
        if arguments[:1] == ["plan"]:
            from jaxengine.plan import main as plan  # likewise

            return int(plan(arguments[1:]))
        return _run(parse(arguments))
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    except CheckpointError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr, flush=True)
        if argv is None:
            os._exit(INTERRUPTED)  # JAX, stopped while it computed, often crashes where the interpreter ends
        return INTERRUPTED


def _run(options: argparse.Namespace) -> int:
    if options.command == "download-weights" and options.extension != ".safetensors":
        raise CheckpointError(f"--extension must be .safetensors, got {options.extension!r}", exit_code=USAGE)
    if options.trust_remote_code:
        raise CheckpointError("--trust-remote-code is not supported: model code is never run", exit_code=USAGE)
    if options.command != "download-weights":
        _check_empty(options.output_dir)
    if options.command == "quantize":
        return _quantize(options)
    if options.command == "export":
        return _export(options)
    model = _open(options)
    if options.command == "convert":
        _refuse_drafter(model)
        _convert(model, options.output_dir, options.dtype)
    made = options.output_dir if options.command == "convert" else model.directory
    return standard_streams.say(f"{model.model_id} is ready in {made}")


def _check_empty(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(f"output {target} exists and is not an empty directory", exit_code=USAGE)
    if target.is_symlink() or target.is_mount():  # what is written takes its place
        raise CheckpointError(f"output {target} is a link or a mount point; name a directory in it", exit_code=USAGE)


def _quantize(options: argparse.Namespace) -> int:
    if options.upload_to_model_id:
        problem = "is not supported: nothing is sent to the hub; upload the output directory with its own tools"
        raise CheckpointError(f"--upload-to-model-id {problem}", exit_code=USAGE)
    from jaxengine.quantize import quantize, settings_of  # imports JAX

    settings = settings_of(options.bits, options.groupsize, options.percdamp, options.act_order)
    model = _open(options)
    _refuse_drafter(model)
    error = quantize(model, options.output_dir, settings, options.calibration)
    quality = f"mean squared error of its products {error:.2%}"
    return standard_streams.say(f"{model.model_id} is ready in {options.output_dir}; {quality}")


def _export(options: argparse.Namespace) -> int:
    if options.format != FORMAT:
        hint = "; no ONNX is written, but what XLA compiles" if options.format == "onnx" else ""
        raise CheckpointError(f"--format must be {FORMAT}, got {options.format!r}{hint}", exit_code=USAGE)
    from jaxengine.export import export_program  # imports JAX

    model = _open(options)
    _refuse_drafter(model)
    export_program(model, options.output_dir, options.dtype, (options.batch_size, options.sequence_length))
    return standard_streams.say(f"{model.model_id} is ready in {options.output_dir}")


def _open(options: argparse.Namespace) -> "OpenModel":
    from convert.source import open_model  # which may refuse variables of the hub's library

    return open_model(
        options.model_id,
        options.revision,
        cache_dir=_cache_dir(options),
        language_model_only=options.language_model_only,
    )


def _refuse_drafter(model: "OpenModel") -> None:
    """What is written would be the base alone."""
    if model.drafter:
        raise CheckpointError(f"{model.model_id} is a drafter, which cannot be written; name its base", exit_code=USAGE)


def _convert(model: "OpenModel", target: Path, dtype: str | None) -> None:
    origin = {"model_id": model.model_id, "revision": model.revision, "pooling": model.pooling}
    write_checkpoint(model.source, model.directory, target, dtype=dtype, origin=origin)


def _cache_dir(options: argparse.Namespace) -> Path | None:
    """TGI's older spelling of the hub's cache variable; the hub library reads HF_HUB_CACHE itself."""
    value = options.huggingface_hub_cache or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(value) if value else None


if __name__ == "__main__":
    sys.exit(main())
