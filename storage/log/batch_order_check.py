"""Checks the order of the batches of one segment, which their checksums do not cover.

The CRC of a batch does not cover its base offset and leader epoch. But both grow from batch to
batch. If they do not grow, one of two adjacent batches is wrong, and it is unknown which one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from regent.core.model import NO_EPOCH
from regent.records.record_batch import BatchHeader, PlacedBatch
from regent.storage.log.log_file import CorruptSegmentError, WholeBatch

_Placed = TypeVar("_Placed", PlacedBatch, WholeBatch)


def check_order(
    batches: Iterable[_Placed], path: Path, lowest: int, end_offset: int
) -> Iterator[_Placed]:
    """Yield the batches of the file ``path`` whose offsets and epochs are in order.

    Their offsets must be at least ``lowest`` and below ``end_offset``. Raises
    ``CorruptSegmentError`` at the first violation, before it yields a batch that may be wrong.
    """
    held: _Placed | None = None  # yielded once its successor is in order too
    expected, epoch = lowest, NO_EPOCH
    try:
        for placed in batches:
            position, header = placed[0], placed[1]
            base_offset = header.base_offset
            next_offset = base_offset + header.last_offset_delta + 1
            if base_offset < lowest or next_offset > end_offset:
                raise _misplaced(path, position, header)
            if base_offset < expected or header.partition_leader_epoch < epoch:
                if header.partition_leader_epoch >= NO_EPOCH:
                    held = None
                raise _misplaced(path, position, header)
            if held is not None:
                yield held
            held, expected, epoch = placed, next_offset, header.partition_leader_epoch
    except CorruptSegmentError:
        if held is not None:
            yield held
        raise
    if held is not None:
        yield held


def _misplaced(path: Path, position: int, header: BatchHeader) -> CorruptSegmentError:
    return CorruptSegmentError(
        f"{path}: at {position}: offsets {header.base_offset} to {header.last_offset} of epoch"
        f" {header.partition_leader_epoch} do not belong there"
    )
