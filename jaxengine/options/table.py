"""Every option of an engine, once. The command line, its `--help` and the launcher's options are made of this table.

A new option is a row of this table, and the place that acts on it. A row of `CheckpointOptions`, `ComputeOptions` or
`GroupOptions` is an option of the launcher too, by the same name. Options that have another name there, or are derived
from several, are set in `gateway/processes/engine_process.py`.
"""

# ruff: noqa: RUF009 — `option` is `dataclasses.field`

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from jaxengine.options import values
from jaxengine.options.group import GroupOptions
from jaxengine.options.option import option
from jaxengine.options.pooling import POOLINGS
from jaxengine.options.speculation import MAX_DRAFT_TOKENS, Speculation, decide, speculative_config
from jaxengine.rpc.limits import MAX_ALTERNATIVES, WHOLE_VOCABULARY
from jaxengine.telemetry import logs

# TGI's names of kernels that this engine does not have.
TGI_ATTENTION = ("paged", "flashdecoding", "flashdecoding-ipex", "flashinfer")


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """How the checkpoint is opened: `jaxengine/server.py` acts on these."""

    title: ClassVar[str] = "Model"

    revision: str | None = option(None, values.text, "branch, tag or commit on the hub", after="model_id")
    language_model_only: bool = option(
        False,
        values.flag,
        "serve the text part alone of a model that takes pictures or sound",
        after="revision",
    )
    merge_adapter: str | None = option(
        None,
        values.text,
        "PEFT adapter that is merged with the model while it is loaded: a directory or hub id, `@revision` behind it",
        after="language_model_only",
    )
    lora_adapters: tuple[str, ...] = option(
        (),
        values.text,
        "PEFT adapter that requests may name: a directory or hub id, `@revision` behind it; `name=` before it is what "
        "requests call it. Repeatable, or several with commas between",
        after="merge_adapter",
    )
    rope_scaling: Literal["linear", "dynamic"] | None = option(
        None,
        values.one_of("linear", "dynamic"),
        "stretch rotary positions for longer texts than the model is made for",
        after="tokenizer_config_path",
    )
    rope_factor: float | None = option(
        None,
        values.number(1, 1000),
        "how many times longer; linear without --rope-scaling, which alone means 1",
        after="rope_scaling",
    )


QUANTIZE = (
    *("int8", "fp8", "int4", "nf4", "fp4", "none", "eetq", "bitsandbytes", "bitsandbytes-nf4", "bitsandbytes-fp4"),
    *("gptq", "awq", "auto-round", "marlin", "compressed-tensors", "hqq", "modelopt", "mxfp4", "torchao", "gguf"),
)


