"""What XLA is told at each compile, by platform and release.

Options go to each compile and not into XLA_FLAGS, where a name that a release lacks would abort the process.
"""

import jax


def gpu_options(release: tuple[int, ...]) -> dict[str, str]:
    """A CUDA graph of the whole step, whatever JAX's `release` is: XLA's own list; collectives, without which every
    all-reduce splits the graph; and loops, without which each of the sampler's filters does.

    No product is split along K. XLA would split nearly every one of a small step, by a rule that looks at nothing but
    shapes (its splitk-rewriter, JAX 0.10.2 to 0.12.0), and add the shares up in a kernel of its own: 11 kernels a layer
    instead of 8. A product left whole is timed, tile by tile and against cuBLASLt's.

    Nothing is computed a second time to save memory. XLA would, because it counts a cache again behind each kernel that
    writes it in place: beside caches of 60 GB a layer of a step with prompts became 13 kernels instead of 10. A step
    that does not fit is found by its temporaries instead, before anything is served.

    Since JAX 0.11 XLA sums small arrays in a kernel of its own instead of NCCL's. 0.12 can capture that kernel; under
    0.11 a layer would leave the graph twice, so there the sums stay NCCL's.
    """
    captured = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,CONDITIONAL,DYNAMIC_SLICE_FUSION,COLLECTIVES,WHILE"
    options = {
        "xla_gpu_enable_command_buffer": captured,
        "xla_gpu_experimental_force_split_k": "1",
        "xla_disable_hlo_passes": "rematerialization",
    }
    if release >= (0, 12):
        options["xla_gpu_enable_command_buffer"] = f"{captured},COLLECTIVES_KERNEL"
    elif release >= (0, 11):
        options["xla_gpu_experimental_use_collective_kernels"] = ""
    return options


# One operation after another, whose buffers are shared. With the scheduler that looks for what could run at once, each
# layer's have their own: hundreds of MB that the kernel hands out afresh in each step, at 2 GB/s (JAX 0.10.2).
CPU_OPTIONS = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}

COMPILER_OPTIONS: dict[str, dict[str, str]] = {"cpu": CPU_OPTIONS, "gpu": gpu_options(jax.__version_info__)}
