"""Token ids in, token ids out."""

import os

# gRPC reads it when it is imported. Else it writes lines of its own to stderr, of connections that end.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

__version__ = "0.1.0"  # as in pyproject.toml
