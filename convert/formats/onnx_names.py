"""Which parameter each constant of an ONNX graph is, under the name that PyTorch had for it.

Exporters keep the names of embeddings, norms and biases, and of matrices that are stored as they are multiplied. The
weight of a linear layer, however, is folded with its transposition into a constant without a name. The node that
multiplies by it tells its module: by the bias that is added next, by its own name, which is a path of modules
(`/transformer/h.0/mlp/dense/MatMul`, TorchScript's exporter), or by its scope (torch.export's). Parameters that are
equal are stored once: then there are `Identity` nodes with the other names, or nodes of several modules share one.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, replace

from convert.formats.onnx_graph import Constant, Graph, Node
from convert.formats.tensors import MAX_TENSORS

NAME = r"[A-Za-z_]\w*(\.\w+)+"  # of a parameter; exporters' own are val_7, onnx::MatMul_436, /lm_head/Constant_output_0
PRODUCTS = ("MatMul", "Gemm")
PASSING = ("Cast", "Identity", "Reshape")  # may stand between a product and its bias
# Operations that add a vector; all but the first are onnxruntime's.
ADDING = {"Add", "BiasGelu", "FastGelu", "Attention", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"}
SHOWN = 4
FEW = 16  # users of a product, and modules from the root to one that is passed over: two or three
LONGEST = 512  # characters of a parameter's name


@dataclass(frozen=True)
class Stored:
    """A parameter: constant `name`, or its transpose where `swapped`."""

    name: str
    swapped: bool = False


def parameters(graph: Graph) -> dict[str, Stored]:
    """Every parameter that the graph names or places, by its name.

    Raises:
        ValueError: a matrix that is multiplied by, or a vector that is added, belongs to no module that the graph
            tells; two have one name.
    """
    return _Namer(graph).names()


class _Namer:
    """Finds the names within one graph.

    users: the nodes that read a value.
    named: values that have a parameter's name of their own, in order.
    skipped: see `_skipped_modules`.
    alone: of biases, whether one module alone adds them.
    """

    def __init__(self, graph: Graph) -> None:
        self.constants = graph.constants
        self.nodes = graph.nodes
        self.origins = _origins(graph)
        self.users: defaultdict[str, list[Node]] = defaultdict(list)
        for node in graph.nodes:
            for value in set(node.inputs):
                self.users[value].append(node)
        kept = [*graph.constants, *(node.outputs[0] for node in graph.nodes if node.op == "Identity" and node.outputs)]
        self.named = dict.fromkeys(each for each in kept if self._is_parameter(each))
        self.skipped = self._skipped_modules()
        self.alone: dict[str, bool] = {}
        self.found: dict[str, Stored] = {}

    def names(self) -> dict[str, Stored]:
        for value in self.named:
            self._add(value, self.origins[value])
        products = [node for node in self.nodes if node.op in PRODUCTS and self._has_weight(node)]
        unnamed = [node.inputs[1] for node in products if not self._name_product(node)]
        if unnamed:
            shown = ", ".join(f"{value[:80]!r} {list(self._constant(value).shape)}" for value in unnamed[:SHOWN])
            raise ValueError(f"the graph does not tell which parameters {len(unnamed)} of its matrices are: {shown}")
        for value in self.named:
            self._name_in_each_module(value)
        self._refuse_unnamed_biases()
        return self.found

    def _refuse_unnamed_biases(self) -> None:
        """Without them a layer would be read as one that has none."""
        known = {stored.name for stored in self.found.values()}
        added = (value for node in self.nodes if node.op in ADDING for value in node.inputs if value in self.origins)
        for value in added:
            constant = self._constant(value)
            if self.origins[value].name not in known and constant.weighs and _is_vector(constant, constant.shape[-1]):
                shown = f"{value[:80]!r} {list(constant.shape)}"
                raise ValueError(f"the graph does not tell which parameter it adds: {shown}")

    def _is_parameter(self, value: str) -> bool:
        """Whether a value has a parameter's name. Integers and truth values are masks that older models keep."""
        named = value in self.origins and re.fullmatch(NAME, value)
        return bool(named) and (self._constant(value).floating or self._constant(value).dtype is None)

    def _add(self, name: str, stored: Stored) -> None:
        if name not in self.found and (len(self.found) >= MAX_TENSORS or len(name) > LONGEST):
            raise ValueError(f"there are more than {MAX_TENSORS} parameters, or one of more than {LONGEST} characters")
        if self.found.setdefault(name, stored) != stored:
            raise ValueError(f"two tensors are {name!r}: {self.found[name].name!r} and {stored.name!r}")

    def _name_in_each_module(self, value: str) -> None:
        """A parameter that others share, its own module among them, has a name in each."""
        owner, _, leaf = value.rpartition(".")
        modules = {self._module(node) for node in self.users[value]} - {""}
        if owner in modules:
            for name in (f"{module}.{leaf}" for module in modules - {owner}):
                if name not in self.found:
                    self._add(name, self.origins[value])

    def _has_weight(self, product: Node) -> bool:
        operands = product.inputs[1:2]
        return bool(product.outputs) and any(each in self.origins and self._constant(each).matrix for each in operands)

    def _name_product(self, node: Node) -> bool:
        """Name the weight and the bias of a product. False if its module is unknown."""
        if node.scaled:
            raise ValueError(f"product {node.name[:80]!r} is scaled by alpha or beta")
        stored = self.origins[node.inputs[1]]
        rows = self._is_stored_by_rows(node, stored)
        biases = self._biases(node, outputs=self.constants[stored.name].shape[0 if rows else 1])
        if stored.name in self.named:
            module = stored.name.rpartition(".")[0]
        else:
            module = self._module_of_bias(biases) or self._module(node)
            if not module:
                return False
            self._add(f"{module}.weight", replace(stored, swapped=not rows))
        for bias in biases:
            if self.origins[bias].name not in self.named:
                self._add(f"{module}.bias", self.origins[bias])
        return True

    def _is_stored_by_rows(self, product: Node, stored: Stored) -> bool:
        """Whether the constant is [out, in], as PyTorch has the weight of a linear layer."""
        return stored.swapped != (product.op == "Gemm" and product.swaps)

    def _biases(self, product: Node, outputs: int) -> list[str]:
        """What is added to a product, if it is a constant with an element for each output."""
        added, results = list(product.inputs[2:3]), [product.outputs[0]]
        for result in results:
            for node in self.users[result][:FEW]:
                if node.op == "Add" and len(node.inputs) == 2:
                    added.extend(value for value in node.inputs if value != result)
                elif node.op in PASSING and node.inputs[0] == result and node.outputs and len(results) < FEW:
                    results.append(node.outputs[0])
        return [value for value in added if value in self.origins and _is_vector(self._constant(value), outputs)]

    def _module_of_bias(self, biases: list[str]) -> str:
        """The module that has the bias, unless others have it too."""
        owners = {value.removesuffix(".bias") for value in biases if value in self.named and value.endswith(".bias")}
        return owners.pop() if len(owners) == 1 and all(map(self._is_alone, biases)) else ""

    def _is_alone(self, bias: str) -> bool:
        if bias not in self.alone:
            self.alone[bias] = len({node.inputs for node in self.users[bias]}) == 1
        return self.alone[bias]

    def _module(self, node: Node) -> str:
        """The module that a node belongs to, "" where the graph does not tell."""
        if node.scope:
            return node.scope
        path = _path(node)
        for end in range(min(len(path), FEW), 0, -1):
            if (whole := self.skipped.get(path[:end])) is not None:
                return ".".join((*whole, *path[end:]))
        return ".".join(path)

    def _skipped_modules(self) -> dict[tuple[str, ...], tuple[str, ...]]:
        """Paths of modules whose parents are missing from the names of nodes, and what they are in full.

        TorchScript's exporter does not see a module that is passed over: OPT's model calls `model.decoder` itself, so
        its nodes are named `/decoder/…`, where the parameters are `model.decoder.…`.
        """
        found = defaultdict(set)
        for value in self.named:
            owner = tuple(value.split(".")[:-1])
            paths = {_path(node) for node in self.users[value] if not node.scope}
            for path in paths if owner not in paths else ():
                if common := _common_end(owner, path):
                    found[path[: len(path) - common + 1]].add(owner[: len(owner) - common + 1])
        return {path: wholes.pop() for path, wholes in found.items() if len(wholes) == 1}

    def _constant(self, value: str) -> Constant:
        return self.constants[self.origins[value].name]


