"""The HTTP face of the server. Imports no JAX, and of the engine only `jaxengine.rpc` and its version."""

import os

from jaxengine import __version__ as __version__

# Read when grpc is imported. We fork to exec only; grpc's handlers for more than that complain on stderr at each fork.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
