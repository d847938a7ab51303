"""Batches of transactions and their markers, written independently of the code under test."""

from __future__ import annotations

import struct

from tests.support.record_batches import CONTROL_MASK, TIMESTAMP_MS, TRANSACTIONAL_MASK, batch

ABORT, COMMIT = 0, 1


def in_transaction(
    *values: bytes,
    producer_id: int,
    sequence: int,
    producer_epoch: int = 0,
    base_offset: int = 0,
) -> bytes:
    """Return a batch of a transaction."""
    return batch(
        *values,
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL_MASK,
    )


def marker(
    kind: int,
    *,
    producer_id: int,
    producer_epoch: int = 0,
    coordinator_epoch: int = 0,
    base_offset: int = 0,
    leader_epoch: int = 0,
    timestamp_ms: int = TIMESTAMP_MS,
) -> bytes:
    """Return a control batch that ends a transaction."""
    return batch(
        struct.pack(">hi", 0, coordinator_epoch),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=TRANSACTIONAL_MASK | CONTROL_MASK,
        key=struct.pack(">hh", 0, kind),
        timestamp_ms=timestamp_ms,
    )


def emptied(data: bytes) -> bytes:
    """Return a control batch as a log cleaner leaves it: without its record."""
    kept = bytearray(data[:61])
    struct.pack_into(">i", kept, 8, 61 - 12)
    struct.pack_into(">i", kept, 57, 0)
    return bytes(kept)
