"""What the device's page tables hold, as the host knows it: a step uploads only the entries that are new. No JAX."""

from jaxengine.request.plan import Row

Entry = tuple[int, int, int]  # row of the device's tables, column, page


class PageTableMirror:
    """How many entries of each slot's page tables the device has.

    The device's tables stand one below the other, each with a row for every slot and one for the sink.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.reset()

    def reset(self) -> None:
        """The device's tables are new."""
        self.written = [0] * self.slots

    def clear(self, slot: int) -> None:
        """A sequence took `slot`: what the device has there is another's."""
        self.written[slot] = 0

    def rewind(self, slot: int, kept: int) -> None:
        """The sequence in `slot` has other pages now, but for the first `kept` of each table."""
        self.written[slot] = min(self.written[slot], kept)

    def take_missing(self, rows: list[Row]) -> list[Entry]:
        """Every entry that the sequences of `rows` have and the device lacks. The caller uploads all of them."""
        missing = []
        for row in rows:
            slot, tables = row.sequence.slot, row.sequence.tables
            assert slot is not None
            first, end = self.written[slot], len(tables[0].pages)
            if first < end:
                for number, table in enumerate(tables):
                    table_row = number * (self.slots + 1) + slot
                    missing += [(table_row, column, table.pages[column]) for column in range(first, end)]
            self.written[slot] = end
        return missing
