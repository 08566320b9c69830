"""What a step needs besides its arguments, by XLA itself: it compiles for a GPU from a description of one.

That takes NVIDIA's compiler, which comes with the plugin that a GPU would need, and no GPU.
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import replace

import jax
from jax.experimental import topologies

from jaxengine.cache.limits import Limits
from jaxengine.capacity.gpus import Gpu, find
from jaxengine.sharding import make_mesh
from jaxengine.startup.setup import Setup
from jaxengine.startup.sizing import planned_temporaries

PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
KIB = 1 << 10

# Shared memory of a core and of a program in KiB, and threads of a core, by compute capability.
CORES = {(8, 0): (164, 163, 2048), (9, 0): (228, 227, 2048), (10, 0): (228, 227, 2048), (10, 3): (228, 227, 2048)}
SMALLER_CORES = (100, 99, 1536)  # of Ampere and Ada for graphics, and of the Blackwell for it


def compiled(setup: Setup, limits: Limits) -> int:
    """Bytes on each device of `setup`, which need not be there. Takes minutes.

    Raises:
        ValueError: the device is none that can be described, or the compiler is not installed, or refuses.
    """
    gpu = find(setup.device.kind)
    if gpu is None:
        raise ValueError(f"--compile: of {setup.device.kind} there is no description that XLA could compile for")
    if not any(map(importlib.util.find_spec, PLUGINS)):
        raise ValueError("--compile needs NVIDIA's compiler: install this package with the extra cuda12 or cuda13")
    try:
        return planned_temporaries(_on(gpu, setup), limits)
    except RuntimeError as error:  # JAX's errors are among these
        said = " ".join(str(error).split())[:300]
        raise ValueError(f"--compile: XLA compiles nothing for {gpu.name}: {said}") from error


def _on(gpu: Gpu, setup: Setup) -> Setup:
    """`setup` on devices that XLA knows from their description."""
    mesh = make_mesh(setup.mesh.size, described_devices(described(gpu), setup.mesh.size))
    return replace(setup, place=replace(setup.place, mesh=mesh))


def described_devices(target: str, count: int, hosts: int = 1) -> Sequence[jax.Device]:
    """`count` GPUs of `hosts` alike, which exist only for the compiler; `target` is XLA's description of one."""
    shape = f"1x{hosts}x{count // hosts}"
    topology = topologies.get_topology_desc(platform="cuda", target_config=target, topology=shape)
    jax.config.update("jax_default_device", topology.devices[0])  # since JAX 0.12 what Pallas compiles for
    return topology.devices  # type: ignore[no-any-return]


def described(gpu: Gpu) -> str:
    """The text of XLA's `GpuTargetConfigProto`. What the table of GPUs lacks is as on an H200."""
    major, minor = gpu.capability
    of_core, of_program, threads = CORES.get(gpu.capability, SMALLER_CORES)
    feature = "ACCELERATED_FEATURES" if gpu.capability in ((9, 0), (10, 0), (10, 3)) else "NONE"
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: {48 * KIB}
  shared_memory_per_core: {of_core * KIB}
  shared_memory_per_block_optin: {of_program * KIB}
  threads_per_core_limit: {threads}
  core_count: {gpu.cores}
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  memory_bandwidth: {gpu.bandwidth:.0f}
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: {gpu.memory}
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {feature} }}
  device_vendor: "NVIDIA Corporation"
  name: "{gpu.name}"
  driver_version: "13.0.0"
  runtime_version: "13.0.0"
  compile_time_toolkit_version: "13.0.0"
  dnn_version: "9.12.0"
  device_interconnect_info {{ active_links: 18 }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 12 patch: 0 }}
device_description_str: "{gpu.name}"
"""
