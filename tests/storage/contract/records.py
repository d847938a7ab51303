"""Short functions to write to a log and to read from it."""

from __future__ import annotations

from regent.core.replica_logs import AppendedRecords, PartitionLog
from tests.support.record_batches import Record, batch, records_of

EVERYTHING = 2**31 - 1


def append(log: PartitionLog, *values: bytes, epoch: int = 0) -> AppendedRecords:
    """Append a batch as leader."""
    return log.append_as_leader(batch(*values), epoch)


def append_each(log: PartitionLog, *values: bytes, epoch: int = 0) -> None:
    """Append a batch for each value as leader."""
    for value in values:
        append(log, value, epoch=epoch)


def read(log: PartitionLog, offset: int | None = None, *, limit: int | None = None) -> list[Record]:
    """Return the records of the batches from ``offset`` on, by default from the start."""
    found: list[Record] = []
    limit = log.log_end_offset if limit is None else limit
    offset = log.log_start_offset if offset is None else offset
    while offset < limit:
        data = log.read(offset, EVERYTHING, limit, at_least_one=True).read()
        records = records_of(data)
        if not records:
            break
        found += records
        offset = records[-1].offset + 1
    return found


def values(log: PartitionLog) -> list[bytes | None]:
    """Return the values of all records."""
    return [record.value for record in read(log)]
