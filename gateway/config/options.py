"""Every option of the server, once: the command line, the environment and `--help` are made of this table.

Names and meanings are those of TGI's launcher.
"""

# ruff: noqa: RUF009 — `option` is `dataclasses.field`

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.config import values
from gateway.config.compatibility import CompatibilityOptions
from gateway.config.image_options import ImageOptions
from gateway.config.ngrok_options import OF_NGROK, NgrokOptions
from jaxengine.options.adapters import NamedAdapter, named_adapters
from jaxengine.options.group import GroupOptions
from jaxengine.options.option import UsageError, flag, option
from jaxengine.options.speculation import decide, without_effect
from jaxengine.options.table import CheckpointOptions, ComputeOptions
from jaxengine.rpc.limits import MAX_ALTERNATIVES, WHOLE_VOCABULARY

TGI = "tgi"  # the model's name in TGI's documentation and clients
ALIASES = (TGI, "dummy")  # names that every model has: huggingface_hub sends "dummy" to a given URL
OF_ADAPTERS = ("max_loras", "max_lora_rank", "max_cpu_loras", "lora_dtype")
OF_GROUPS = ("node_rank", "master_addr", "master_port", "group_key_file")


@dataclass(frozen=True, kw_only=True)
class Options(CheckpointOptions, ComputeOptions, GroupOptions, ImageOptions, NgrokOptions, CompatibilityOptions):
    """The table. A field `max_best_of` is `--max-best-of` on the command line and MAX_BEST_OF in the environment.

    The inherited fields are parts of the table that lie beside it, and the engine's options, from `jaxengine/options/`.
    These are passed on to the engine by the same names.
    """

    model_id: str | None = option(
        None,
        values.text,
        "hub id, local directory or .gguf file; without it the small default model is fetched once",
        group="Model",
    )
    huggingface_hub_cache: Path | None = option(None, values.path, "where hub downloads are kept")
    weights_cache_override: Path | None = option(
        None, values.existing_directory, "directory of the model's files; --model-id is then only the model's name"
    )
    lora_modules: tuple[str, ...] = option(
        (),
        values.lora_module,
        "vLLM's form of --lora-adapters: name=path, or JSON with `name` and `path`; repeatable",
        after="lora_adapters",
    )
    allow_runtime_lora_updating: bool = option(
        False,
        values.flag,
        "let clients load and unload adapters: POST /v1/load_lora_adapter and /v1/unload_lora_adapter, with the key",
        after="lora_modules",
    )
    tokenizer_config_path: Path | None = option(
        None, values.existing_file, "tokenizer_config.json to use instead of the model's"
    )
    served_model_name: tuple[str, ...] = option(
        (),
        values.text,
        "name of the model in /v1 and metrics instead of its id; repeatable, and answers carry the first",
    )
    sharded: bool | None = option(None, values.flag, "true: split the model over all devices unless --num-shard says")
    num_shard: int | None = option(None, values.whole(1, 64), "devices one model is split over; 1 if not given")
    replicas: int = option(
        1,
        values.whole(1, 64),
        "engines behind the port, each with the whole model on devices of its own, --num-shard each",
    )
    cuda_memory_fraction: float = option(0.9, values.number(0.01, 1), "share of the device's memory the engine may use")
    max_input_tokens: int | None = option(
        None, values.whole(1), "longest prompt; one less than --max-total-tokens if not given"
    )
    max_input_length: int | None = option(None, values.whole(1), "older name of --max-input-tokens")
    max_best_of: int = option(2, values.whole(1, 128), "highest best_of of a request")
    max_stop_sequences: int = option(4, values.whole(0, 1024), "most stop sequences of a request")
    max_top_n_tokens: int = option(5, values.whole(0, 1000), "highest top_n_tokens of a request")
    max_client_batch_size: int = option(4, values.whole(1, 1024), "most prompts or chats of one request to /v1")
    max_logprobs: int = option(
        20,
        values.whole(WHOLE_VOCABULARY, MAX_ALTERNATIVES),
        "most alternatives that /v1 lists beside a token, -1 for all; each step reports so many, asked for or not",
    )
    return_tokens_as_token_ids: bool = option(
        False, values.flag, "show tokens in logprobs as token_id:N, unless a request says otherwise"
    )
    enable_force_include_usage: bool = option(False, values.flag, "send the usage in every chunk of every /v1 stream")
    enable_prefill_logprobs: bool = option(
        False, values.flag, "fill `prefill` for `decoder_input_details`, else it is empty; /v1 needs no such option"
    )
    tool_call_parser: str | None = option(
        None,
        values.text,
        "vLLM's name of the format in which the model writes calls of tools, or none; told by its chat template if not "
        "given",
    )
    reasoning_parser: str | None = option(
        None,
        values.text,
        "vLLM's name of the format of the model's reasoning, or none; told by its chat template if not given",
    )
    tool_strict_level: str = option(
        "none",
        values.one_of("none", "function", "parameter"),
        "what a call that nobody asked for must fit besides `strict` tools: nothing, its format, or its schema too",
    )
    disable_grammar_support: bool = option(
        False, values.flag, "refuse requests that say what their text must match: grammars, schemas, forced calls"
    )
    watermark_gamma: float = option(
        0.5, values.number(0.01, 0.99), "share of the vocabulary that a watermark favours after each token"
    )
    watermark_delta: float = option(2.0, values.number(0, 100), "what a watermark adds to the logits it favours")
    payload_limit: int = option(2_000_000, values.whole(1), "largest request body in bytes")
    request_timeout: float = option(
        600.0,
        values.number(0, 86400),
        "seconds a request may take in all, 0 for no limit; a longer one is answered 504",
    )
    max_concurrent_requests: int = option(
        128,
        values.whole(1, 1_000_000),
        "sequences that run or wait at once; a request beyond is answered 429",
        group="How many at once",
    )
    max_queued_tokens: int = option(
        1 << 20, values.whole(1), "prompt tokens waiting for their first token; a request beyond is answered 429"
    )
    queue_timeout: float = option(
        60.0, values.number(0, 86400), "seconds a request may wait to be begun, 0 for no limit; then it is answered 429"
    )
    hostname: str = option("0.0.0.0", values.text, "address to listen on", group="HTTP")
    port: int = option(3000, values.whole(0, 65535), "port to listen on; 0 takes a free one", short="-p")
    admin_port: int | None = option(
        None,
        values.whole(0, 65535),
        "port of a separate listener for probes and /metrics, without a key; none if not given",
    )
    admin_hostname: str = option("127.0.0.1", values.text, "address that --admin-port listens on")
    admin_exclusive: bool = option(False, values.flag, "probes and /metrics answer on --admin-port alone")
    grpc_port: int | None = option(
        None,
        values.whole(0, 65535),
        "port on which Triton's and KServe's clients are served over gRPC, 8001 at Triton's; none if not given",
    )
    api_workers: int = option(
        1,
        values.whole(1, 64),
        "processes that speak HTTP on the port; limits hold for all together, and each may exceed them by one request",
    )
    validation_workers: int = option(2, values.whole(1, 64), "threads that tokenise prompts, in each HTTP process")
    api_key: str | None = option(
        None,
        values.keys,
        "bearer token that clients must send; several, one a line; API_KEY hides them from lists of processes",
        secret=True,
    )
    api_key_file: str | None = option(
        None, values.key_file, "file of bearer tokens, one a line, in addition to those of --api-key", secret=True
    )
    share_prefix_cache: bool = option(
        False,
        values.flag,
        "share the prefix cache between API keys; its timing reveals to each what the others have asked",
    )
    max_stored_responses: int = option(
        1000,
        values.whole(0, 1_000_000),
        "answers of /v1/responses kept for their caller to go on from, until the server ends; 0 keeps none",
    )
    max_stored_response_bytes: int = option(
        1 << 28, values.whole(1), "bytes that all stored answers may take, each with its whole conversation"
    )
    enable_per_request_metrics: bool = option(
        False, values.flag, "add `metrics` to answers of /v1: times of the request, and its tokens a second"
    )
    root_path: str | None = option(
        None, values.prefix, "path that a proxy puts before every route, whether the proxy strips it again or not"
    )
    cors_allow_origin: tuple[str, ...] = option(
        (), values.origin, "origin whose pages may call, or * for any; repeatable; none if not given"
    )
    disable_ui: bool = option(False, values.flag, "serve no pages for browsers: neither /playground nor /dashboard")
    compute_type: str | None = option(
        None, values.label, "the header x-compute-type of TGI's routes; number and kind of the devices if not given"
    )
    ssl_certfile: Path | None = option(None, values.existing_file, "certificate chain (PEM) to serve HTTPS with")
    ssl_keyfile: Path | None = option(None, values.existing_file, "private key (PEM), if not in --ssl-certfile")
    aip_http_port: int | None = option(None, values.whole(0, 65535), "port that Vertex AI assigns, instead of --port")
    aip_predict_route: str | None = option(None, values.route, "route to which Vertex AI sends the bodies of /vertex")
    aip_health_route: str | None = option(None, values.route, "route that Vertex AI asks for health")
    json_output: bool = option(False, values.flag, "log as JSON lines", group="Operations")
    log_level: str = option(
        "info",
        values.any_case(values.one_of("debug", "info", "warn", "error")),
        "lowest level that is logged; debug also shows probes and scrapes, warn no requests",
    )
    otlp_endpoint: str | None = option(
        None, values.url, "OTLP/gRPC collector that spans are sent to, e.g. http://collector:4317"
    )
    otlp_service_name: str = option("text-generation-inference.router", values.text, "service.name of the spans")
    env: bool = option(
        False,
        values.flag,
        "print the versions and devices of this machine, then serve",
        short="-e",
        in_environment=False,
    )
    shard_uds_path: Path = option(
        Path("/tmp/text-generation-server"),
        values.path,
        "prefix of the server's private directory, where the engine's socket is; the port is appended",
    )
    startup_timeout: float = option(
        1800.0, values.number(1, 86400), "seconds the engine may take to become ready once its model is fetched"
    )
    engine_hang_timeout: float = option(
        30.0,
        values.number(0.1, 86400),
        "seconds without a sign of life after which the engine is restarted; a step on a CPU counts as one for 600 s",
    )
    resume_requests: bool = option(
        True,
        values.flag,
        "finish requests whose engine died on another, or on the same once it is back; false ends them in an error",
    )
    max_engine_restarts: int = option(
        20,
        values.whole(0, 1_000_000),
        "times the engine, or one of the HTTP processes, is restarted within --engine-restart-window, or until it "
        "is ready; the next death ends the server with exit code 70",
    )
    engine_restart_window: float = option(
        600.0, values.number(1, 1e6), "seconds after which a death no longer counts for --max-engine-restarts"
    )
    graceful_termination_timeout: float = option(
        90.0, values.number(0, 86400), "seconds that running requests get after SIGTERM", short="-g"
    )

    def __post_init__(self) -> None:
        older = self.max_input_length
        if self.max_input_tokens is not None and older not in (None, self.max_input_tokens):
            raise UsageError("--max-input-length is the older name of --max-input-tokens: set only one of them")
        if older is not None:
            object.__setattr__(self, "max_input_tokens", older)
        if self.aip_http_port is not None:
            object.__setattr__(self, "port", self.aip_http_port)
        if self.replicas > 1 and self.sharded and self.num_shard is None:
            raise UsageError("--sharded true takes all devices: with --replicas, --num-shard says how many each has")
        try:
            self.check_group()
        except ValueError as error:
            raise UsageError(str(error)) from None
        if self.nnodes > 1 and self.replicas > 1:
            raise UsageError("--nnodes splits one model over machines: it does not go with --replicas")
        if self.admin_exclusive and self.admin_port is None:
            raise UsageError("--admin-exclusive needs --admin-port")
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise UsageError("--ssl-keyfile needs --ssl-certfile")
        self.check_ngrok(self.keys)
        longest, total = self.max_input_tokens, self.max_total_tokens
        if longest is not None and total is not None and longest >= total:
            raise UsageError(f"--max-input-tokens must be less than --max-total-tokens, got {longest} and {total}")
        try:
            adapters = self.adapters
        except ValueError as error:
            raise UsageError(f"--lora-adapters: {error}") from None
        for adapter in adapters:
            if adapter.name in (self.model_id, *self.served_model_name, *ALIASES):
                raise UsageError(f"--lora-adapters: {adapter.name!r} is a name of the model itself")
        try:
            decide(self.speculate, self.speculative_config)
        except ValueError as error:
            raise UsageError(f"--speculative-config: {error}") from None

    @property
    def adapters(self) -> tuple[NamedAdapter, ...]:
        """The adapters that the engine serves from its start. Raises ValueError if they cannot be."""
        return named_adapters((*self.lora_adapters, *self.lora_modules))

    @property
    def keys(self) -> list[str]:
        """All API keys, without duplicates."""
        given = (*(self.api_key or "").splitlines(), *(self.api_key_file or "").splitlines())
        return list(dict.fromkeys(given))

    @property
    def warnings(self) -> list[str]:
        """A line for each option that was given and has no effect."""
        given = [row for row in rows() if getattr(self, row.name) != row.default]
        lines = [f"{flag(row.name)} has {row.metadata['help']}" for row in given if row.metadata["no_effect"]]
        if not self.ngrok:  # NGROK_AUTHTOKEN is also a variable of ngrok's own programs: it may be set for them
            lines += [f"{flag(row.name)} has no effect without --ngrok" for row in given if row.name in OF_NGROK]
        if self.nnodes == 1:
            lines += [f"{flag(row.name)} has no effect without --nnodes" for row in given if row.name in OF_GROUPS]
        if not (self.adapters or self.enable_lora or self.allow_runtime_lora_updating):
            lines += [
                f"{flag(row.name)} has no effect without --enable-lora" for row in given if row.name in OF_ADAPTERS
            ]
        for field in without_effect(self.speculative_config):
            lines.append(f"--speculative-config: {field} has no effect: a drafter is computed as the model is")
        return lines


def rows() -> "list[dataclasses.Field[Any]]":
    """The table in the order of `--help`: an inherited option follows the option that its row names in `after`."""
    every = dataclasses.fields(Options)
    ordered = [row for row in every if not row.metadata["after"]]
    for row in every:
        if after := row.metadata["after"]:
            ordered.insert([each.name for each in ordered].index(after) + 1, row)
    return ordered
