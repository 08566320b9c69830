"""A constant of an ONNX graph has the name that PyTorch had for it, or the graph is refused."""

import time
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from convert.formats.onnx_graph import read_graph
from convert.formats.onnx_names import Stored, parameters
from tests.convert.formats.onnx_models import matrix, model, node


def names(nodes: list[Any], **constants: np.ndarray) -> dict[str, Stored]:
    named = {name.replace("__", "::").replace("_DOT_", "."): array for name, array in constants.items()}
    return parameters(read_graph(memoryview(model(nodes, named).SerializeToString())))


W, B = matrix(3, 5), matrix(5)  # of y = x W + b


def test_a_matrix_has_the_name_of_the_bias_that_is_added_to_its_product() -> None:
    nodes = [node("MatMul", ["x", "7"], "y", "MatMul_7"), node("Add", ["h.0.fc.bias", "y"], "z", "Add_8")]
    assert names(nodes, **{"7": W, "h_DOT_0_DOT_fc_DOT_bias": B}) == {
        "h.0.fc.bias": Stored("h.0.fc.bias"),
        "h.0.fc.weight": Stored("7", swapped=True),
    }


def test_without_a_bias_the_node_s_name_is_a_path_of_modules() -> None:
    found = names([node("MatMul", ["x", "onnx::MatMul_3"], "y", "/h.0/mlp/fc/MatMul_1")], onnx__MatMul_3=W)
    assert found == {"h.0.mlp.fc.weight": Stored("onnx::MatMul_3", swapped=True)}


def test_without_a_bias_or_a_path_the_node_says_its_scope() -> None:
    found = names([node("MatMul", ["x", "val_9"], "y", "node_MatMul_1", "h.0.mlp.fc")], val_9=W)
    assert found == {"h.0.mlp.fc.weight": Stored("val_9", swapped=True)}


@pytest.mark.parametrize("shift", ["Add", "Gemm"])
def test_a_bias_without_a_name_belongs_to_the_same_module(shift: str) -> None:
    nodes = [node("MatMul", ["x", "val_1"], "y", scope="fc"), node("Add", ["y", "val_2"], "z")]
    if shift == "Gemm":
        nodes = [node("Gemm", ["x", "val_1", "val_2"], "y", scope="fc")]
    assert names(nodes, val_1=W, val_2=B)["fc.bias"] == Stored("val_2")


@pytest.mark.parametrize("passing", ["Cast", "Identity", "Reshape"])
def test_a_bias_may_be_added_to_a_product_of_another_type_or_shape(passing: str) -> None:
    nodes = [
        node("MatMul", ["x", "val_1"], "y", scope="fc"),
        node(passing, ["y"], "v"),
        node("Add", ["v", "val_2"], "z"),
    ]
    assert names(nodes, val_1=W, val_2=B)["fc.bias"] == Stored("val_2")


def test_what_is_added_to_a_product_but_is_no_bias_is_left_alone() -> None:
    nodes = [node("MatMul", ["x", "val_1"], "y", scope="fc"), node("Add", ["y", "val_2"], "z")]
    for other in (matrix(5, dtype=np.int64), matrix(), matrix(1), matrix(3, 5)):
        assert list(names(nodes, val_1=W, val_2=other)) == ["fc.weight"]


@pytest.mark.parametrize("op", ["Add", "BiasGelu", "SkipLayerNormalization"])
def test_a_vector_that_is_added_and_is_no_known_parameter_is_refused(op: str) -> None:
    """Or a layer whose bias is hidden would be read as one without."""
    product = node("MatMul", ["x", "val_1"], "y", scope="fc")
    nodes = [product, node("Split", ["y"], "v"), node(op, ["v", "val_2"], "z")]
    with pytest.raises(ValueError, match=r"does not tell which parameter it adds: 'val_2' \[5\]"):
        names(nodes, val_1=W, val_2=B)
    assert "h.bias" in names([product, node(op, ["y", "h.bias"], "z", "h")], val_1=W, h_DOT_bias=B)


