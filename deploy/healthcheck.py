"""Docker's health check: exit code 0 if the server in this container is alive. The image has no curl.

The port is told by the runtime directory of the server, whatever option or variable it came from. Whether the port
speaks TLS is tried. A 404 is alive too: with `--admin-exclusive` the probes are elsewhere.
"""

import glob
import http.client
import os
import ssl
import sys

RUNTIME_DIRECTORIES = os.environ.get("SHARD_UDS_PATH", "/tmp/text-generation-server") + "-*"
SECONDS = 3.0  # for each try; Docker gives both 10


def status(port: int, tls: bool) -> int:
    if tls:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it names the server's public address
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=SECONDS, context=context)
    else:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    connection.request("GET", "/health/live")
    return connection.getresponse().status


def alive(port: int) -> bool:
    for tls in (False, True):
        try:
            return status(port, tls) in (200, 404)
        except (OSError, http.client.HTTPException):
            continue
    return False


def main() -> int:
    ports = [path.rpartition("-")[2] for path in glob.glob(RUNTIME_DIRECTORIES)]
    return 0 if any(alive(int(port)) for port in ports if port.isdecimal()) else 1


if __name__ == "__main__":
    sys.exit(main())
