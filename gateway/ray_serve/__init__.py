"""The whole server as an application of Ray Serve: `serve run gateway.ray_serve:build model-id=… max-replicas=4`.

A replica is the launcher's server without a port. Its application is called in the replica itself, so that a stream
takes one hop, from Serve's proxy; its engines are the replica's children. Serve starts replicas, gives them GPUs, asks
for their health and stops them, after as many requests as there are.

Nothing else imports Ray. What Serve's proxy does, such as to listen, is refused as an option here.
"""

from gateway.ray_serve.deployment import build

__all__ = ["build"]
