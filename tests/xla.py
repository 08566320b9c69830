"""XLA's flags for tests on a CPU: what compiles fast computes the same, only slower.

A tiny engine's 17 programs take 6 s of a core to compile in place of 20, with the same tokens. That is what most tests
wait for on a machine that has compiled nothing yet.
"""

# jaxlib 0.10 to 0.12 know these; a flag that a release does not know ends the process.
FAST = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
AS_SERVED = {"XLA_FLAGS": ""}  # the environment of a server that is to run as its users' do


def devices(count: int) -> dict[str, str]:
    """The environment of a process whose CPU is so many devices."""
    return {"XLA_FLAGS": f"--xla_force_host_platform_device_count={count} {FAST}", "JAX_PLATFORMS": "cpu"}
