"""What a person needs once the first start is over: where the page is, and a command to copy.

Keys are never shown: a command that needs one names the variable that holds it.
"""

import ipaddress
import json
import logging
import shlex
import sys
from collections.abc import Callable
from typing import TextIO

from gateway.config.options import Options
from gateway.engine.listener import EngineListener
from jaxengine.rpc import engine_pb2 as pb

logger = logging.getLogger("gateway")

PLAYGROUND = "/playground"
QUESTION = "What is Deep Learning?"


class Welcome(EngineListener):
    """Tells it once, when all engines have been ready: as plain lines on a terminal, else as log lines.

    Args:
        port: that is listened on.
        engines: how many there are.
        has_template: whether the model, now that it is loaded, has a chat template.
        stream: the log's; stderr if None.
    """

    def __init__(
        self,
        options: Options,
        port: int,
        engines: int,
        has_template: Callable[[], bool],
        stream: TextIO | None = None,
    ) -> None:
        self._options, self._port, self._stream = options, port, stream or sys.stderr
        self._missing = set(range(engines))
        self._has_template = has_template

    def engine_ready(self, engine: int, description: pb.Description) -> None:
        if not self._missing:
            return
        self._missing.discard(engine)
        if not self._missing and logger.isEnabledFor(logging.INFO):
            for line in self.lines(description):
                self._tell(line)

    def lines(self, description: pb.Description) -> list[str]:
        base = base_url(self._options, self._port)
        page = [] if self._options.disable_ui else [f"page: {base}{PLAYGROUND}"]
        return [*page, f"try: {self._command(base, description)}"]

    def _tell(self, line: str) -> None:
        if self._stream.isatty() and not self._options.json_output:
            print(line, file=self._stream, flush=True)
        else:
            logger.info("%s", line)

    def _command(self, base: str, description: pb.Description) -> str:
        path, body = self._request(description)
        words = ["curl", *(["-k"] if self._options.ssl_certfile else []), shlex.quote(base + path)]
        if self._options.keys:
            words += ["-H", '"Authorization: Bearer $API_KEY"']
        words += ["-H", "'Content-Type: application/json'", "-d", shlex.quote(json.dumps(body))]
        return " ".join(words)

    def _request(self, description: pb.Description) -> tuple[str, dict[str, object]]:
        """A route that this model serves, and a body for it."""
        model = next(iter(self._options.served_model_name), description.model_id)
        if description.embeds_only:
            return "/v1/embeddings", {"model": model, "input": QUESTION}
        if self._has_template():
            chat = [{"role": "user", "content": QUESTION}]
            return "/v1/chat/completions", {"model": model, "messages": chat, "max_tokens": 64}
        return "/v1/completions", {"model": model, "prompt": QUESTION, "max_tokens": 64}


def base_url(options: Options, port: int) -> str:
    """Where this server is reached from its own machine, behind the proxy's prefix if there is one."""
    scheme = "https" if options.ssl_certfile else "http"
    return f"{scheme}://{reachable(options.hostname)}:{port}{options.root_path or ''}"


def reachable(hostname: str) -> str:
    """The host of a URL for a name or an address that is listened on; of "any address" the loopback."""
    try:
        address = ipaddress.ip_address(hostname)
    except ValueError:
        return hostname
    if address.is_unspecified:
        address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    return f"[{address}]" if address.version == 6 else str(address)
