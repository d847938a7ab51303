"""The records of ``__transaction_state``: keys and values as bytes, in Kafka's formats.

A key begins with its kind, 0: a transactional id. A value begins with its version. Version 0 is
written; version 1, which is flexible, is read too. Mirrors
``kafka.coordinator.transaction.TransactionLog``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, TypeAlias

from regent.core.coordinator.record_fields import (
    INT8,
    INT16,
    INT32,
    INT64,
    RecordReader,
    string_field,
)
from regent.core.coordinator.transaction.transaction_metadata import (
    EMPTY,
    TransactionMetadata,
    TransactionState,
    TxnTransitMetadata,
)
from regent.core.errors import BadDataError
from regent.core.model import TopicPartition

_KIND: Final = 0
_VERSION: Final = 0
_FLEXIBLE: Final = 1
_NULL: Final = -1
_STATES: Final = tuple(TransactionState)  # a state's number is its position

EncodedRecord: TypeAlias = tuple[bytes, bytes | None]
"""A key with its value; None: a tombstone."""


@dataclass(frozen=True, slots=True)
class StoredTransaction:
    """The value of a record; ``partitions`` None: null, as in Empty."""

    producer_id: int
    producer_epoch: int
    txn_timeout_ms: int
    state: TransactionState
    partitions: tuple[tuple[str, tuple[int, ...]], ...] | None
    txn_last_update_timestamp_ms: int
    txn_start_timestamp_ms: int

    @classmethod
    def of(cls, transit: TxnTransitMetadata) -> StoredTransaction:
        """Return what is written of a transition."""
        by_topic = groupby(sorted(transit.topic_partitions), lambda row: row.topic)
        partitions = tuple(
            (topic, tuple(row.partition for row in rows)) for topic, rows in by_topic
        )
        return cls(
            transit.producer_id,
            transit.producer_epoch,
            transit.txn_timeout_ms,
            transit.state,
            None if transit.state is EMPTY else partitions,
            transit.txn_last_update_timestamp_ms,
            transit.txn_start_timestamp_ms,
        )

    def metadata(self, transactional_id: str) -> TransactionMetadata:
        """Return what a coordinator knows when it has read this."""
        return TransactionMetadata(
            transactional_id,
            self.producer_id,
            self.producer_epoch,
            self.txn_timeout_ms,
            self.state,
            {
                TopicPartition(topic, number)
                for topic, numbers in self.partitions or ()
                for number in numbers
            },
            self.txn_start_timestamp_ms,
            self.txn_last_update_timestamp_ms,
        )


def encode_transaction_key(transactional_id: str) -> bytes:
    """Return the bytes of a key."""
    return INT16.pack(_KIND) + string_field(transactional_id)


def encode_transaction(value: StoredTransaction) -> bytes:
    """Return the bytes of a value, in version 0."""
    pieces = [
        INT16.pack(_VERSION),
        INT64.pack(value.producer_id),
        INT16.pack(value.producer_epoch),
        INT32.pack(value.txn_timeout_ms),
        INT8.pack(_STATES.index(value.state)),
        INT32.pack(_NULL if value.partitions is None else len(value.partitions)),
    ]
    for topic, numbers in value.partitions or ():
        pieces += (string_field(topic), INT32.pack(len(numbers)), *map(INT32.pack, numbers))
    pieces += (
        INT64.pack(value.txn_last_update_timestamp_ms),
        INT64.pack(value.txn_start_timestamp_ms),
    )
    return b"".join(pieces)


def decode_transaction_key(data: bytes) -> str | None:
    """Return a transactional id; None: a key of an unknown kind. Raises ``BadDataError``."""
    reader = RecordReader(data)
    return reader.string() if reader.int16() == _KIND else None


def decode_transaction(data: bytes) -> StoredTransaction:
    """Return a value; raises ``BadDataError``."""
    reader = RecordReader(data)
    reader.version(_FLEXIBLE, "a transaction")

    def topic() -> tuple[str, tuple[int, ...]]:
        row = reader.string(), tuple(reader.array(reader.int32))
        reader.end_struct()
        return row

    producer_id, producer_epoch = reader.int64(), reader.int16()
    timeout_ms, number = reader.int32(), reader.int8()
    if not 0 <= number < len(_STATES):
        raise BadDataError(f"a record of a transaction has the unknown state {number}")
    partitions = reader.nullable_array(topic)
    return StoredTransaction(
        producer_id,
        producer_epoch,
        timeout_ms,
        _STATES[number],
        None if partitions is None else tuple(partitions),
        reader.int64(),
        reader.int64(),
    )


class TransactionLoader:
    """Takes the batches of a partition of ``__transaction_state`` in the order of the log.

    Most records are replaced by later ones, so that keys and values stay bytes until the end.
    """

    def __init__(self) -> None:
        self._newest: dict[bytes, bytes] = {}
        self.problems: list[str] = []
        """What could not be read, and was left out."""

    def add_batch(self, records: Iterable[EncodedRecord]) -> None:
        """Take the records of a batch."""
        for key, value in records:
            if value is None:
                self._newest.pop(key, None)
            else:
                self._newest[key] = value

    def transactions(self) -> Sequence[TransactionMetadata]:
        """Return what the log says of each transactional id."""
        found = []
        for key, value in self._newest.items():
            try:
                transactional_id = decode_transaction_key(key)
                if transactional_id is not None:
                    found.append(decode_transaction(value).metadata(transactional_id))
            except BadDataError as error:
                self.problems.append(str(error))
        return found
