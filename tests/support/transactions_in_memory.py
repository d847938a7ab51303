"""The transactions in a log, found by walking through all of its batches: a model."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from regent.core.errors import Errors, RecordsRefusedError
from regent.core.replica_logs import AbortedTransactionStart
from tests.support.record_batches import CONTROL_MASK, TRANSACTIONAL_MASK, records_of
from tests.support.record_checks import headers_of

ABORT, COMMIT = 0, 1


class Transaction(NamedTuple):
    """The records of a producer from the first one to the marker; None: it is open."""

    producer_id: int
    first_offset: int
    marker_offset: int | None
    is_aborted: bool


def marker_of(batch: bytes) -> tuple[bool, int] | None:
    """Return whether a control batch commits, and the coordinator epoch; None: it is empty."""
    ((_, header),) = headers_of(batch)
    for record in records_of(batch) if header.producer_id >= 0 else ():
        assert record.key is not None
        assert record.value is not None
        version, kind = struct.unpack_from(">hh", record.key)
        if version < 0:
            raise RecordsRefusedError(Errors.CORRUPT_MESSAGE, f"version {version} of a marker")
        _, coordinator_epoch = struct.unpack_from(">hi", record.value)
        return kind == COMMIT, coordinator_epoch
    return None


def transactions_of(batches: Iterable[bytes]) -> Iterator[Transaction]:
    """Yield the completed transactions in the order of their markers, then the open ones."""
    first_offsets: dict[int, int] = {}
    for batch in batches:
        ((_, header),) = headers_of(batch)
        producer_id = header.producer_id
        marker = marker_of(batch) if header.attributes & CONTROL_MASK else None
        if marker is not None and producer_id in first_offsets:
            first = first_offsets.pop(producer_id)
            yield Transaction(producer_id, first, header.base_offset, is_aborted=not marker[0])
        elif header.attributes & (CONTROL_MASK | TRANSACTIONAL_MASK) == TRANSACTIONAL_MASK:
            first_offsets.setdefault(producer_id, header.base_offset)
    for producer_id, first in first_offsets.items():
        yield Transaction(producer_id, first, None, is_aborted=False)


def first_unstable_offset(batches: Iterable[bytes], high_watermark: int) -> int | None:
    """Return the first offset of a transaction without a committed marker."""
    return min(
        (
            transaction.first_offset
            for transaction in transactions_of(batches)
            if transaction.marker_offset is None or transaction.marker_offset >= high_watermark
        ),
        default=None,
    )


def aborted_between(
    batches: Iterable[bytes], offset: int, end: int
) -> list[AbortedTransactionStart]:
    """Return the aborted transactions with an offset from ``offset`` to before ``end``."""
    return [
        AbortedTransactionStart(transaction.producer_id, transaction.first_offset)
        for transaction in transactions_of(batches)
        if transaction.is_aborted
        and transaction.marker_offset is not None
        and transaction.marker_offset >= offset
        and transaction.first_offset < end
    ]
