"""The instructions of PTX that our kernels are written in, as NVIDIA's manual describes them, for what no interpreter
runs.
"""

import re
from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
import numpy as np


def run_ptx(asm: str, **words: int) -> dict[str, int]:
    """What `asm` leaves in registers, operands among them: `_1` is `$1`."""
    registers = {f"${number.removeprefix('_')}": word for number, word in words.items()}

    def value(operand: str) -> int:
        return registers[operand] if operand in registers else int(operand, 0)

    for line in re.sub(r"//[^\n]*|[{}]", "", asm).replace("\n", " ").split(";"):
        name, _, rest = line.strip().partition(" ")
        if not name or name.startswith("."):
            continue
        target, *operands = (each.strip() for each in rest.split(","))
        makes = PTX[name.removeprefix("fma.rn.") if name.startswith("fma") else name.split(".")[0]]
        registers[target] = makes(*map(value, operands)) & 0xFFFFFFFF
    return registers


def multiplied(dtype: np.dtype, *operands: int) -> int:
    """a · b + c of both halves, rounded once: 64 bits hold all that is exact in 16."""
    a, b, c = (np.asarray([each], np.uint32).view(dtype).astype(np.float64) for each in operands)
    return int((a * b + c).astype(dtype).view(np.uint32)[0])


def permuted(low: int, high: int, selector: int) -> int:
    octets = (low | high << 32).to_bytes(8, "little")
    result = 0
    for place in range(4):
        chosen = selector >> (4 * place) & 15
        octet = octets[chosen & 7]
        result |= ((255 if octet & 128 else 0) if chosen & 8 else octet) << (8 * place)
    return result


def by_table(a: int, b: int, c: int, table: int) -> int:
    return sum((table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i for i in range(32))


PTX: dict[str, Callable[..., int]] = {
    "mov": lambda a: a,
    "shr": lambda a, b: a >> b,
    "shl": lambda a, b: a << b,
    "and": lambda a, b: a & b,
    "prmt": permuted,
    "or": lambda a, b: a | b,
    "lop3": by_table,
    "bf16x2": partial(multiplied, jnp.dtype("bfloat16")),
    "f16x2": partial(multiplied, jnp.dtype("float16")),
}
