"""The record that ends a transaction in a partition: the only one of a control batch.

Mirrors ``org.apache.kafka.common.record.EndTransactionMarker`` and ``ControlRecordType``.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from regent.core.errors import BadDataError

_VERSION: Final = 0
_ABORT, _COMMIT = 0, 1
_KEY: Final = struct.Struct(">hh")  # version, type
_VALUE: Final = struct.Struct(">hi")  # version, coordinator epoch


class EndTransactionMarker(NamedTuple):
    """How a transaction ended, and the epoch of the coordinator that says so."""

    is_commit: bool
    coordinator_epoch: int

    def key(self) -> bytes:
        """Return the key of the record."""
        return _KEY.pack(_VERSION, _COMMIT if self.is_commit else _ABORT)

    def value(self) -> bytes:
        """Return the value of the record."""
        return _VALUE.pack(_VERSION, self.coordinator_epoch)


def decode_marker_type(key: bytes) -> bool | None:
    """Return whether the key is of a commit; None: of neither commit nor abort.

    A later version is read as far as it is known. Raises ``BadDataError``.
    """
    if len(key) < _KEY.size or (fields := _KEY.unpack_from(key))[0] < 0:
        raise BadDataError(f"the key of a control record is not well-formed: {key.hex()}")
    return {_COMMIT: True, _ABORT: False}.get(fields[1])


def decode_coordinator_epoch(value: bytes) -> int:
    """Return the coordinator epoch of a marker's value; raises ``BadDataError``."""
    if len(value) < _VALUE.size or (fields := _VALUE.unpack_from(value))[0] < 0:
        raise BadDataError(f"the value of a transaction marker is not well-formed: {value.hex()}")
    epoch: int = fields[1]
    return epoch
