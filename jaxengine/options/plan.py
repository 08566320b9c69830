"""The options of `text-generation-server plan`: the launcher's that decide what fits, and what it should fit on."""

# ruff: noqa: RUF009 — `option` is `dataclasses.field`

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from jaxengine.options import values
from jaxengine.options.option import option
from jaxengine.options.table import CheckpointOptions, ComputeOptions, EngineOptions


@dataclass(frozen=True, kw_only=True)
class PlanOptions(CheckpointOptions, ComputeOptions):
    """Options that the launcher has too mean the same here."""

    title: ClassVar[str] = "Plan"

    model_id: str | None = option(
        None,
        values.text,
        "hub id, local directory, also of a config.json alone, or .gguf file; the default model if not given",
        positional=True,
    )
    devices: str | None = option(
        None, values.text, "GPUs that need not be here, as in h200x8, or cpu; this machine's if not given"
    )
    num_shard: int | None = option(
        None, values.whole(1, 64), "devices one model is split over; every number that divides them if not given"
    )
    cuda_memory_fraction: float = option(0.9, values.number(0.01, 1), "share of the device's memory the engine may use")
    huggingface_hub_cache: Path | None = option(None, values.path, "directory of the hub's cache")
    compile: bool = option(
        False,
        values.flag,
        "ask XLA's own compiler what a step needs besides weights, which takes minutes and the wheels of an extra, "
        "cuda12 or cuda13, but no GPU",
    )
    json: bool = option(False, values.flag, "print JSON")

    def engine_options(self, devices: int) -> EngineOptions:
        """Of an engine on so many devices."""
        shared = {row.name: getattr(self, row.name) for row in dataclasses.fields(ComputeOptions)}
        return EngineOptions(**shared, tensor_parallel=devices)