@dataclass(frozen=True, kw_only=True)
class ComputeOptions:
    """What the engine computes with, and how much at once. None and "auto" mean: derive it from model and device.

    max_batch_prefill_tokens: tokens one step computes, decoding rows included.
    max_batch_total_tokens: tokens the page pool holds, and more of long texts where layers have windows; a request of a
        state space takes max_total_tokens of them.
    max_batch_size: rows of a step, and so requests that run at once.
    max_image_patches: rounded up to whole tiles where a model cuts pictures into tiles of one size.
    state_snapshots: of states behind prefixes; 0 = prompts share nothing where layers keep states.
    image_cache_tokens: rows of the pool of images; no fewer than the largest picture may have.
    dtype: of weights, activations and cache, where the next two say nothing else.
    quantize: the format of the layers' projections, see `jaxengine/weights/quantization.py`.
    """

    title: ClassVar[str] = "Computation, and how much at once"

    dtype: str = option(
        "auto",
        values.one_of("auto", "float32", "float16", "bfloat16"),
        "of weights and activations; auto: float32 on a CPU, on a GPU the checkpoint's own, bfloat16 for float32, T5",
        group="Device",
        after="served_model_name",
    )
    quantize: str | None = option(
        None,
        values.one_of(*QUANTIZE),
        "what the layers' weights in floats become at start: 8 bits, or on a GPU 4; eetq and bitsandbytes are int8; "
        "none is floats whatever the checkpoint holds. A quantised checkpoint needs none of them, and refuses most",
        after="dtype",
    )
    kv_cache_dtype: str = option(
        "auto",
        values.known_as(auto="auto", fp8="fp8_e4m3fn", fp8_e4m3fn="fp8_e4m3fn", fp8_e5m2="fp8_e5m2"),
        "of cached keys and values; auto is --dtype's, fp8 is fp8_e4m3fn; scaled where the checkpoint was calibrated",
        after="quantize",
    )
    enable_lora: bool = option(
        False,
        values.flag,
        "keep room for adapters even if none is named at start",
        after="kv_cache_dtype",
    )
    max_loras: int | None = option(
        None,
        values.whole(1, 256),
        "adapters that one step can mix; 8 if not given, or fewer if fewer are named at start and no others can come",
        after="enable_lora",
    )
    max_lora_rank: int | None = option(
        None,
        values.whole(1, 1024),
        "highest rank of an adapter; 16, or that of those named at start",
        after="max_loras",
    )
    max_cpu_loras: int | None = option(
        None,
        values.whole(1),
        "adapters kept in host memory, others are read again when they are asked for; all if not given",
        after="max_lora_rank",
    )
    lora_dtype: str = option(
        "auto",
        values.one_of("auto", "float32", "float16", "bfloat16"),
        "of adapters on the device; auto is --dtype's",
        after="max_cpu_loras",
    )
    speculate: int | None = option(
        None,
        values.whole(0, MAX_DRAFT_TOKENS),
        "most tokens that a step verifies of one request beyond the next one, fewer or none where they do not pay: "
        "guesses of the Medusa heads or MLP speculator that came with the model, all unless given, 0 for none; without "
        "one, found by n-gram in the request's text",
        after="lora_dtype",
    )
    speculative_config: str | None = option(
        None,
        speculative_config,
        "the same and more as JSON: method (ngram, suffix, medusa, mlp_speculator, eagle, eagle3, draft_model), model "
        "(what drafts: a directory or an id on the hub, with @revision or without), num_speculative_tokens, "
        "prompt_lookup_min, prompt_lookup_max, and vLLM's suffix_decoding fields",
        after="speculate",
    )
    pooling: str | None = option(
        None,
        values.one_of(*POOLINGS),
        "embeddings are the last token's hidden state, or the mean over all tokens; what the checkpoint's "
        "1_Pooling/config.json says if not given, or else last",
        after="speculative_config",
    )
    attention: str = option(
        "auto",
        values.known_as(auto="auto", reference="reference", triton="triton", **dict.fromkeys(TGI_ATTENTION, "auto")),
        "attention back end; auto is triton on an NVIDIA GPU and reference on a CPU, and so are TGI's names",
        after="kv_cache_dtype",
    )
    max_total_tokens: int | None = option(
        None,
        values.whole(2),
        "prompt and new tokens of one request; what model and memory allow if not given",
        group="What a request may ask",
        after="cuda_memory_fraction",
    )
    max_batch_size: int | None = option(
        None,
        values.whole(1, 65536),
        "most sequences in one step; chosen by device if not given",
        after="queue_timeout",
    )
    max_batch_prefill_tokens: int | None = option(
        None, values.whole(1), "tokens one step computes; chosen by device if not given", after="max_batch_size"
    )
    max_batch_total_tokens: int | None = option(
        None,
        values.whole(1),
        "most tokens the KV cache holds; what memory allows if not given",
        after="max_batch_prefill_tokens",
    )
    max_image_patches: int | None = option(
        None,
        values.whole(1, 1 << 20),
        "squares of pixels of the largest image, and of all that one step encodes; 16384, on a CPU 4096, or all "
        "tiles, if not given",
        after="max_image_pixels",
    )
    image_cache_tokens: int | None = option(
        None,
        values.whole(1, 1 << 24),
        "tokens of encoded images that the device keeps; room for two of the largest, at least 8192, if not given",
        after="max_image_patches",
    )
    state_snapshots: int | None = option(
        None,
        values.whole(0, 65536),
        "prefixes behind which states are kept for later prompts, where layers have states instead of keys and values; "
        "half as many as sequences in a step and at least two, as far as memory allows, if not given",
        after="image_cache_tokens",
    )


