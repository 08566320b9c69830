"""Tensors in both of their forms, against Triton's own client where it encodes them."""

import struct
from typing import Any

import numpy as np
import pytest

from gateway.errors import RequestError
from gateway.routes.kserve.tensor import BYTES, DATATYPES, MAX_ELEMENTS, NUMPY, Tensor


def message(*given: Any) -> str:
    with pytest.raises(RequestError) as refused:
        Tensor.from_raw(*given) if isinstance(given[-1], bytes) else Tensor.from_json(*given)
    return refused.value.message


@pytest.mark.parametrize("datatype", NUMPY)
def test_numbers_come_back_as_they_went(datatype: str) -> None:
    values = np.array([[0, 1, 2], [1, 1, 0]], NUMPY[datatype])
    raw = Tensor.from_raw("x", datatype, (2, 3), values.tobytes())
    np.testing.assert_array_equal(raw.values, values.ravel())
    assert raw.raw() == values.tobytes()
    if datatype == "FP16":
        return
    for data in (values.tolist(), values.ravel().tolist()):  # nested and flat
        given = Tensor.from_json("x", datatype, (2, 3), data)
        np.testing.assert_array_equal(given.values, values.ravel())
        assert given.raw() == values.tobytes()


def test_bfloat16_is_the_upper_half_of_a_float32() -> None:
    values = np.array([1.0, -2.5, 0.15625], "<f4")
    halves = (values.view("<u4") >> 16).astype("<u2").tobytes()
    np.testing.assert_array_equal(Tensor.from_raw("x", "BF16", (3,), halves).values, values)


def test_bytes_have_their_lengths_in_front() -> None:
    texts = ["", "lo", "🙂", "a\x00b"]
    raw = b"".join(struct.pack("<I", len(each.encode())) + each.encode() for each in texts)
    assert Tensor.of("x", BYTES, texts).raw() == raw
    assert Tensor.from_raw("x", BYTES, (2, 2), raw).values.tolist() == [each.encode() for each in texts]
    assert Tensor.from_json("x", BYTES, (4,), texts).raw() == raw


def test_a_text_may_be_spelled_by_its_bytes_as_tgis_clients_do() -> None:
    assert Tensor.from_json("x", BYTES, (1,), [72, 105]).values.tolist() == [b"Hi"]


@pytest.mark.parametrize("change", [b"", b"\x00", b"\x01\x00\x00\x00", b"\x02\x00\x00\x00ab"])
def test_raw_bytes_must_be_exactly_the_elements(change: bytes) -> None:
    two = Tensor.of("x", BYTES, ["lo", "hello"]).raw()
    for raw in (two[: len(two) - 1 - len(change)], two + (change or b"\x00")):
        assert "'x'" in message("x", BYTES, (2,), raw)
    huge = struct.pack("<I", 2**32 - 1) + b"ab"
    assert message("x", BYTES, (1,), huge) == "tensor 'x' is cut: its element 0 ends behind its 6 bytes"


@pytest.mark.parametrize(
    ("datatype", "shape", "given", "said"),
    [
        ("INT32", (2,), b"1234567", "has 7 bytes, expected 8 bytes"),
        ("INT32", (2,), b"123456789", "has 9 bytes, expected 8 bytes"),
        ("INT64", (2**62, 4), b"", "has 0 bytes"),  # 2^64 elements and 2^67 bytes do not wrap around
        ("INT64", (2**31, 2**33), [], "has 0 values"),
        (BYTES, (MAX_ELEMENTS + 1,), b"", f"more than {MAX_ELEMENTS}"),
        ("INT32", (-1,), [], "sizes of at least 0"),
        ("INT32", (1,) * 9, [1], "at most 8 sizes"),
        ("COMPLEX", (1,), [1], "must be one of"),
        ("FP16", (1,), [1.0], "no form in JSON"),
        ("BF16", (1,), [1.0], "no form in JSON"),
        ("INT8", (1,), [128], "too large for INT8"),
        ("UINT64", (1,), [-1], "too large for UINT64"),
        ("FP32", (1,), [1e39], "too large for FP32"),
        ("FP32", (1,), [10**400], "too large for FP32"),
        ("INT32", (1,), [1.0], "not INT32"),
        ("INT32", (1,), [True], "not INT32"),
        ("BOOL", (1,), [1], "not BOOL"),
        (BYTES, (1,), [None], "not BYTES"),
        (BYTES, (2,), [1, 2], "not BYTES"),
        ("INT32", (3,), [1, 2], "has 2 values, expected 3"),
        ("INT32", (1,), [[1], [2]], "has 2 values, expected 1"),
    ],
)
def test_what_is_no_tensor_is_refused_by_its_name(datatype: str, shape: tuple[int, ...], given: Any, said: str) -> None:
    refused = message("x", datatype, shape, given)
    assert said in refused and "'x'" in refused


def test_an_empty_tensor_is_one_too() -> None:
    for datatype in DATATYPES:
        assert len(Tensor.from_raw("x", datatype, (0, 5), b"").values) == 0


def test_json_has_the_shortest_digits_and_no_nan() -> None:
    assert Tensor.of("x", "FP32", [0.1, -2.0]).json_data() == "[0.1,-2.0]"
    assert Tensor.of("x", "BOOL", [True, False]).json_data() == "[true,false]"
    assert Tensor.of("x", BYTES, ['"\u2028']).json_data() == '["\\"\\u2028"]'
    with pytest.raises(RequestError, match="NaN"):
        Tensor.of("x", "FP32", [np.nan]).json_data()
