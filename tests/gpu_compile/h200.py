"""Compiling for H200s that exist only for the compiler: XLA needs a description of the target, not the target.

What it yields is real: optimised HLO, aliasing, memory, the CUDA graph. What it cannot yield: times, autotuned tiles,
cuDNN's plans. Runs under `toolchain.run`. The description `h200.txtpb` is what XLA itself reads from such a GPU.
"""

import inspect
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from jaxengine.capacity.compiler import described_devices
from tests.gpu_compile import hlo, ptxas, thunks, toolchain
from tests.shared_cache import digest, found

TARGET = Path(__file__).with_name("h200.txtpb").read_text()
MIB = 1 << 20


def devices(count: int) -> Sequence[jax.Device]:
    """`count` H200s of one host."""
    return described_devices(TARGET, count)


@dataclass(frozen=True)
class Facts:
    """What the compiler made of a program, per device, in bytes."""

    donated: int  # what the caller gives up
    aliased: int  # of that, what is updated in place
    temporaries: int
    copies: list[str]  # plain copies above 1 MiB
    rewrites: list[str]  # whole arguments above 1 MiB that are written out again
    collectives: dict[str, int]
    launched: list[str]  # what the host starts in a step
    kernels: int
    always: int  # of them, those in no branch and no loop
    longest_sort: int  # elements of a row
    lowered: int  # operations of the program as it was given to XLA, see `hlo.Module.work`
    optimised: int  # and as it came out, where a fusion is one
    fusions: int
    products: int  # of matrices, fused or not
    custom: int  # kernels that are not XLA's


def facts(lowered: Any, donated: Any, options: dict[str, str]) -> Facts:
    """Compile `lowered` with the engine's `options`; `donated` is the tree of its donated abstract arguments."""
    return Facts(sum(map(device_bytes, jax.tree.leaves(donated))), **once(_facts, lowered, options))


def once(judge: Callable[[Any, dict[str, str]], dict[str, Any]], lowered: Any, options: dict[str, str]) -> Any:
    """`judge(lowered, options)`, which compiles: once for a program, its options, a compiler and the judge's source."""
    sources = {
        file for module in (judge, once, hlo, ptxas, thunks, toolchain) if (file := inspect.getsourcefile(module))
    }
    program = (lowered.as_text(), json.dumps(options), TARGET, jax.__version__)
    return found("h200", digest(*program, *map(Path, sorted(sources))), lambda: judge(lowered, options))


def _facts(lowered: Any, options: dict[str, str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as dump:
        compiled = lowered.compile(compiler_options={**options, "xla_dump_to": dump})
        sequence = thunks.read(Path(dump))
        (lowest,) = Path(dump).glob("*.before_optimizations.txt")
        before = hlo.Module(lowest.read_text())
    memory, module = compiled.memory_analysis(), hlo.Module(compiled.as_text())
    return {
        "aliased": memory.alias_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "copies": module.copies(above=MIB),
        "rewrites": module.rewrites(above=MIB),
        "collectives": module.collectives(),
        "launched": thunks.launched(sequence),
        "kernels": thunks.kernels(sequence),
        "always": thunks.always(sequence),
        "longest_sort": module.longest_sort(),
        "lowered": before.work().total(),
        "optimised": module.work().total(),
        "fusions": module.work()["fusion"],
        "products": module.products(),
        "custom": module.work()["custom-call"],
    }


def dumping(directory: str) -> dict[str, str]:
    """The options that make XLA leave its thunks and kernels in `directory`: since JAX 0.11 PTX comes with LLVM's, and
    only from emitters that are named.
    """
    options = {"xla_dump_to": directory, "xla_gpu_dump_llvmir": "True"}
    return {**options, "xla_dump_emitter_re": ".*"} if jax.__version_info__ >= (0, 11) else options


def device_bytes(array: jax.ShapeDtypeStruct) -> int:
    """Bytes of `array` on each device."""
    elements = 1
    for dimension in array.sharding.shard_shape(array.shape):  # type: ignore[union-attr]
        elements *= dimension
    return elements * array.dtype.itemsize  # type: ignore[no-any-return]
