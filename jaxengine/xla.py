"""What XLA is told at each compile, by platform and release.

Options go to each compile and not into XLA_FLAGS, where a name that a release lacks would abort the process.
"""

import jax


def gpu_options(release: tuple[int, ...]) -> dict[str, str]:
    """A CUDA graph of the whole step, whatever JAX's `release` is: XLA's own list; collectives, without which every
    all-reduce splits the graph; and loops, without which each of the sampler's filters does.

    Since JAX 0.11 XLA sums small arrays in a kernel of its own instead of NCCL's. 0.12 can capture that kernel; under
    0.11 a layer would leave the graph twice, so there the sums stay NCCL's.
    """
    captured = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,CONDITIONAL,DYNAMIC_SLICE_FUSION,COLLECTIVES,WHILE"
    if release >= (0, 12):
        return {"xla_gpu_enable_command_buffer": f"{captured},COLLECTIVES_KERNEL"}
    options = {"xla_gpu_enable_command_buffer": captured}
    if release >= (0, 11):
        options["xla_gpu_experimental_use_collective_kernels"] = ""
    return options


COMPILER_OPTIONS: dict[str, dict[str, str]] = {"gpu": gpu_options(jax.__version_info__)}