@pytest.mark.parametrize("factors", [{"alpha": 0.5}, {"beta": 2.0}, {"alpha": 0.0}])
def test_a_scaled_product_is_refused(factors: dict[str, float]) -> None:
    nodes = [node("Gemm", ["x", "val_1", "val_2"], "y", "/fc/Gemm", **factors)]
    with pytest.raises(ValueError, match="'/fc/Gemm' is scaled by alpha or beta"):
        names(nodes, val_1=W, val_2=B)


def test_factors_of_1_and_those_of_other_operations_scale_no_product() -> None:
    nodes = [node("Gemm", ["x", "val_1"], "y", "/fc/Gemm", alpha=1.0, beta=1.0), node("Elu", ["y"], "z", alpha=0.5)]
    assert list(names(nodes, val_1=W)) == ["fc.weight"]


def test_a_bias_that_modules_share_names_none_of_their_matrices() -> None:
    """The newer exporter stores equal biases once; the scopes tell."""
    nodes = [
        each
        for i in "01"
        for each in (
            node("MatMul", ["x", f"val_{i}"], f"y{i}", scope=f"h.{i}.fc"),
            node("Add", [f"y{i}", "h.0.fc.bias"], f"z{i}", scope=f"h.{i}.fc"),
        )
    ]
    found = names(nodes, val_0=W, val_1=W + 1, h_DOT_0_DOT_fc_DOT_bias=B)
    assert found == {
        **{f"h.{i}.fc.weight": Stored(f"val_{i}", swapped=True) for i in "01"},
        **{f"h.{i}.fc.bias": Stored("h.0.fc.bias") for i in "01"},
    }


def test_equal_parameters_may_be_identities_of_one() -> None:
    nodes = [node("Identity", ["h.0.ln.bias"], "h.1.ln.bias"), node("Identity", ["h.1.ln.bias"], "h.2.ln.bias")]
    assert names(nodes, h_DOT_0_DOT_ln_DOT_bias=B) == {f"h.{i}.ln.bias": Stored("h.0.ln.bias") for i in "012"}


def test_modules_that_share_a_parameter_may_be_known_by_their_nodes_names() -> None:
    nodes = [node("Mul", ["x", "h.0.ln.weight"], f"y{i}", f"/h.{i}/ln/Mul_1") for i in "01"]
    assert names(nodes, h_DOT_0_DOT_ln_DOT_weight=B) == {f"h.{i}.ln.weight": Stored("h.0.ln.weight") for i in "01"}


def test_a_tied_embedding_has_both_names_where_both_modules_use_it() -> None:
    nodes = [
        node("Gather", ["lm_head.weight", "ids"], "x", scope="wte"),
        node("Transpose", ["lm_head.weight"], "turned", scope="lm_head", perm=[1, 0]),
        node("MatMul", ["x", "turned"], "logits", scope="lm_head"),
    ]
    assert names(nodes, lm_head_DOT_weight=W) == dict.fromkeys(
        ("lm_head.weight", "wte.weight"), Stored("lm_head.weight")
    )


def test_a_parameter_that_only_another_module_uses_has_one_name() -> None:
    """A router's weight that its experts' module multiplies by."""
    nodes = [node("MatMul", ["x", "mlp.router.weight"], "y", scope="mlp")]
    assert list(names(nodes, mlp_DOT_router_DOT_weight=W)) == ["mlp.router.weight"]


