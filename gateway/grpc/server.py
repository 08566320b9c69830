"""`GrpcServer`: one process's gRPC server, behind the port that the launcher has reserved for all of them."""

import grpc

from gateway.config.options import Options
from gateway.grpc.calls import Calls
from gateway.grpc.service import handlers
from gateway.request.gateway_state import Gateway

MAX_SEND_BYTES = (1 << 31) - 1
CONNECTIONS = 1024
CALLS_PER_CONNECTION = 1024
# gRPC reads a compressed message whole, however large it becomes: they are refused, as compressed bodies are.
ONLY_UNCOMPRESSED = 1


class GrpcServer:
    """The calls of `gateway` at `address`, for at most `most` requests at work. Raises RuntimeError if it is taken."""

    def __init__(self, gateway: Gateway, address: str, most: int) -> None:
        self._calls = Calls(gateway, most)
        self._server = grpc.aio.server(handlers=handlers(gateway, self._calls), options=_settings(gateway.options))
        credentials = _credentials(gateway.options)
        if credentials is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, credentials)

    async def serve(self) -> None:
        """Serve until `stop`."""
        await self._server.start()
        await self._server.wait_for_termination()

    async def stop(self, grace: float) -> None:
        """Take no new calls, and end those that have not ended after `grace` seconds."""
        await self._server.stop(grace)
        await self._calls.ended()


def _settings(options: Options) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 1),
        ("grpc.max_receive_message_length", options.payload_limit),
        ("grpc.max_send_message_length", MAX_SEND_BYTES),
        ("grpc.compression_enabled_algorithms_bitset", ONLY_UNCOMPRESSED),
        ("grpc.max_allowed_incoming_connections", CONNECTIONS),
        ("grpc.max_concurrent_streams", CALLS_PER_CONNECTION),
        ("grpc.server_handshake_timeout_ms", 30_000),
        # A client that has gone without a word is noticed within a minute and a half, and ends its requests.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # How often clients may do the same to us.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ]


def _credentials(options: Options) -> grpc.ServerCredentials | None:
    """TLS with the certificate that HTTP has; None without one."""
    if options.ssl_certfile is None:
        return None
    chain = options.ssl_certfile.read_bytes()
    key = chain if options.ssl_keyfile is None else options.ssl_keyfile.read_bytes()
    return grpc.ssl_server_credentials([(key, chain)])
