"""Server-sent events out of a byte stream, in whatever parts it comes. Only the field `data` matters here."""


class EventReader:
    """Keeps what is not yet a whole event."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, part: bytes) -> list[bytes]:
        """The data of each event that `part` completes."""
        *lines, self._rest = (self._rest + part).split(b"\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events
