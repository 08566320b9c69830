"""Entries that the mirror hands out, applied in order, make the device's page tables those of the sequences."""

import numpy as np

from jaxengine.executor.page_table_mirror import PageTableMirror
from jaxengine.request.plan import Row
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.request.sequence import PageTable, Request, Sequence

SLOTS, WIDTH = 3, 8


def holding(slot: int, *tables: list[int]) -> Sequence:
    """A sequence in `slot` with these pages in each of its tables."""
    sequence = Sequence(Request(slot, [1], SamplingParams(seed=0)), slot)
    sequence.slot, sequence.tables = slot, [PageTable(pages) for pages in tables]
    return sequence


def rows(*sequences: Sequence) -> list[Row]:
    return [Row(sequence, 0, 1, True) for sequence in sequences]


def apply(device: np.ndarray, mirror: PageTableMirror, *sequences: Sequence) -> int:
    """Write what the mirror says is missing into `device`; how many entries those were."""
    missing = mirror.take_missing(rows(*sequences))
    for table_row, column, page in missing:
        device[table_row, column] = page
    return len(missing)


def test_the_device_has_every_table_of_every_sequence() -> None:
    mirror, device = PageTableMirror(SLOTS), np.zeros((2 * (SLOTS + 1), WIDTH), int)
    apply(device, mirror, holding(0, [1, 2], [3, 4]), holding(2, [5], [6]))
    assert device[0, :2].tolist() == [1, 2] and device[SLOTS + 1, :2].tolist() == [3, 4]
    assert device[2, 0] == 5 and device[SLOTS + 1 + 2, 0] == 6


def test_an_entry_is_uploaded_once() -> None:
    mirror, device = PageTableMirror(SLOTS), np.zeros((SLOTS + 1, WIDTH), int)
    sequence = holding(1, [1, 2])
    assert apply(device, mirror, sequence) == 2
    assert apply(device, mirror, sequence) == 0
    sequence.tables[0].pages.append(7)
    assert apply(device, mirror, sequence) == 1
    assert device[1, :3].tolist() == [1, 2, 7]


def test_a_slot_that_changes_hands_and_tables_that_are_new_are_written_from_the_start() -> None:
    mirror, device = PageTableMirror(SLOTS), np.zeros((SLOTS + 1, WIDTH), int)
    apply(device, mirror, holding(1, [1, 2]))
    mirror.clear(1)
    assert apply(device, mirror, holding(1, [3, 4, 5])) == 3
    mirror.reset()
    assert apply(device, mirror, holding(1, [3, 4, 5])) == 3


def test_a_sequence_with_other_pages_is_written_from_the_first_of_them() -> None:
    mirror, device = PageTableMirror(SLOTS), np.zeros((2 * (SLOTS + 1), WIDTH), int)
    apply(device, mirror, holding(1, [1, 2, 3], [4, 5, 6]))
    mirror.rewind(1, 2)
    mirror.rewind(2, 5)  # of which the device has nothing
    assert apply(device, mirror, holding(1, [1, 2, 7, 8], [4, 5, 9, 10]), holding(2, [11], [12])) == 6
    assert device[1, :4].tolist() == [1, 2, 7, 8] and device[SLOTS + 1 + 1, :4].tolist() == [4, 5, 9, 10]
    assert device[2, 0] == 11 and device[SLOTS + 1 + 2, 0] == 12
