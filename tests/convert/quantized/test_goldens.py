"""Quantised matrices are what the libraries that wrote them make of them.

Where a library computes in f32, bit for bit. One that multiplies a code by a scale in 16 bits rounds once, and f32
holds the product exactly, so the result rounded to its type is again bit for bit the same. HQQ rounds twice in 16 bits,
zero point and product, bitsandbytes multiplies by 1/127 where we divide by 127, and torchao adds an offset to integers
of four bits, where we subtract a zero point first: one step of the type at the largest weight of the row, or two.
"""

import re
from typing import Any

import numpy as np
import pytest

from convert.quantized.methods import METHODS, method_of
from convert.quantized.tensors import QuantizedTensors
from jaxengine.architecture.weight_format import Component
from tests.convert.quantized.goldens import ATTENTION, GOLDENS, MODULE, WEIGHT, opened, rounded, spacing
from tests.tiny_quantized import packed

STEPS = {"hqq-4bit_64_float16": 1, "hqq-2bit_32_bfloat16": 1, "hqq-3bit_16_bfloat16": 1, "bitsandbytes-int8": 1}
STEPS |= {"torchao-int4": 2, "torchao-int4_bf16": 2, "torchao-int4_f16": 2}  # of f32
OF_WEIGHTS = (".qweight", ".weight_packed", ".W_q", ".weight", "._weight_qdata")
every_golden = pytest.mark.parametrize("name", GOLDENS)


def whole_of(name: str) -> np.ndarray:
    matrix = GOLDENS[name].opened().quantized(WEIGHT)
    assert matrix is not None
    return matrix.dense(matrix.shape, ())


@every_golden
def test_the_matrix_is_the_library_s(name: str) -> None:
    golden = GOLDENS[name]
    ours, theirs = rounded(whole_of(name), golden.dense), golden.dense.astype(np.float32)
    assert ours.shape == theirs.shape
    assert (np.abs(ours - theirs) <= STEPS.get(name, 0) * spacing(theirs, golden.dense)).all()


def with_attention(name: str) -> dict[str, Any]:
    return {"config_groups": {**GOLDENS[name].config["config_groups"], "group_1": ATTENTION}}


def of_group(name: str, **settings: Any) -> dict[str, Any]:
    return {"config_groups": {"group_0": {**GOLDENS[name].config["config_groups"]["group_0"], **settings}}}


def in_blocks(name: str, blocks: str) -> dict[str, Any]:
    weights = GOLDENS[name].config["config_groups"]["group_0"]["weights"]
    return of_group(name, weights={**weights, "block_structure": blocks})


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *(
            pytest.param(f"auto_round-4bit_{case}", {"packing_format": None, "backend": backend}, id=backend)
            for case, backend in (
                ("less_one", "auto_round:gptq:exllamav2"),
                ("less_one", "gptq:tritonv2"),
                ("less_one", "auto_round:auto_gptq:cuda"),
                ("plain", "auto_round:exllamav2"),
                ("plain", "auto_round:tritonv2"),
            )
        ),
        *(
            pytest.param(name, with_attention(name), id=f"{name} beside attention")
            for name in ("compressed_tensors-w4_group", "compressed_tensors-fp8_channel")
        ),
        pytest.param("compressed_tensors-fp8_block", in_blocks("compressed_tensors-fp8_block", "16x32"), id="16x32"),
        *(
            pytest.param(name, of_group(name, input_activations=ATTENTION["input_activations"]), id=f"{name} and A8")
            for name in ("compressed_tensors-w4_group", "compressed_tensors-int4_group")
        ),
        pytest.param("modelopt-nvfp4", {"quant_algo": "W4A16_NVFP4"}, id="W4A16_NVFP4"),
        pytest.param("modelopt-fp8", {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, id="FP8_PER_CHANNEL_PER_TOKEN"),
        pytest.param(
            "modelopt-nvfp4", {"quant_method": None}, id="ModelOpt's own configuration, which names no method"
        ),
    ],
)
def test_other_versions_of_a_tool_describe_the_same_tensors_otherwise(name: str, settings: dict[str, Any]) -> None:
    golden = GOLDENS[name]
    ours = opened(golden, golden.tensors(), **settings).read(WEIGHT, golden.dense.shape, ())
    np.testing.assert_array_equal(ours, whole_of(name))


@pytest.mark.parametrize("name", ["model.embed_tokens", "gpt_neox.embed_in", "transformer.wte", "shared"])
def test_compressed_tensors_quantises_embeddings_by_a_group_of_their_own(name: str) -> None:
    of_class = {"Linear": "compressed_tensors-int8_channel", "Embedding": "compressed_tensors-w4_group"}
    groups = {
        each: {**GOLDENS[case].config["config_groups"]["group_0"], "targets": [each]} for each, case in of_class.items()
    }
    linear, embedding = (GOLDENS[case] for case in of_class.values())
    tensors = linear.tensors()
    tensors.arrays |= {f"{name}{suffix}": array for suffix, array in embedding.parts.items()}
    found = opened(linear, tensors, config_groups=groups)
    for weight, case in ((WEIGHT, of_class["Linear"]), (f"{name}.weight", of_class["Embedding"])):
        np.testing.assert_array_equal(found.read(weight, found.shape(weight), ()), whole_of(case))


