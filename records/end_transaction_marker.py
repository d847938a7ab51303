"""The record that ends a transaction in a partition: the only one of a control batch.

Mirrors ``org.apache.kafka.common.record.EndTransactionMarker`` and ``ControlRecordType``.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from regent.core.errors import BadDataError
from regent.core.records import RecordBytes
from regent.records.record_batch import BatchHeader, build_batch, records_of

ABORT, COMMIT = 0, 1
"""The types of control records that end a transaction."""
UNKNOWN: Final = -1
"""The type of a control record whose key is too short for one."""

_VERSION: Final = 0
_KEY: Final = struct.Struct(">hh")  # version, type
_VALUE: Final = struct.Struct(">hi")  # version, coordinator epoch


class EndTransactionMarker(NamedTuple):
    """How a transaction ended, and the epoch of the coordinator that says so."""

    is_commit: bool
    coordinator_epoch: int

    def key(self) -> bytes:
        """Return the key of the record."""
        return _KEY.pack(_VERSION, COMMIT if self.is_commit else ABORT)

    def value(self) -> bytes:
        """Return the value of the record."""
        return _VALUE.pack(_VERSION, self.coordinator_epoch)


def decode_marker_type(key: bytes) -> bool | None:
    """Return whether the key is of a commit; None: of neither commit nor abort.

    A later version is read as far as it is known. Raises ``BadDataError``.
    """
    if len(key) < _KEY.size or (fields := _KEY.unpack_from(key))[0] < 0:
        raise BadDataError(f"the key of a control record is not well-formed: {key.hex()}")
    return {COMMIT: True, ABORT: False}.get(fields[1])


def decode_coordinator_epoch(value: bytes) -> int:
    """Return the coordinator epoch of a marker's value; raises ``BadDataError``."""
    if len(value) < _VALUE.size or (fields := _VALUE.unpack_from(value))[0] < 0:
        raise BadDataError(f"the value of a transaction marker is not well-formed: {value.hex()}")
    epoch: int = fields[1]
    return epoch


def build_marker(
    marker: EndTransactionMarker, producer_id: int, producer_epoch: int, timestamp_ms: int
) -> bytearray:
    """Return a control batch, without offset and leader epoch."""
    return build_batch(
        [(marker.key(), marker.value())],
        timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_control=True,
    )


def control_type(header: BatchHeader, batch: memoryview) -> int | None:
    """Return the type in the key of a control record.

    None: an empty batch, which is left of a marker that a cleaning removed (KAFKA-7467). Raises
    ``ValueError``.
    """
    record = next(records_of(header, batch), None)
    if record is None:
        return None
    key = record.key or b""
    return UNKNOWN if len(key) < _KEY.size else int(_KEY.unpack_from(key)[1])


def marker_of(header: BatchHeader, batch: RecordBytes) -> EndTransactionMarker | None:
    """Return the marker of a control batch; None: it has another record, or none any more.

    Raises ``BadDataError``.
    """
    if header.producer_id < 0:
        return None
    try:
        record = next(records_of(header, memoryview(batch)), None)
    except ValueError as error:
        raise BadDataError(f"the control batch at {header.base_offset}: {error}") from None
    if record is None or record.key is None:
        return None
    is_commit = decode_marker_type(record.key)
    if is_commit is None:
        return None
    return EndTransactionMarker(is_commit, decode_coordinator_epoch(record.value or b""))