@pytest.mark.parametrize(
    ("between", "product", "swapped"),
    [
        ([], {"op": "MatMul"}, True),
        ([("Cast", {"to": 1})], {"op": "MatMul"}, True),
        ([("Identity", {}), ("Transpose", {"perm": [1, 0]})], {"op": "MatMul"}, False),
        ([("Transpose", {"perm": [1, 0]}), ("Transpose", {"perm": [1, 0]})], {"op": "MatMul"}, True),
        ([("Transpose", {"perm": [0, 1]})], {"op": "MatMul"}, None),
        ([], {"op": "Gemm"}, True),
        ([], {"op": "Gemm", "transB": 0}, True),
        ([], {"op": "Gemm", "transB": 1}, False),
        ([], {"op": "Gemm", "transA": 1}, True),
        ([("Transpose", {"perm": [1, 0]})], {"op": "Gemm", "transB": 1}, True),
    ],
)
def test_a_matrix_is_turned_until_its_rows_are_outputs(
    between: list[tuple[str, dict[str, Any]]], product: dict[str, Any], swapped: bool | None
) -> None:
    nodes, value = [], "val_1"
    for i, (op, attributes) in enumerate(between):
        nodes.append(node(op, [value], f"v{i}", **attributes))
        value = f"v{i}"
    nodes.append(node(inputs=["x", value], output="y", name="/fc/MatMul", **product))
    expected = {} if swapped is None else {"fc.weight": Stored("val_1", swapped)}
    assert names(nodes, val_1=matrix(4, 4)) == expected


def test_a_named_matrix_is_as_pytorch_stores_it() -> None:
    """GPT-2's Conv1D is [in, out], and its Gemm not transposed."""
    found = names([node("Gemm", ["x", "h.0.c_fc.weight"], "y", "/h.0/c_fc/Gemm")], h_DOT_0_DOT_c_fc_DOT_weight=W)
    assert found == {"h.0.c_fc.weight": Stored("h.0.c_fc.weight")}


def test_constants_of_nodes_count_too() -> None:
    value = helper.make_tensor("", 1, [3, 5], W.tobytes(), raw=True)
    nodes = [node("Constant", [], "/fc/Constant_output_0", value=value)]
    nodes.append(node("MatMul", ["x", "/fc/Constant_output_0"], "y", "/fc/MatMul"))
    assert names(nodes) == {"fc.weight": Stored("/fc/Constant_output_0", swapped=True)}


def test_both_branches_of_a_merged_decoder_use_the_same_weights() -> None:
    """optimum's merged decoder has a branch for the first step and one for those behind a cache."""
    one = helper.make_tensor("", 1, [], [1.0])
    branch = [
        node("Constant", [], "/Constant_output_0", value=one),
        node("MatMul", ["x", "onnx::MatMul_1"], "y", "/fc/MatMul"),
        node("MatMul", ["x", "onnx::MatMul_2"], "z", "MatMul_9"),
        node("Add", ["z", "h.proj.bias"], "sum", "Add_9"),
    ]
    graph = helper.make_graph(branch, "branch", [], [])
    nodes = [node("If", ["use_cache"], "y", then_branch=graph, else_branch=graph)]
    assert names(nodes, onnx__MatMul_1=W, onnx__MatMul_2=W, h_DOT_proj_DOT_bias=B) == {
        "fc.weight": Stored("onnx::MatMul_1", swapped=True),
        "h.proj.weight": Stored("onnx::MatMul_2", swapped=True),
        "h.proj.bias": Stored("h.proj.bias"),
    }


def branches(*nodes: list[Any], constants: tuple[dict[str, np.ndarray], ...] = ({}, {})) -> list[Any]:
    graphs = [
        helper.make_graph(each, "branch", [], [], [numpy_helper.from_array(value, name) for name, value in own.items()])
        for each, own in zip(nodes, constants, strict=True)
    ]
    return [node("If", ["use_cache"], "y", then_branch=graphs[0], else_branch=graphs[1])]


def test_branches_have_no_different_weights_under_one_name() -> None:
    own = [[node("MatMul", ["x", "onnx::MatMul_1"], "y", f"/{module}/MatMul")] for module in "qk"]
    constants = ({"onnx::MatMul_1": W}, {"onnx::MatMul_1": W + 1})
    with pytest.raises(ValueError, match="tensor 'onnx::MatMul_1' is there twice"):
        names(branches(*own, constants=constants))
    assert set(names(branches(*own, constants=(constants[0],) * 2))) == {"q.weight", "k.weight"}
    turned = [[node("Transpose", [name], "t", perm=[1, 0]), *nodes] for name, nodes in zip("ab", own, strict=True)]
    with pytest.raises(ValueError, match="two values are 't'"):
        names(branches(*turned), a=W, b=W, onnx__MatMul_1=W)