@every_golden
def test_a_slice_is_that_part_of_the_matrix(name: str) -> None:
    """Rows and columns that begin and end within words, bytes, groups and blocks."""
    tensors, whole = GOLDENS[name].opened(), whole_of(name)
    outputs, inputs = whole.shape
    for rows in (slice(None), slice(1, 2), slice(3, outputs - 1), slice(outputs - 1, outputs)):
        for columns in (slice(None), slice(0, 1), slice(5, 6), slice(7, inputs - 3), slice(inputs - 1, inputs)):
            part = tensors.read(WEIGHT, whole.shape, (rows, columns))
            np.testing.assert_array_equal(part, whole[rows, columns])


@every_golden
def test_a_view_cuts_rows_into_heads_and_inputs_into_parts(name: str) -> None:
    tensors, whole = GOLDENS[name].opened(), whole_of(name)
    outputs, inputs = whole.shape
    heads, parts = (next(each for each in (4, 2, 3, 7) if size % each == 0) for size in (outputs, inputs))
    for view in ((heads, outputs // heads, inputs), (outputs, parts, inputs // parts)):
        index = tuple(slice(size // 2, size) for size in view)
        np.testing.assert_array_equal(tensors.read(WEIGHT, view, index), whole.reshape(view)[index])
    flat = tensors.read(WEIGHT, (outputs * inputs,), (slice(3, 11),))  # rows joined
    np.testing.assert_array_equal(flat, whole.reshape(-1)[3:11])


@every_golden
def test_components_multiply_out_to_the_matrix(name: str) -> None:
    matrix = GOLDENS[name].opened().quantized(WEIGHT)
    assert matrix is not None
    (outputs, inputs), format = matrix.shape, matrix.format
    if not matrix.in_parts:
        return  # groups of several sizes are multiplied out while reading
    groups = inputs // format.group if format.group else 1

    def component(which: Component) -> np.ndarray:
        width = inputs if which == "values" else groups
        read = matrix.component(which, (outputs, width), ())
        assert read.dtype.name == format.dtypes[which]
        assert read.shape == (outputs, width)
        np.testing.assert_array_equal(
            matrix.component(which, (outputs, width), (slice(1, 3), slice(width // 2, width))), read[1:3, width // 2 :]
        )
        return read.astype(np.int64 if format.table and which == "values" else np.float32)

    values = component("values")
    numbers = np.asarray(format.table, np.float32)[values] if format.table else values
    if format.zeros is not None:
        numbers = numbers - np.repeat(component("zeros"), inputs // groups, 1)
    product = numbers * np.repeat(component("scales"), inputs // groups, 1)
    order = matrix.component("order", (inputs,), ())
    assert (order != np.arange(inputs)).any() == format.ordered
    np.testing.assert_array_equal(matrix.component("order", (inputs,), (slice(3, 9),)), order[3:9])
    np.testing.assert_array_equal(product.astype(np.float32), whole_of(name)[:, order])


@every_golden
def test_words_hold_the_values_of_eight_inputs_each(name: str) -> None:
    matrix = GOLDENS[name].opened().quantized(WEIGHT)
    assert matrix is not None
    (outputs, inputs), format = matrix.shape, matrix.format
    if matrix.words is None:
        assert format.bits > 4 or inputs % 8 or re.search("hqq|2bit|3bit|w2|w3", name)
        return
    codes = matrix.read("values", slice(0, outputs), slice(0, inputs)).astype(np.int16) + format.offset
    expected = packed(codes, 4).view(np.uint32)
    for rows in (slice(0, outputs), slice(3, outputs - 1)):
        for columns in (slice(0, inputs // 8), slice(1, 2), slice(2, inputs // 8 - 1)):
            index = (rows, columns)
            np.testing.assert_array_equal(matrix.component("words", expected.shape, index), expected[index])


@every_golden
def test_nothing_is_read_of_the_weights_before_they_are_asked_for(name: str) -> None:
    """EETQ apart, of which a few rows tell the order."""
    tensors = GOLDENS[name].tensors()
    method = method_of(GOLDENS[name].configuration())
    assert method is not None
    QuantizedTensors(tensors, method)
    assert not {f"{MODULE}{suffix}" for suffix in OF_WEIGHTS} & set(tensors.reads)


def test_every_method_has_a_golden_but_eetq() -> None:
    of_goldens = {golden.config["quant_method"] for golden in GOLDENS.values()}
    same_as_others = {"intel/auto-round", "fbgemm_fp8"}
    assert METHODS.keys() - of_goldens == {"eetq", "mxfp4", *same_as_others}
