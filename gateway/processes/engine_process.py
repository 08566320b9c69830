"""How the engine process is started: its command line, and the part of our environment that it may see.

That part is an allow-list. The API key never reaches the engine. A hub token does, because the engine process fetches
the model; the engine drops it once it has the model.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway import child_process
from gateway.config.options import Options
from jaxengine.options.command_line import arguments
from jaxengine.options.group import GroupOptions
from jaxengine.options.speculation import Speculation
from jaxengine.options.table import CheckpointOptions, ComputeOptions, ServeOptions
from jaxengine.options.visible_devices import VARIABLE as VISIBLE_DEVICES
from jaxengine.rpc import transport
from jaxengine.rpc.limits import WHOLE_VOCABULARY

PATIENCE = 0.75  # of the hang timeout: engines can say which machine is silent, before they seem to hang themselves
PASSED_ON = (CheckpointOptions, ComputeOptions, GroupOptions)
EngineCommand = Callable[[Options, "EnginePlace", int], list[str]]  # the last is the parent's process id

NAMES = {
    *("HOME", "USER", "LANGUAGE", "TMPDIR", "TERM", "LD_PRELOAD", "PYTHONUNBUFFERED", "TF_CPP_MIN_LOG_LEVEL"),
    *child_process.NETWORK,
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_API_TOKEN", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_OFFLINE"),
    *("HF_HOME", "HF_ENDPOINT", "HF_TOKEN_PATH"),
}
# HF_HUB_… configures downloads, PIP_ and UV_ where the default model is fetched from, OTEL_ how spans are sent (a
# collector's headers, say), the others the device.
PREFIXES = ("LC_", "XDG_", "HF_HUB_", "PIP_", "UV_", "OTEL_", "JAX_", "XLA_", "CUDA_", "NVIDIA_", "NCCL_", "OMP_")
DEFAULT = "default"  # the model that is served when none is named


@dataclass(frozen=True)
class EnginePlace:
    """Where one of a server's engines is served, and on what it runs.

    socket: to serve on.
    number: of this engine among several.
    devices: the devices that CUDA may show it; None = all.
    processors: that it may use; none named = all.
    """

    socket: Path
    number: int | None = None
    devices: str | None = None
    processors: tuple[int, ...] = ()

    @property
    def adapters_file(self) -> Path:
        """What a restarted engine serves, beside the socket."""
        return self.socket.with_suffix(".adapters.json")


def environment(ours: Mapping[str, str], token: str, devices: str | None = None) -> dict[str, str]:
    allowed = child_process.environment(ours, NAMES, PREFIXES)
    if devices is not None:
        allowed[VISIBLE_DEVICES] = devices
    if old := allowed.pop("HF_API_TOKEN", ""):  # the hub's library no longer reads it, TGI does
        allowed.setdefault("HF_TOKEN", old)
    return {**allowed, transport.TOKEN_VARIABLE: token}


def command(options: Options, place: EnginePlace, parent: int) -> list[str]:
    location = options.weights_cache_override or _location(options.model_id)
    engine_options = ServeOptions(
        uds_path=place.socket,
        parent_pid=parent,
        model_id=None if location is None else str(location),
        model_name=options.model_id if location != options.model_id else None,
        adapters_file=place.adapters_file,
        processors=place.processors,
        replica=place.number,
        cache_dir=options.huggingface_hub_cache,
        tensor_parallel=_devices(options),
        max_top_logprobs=_alternatives(options),
        memory_fraction=options.cuda_memory_fraction,
        group_patience=PATIENCE * options.engine_hang_timeout,
        logger_level=options.log_level,
        json_output=options.json_output,
        otlp_endpoint=options.otlp_endpoint,
        otlp_service_name=options.otlp_service_name,
        **_passed_on(options)
        | {
            "enable_lora": options.enable_lora or options.allow_runtime_lora_updating,
            "merge_adapter": _location(options.merge_adapter),
            "speculative_config": _with_location(options.speculative_config),
            "group_key_file": options.group_key_file and child_process.absolute(str(options.group_key_file)),
            "lora_adapters": tuple(f"{each.name}={_location(each.path)}" for each in options.adapters),
        },
    )
    return child_process.python("convert.cli", "serve", *arguments(engine_options))


def _passed_on(options: Options) -> dict[str, Any]:
    """The options that the engine has by the same name."""
    rows = [row for table in PASSED_ON for row in dataclasses.fields(table)]
    return {row.name: getattr(options, row.name) for row in rows}


def _with_location(config: str | None) -> str | None:
    """`--speculative-config` with the location of the drafter that it names, if it does."""
    drafter = Speculation.parse(config).model if config else None
    if config is None or drafter is None:
        return config
    return json.dumps({**json.loads(config), "model": _location(drafter), "revision": None})  # the model's name has it


def _location(model_id: str | None) -> str | None:
    """The absolute path of a local model, adapter or drafter, for an engine that works elsewhere; of others the id.

    Ids that are no local path are the hub's, or wrong: the engine finds out and says so.
    """
    if model_id is None or model_id == DEFAULT:
        return model_id
    try:
        os.stat(os.path.expanduser(model_id))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return model_id
    except OSError:  # the path exists but cannot be read: the engine says why
        pass
    return child_process.absolute(model_id)


def _alternatives(options: Options) -> int:
    """How many alternatives to each token the engine reports: enough for both dialects."""
    v1, tgi = options.max_logprobs, options.max_top_n_tokens
    return WHOLE_VOCABULARY if v1 == WHOLE_VOCABULARY else max(v1, tgi)


def _devices(options: Options) -> int:
    """How many devices one model is split over; 0 means all devices."""
    if options.num_shard is not None:
        return options.num_shard
    return 0 if options.sharded or (options.sharded is None and options.nnodes > 1) else 1
