"""An aborted transaction as the index of a segment, ``.txnindex``, has it.

Mirrors ``org.apache.kafka.storage.internals.log.AbortedTxn``.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from regent.core.errors import BadDataError

_VERSION: Final = 0
_ENTRY: Final = struct.Struct(">hqqqq")

ABORTED_TRANSACTION_BYTES: Final = _ENTRY.size


class AbortedTransaction(NamedTuple):
    """A transaction with the offsets of its first record and of its marker.

    ``last_stable_offset`` is that of the partition when the marker had been appended.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def encode(self) -> bytes:
        """Return the entry of an index."""
        return _ENTRY.pack(_VERSION, *self)


def decode_aborted_transaction(data: bytes) -> AbortedTransaction:
    """Return an entry; raises ``BadDataError``."""
    if len(data) != _ENTRY.size:
        raise BadDataError(f"an entry of a transaction index has {len(data)} bytes")
    version, *fields = _ENTRY.unpack(data)
    if not 0 <= version <= _VERSION:
        raise BadDataError(f"an entry of a transaction index has the unknown version {version}")
    return AbortedTransaction(*fields)
