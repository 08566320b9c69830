"""Reading XLA's HLO, above all when it is optimised: what a step really does to memory.

Only operations that run are looked at: those of the entry computation and of loop bodies, not what is fused into one
kernel. Sizes are one device's. It knows the text form of HLO, and nothing of the model.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
OPERATION = re.compile(r"^\s+(?:ROOT )?%([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
KERNEL = re.compile(r'op_name="[^"]*?([\w.\-]+)/pallas_call"')
PRODUCTS = {"grouped_product"}  # kernels of our own
IN_A_WORD = {"u16": (1, 2, 4)}  # numbers that an element of an argument may stand for: a word has codes of 8 bits or 4
ALIASED = re.compile(r"\{\d*\}: \((\d+), \{\}\)")  # of output_to_operand_aliasing
VIEWS = {"bitcast", "get-tuple-element", "optimization-barrier"}
MOVES_NOTHING = {*VIEWS, "parameter", "tuple", "while", "conditional"}  # a loop's body is looked at by itself
RUNNING_OTHERS = {"call", "while", "conditional"}
OTHERS = re.compile(r"(?:to_apply|body|condition|branch_computations|true_computation|false_computation)=(\{.*?\}|\S+)")
NO_WORK = {*MOVES_NOTHING, "call", "constant"}
COLLECTIVE = re.compile(r"^(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(-start)?$")


@dataclass(frozen=True)
class Operation:
    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    calls: str | None  # the computation that is fused into it
    in_place: frozenset[int]  # operands that are also outputs, updated where they lie
    runs: tuple[str, ...]  # the computations that a call, a loop or a condition runs
    kernel: str  # the name of a kernel of our own, or ""

    @property
    def arrays(self) -> list[tuple[int, int]]:
        """(elements, bytes) of every array it yields."""
        return [_size(kind, shape) for kind, shape in ARRAY.findall(self.type)]

    @property
    def numbers(self) -> set[int]:
        """How many numbers the first array that it yields may hold."""
        (kind, shape), *_ = ARRAY.findall(self.type)
        return {_size(kind, shape)[0] * each for each in IN_A_WORD.get(kind, (1,))}

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.arrays)

    @property
    def rewritten(self) -> list[str]:
        """Operands that are read, and not updated in place."""
        return [operand for i, operand in enumerate(self.operands) if i not in self.in_place]

    def __str__(self) -> str:
        return f"{self.opcode} {self.kernel or self.name}: {self.type}"


def _size(kind: str, shape: str) -> tuple[int, int]:
    elements = math.prod(int(dimension) for dimension in shape.split(",") if dimension)
    bits = re.match(r"[a-z]+(\d+)", kind)  # s32, bf16, f8e4m3fn; a "pred" is a byte
    return elements, elements * int(bits[1] if bits else 8) // 8


class Module:
    """The HLO of one program, as it was lowered or as it was optimised."""

    def __init__(self, text: str) -> None:
        self.computations: dict[str, list[Operation]] = {}
        self.entry = ""
        for line in text.splitlines():
            if head := COMPUTATION.match(line):
                current = self.computations.setdefault(head[2], [])
                self.entry = head[2] if head[1] else self.entry
            elif found := OPERATION.match(line):
                current.append(_operation(*found.groups()))
        bodies = set(re.findall(r"body=%?([\w.\-]+)", text))
        self.running = [op for name in (self.entry, *sorted(bodies)) for op in self.computations[name]]
        self.by_name = {op.name: op for op in self.running}

    def copies(self, above: int) -> list[str]:
        """Plain copies of more than `above` bytes."""
        return [str(op) for op in self.running if op.opcode in ("copy", "copy-start") and op.bytes > above]

    def rewrites(self, above: int) -> list[str]:
        """Operations that write an argument of more than `above` bytes out again as a whole: a transpose, a cast, a
        dequantisation, a copy. Products read arguments and write something else; in-place updates write a part. An
        operation that is a kernel of our own is called by the kernel's name.
        """
        found = []
        for op in self.running:
            if op.opcode in MOVES_NOTHING or self._does(op, "dot", "scatter", "dynamic-update-slice"):
                continue
            if op.kernel in PRODUCTS:
                continue
            written = {elements for elements, _ in op.arrays}
            for parameter in map(self._parameter, op.rewritten):
                if parameter and parameter.bytes > above and parameter.numbers & written:
                    found.append(f"{op} writes all of {parameter}")
        return found

    def collectives(self) -> dict[str, int]:
        """How many of each kind, be they XLA's own kernels or a library's."""
        opcodes = [inner.opcode for op in self.running for inner in (op, *self.computations.get(op.calls or "", []))]
        kinds = [found[1] for opcode in opcodes if (found := COLLECTIVE.match(opcode))]
        return {kind: kinds.count(kind) for kind in sorted(set(kinds))}

    def work(self) -> Counter[str]:
        """How often there is each opcode, of operations that compute or move something. A fusion is one, a computation
        counts as often as it is called, and the body of a loop once."""
        return Counter({opcode: n for opcode, n in self._opcodes(self.entry).items() if opcode not in NO_WORK})

    def products(self) -> int:
        """How many operations of `running` are a product of matrices, or have one fused into them."""
        return sum(self._does(op, "dot") for op in self.running)

    def _opcodes(self, name: str) -> Counter[str]:
        total: Counter[str] = Counter()
        for op in self.computations[name]:
            total[op.opcode] += 1
            for other in op.runs:
                total += self._opcodes(other)
        return total

    def longest_sort(self) -> int:
        """How many elements the longest row that is sorted has."""
        sorts = [op for ops in self.computations.values() for op in ops if op.opcode == "sort"]
        return max((int(shape.split(",")[-1]) for op in sorts for _, shape in ARRAY.findall(op.type)), default=0)

    def _does(self, op: Operation, *opcodes: str) -> bool:
        fused = self.computations.get(op.calls or "", [])
        return op.opcode in opcodes or any(self._does(inner, *opcodes) for inner in fused)

    def _parameter(self, name: str) -> Operation | None:
        """The entry's argument that `name` is, or is a view of."""
        op = self.by_name.get(name)
        while op and op.opcode in VIEWS and op.operands:
            op = self.by_name.get(op.operands[0])
        return op if op and op.opcode == "parameter" and op in self.computations[self.entry] else None


def _operation(name: str, kind: str, opcode: str, rest: str) -> Operation:
    inside = "".join(_until_closed(rest))
    calls = re.search(r"calls=%?([\w.\-]+)", rest)
    operands = tuple(re.findall(r"%([\w.\-]+)", inside))
    others = OTHERS.findall(rest) if opcode in RUNNING_OTHERS else []
    runs = tuple(other for found in others for other in re.findall(r"%([\w.\-]+)", found))
    in_place = frozenset(map(int, ALIASED.findall(rest)))
    kernel = KERNEL.search(rest)
    return Operation(name, kind, opcode, operands, calls and calls[1], in_place, runs, kernel[1] if kernel else "")


def _until_closed(text: str) -> Iterator[str]:
    """The characters up to the parenthesis that closes the operand list."""
    depth = 1
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return
        yield character
