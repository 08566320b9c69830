"""JAX over the processes of a group: after `start`, `jax.devices()` are those of all of them."""

import socket

import jax

from jaxengine.group.membership import Membership

START_SECONDS = 300  # for all to meet; every one is there already
# Of JAX's own check. Ours is faster and says who is gone; this one aborts the process.
JAX_HEARTBEAT_SECONDS = 120


def compile_together() -> None:
    """On GPUs, keep nothing that is compiled, and take nothing that was kept.

    XLA has the processes time the tiles of products together, each a share, so that all choose alike: a process that
    chose otherwise might send a token to other experts. For that all must compile; one that found a program in its
    cache would leave the others waiting (`xla_gpu_shard_autotuning`).
    """
    if jax.default_backend() != "cpu":
        jax.config.update("jax_enable_compilation_cache", False)


def free_port(address: str) -> int:
    """A port of this machine's `address` for the coordinator of JAX's processes. Raises OSError."""
    with socket.create_server((address, 0), family=family_of(address)) as listener:
        return int(listener.getsockname()[1])


def family_of(address: str) -> socket.AddressFamily:
    """Of the first address that `address` names. Raises OSError."""
    return socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][0]


def start(membership: Membership, port: int) -> None:
    """Meet the others. To be called before JAX looks for devices.

    JAX would take SIGTERM for itself and go on (`jax_enable_preemption_service`, JAX 0.10.2): that is left out.
    """
    jax.config.update("jax_enable_preemption_service", False)
    shown = f"[{membership.address}]" if ":" in membership.address else membership.address
    jax.distributed.initialize(
        coordinator_address=f"{shown}:{port}",
        coordinator_bind_address=f"{shown}:{port}",
        num_processes=membership.hosts,
        process_id=membership.rank,
        cluster_detection_method="deactivate",
        initialization_timeout=START_SECONDS,
        heartbeat_timeout_seconds=JAX_HEARTBEAT_SECONDS,
    )
