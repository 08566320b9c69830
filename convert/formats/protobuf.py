"""The wire format of protocol buffers: a message's fields, as they lie in the file.

The protobuf library copies a whole file into memory before the first field can be seen. Here a field is a piece of the
mapped file, so that weights within a message are read in place. Nothing is trusted: a length must end within its
message, and all messages of a file together may have so many fields.
Format: https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Iterator

Value = int | memoryview  # a number, or the bytes of everything else

NUMBER, EIGHT_BYTES, BYTES, FOUR_BYTES = 0, 1, 2, 5  # wire types; 3 and 4 were groups, long deprecated
MAX_FIELD = 2**29 - 1
MAX_VARINT = 10  # bytes


class FieldReader:
    """Reads the fields of one file's messages, at most `limit` of them in all.

    Raises:
        ValueError: from any of its methods, where a message is cut or malformed.
    """

    def __init__(self, limit: int) -> None:
        self._limit = self._left = limit

    def fields(self, message: memoryview) -> Iterator[tuple[int, Value]]:
        """Number and value of each field, in the order of the file. A field that repeats comes several times."""
        at = 0
        while at < len(message):
            key, at = self._varint(message, at)
            field, wire = key >> 3, key & 7
            if not 1 <= field <= MAX_FIELD:
                raise ValueError(f"there is no field {field}")
            if wire == NUMBER:
                value, at = self._varint(message, at)
                yield field, value
                continue
            size = {EIGHT_BYTES: 8, FOUR_BYTES: 4}.get(wire, -1)
            if wire == BYTES:
                size, at = self._varint(message, at)
            if not 0 <= size <= len(message) - at:
                raise ValueError(f"field {field} does not fit its message: cut, or no protocol buffer")
            yield field, message[at : at + size]
            at += size

    def numbers(self, value: Value) -> Iterator[int]:
        """The numbers of one occurrence of a repeated field: packed, or just one."""
        if isinstance(value, int):
            yield value
            return
        at = 0
        while at < len(value):
            number, at = self._varint(value, at)
            yield number

    def _varint(self, message: memoryview, at: int) -> tuple[int, int]:
        """An unsigned number of 64 bits, seven in each byte, and where it ends."""
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"there are more than {self._limit} numbers and fields")
        number = 0
        for shift, byte in enumerate(message[at : at + MAX_VARINT]):
            number |= (byte & 127) << 7 * shift
            if byte < 128:
                return number & (2**64 - 1), at + shift + 1
        raise ValueError("a number does not end: cut, or no protocol buffer")


def content(value: Value) -> memoryview:
    """The bytes of a field that must not be a number. Raises ValueError."""
    if isinstance(value, int):
        raise ValueError("a field is a number where it should be text or a message")
    return value


def text(value: Value) -> str:
    """Raises ValueError where a field is not UTF-8."""
    return str(content(value), "utf-8")


def number(value: Value) -> int:
    """A field that must be a number, signed. Raises ValueError."""
    if not isinstance(value, int):
        raise ValueError("a field is text or a message where it should be a number")
    return value - 2**64 if value >= 2**63 else value