def test_branches_may_have_different_numbers_under_one_name() -> None:
    own = [[node("Mul", ["x", "scale"], "y")]] * 2
    assert names(branches(*own, constants=({"scale": matrix()}, {"scale": matrix(first=2.0)}))) == {}


def test_what_modules_share_takes_no_more_time_than_the_file_is_long() -> None:
    """8,000 products of one bias, and 8,000 that have one output."""
    nodes = []
    for i in range(8000):
        nodes += [node("MatMul", ["x", "val_1"], f"y{i}", "/a/MatMul"), node("Add", [f"y{i}", "b.bias"], f"z{i}")]
        nodes += [node("MatMul", ["x", "val_1"], "y", "/a/MatMul"), node("Add", ["y", "c.bias"], f"v{i}")]
    began = time.process_time()
    assert set(names(nodes, val_1=W, b_DOT_bias=B, c_DOT_bias=B)) >= {"a.weight"}
    assert time.process_time() - began < 20


def test_parameters_are_not_named_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convert.formats.onnx_names.MAX_TENSORS", 50)
    shared = {f"m{i}_DOT_w{i}": B for i in range(8)}
    nodes = [node("Sum", [f"m{i}.w{i}" for i in range(8)], f"y{j}", f"/m{j}/Sum") for j in range(8)]
    with pytest.raises(ValueError, match="more than 50 parameters"):
        names(nodes, **shared)
    with pytest.raises(ValueError, match="one of more than 512 characters"):
        names([node("MatMul", ["x", "val_1"], "y", f"/{'a' * 600}/MatMul")], val_1=W)


def test_modules_that_torchscript_passes_over_are_found_by_the_names_that_are_kept() -> None:
    nodes = [
        node("Gather", ["m.model.decoder.wte.weight", "ids"], "x", "/m/decoder/wte/Gather"),
        node("MatMul", ["x", "onnx::MatMul_1"], "y", "/m/decoder/layers.0/fc/MatMul"),
        node("MatMul", ["y", "onnx::MatMul_2"], "z", "/m/lm_head/MatMul"),
    ]
    found = names(nodes, m_DOT_model_DOT_decoder_DOT_wte_DOT_weight=W, onnx__MatMul_1=W, onnx__MatMul_2=W)
    assert set(found) == {"m.model.decoder.wte.weight", "m.model.decoder.layers.0.fc.weight", "m.lm_head.weight"}


def test_constants_that_are_no_parameters_are_left_out() -> None:
    nodes = [
        node("Mul", ["x", "unsqueeze_1"], "a", scope="attention"),
        node("Reshape", ["a", "onnx::Reshape_4"], "b", "/attention/Reshape"),
        node("MatMul", ["val_3", "b"], "c", "/rotary/MatMul"),
    ]
    mask = {"h_DOT_0_DOT_attn_DOT_bias": matrix(2, 2, dtype=np.bool_)}
    assert names(nodes, unsqueeze_1=W, onnx__Reshape_4=matrix(2, dtype=np.int64), val_3=W, **mask) == {}


def test_a_matrix_of_no_known_module_is_refused_by_its_name() -> None:
    nodes = [node("MatMul", ["x", name], f"y{name}", "MatMul_7") for name in ("12", "13")]
    with pytest.raises(ValueError, match=r"which parameters 2 of its matrices are: '12' \[3, 5\], '13' \[5, 2\]$"):
        names(nodes, **{"12": W, "13": matrix(5, 2)})


def test_two_matrices_of_one_module_are_refused() -> None:
    nodes = [node("MatMul", ["x", name], f"y{name}", scope="fc") for name in ("val_1", "val_2")]
    with pytest.raises(ValueError, match=r"two tensors are 'fc.weight': 'val_1' and 'val_2'"):
        names(nodes, val_1=W, val_2=W)
