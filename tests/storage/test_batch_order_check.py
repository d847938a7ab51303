"""Whether batches have the right offsets and epochs, judged by their neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from regent.records.record_batch import PlacedBatch, batches
from regent.storage.log.log_file import CorruptSegmentError, check_order
from tests.support.record_batches import batch

PATH = Path("segment.log")
SOUND = [(10, 1), (11, 1), (15, 3), (16, 3)]  # base offsets and leader epochs, with a gap


def kept(placed: list[tuple[int, int]], lowest: int = 10, end_offset: int = 17) -> tuple[int, bool]:
    """Return the number of yielded batches, and whether all were in sequence."""
    data = b"".join(batch(b"", base_offset=offset, leader_epoch=epoch) for offset, epoch in placed)
    count = 0
    try:
        for position, _ in check_order(batches(data), PATH, lowest, end_offset):
            assert position == count * len(batch(b""))
            count += 1
    except CorruptSegmentError:
        return count, False
    return count, True


def test_batches_in_sequence_are_yielded():
    assert kept(SOUND) == (4, True)
    assert kept([]) == (0, True)


@pytest.mark.parametrize(
    ("number", "offset", "epoch", "count"),
    [
        (0, 9, 1, 0),  # before all that may be there
        (0, 12, 1, 0),  # or the next one is wrong
        (0, 10, 2, 0),
        (0, 10, -2, 0),
        (1, 10, 1, 0),  # or the one before it is wrong
        (1, 15, 1, 1),
        (1, 11, 0, 0),
        (1, 11, -2, 1),  # certainly this one
        (3, 17, 3, 3),
        (3, 2**40, 3, 3),
        (3, 9, 3, 3),
        (3, 14, 3, 2),
    ],
)
def test_of_two_batches_out_of_sequence_neither_is_yielded(
    number: int, offset: int, epoch: int, count: int
):
    assert kept([*SOUND[:number], (offset, epoch), *SOUND[number + 1 :]]) == (count, False)


def test_a_damaged_batch_does_not_affect_the_one_before_it():
    def ends_with_damage() -> Iterator[PlacedBatch]:
        yield from batches(batch(b"", base_offset=10) + batch(b"", base_offset=11))
        raise CorruptSegmentError("at 12")

    found = check_order(ends_with_damage(), PATH, 10, 17)
    assert [header.base_offset for _, header in islice(found, 2)] == [10, 11]
    with pytest.raises(CorruptSegmentError, match="at 12"):
        next(found)
