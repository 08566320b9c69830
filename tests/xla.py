"""XLA's flags for tests on a CPU: what compiles fast computes the same, only slower.

A tiny engine's 17 programs take 6 s of a core to compile in place of 20, with the same tokens. That is what most tests
wait for on a machine that has compiled nothing yet.
"""

from importlib.metadata import version

FAST = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
if version("jaxlib").startswith("0.10."):  # later releases do not know it, and a flag they do not know ends the process
    FAST += " --xla_cpu_use_fusion_emitters=false"
AS_SERVED = {"XLA_FLAGS": ""}  # the environment of a server that is to run as its users' do


def devices(count: int) -> dict[str, str]:
    """The environment of a process whose CPU is so many devices."""
    return {"XLA_FLAGS": f"--xla_force_host_platform_device_count={count} {FAST}", "JAX_PLATFORMS": "cpu"}
