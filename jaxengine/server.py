"""The engine process: options in, `convert` and `Engine` joined, the rest is `jaxengine.service.process`.

One of the two places where engine and converters meet. JAX is imported only on the loading thread, so that the socket
is open, and the gateway informed, long before.
"""

import argparse
import dataclasses
import os
from pathlib import Path
from typing import NoReturn

from jaxengine.rpc import transport
from jaxengine.service import process
from jaxengine.service.process import Loaded, Progress, StartupError
from jaxengine.startup.defaults import CACHE_DTYPES, DTYPES, QUANTIZE, EngineOptions
from jaxengine.telemetry import logs
from jaxengine.telemetry.tracing import Tracing, TracingUnavailable

# For fetching the model only: nothing that runs afterwards may read them.
SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_API_TOKEN")

# Progress bars and pip's chatter, which are not JSON.
SILENCE = {"TQDM_DISABLE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "PIP_QUIET": "1"}


def main(argv: list[str]) -> int:
    """Serve one model until SIGTERM. Returns the exit code; a failure is one line on stderr."""
    logs.configure("--json-output" in argv)
    try:
        arguments = _parser().parse_args(argv)
    except StartupError as error:
        return logs.fail(str(error), error.exit_code)
    logs.configure(arguments.json_output, arguments.logger_level)
    try:
        tracing = Tracing.to(arguments.otlp_endpoint, arguments.otlp_service_name)
    except TracingUnavailable as error:
        return logs.fail(str(error), logs.USAGE)
    if arguments.json_output:
        os.environ.update(SILENCE)
    if arguments.parent_pid is not None:
        process.die_with_parent(arguments.parent_pid)
    token = os.environ.pop(transport.TOKEN_VARIABLE, "")
    return process.run(
        arguments.uds_path,
        token,
        lambda progress: load(arguments, progress),
        drain_seconds=arguments.drain_seconds,
        tracing=tracing,
    )


def load(arguments: argparse.Namespace, progress: Progress) -> Loaded:
    """Find, fetch and convert the model, then load and compile it.

    Raises:
        StartupError: the model or the options are at fault.
    """
    from convert.errors import CheckpointError

    try:
        return _load(arguments, progress)
    except CheckpointError as error:
        raise StartupError(str(error), error.exit_code) from error
    except ValueError as error:
        raise StartupError(str(error), logs.USAGE) from error
    finally:
        for name in SECRETS:
            os.environ.pop(name, None)


def _load(arguments: argparse.Namespace, progress: Progress) -> Loaded:
    from convert.cache import cache_root
    from convert.config.rope_override import stretch
    from convert.source import open_model

    progress(f"opening {arguments.model_id or 'the default model'}")
    model = open_model(arguments.model_id, arguments.revision, cache_dir=arguments.cache_dir)
    if arguments.rope_scaling or arguments.rope_factor:
        source = stretch(model.source, arguments.rope_scaling or "linear", arguments.rope_factor or 1.0)
        model = dataclasses.replace(model, source=source)
    if arguments.model_name:
        model = dataclasses.replace(model, model_id=arguments.model_name)
    progress("starting the device")
    os.environ.setdefault("XLA_CLIENT_MEM_FRACTION", str(arguments.memory_fraction))  # read when JAX meets the device
    import jax

    _require_device()
    from jaxengine.engine.rehearsal import rehearse
    from jaxengine.executor.compile_cache import enable_compile_cache
    from jaxengine.startup.build import load_engine

    enable_compile_cache(cache_root(arguments.cache_dir) / "compiled")
    options = EngineOptions(
        max_total_tokens=arguments.max_total_tokens,
        max_batch_prefill_tokens=arguments.max_batch_prefill_tokens,
        max_batch_total_tokens=arguments.max_batch_total_tokens,
        max_batch_size=arguments.max_batch_size,
        dtype=arguments.dtype,
        quantize=arguments.quantize,
        kv_cache_dtype=arguments.kv_cache_dtype,
        tensor_parallel=arguments.tensor_parallel or jax.local_device_count(),
        attention=arguments.attention,
        max_top_logprobs=arguments.max_top_logprobs,
    )
    engine = load_engine(model, options, lambda what, done, total: progress(f"{what} {done}/{total}"))
    rehearse(engine)
    return Loaded(engine, model.directory)


def _require_device() -> None:
    import jax

    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # JAX 0.10.2 asserts where no platform of those named is there
        platforms = os.environ.get("JAX_PLATFORMS", "")
        raise StartupError(f"JAX finds no device (JAX_PLATFORMS={platforms!r})", os.EX_UNAVAILABLE) from error


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise StartupError(message, logs.USAGE)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="text-generation-server serve", allow_abbrev=False)
    parser.add_argument("--uds-path", type=Path, required=True, help="socket to serve on, in a directory of mode 0700")
    parser.add_argument("--model-id", help="hub id, local directory or .gguf file; the default model if not given")
    parser.add_argument("--model-name", help="what the model is called, if not by its id")
    parser.add_argument("--revision", help="branch, tag or commit on the hub")
    parser.add_argument("--cache-dir", type=Path, help="where downloads and conversions are kept")
    parser.add_argument("--rope-scaling", choices=("linear", "dynamic"), help="how positions are stretched")
    parser.add_argument("--rope-factor", type=float, help="by how much")
    parser.add_argument("--dtype", default="auto", choices=DTYPES)
    parser.add_argument("--quantize", choices=QUANTIZE, help="the layers' weights")
    parser.add_argument("--kv-cache-dtype", default="auto", choices=CACHE_DTYPES)
    parser.add_argument("--attention", default="auto", choices=("auto", "reference", "triton"))
    parser.add_argument("--tensor-parallel", type=int, default=1, help="devices to split the model over; 0 takes all")
    for name in ("max-total-tokens", "max-batch-prefill-tokens", "max-batch-total-tokens", "max-batch-size"):
        parser.add_argument(f"--{name}", type=int)
    alternatives = "most alternatives beside a token; -1: all there are"
    parser.add_argument("--max-top-logprobs", type=int, default=EngineOptions.max_top_logprobs, help=alternatives)
    parser.add_argument("--memory-fraction", type=float, default=0.9, help="of the device's memory")
    parser.add_argument("--drain-seconds", type=float, default=5.0, help="for running requests after SIGTERM")
    parser.add_argument("--otlp-endpoint", help="OTLP/gRPC collector that spans are sent to")
    parser.add_argument("--otlp-service-name", default="text-generation-inference.server", help="of the spans")
    parser.add_argument("--json-output", action="store_true", help="log as JSON lines")
    parser.add_argument("--logger-level", default="info", type=str.lower, choices=tuple(logs.LEVELS))
    parser.add_argument("--parent-pid", type=int, help="die when this process, which must be the parent, dies")
    return parser
