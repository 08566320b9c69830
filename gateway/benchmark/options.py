"""Every option of `text-generation-benchmark`, once: the command line, TGI's environment variables and `--help`.

The first group is that of TGI's own benchmark, with its letters, defaults and variables. A field that is not given is
None where a value of its own would hide whether it was asked for.
"""

# ruff: noqa: RUF009 — `option` is `dataclasses.field`

from dataclasses import dataclass
from pathlib import Path

from gateway.benchmark import values
from gateway.benchmark.slo import Slo
from jaxengine.options.option import UsageError, option

BATCH_SIZES = (1, 2, 4, 8, 16, 32)
SOCKET = Path("/tmp/text-generation-server-0")
OF_URL = (
    *("api", "api_key", "model", "rate", "burstiness", "sweep", "slo", "slo_share", "requests", "duration", "prompts"),
    *("prefix_length", "prefix_groups", "timeout"),
)
OF_RATE = ("burstiness",)
SLO_SHARE = 0.95
OF_SLO = ("slo_share",)
OF_PREFIX = ("prefix_length", "prefix_groups")


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions:
    """The table. A field `top_k` is `--top-k` on the command line; TGI's options are also read from the environment."""

    tokenizer_name: str | None = option(
        None,
        values.text,
        "directory with a tokenizer.json, or an id on the hub: makes prompts of an exact length; over the socket only "
        "the name of the model in the tables",
        short="-t",
        group="As in TGI's benchmark",
    )
    revision: str = option("main", values.text, "of the tokenizer on the hub")
    batch_size: tuple[int, ...] = option(
        (),
        values.whole(1, 100_000),
        "requests at once; with --url those in flight; repeatable [1 2 4 8 16 32]",
        short="-b",
        in_environment=False,
    )
    sequence_length: int = option(10, values.whole(1), "tokens of a prompt", short="-s")
    decode_length: int = option(8, values.whole(1), "tokens of an answer", short="-d")
    runs: int = option(10, values.whole(1, 10_000), "measured runs of each batch size or rate", short="-r")
    warmups: int = option(1, values.whole(0, 10_000), "runs before those, which are not counted", short="-w")
    master_shard_uds_path: Path = option(
        SOCKET,
        values.path,
        "the engine's socket, or the directory where it is: the launcher's --shard-uds-path, a hyphen and its port",
        short="-m",
    )
    temperature: float | None = option(None, values.number(0, 100), "of sampling; greedy if no such option is given")
    top_k: int | None = option(None, values.whole(1), "likeliest tokens that are sampled from")
    top_p: float | None = option(None, values.number(0.0001, 1), "share of the likelihood that is sampled from")
    typical_p: float | None = option(None, values.number(0.0001, 1), "share of typical tokens that are sampled from")
    repetition_penalty: float | None = option(None, values.number(0.0001, 10_000), "1 has no effect")
    frequency_penalty: float | None = option(None, values.number(-2, 2), "0 has no effect")
    watermark: bool = option(False, values.flag, "sample with a watermark")
    do_sample: bool = option(False, values.flag, "sample, with temperature 1 if none is given")
    top_n_tokens: int | None = option(None, values.whole(0, 1000), "alternatives reported beside each token")

    url: str | None = option(
        None,
        values.server_url,
        "measure this server over HTTP instead of an engine over its socket: any OpenAI or TGI server",
        in_environment=False,
        group="Over HTTP",
    )
    api: str = option(
        "auto",
        values.one_of("auto", "openai", "chat", "tgi"),
        "/v1/completions, /v1/chat/completions or /generate_stream; found out by asking the server if not given",
        in_environment=False,
    )
    api_key: str | None = option(
        None,
        values.key,
        "sent as a bearer token, shown nowhere; better in the variable API_KEY, of several lines the first",
        secret=True,
    )
    model: str | None = option(
        None, values.text, "name of the model in requests; the server's first if not given", in_environment=False
    )
    prompts: str = option(
        "synthetic",
        values.text,
        "synthetic, shared-prefix, bfcl (with the package bfcl-eval), or a FILE.jsonl of prompts or messages",
        in_environment=False,
    )
    prefix_length: int | None = option(
        None, values.whole(1), "tokens that prompts of a group share; 4 times --sequence-length", in_environment=False
    )
    prefix_groups: int | None = option(None, values.whole(1), "groups of such prompts; 8", in_environment=False)
    requests: int | None = option(
        None, values.whole(1), "requests of a run; 4 times those in flight, or 100 at a --rate", in_environment=False
    )
    duration: float | None = option(
        None, values.number(0.1, 86_400), "seconds of a run, instead of --requests", in_environment=False
    )
    rate: tuple[float, ...] = option(
        (),
        values.number(0.001, 100_000),
        "requests a second, sent on time however late answers are; repeatable",
        in_environment=False,
    )
    burstiness: float | None = option(
        None,
        values.number(0.01, 1000),
        "shape of the gamma distribution of the times between them; 1 = Poisson, less = in bursts",
        in_environment=False,
    )
    sweep: bool = option(
        False, values.flag, "1, 2, 4 … requests in flight until goodput falls, then the knee", in_environment=False
    )
    slo: Slo | None = option(
        None, values.slo, "what an answer must keep to be good: ttft=500ms,itl=50ms,tpot=…,e2e=…", in_environment=False
    )
    slo_share: float | None = option(
        None,
        values.number(0.01, 1),
        "share of answers that must be good for a load to count as served; 0.95",
        in_environment=False,
    )
    timeout: float | None = option(
        None, values.number(0.1, 86_400), "seconds after which an answer is given up; 600", in_environment=False
    )

    output: tuple[str, ...] = option(
        (),
        values.output,
        "md, json or html on standard output, or a file that ends so; repeatable [md]",
        in_environment=False,
        group="What is reported",
    )
    compare: tuple[Path, ...] = option(
        (), values.path, "two JSON reports, A and B: B as a multiple of A, with intervals", in_environment=False
    )
    fail_below: float | None = option(
        None,
        values.number(0, 1e12),
        "exit with 1 if the highest throughput, in output tokens a second, is lower; with --slo the highest goodput, "
        "in requests a second; with --compare if B's throughput is surely less than so many times A's, or B fails "
        "where A does not",
        in_environment=False,
    )
    seed: int | None = option(
        None,
        values.whole(0),
        "of prompts and times; drawn if not given, lest a prefix cache knows them from an earlier call",
        in_environment=False,
    )

    def __post_init__(self) -> None:
        if self.compare and len(self.compare) != 2:
            raise UsageError(f"--compare takes two files (given {len(self.compare)})")
        if self.compare and (self.url or self.batch_size):
            raise UsageError(f"--compare excludes {'--url' if self.url else '--batch-size'}: it measures nothing")
        if self.url is None:
            self._refuse(OF_URL, "needs --url")
        if not self.rate:
            self._refuse(OF_RATE, "needs --rate")
        if self.slo is None:
            self._refuse(OF_SLO, "needs --slo")
        if self.prompts != "shared-prefix":
            self._refuse(OF_PREFIX, "needs --prompts shared-prefix")
        self._check_loads()

    def _check_loads(self) -> None:
        if self.rate and (self.sweep or self.batch_size):
            raise UsageError(f"--rate excludes {'--sweep' if self.sweep else '--batch-size'}")
        if self.sweep and self.batch_size:
            raise UsageError("--sweep excludes --batch-size: it chooses them")
        if self.requests is not None and self.duration is not None:
            raise UsageError("--duration excludes --requests")
        if sum(each in values.FORMATS for each in self.output) > 1:
            raise UsageError("--output takes one format for standard output, others as files")

    def _refuse(self, names: tuple[str, ...], why: str) -> None:
        for name in names:
            default = type(self).__dataclass_fields__[name].default
            if getattr(self, name) != default:
                raise UsageError(f"--{name.replace('_', '-')} {why}")

    @property
    def samples(self) -> bool:
        """Whether tokens are sampled rather than chosen greedily, by TGI's rule."""
        filters = (self.top_k, self.top_p, self.typical_p)
        return self.do_sample or self.temperature not in (None, 0.0, 1.0) or any(each is not None for each in filters)

    @property
    def needed_share(self) -> float:
        """Of the answers, those that must be good."""
        return self.slo_share or SLO_SHARE

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        return self.batch_size or BATCH_SIZES
