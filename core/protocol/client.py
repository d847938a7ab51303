"""Requests of Kafka clients about partitions, independent of the version of the protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from regent.core.errors import Errors
from regent.core.model import NO_EPOCH, TopicPartition
from regent.core.protocol.control import TopicId
from regent.core.records import NO_RECORDS, Records
from regent.core.replica_logs import AbortedTransactionStart

ACKS_NONE = 0
ACKS_LEADER = 1
ACKS_ALL = -1
READ_COMMITTED = 1  # the isolation level of readers; 0 is that of all others


class RecordRules(NamedTuple):
    """What a topic asks of the records of producers; a refusal names the start of its log.

    ``max_past_ms`` and ``max_future_ms`` limit how far timestamps may be from the broker's clock;
    None: any are taken.
    """

    needs_keys: bool = False
    max_past_ms: int | None = None
    max_future_ms: int | None = None
    log_start_offset: int = -1


class RecordError(NamedTuple):
    """Why a record of a batch is refused. Mirrors ``ProduceResponse.RecordError``."""

    batch_index: int
    message: str

    def __str__(self) -> str:
        """Return it as Kafka shows it."""
        return f"RecordError(batchIndex={self.batch_index}, message='{self.message}')"


class ProducedPartition(NamedTuple):
    """The outcome of a Produce for one partition."""

    error_code: Errors
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    message: str = ""
    record_errors: Sequence[RecordError] = ()


class ConsumerPosition(NamedTuple):
    """A consumer's position in one partition; an epoch of -1 or a topic id of None: not given."""

    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = NO_EPOCH
    last_fetched_epoch: int = NO_EPOCH
    topic_id: TopicId | None = None


@dataclass(frozen=True, slots=True)
class ConsumerFetch:
    """A consumer's Fetch: waits for ``min_bytes`` of records in all, at most until its timeout.

    ``from_followers``: a follower answers, too, up to the high watermark that it knows.
    ``is_read_committed``: only up to the last stable offset, with the aborted transactions.
    """

    positions: Mapping[TopicPartition, ConsumerPosition]  # in the order of the request
    min_bytes: int = 1
    max_bytes: int = 2**31 - 1
    from_followers: bool = False
    is_read_committed: bool = False


class ConsumedPartition(NamedTuple):
    """The answer to a consumer for one partition; never beyond the high watermark.

    ``diverging_epoch`` is as in ``FetchedPartition``. ``aborted``: the aborted transactions among
    the records, for a reader of committed records.
    """

    error_code: Errors
    high_watermark: int = -1
    log_start_offset: int = -1
    records: Records = NO_RECORDS
    diverging_epoch: int = NO_EPOCH
    diverging_end_offset: int = -1
    last_stable_offset: int = -1
    aborted: Sequence[AbortedTransactionStart] = ()


class OffsetQuery(NamedTuple):
    """ListOffsets for one partition: a time in milliseconds, or one of Kafka's negative numbers.

    Records before ``from_offset`` are not searched. ``max_num_offsets``: of version 0, which asks
    for the offsets at which segments begin. ``is_read_committed``: only up to the last stable
    offset. ``is_of_follower``: up to the end of the log.
    """

    timestamp_ms: int
    current_leader_epoch: int = NO_EPOCH
    from_offset: int = 0
    max_num_offsets: int | None = None
    is_read_committed: bool = False
    is_of_follower: bool = False


class ListedOffset(NamedTuple):
    """The answer to an ``OffsetQuery``; offset -1: no record is at or after the time.

    ``batch``: the record is in this batch, at ``offset`` or after it. None: it was not searched.
    """

    error_code: Errors
    timestamp_ms: int = -1
    offset: int = -1
    leader_epoch: int = NO_EPOCH
    batch: Records | None = None
    old_style_offsets: Sequence[int] = ()


class EpochQuery(NamedTuple):
    """OffsetForLeaderEpoch for one partition."""

    leader_epoch: int
    current_leader_epoch: int = NO_EPOCH


class EpochEnd(NamedTuple):
    """The answer to an ``EpochQuery``; -1, -1: unknown."""

    error_code: Errors
    leader_epoch: int = NO_EPOCH
    end_offset: int = -1


class DeletedRecords(NamedTuple):
    """The outcome of DeleteRecords for one partition."""

    error_code: Errors
    low_watermark: int = -1
