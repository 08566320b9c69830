"""Every option of the server, once: the command line, the environment, `--help`, `/info` and the docs read this table.

Names and meanings are those of TGI's launcher. An option of its whose feature this server lacks is in `MISSING`:
setting it is an error that says so. One that names a detail which does not exist here, such as CUDA graphs, is taken,
with one warning that says what happens instead. The command line wins over the environment; an empty environment
variable counts as not set.
"""

# ruff: noqa: RUF009 — `option` is `dataclasses.field`

import argparse
import dataclasses
import ipaddress
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from gateway import values

TGI_ATTENTION = ("paged", "flashdecoding", "flashdecoding-ipex", "flashinfer")


class UsageError(Exception):
    """A wrong option. The message names the option, the value and what would be right."""


def option(
    default: Any,
    parse: Callable[[str], Any],
    help: str,
    *,
    short: str | None = None,
    secret: bool = False,
    in_environment: bool = True,
    idle: bool = False,
) -> Any:
    """One row: `parse` makes the value out of text. A tuple as default means the option may be repeated.

    An `idle` option has no effect; its help says what happens instead.
    """
    metadata = {
        "parse": parse,
        "help": f"no effect: {help}" if idle else help,
        "short": short,
        "secret": secret,
        "in_environment": in_environment,
        "idle": idle,
    }
    return dataclasses.field(default=default, repr=not secret, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The table. A field `max_best_of` is `--max-best-of` on the command line and MAX_BEST_OF in the environment."""

    model_id: str | None = option(
        None, values.text, "hub id, local directory or .gguf file; without it the small default model is fetched once"
    )
    revision: str | None = option(None, values.text, "branch, tag or commit on the hub")
    validation_workers: int = option(2, values.whole(1, 64), "threads that tokenise prompts")
    sharded: bool | None = option(None, values.flag, "true: split the model over all devices unless --num-shard says")
    num_shard: int | None = option(None, values.whole(1, 64), "devices one model is split over; 1 if not given")
    dtype: str = option(
        "auto",
        values.one_of("auto", "float32", "float16", "bfloat16"),
        "of weights and activations; auto is float32 on a CPU, on a GPU the checkpoint's own, bfloat16 for float32",
    )
    attention: str = option(
        "auto",
        values.one_of("auto", "reference", "triton", *TGI_ATTENTION),
        "attention back end; auto is triton on an NVIDIA GPU and reference on a CPU, and so are TGI's names",
    )
    rope_scaling: str | None = option(
        None, values.one_of("linear", "dynamic"), "stretch rotary positions for longer texts than the model is made for"
    )
    rope_factor: float | None = option(
        None,
        values.number(1, 1000),
        "how many times longer; linear without --rope-scaling, which alone means 1",
    )
    max_concurrent_requests: int = option(
        128, values.whole(1, 1_000_000), "sequences in work at once; a request beyond is answered 429"
    )
    max_queued_tokens: int = option(
        1 << 20, values.whole(1), "prompt tokens waiting for their first token; a request beyond is answered 429"
    )
    max_best_of: int = option(2, values.whole(1, 128), "highest best_of of a request")
    max_stop_sequences: int = option(4, values.whole(0, 1024), "most stop sequences of a request")
    max_top_n_tokens: int = option(5, values.whole(0, 1000), "highest top_n_tokens of a request")
    max_input_tokens: int | None = option(
        None, values.whole(1), "longest prompt; one less than --max-total-tokens if not given"
    )
    max_input_length: int | None = option(None, values.whole(1), "older name of --max-input-tokens")
    max_total_tokens: int | None = option(
        None, values.whole(2), "prompt and new tokens of one request; what model and memory allow if not given"
    )
    waiting_served_ratio: float = option(
        0.3, values.number(0, 1e9), "prompts join the running batch in chunks, as in TGI with chunking", idle=True
    )
    max_waiting_tokens: int = option(
        20, values.whole(0), "prompts join the running batch in chunks, as in TGI with chunking", idle=True
    )
    max_batch_prefill_tokens: int | None = option(
        None, values.whole(1), "tokens one step computes; chosen by device if not given"
    )
    max_batch_total_tokens: int | None = option(
        None, values.whole(1), "most tokens the KV cache holds; what memory allows if not given"
    )
    max_batch_size: int | None = option(
        None, values.whole(1, 65536), "most sequences in one step; chosen by device if not given"
    )
    hostname: str = option("0.0.0.0", values.text, "address to listen on")
    port: int = option(3000, values.whole(0, 65535), "port to listen on; 0 takes a free one", short="-p")
    shard_uds_path: Path = option(
        Path("/tmp/text-generation-server"),
        Path,
        "prefix of the private directory of the engine's socket; the port is appended",
    )
    huggingface_hub_cache: Path | None = option(None, Path, "where hub downloads are kept")
    weights_cache_override: Path | None = option(
        None, values.existing_directory, "directory of the model's files; --model-id is then only the model's name"
    )
    cuda_memory_fraction: float = option(0.9, values.number(0.01, 1), "share of the device's memory the engine may use")
    json_output: bool = option(False, values.flag, "log as JSON lines")
    otlp_endpoint: str | None = option(
        None, values.url, "OTLP/gRPC collector that spans are sent to, e.g. http://collector:4317"
    )
    otlp_service_name: str = option("text-generation-inference.router", values.text, "service.name of the spans")
    cors_allow_origin: tuple[str, ...] = option(
        (), values.origin, "origin whose pages may call, or * for any; repeatable; none if not given"
    )
    api_key: str | None = option(
        None,
        values.keys,
        "bearer token clients must send; several on lines of their own; API_KEY hides it from lists of processes",
        secret=True,
    )
    api_key_file: str | None = option(
        None, values.key_file, "file of such tokens, one a line, beside those of --api-key", secret=True
    )
    share_prefix_cache: bool = option(
        False, values.flag, "share the prefix cache between API keys, which tells each what others have asked"
    )
    watermark_gamma: float = option(
        0.5, values.number(0.01, 0.99), "share of the vocabulary that a watermark favours after each token"
    )
    watermark_delta: float = option(2.0, values.number(0, 100), "what a watermark adds to the logits it favours")
    tokenizer_config_path: Path | None = option(
        None, values.existing_file, "tokenizer_config.json to use instead of the model's"
    )
    max_client_batch_size: int = option(4, values.whole(1, 1024), "most prompts of one /v1/completions request")
    payload_limit: int = option(2_000_000, values.whole(1), "largest request body in bytes")
    enable_prefill_logprobs: bool = option(False, values.flag, "allow logprobs of prompt tokens")
    graceful_termination_timeout: float = option(
        90.0, values.number(0, 86400), "seconds that running requests get after SIGTERM", short="-g"
    )
    usage_stats: str = option("off", values.one_of("on", "off", "no-stack"), "nothing is ever sent", idle=True)
    cuda_graphs: str | None = option(
        None, values.text, "every step is compiled ahead of time, for batch sizes chosen by device", idle=True
    )
    disable_custom_kernels: bool = option(False, values.flag, "kernels are chosen by device", idle=True)
    disable_grammar_support: bool = option(False, values.flag, "grammars are not supported yet", idle=True)
    master_addr: str | None = option(None, values.text, "the devices of one machine need no meeting point", idle=True)
    master_port: int | None = option(
        None, values.whole(0, 65535), "the devices of one machine need no meeting point", idle=True
    )
    prometheus_port: int | None = option(None, values.whole(0, 65535), "metrics are at /metrics of --port", idle=True)
    env: bool = option(
        False, values.flag, "print the versions and devices at hand, then serve", short="-e", in_environment=False
    )
    engine_hang_timeout: float = option(
        30.0, values.number(0.1, 86400), "seconds without a sign of life after which the engine is restarted"
    )
    request_timeout: float = option(
        600.0, values.number(0, 86400), "seconds a request may take in all; 0 for no limit; beyond is answered 504"
    )
    queue_timeout: float = option(
        60.0, values.number(0, 86400), "seconds a request may wait to be scheduled; 0 for no limit; beyond is 429"
    )
    ssl_certfile: Path | None = option(None, values.existing_file, "certificate chain (PEM) to serve HTTPS with")
    ssl_keyfile: Path | None = option(None, values.existing_file, "private key (PEM), if not in --ssl-certfile")
    startup_timeout: float = option(1800.0, values.number(1, 86400), "seconds the engine may take to become ready")

    def __post_init__(self) -> None:
        if self.max_input_tokens is not None and self.max_input_length is not None:
            raise UsageError("--max-input-length is the older name of --max-input-tokens: set only one of them")
        if self.max_input_length is not None:
            object.__setattr__(self, "max_input_tokens", self.max_input_length)
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise UsageError("--ssl-keyfile needs --ssl-certfile")
        self._below("max_input_tokens", "max_total_tokens", strictly=True)
        self._below("max_total_tokens", "max_batch_total_tokens")

    @property
    def keys(self) -> list[str]:
        """Every API key."""
        return [*(self.api_key or "").splitlines(), *(self.api_key_file or "").splitlines()]

    @property
    def warnings(self) -> list[str]:
        """A line for each option that was given and has no effect."""
        rows = [row for row in dataclasses.fields(self) if row.metadata["idle"]]
        return [
            f"{_flag(row.name)} has {row.metadata['help']}" for row in rows if getattr(self, row.name) != row.default
        ]

    def _below(self, smaller: str, larger: str, *, strictly: bool = False) -> None:
        low, high = getattr(self, smaller), getattr(self, larger)
        if low is not None and high is not None and (low > high or (strictly and low == high)):
            relation = "less than" if strictly else "at most"
            raise UsageError(f"{_flag(smaller)} must be {relation} {_flag(larger)}, got {low} and {high}")


# Options of TGI's launcher without an implementation here, and the values of each that ask for nothing.
MISSING: Mapping[str, tuple[str, ...]] = {
    "quantize": (),
    "speculate": ("0",),
    "kv_cache_dtype": (),
    "trust_remote_code": ("false",),
    "ngrok": ("false",),
    "ngrok_authtoken": (),
    "ngrok_edge": (),
    "lora_adapters": (),
}


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Options from the command line, else the environment, else the table.

    Raises:
        UsageError: a value is wrong, or an option is unknown or not supported.
    """
    given = vars(_parser().parse_args(argv))
    _refuse_missing(given, environ)
    return Options(**dict(_settings(given, environ)))


def _settings(given: Mapping[str, Any], environ: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    for row in dataclasses.fields(Options):
        repeated = isinstance(row.default, tuple)
        if (value := given[row.name]) is not None:
            source = _flag(row.name)
        elif value := environ.get(row.name.upper()) if row.metadata["in_environment"] else None:
            source = row.name.upper()
            if row.name == "hostname" and not _is_address(value):
                continue  # container run-times set HOSTNAME to the container's name
        else:
            continue
        texts = value if isinstance(value, list) else value.split(",") if repeated else [value]
        parsed = tuple(_parse_value(row, source, text) for text in texts)
        yield row.name, parsed if repeated else parsed[0]


def _parse_value(row: "dataclasses.Field[Any]", source: str, text: str) -> Any:
    try:
        return row.metadata["parse"](text)
    except ValueError as error:
        shown = "" if row.metadata["secret"] else f" {text!r}"
        raise UsageError(f"{source}{shown} {error}") from None


def _refuse_missing(given: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    for name, harmless in MISSING.items():
        for source, value in ((_flag(name), given[name]), (name.upper(), environ.get(name.upper()))):
            if value and value.lower() not in harmless:
                raise UsageError(f"{source} {value!r} is not supported by this server")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="text-generation-launcher",
        description="Serve a language model on TGI's routes and OpenAI's /v1.",
        epilog="Every option can also be set by the environment variable of its name, in capitals with underscores.",
        allow_abbrev=False,
    )
    for row in dataclasses.fields(Options):
        names = [_flag(row.name), *filter(None, [row.metadata["short"]])]
        bare: dict[str, Any] = {"nargs": "?", "const": "true"} if row.metadata["parse"] is values.flag else {}
        action = "append" if isinstance(row.default, tuple) else "store"
        parser.add_argument(
            *names, dest=row.name, action=action, default=None, help=_help(row), metavar="VALUE", **bare
        )
    for name in MISSING:
        parser.add_argument(_flag(name), dest=name, nargs="?", const="true", default=None, help=argparse.SUPPRESS)
    return parser


def _help(row: "dataclasses.Field[Any]") -> str:
    shown = "" if row.default in (None, ()) else f" [{row.default}]"
    return f"{row.metadata['help']}{shown}".replace("%", "%%")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