def _origins(graph: Graph) -> dict[str, Stored]:
    """The values that are a constant, or a constant in another type or transposed. Nodes are in the order of use.

    Raises:
        ValueError: two branches have different weights under one name.
    """
    origins = {name: Stored(name) for name in graph.constants}
    for node in graph.nodes:
        if not (node.inputs and node.outputs and (stored := origins.get(node.inputs[0]))):
            continue
        if node.op == "Transpose" and node.swaps:
            stored = replace(stored, swapped=not stored.swapped)
        elif node.op not in ("Identity", "Cast"):
            continue
        if origins.setdefault(node.outputs[0], stored) != stored and graph.constants[stored.name].weighs:
            raise ValueError(f"two values are {node.outputs[0][:80]!r}")
    return origins


def _path(node: Node) -> tuple[str, ...]:
    """The modules in a node's name, `/a/b.0/MatMul_1`."""
    if not node.name.startswith("/"):
        return ()
    return tuple(part for module in node.name.split("/")[1:-1] for part in module.split("."))


def _common_end(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """How many parts two paths end alike."""
    pairs = zip(reversed(one), reversed(other), strict=False)
    return next((count for count, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _is_vector(constant: Constant, size: int) -> bool:
    return constant.floating and constant.shape[-1:] == (size,) and set(constant.shape[:-1]) <= {1}