@dataclass(frozen=True, kw_only=True)
class EngineOptions(ComputeOptions):
    """What an engine is started with, in whatever process. Values are checked; a second name is replaced by the first.

    Raises:
        ValueError: the message names the option, the value and what would be right.
    """

    title: ClassVar[str] = "Engine"

    tensor_parallel: int = option(1, values.whole(0), "devices to split the model over; 0 takes all")
    page_size: int = option(16, values.known_as(**{str(size): size for size in (16, 32, 64, 128)}), "tokens of a page")
    prefix_cache: bool = option(True, values.flag, "keep pages of earlier prompts")
    max_top_logprobs: int = option(
        20,
        values.whole(WHOLE_VOCABULARY, MAX_ALTERNATIVES),
        "most alternatives that a step reports beside a token; -1: all there are",
    )

    def __post_init__(self) -> None:
        for row in dataclasses.fields(self):
            if (value := getattr(self, row.name)) is None and row.default is None:
                continue
            try:
                object.__setattr__(self, row.name, _parsed(row, value))
            except ValueError as error:
                raise ValueError(f"{row.name} {error}, got {value!r}") from None
        decide(self.speculate, self.speculative_config)  # raises where they contradict each other

    @property
    def speculation(self) -> Speculation | None:
        """What drafts tokens; None for what came with the model, unless `speculate` is 0."""
        return decide(self.speculate, self.speculative_config)


def _parsed(row: "dataclasses.Field[Any]", value: Any) -> Any:
    """`value` as the text of the option means it; of several values, each. A dict is the JSON of it."""
    parse = row.metadata["parse"]
    if isinstance(value, dict):
        return parse(json.dumps(value, default=os.fspath))
    return tuple(parse(str(each)) for each in value) if isinstance(row.default, tuple) else parse(str(value))


@dataclass(frozen=True, kw_only=True)
class ServeOptions(CheckpointOptions, GroupOptions, EngineOptions):
    """What an engine process is started with: the command line of `text-generation-server serve`."""

    title: ClassVar[str] = "Process"

    uds_path: Path = option(dataclasses.MISSING, values.path, "socket to serve on, in a directory of mode 0700")
    model_id: str | None = option(
        None, values.text, "hub id, local directory or .gguf file; the default model if not given"
    )
    model_name: str | None = option(None, values.text, "what the model is called, if not by its id")
    cache_dir: Path | None = option(None, values.path, "where downloads and conversions are kept")
    adapters_file: Path | None = option(
        None, values.path, "where changes of adapters are noted, and read when the engine is started again"
    )
    memory_fraction: float = option(0.9, values.number(0.01, 1), "share of the device's memory the engine may use")
    group_patience: float = option(
        30.0, values.number(0.1, 86400), "seconds without a sign of another machine after which it counts as gone"
    )
    drain_seconds: float = option(5.0, values.number(0, 86400), "seconds that running requests get after SIGTERM")
    otlp_endpoint: str | None = option(None, values.url, "OTLP/gRPC collector that spans are sent to")
    otlp_service_name: str = option("text-generation-inference.server", values.text, "service.name of the spans")
    json_output: bool = option(False, values.flag, "log as JSON lines")
    logger_level: str = option("info", values.any_case(values.one_of(*logs.LEVELS)), "lowest level that is logged")
    parent_pid: int | None = option(None, values.whole(1), "die when this process, which must be the parent, dies")
    replica: int | None = option(None, values.whole(0), "number of this engine among several, which log lines carry")
    processors: tuple[int, ...] = option((), values.whole(0), "processors to run on; repeatable; all if not given")
