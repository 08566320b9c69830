"""Matrices of several formats in one format stand for what they stood for, bit for bit."""

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from convert.formats.quantized_matrix import QuantizedMatrix
from convert.mapping.joined import joined
from convert.quantized.grouped import grouped

INPUTS, OUTPUTS = 96, 8
TABLE = tuple(np.linspace(-1, 1, 16).astype(np.float32).tolist())
ORDER = np.random.default_rng(0).permutation(INPUTS)


def matrix(
    *,
    seed: int = 0,
    bits: int = 4,
    group: int = 16,
    values: str = "int8",
    zeros: str = "",
    scales: str = "float32",
    table: tuple[float, ...] = (),
    order: np.ndarray | None = None,
) -> QuantizedMatrix:
    draw, groups = np.random.default_rng(seed), INPUTS // group
    low, high = (-(1 << (bits - 1)), 1 << (bits - 1)) if values == "int8" else (0, 1 << bits)
    codes = draw.integers(low, high, (OUTPUTS, INPUTS)).astype(getattr(ml_dtypes, values, values))
    base = draw.uniform(low, high, (OUTPUTS, groups)).astype(zeros) if zeros else None
    of_inputs = None
    if order is not None:
        of_inputs = np.empty(INPUTS, np.int32)
        of_inputs[order] = np.arange(INPUTS) // group
    return grouped(
        f"{bits} bits",
        INPUTS,
        values,
        lambda rows, columns: codes[rows, columns],
        draw.uniform(0.5, 1, (OUTPUTS, groups)).astype(scales),
        base,
        bits=bits,
        size=group if of_inputs is None else None,
        of_inputs=of_inputs,
        table=table,
    )


def multiplied_out(matrix: QuantizedMatrix) -> np.ndarray:
    """f32 [out, in] from all components, read whole."""
    format = matrix.format
    size = format.group or INPUTS
    wide = {
        name: matrix.component(name, (OUTPUTS, INPUTS if name == "values" else INPUTS // size), ())
        for name in format.dtypes
        if name != "order"
    }
    assert {name: each.dtype.name for name, each in wide.items()} | ({"order": "int32"} if format.ordered else {}) == (
        format.dtypes
    )
    numbers = np.asarray(format.table, np.float32)[wide["values"]] if format.table else wide["values"]
    zeros = np.repeat(wide["zeros"], size, 1).astype(np.float32) if "zeros" in wide else np.float32(0)
    product = (numbers.astype(np.float32) - zeros) * np.repeat(wide["scales"], size, 1).astype(np.float32)
    restored = np.empty_like(product)
    restored[:, matrix.component("order", (INPUTS,), ())] = product
    return restored


PAIRS: dict[str, tuple[Callable[[], QuantizedMatrix], Callable[[], QuantizedMatrix]]] = {
    "bits": (matrix, lambda: matrix(bits=8)),
    "groups": (matrix, lambda: matrix(group=24)),
    "zeros": (matrix, lambda: matrix(values="uint8", zeros="uint8")),
    "zeros of 8 bits": (lambda: matrix(values="uint8", zeros="uint8"), lambda: matrix(bits=8, group=48)),
    "signed zeros": (lambda: matrix(bits=8, zeros="int8"), lambda: matrix(bits=8)),
    "zeros that are not whole": (matrix, lambda: matrix(values="uint8", zeros="float16", scales="float16")),
    "types of scales": (lambda: matrix(scales="float16"), lambda: matrix(group=48)),
    "a scale a channel": (matrix, lambda: matrix(bits=8, group=INPUTS)),
    "tables": (lambda: matrix(values="uint8", table=TABLE), lambda: matrix(values="uint8", table=TABLE, group=32)),
    "orders": (lambda: matrix(order=ORDER), lambda: matrix(order=ORDER, values="uint8", zeros="uint8")),
    "one order, and groups of several sizes": (lambda: matrix(order=ORDER), lambda: matrix(order=ORDER, group=32)),
    "an order, and a scale a channel": (lambda: matrix(bits=8, group=INPUTS), lambda: matrix(order=ORDER)),
}
APART: dict[str, tuple[Callable[[], QuantizedMatrix], Callable[[], QuantizedMatrix]]] = {
    "tables": (
        lambda: matrix(values="uint8", table=TABLE),
        lambda: matrix(values="uint8", table=tuple(2 * each for each in TABLE)),
    ),
    "a table beside numbers": (lambda: matrix(values="uint8", table=TABLE), matrix),
    "floats beside integers": (lambda: matrix(values="float8_e4m3fn"), matrix),
    "orders": (lambda: matrix(order=ORDER), lambda: matrix(order=ORDER[::-1])),
    "an order beside none": (lambda: matrix(order=ORDER), matrix),
    "one order, and groups that overlap": (lambda: matrix(order=ORDER), lambda: matrix(order=ORDER, group=24)),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_what_a_common_format_holds_is_what_was_stored(pair: str) -> None:
    before = {name: make() for name, make in zip("qk", PAIRS[pair], strict=True)}
    after = joined(before)
    assert after is not None
    assert len({each.format for each in after.values()}) == 1
    np.testing.assert_array_equal(*(each.component("order", (INPUTS,), ()) for each in after.values()))
    for name, each in after.items():
        expected = before[name].dense((OUTPUTS, INPUTS), ())
        np.testing.assert_array_equal(multiplied_out(each), expected)
        np.testing.assert_array_equal(each.dense((OUTPUTS, INPUTS), ()), expected)
        groups = INPUTS // each.format.group
        for component, width in (("values", INPUTS), ("scales", groups), ("zeros", groups)):
            if component in each.format.dtypes:
                whole = each.component(component, (OUTPUTS, width), ())  # type: ignore[arg-type]
                middle = (slice(1, 3), slice(width // 2, width - 1))
                part = each.component(component, (OUTPUTS, width), middle)  # type: ignore[arg-type]
                np.testing.assert_array_equal(part, whole[middle])


def test_a_common_format_is_as_narrow_as_it_can_be() -> None:
    def common(*matrices: QuantizedMatrix) -> tuple[str, int, int, str | None, str]:
        made = joined(dict(enumerate(matrices)))  # type: ignore[arg-type]
        assert made is not None
        format = next(iter(made.values())).format
        return format.values, format.bits, format.group, format.zeros, format.scales

    assert common(matrix(scales="float16"), matrix(scales="float16", bits=8)) == ("int8", 8, 16, None, "float16")
    assert common(matrix(), matrix(group=24)) == ("int8", 4, math.gcd(16, 24), None, "float32")
    assert common(matrix(), matrix(values="uint8", zeros="uint8")) == ("uint8", 4, 16, "uint8", "float32")
    assert common(matrix(group=INPUTS), matrix(bits=8, group=INPUTS)) == ("int8", 8, 0, None, "float32")


def test_matrices_of_one_format_stay_as_they_are() -> None:
    matrices = {"q": matrix(), "k": matrix(seed=1)}
    assert joined(matrices) is matrices


@pytest.mark.parametrize("pair", APART)
def test_what_no_format_holds_exactly_stays_apart(pair: str) -> None:
    first, second = APART[pair]
    assert joined({"q": first(), "k": second()}) is None
