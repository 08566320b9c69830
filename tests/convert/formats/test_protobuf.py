"""Fields are read as the protobuf library writes them, and nothing beyond a message is."""

import pytest
from google.protobuf.struct_pb2 import ListValue, Value
from google.protobuf.wrappers_pb2 import FloatValue, Int64Value, UInt64Value

from convert.formats.protobuf import FieldReader, content, number, text


def fields(message: bytes, limit: int = 100) -> list[tuple[int, object]]:
    values = FieldReader(limit).fields(memoryview(message))
    return [(field, value if isinstance(value, int) else bytes(value)) for field, value in values]


def test_numbers_texts_and_messages_come_in_their_order() -> None:
    message = ListValue(values=[Value(string_value="a"), Value(bool_value=True), Value(number_value=0.5)])
    first, second, third = [value.SerializeToString() for value in message.values]
    assert fields(message.SerializeToString()) == [(1, first), (1, second), (1, third)]
    assert [fields(each) for each in (first, second, third)] == [
        [(3, b"a")],
        [(4, 1)],
        [(2, b"\0\0\0\0\0\0\xe0\x3f")],
    ]
    assert fields(FloatValue(value=0.5).SerializeToString()) == [(1, b"\0\0\0\x3f")]
    assert fields(b"") == []


@pytest.mark.parametrize("value", [1, 127, 128, 300, 2**31, 2**63 - 1, -1, -(2**63)])
def test_numbers_have_64_bits_and_a_sign(value: int) -> None:
    ((_, found),) = FieldReader(9).fields(memoryview(Int64Value(value=value).SerializeToString()))
    assert number(found) == value
    assert fields(UInt64Value(value=value % 2**64).SerializeToString()) == [(1, value % 2**64)]


def test_repeated_numbers_are_packed_or_apart() -> None:
    reader = FieldReader(99)
    assert list(reader.numbers(memoryview(b"\x01\xac\x02\x00"))) == [1, 300, 0]
    assert list(reader.numbers(7)) == [7]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (b"\x0a\x05abcd", "field 1 does not fit its message"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01a", "field 1 does not fit"),
        (b"\x0d\0\0\0", "field 1 does not fit"),
        (b"\x09\0\0\0\0\0\0\0", "field 1 does not fit"),
        (b"\x0b", "field 1 does not fit"),  # a group
        (b"\x0f", "field 1 does not fit"),  # no wire type
        (b"\x02\x00", "there is no field 0"),
        (b"\xfa\xff\xff\xff\xff\x01\x00", "there is no field"),
        (b"\x08\x80", "a number does not end"),
        (b"\x08" + b"\x80" * 20, "a number does not end"),
        (b"\x08\x01" * 51, "more than 100 numbers and fields"),
    ],
)
def test_a_malformed_message_is_refused(message: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fields(message)


def test_a_field_of_another_kind_than_it_should_be_is_refused() -> None:
    with pytest.raises(ValueError, match="is a number where it should be text"):
        content(10**12)
    with pytest.raises(ValueError, match="is text or a message where it should be a number"):
        number(memoryview(b"1"))
    with pytest.raises(ValueError, match="can't decode"):
        text(memoryview(b"\xff"))
