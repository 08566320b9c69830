"""Server-sent events out of a byte stream, in whatever parts it comes. Only the field `data` matters here."""

import re

END = re.compile(rb"\r\n|\n|\r")


class EventReader:
    """Keeps what is not yet a whole event."""

    def __init__(self) -> None:
        self._line: list[bytes] = []  # parts of one that has not ended
        self._after_return = False  # whether a line feed that comes next is the second half of a line's end
        self._data: list[bytes] = []

    def feed(self, part: bytes) -> list[bytes]:
        """The data of each event that `part` completes."""
        if self._after_return and part:
            part, self._after_return = part.removeprefix(b"\n"), False
        self._after_return |= part.endswith(b"\r")
        first, *others = END.split(part)
        self._line.append(first)
        if not others:
            return []
        lines = [b"".join(self._line), *others[:-1]]
        self._line = [others[-1]]
        return [event for line in lines if (event := self._take(line)) is not None]

    def _take(self, line: bytes) -> bytes | None:
        """The event that a line ends."""
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            event, self._data = b"\n".join(self._data), []
            return event
        return None
