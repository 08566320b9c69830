"""Options of TGI's launcher, and of vLLM's, that stand for something that this server does not have.

Those for a detail that does not exist here, such as CUDA graphs, are accepted, with one warning that says what happens
instead. Those whose feature this server lacks are in `MISSING`: setting one is an error that says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.config import values
from jaxengine.options.option import option

# Options of TGI's launcher that are not implemented here, each with the values that leave its feature off.
MISSING: Mapping[str, tuple[str, ...]] = {
    "trust_remote_code": ("false", "0"),
}


@dataclass(frozen=True, kw_only=True)
class CompatibilityOptions:
    """A part of the table of `Options`: none has an effect."""

    waiting_served_ratio: float = option(
        0.3,
        values.number(0, 1e9),
        "prompts join the running batch in chunks, as in TGI with chunking",
        no_effect=True,
        group="Taken from TGI",
        after="graceful_termination_timeout",
    )
    max_waiting_tokens: int = option(
        20,
        values.whole(0),
        "prompts join the running batch in chunks, as in TGI with chunking",
        no_effect=True,
        after="waiting_served_ratio",
    )
    cuda_graphs: str | None = option(
        None,
        values.text,
        "every step is compiled ahead of time, for batch sizes chosen by device",
        no_effect=True,
        after="max_waiting_tokens",
    )
    disable_custom_kernels: bool = option(
        False,
        values.flag,
        "kernels are chosen by device",
        no_effect=True,
        after="cuda_graphs",
    )
    enable_auto_tool_choice: bool = option(
        False,
        values.flag,
        "models may always choose a tool",
        no_effect=True,
        after="disable_custom_kernels",
    )
    prometheus_port: int | None = option(
        None,
        values.whole(0, 65535),
        "metrics are at /metrics of --port",
        no_effect=True,
        after="enable_auto_tool_choice",
    )
    usage_stats: str = option(
        "off",
        values.one_of("on", "off", "no-stack"),
        "nothing is ever sent",
        no_effect=True,
        after="prometheus_port",
    )
