"""What people, and other brokers, ask a broker: its metadata cache, its end, its records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from regent.core.errors import Errors
from regent.core.model import NO_EPOCH, UNKNOWN_BROKER_EPOCH, BrokerId, TopicPartition
from regent.core.protocol.control import TopicId, UpdateMetadataBroker
from regent.core.records import RecordBytes


@dataclass(frozen=True, slots=True)
class DescribeMetadataRequest:
    """To a broker: what does your metadata cache hold? ``None`` = every topic."""

    topics: tuple[str, ...] | None = None


class MetadataPartition(NamedTuple):
    """One partition in a metadata cache."""

    topic: str
    topic_id: TopicId | None
    partition: int
    leader: BrokerId
    leader_epoch: int
    controller_epoch: int
    isr: tuple[BrokerId, ...]
    replicas: tuple[BrokerId, ...]
    offline_replicas: tuple[BrokerId, ...]
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class DescribeMetadataResponse:
    """A broker's metadata cache, the state the broker is in, and what it warns of, a line each."""

    error_code: Errors
    broker_id: BrokerId
    broker_state: str
    controller_id: BrokerId  # -1 = none known
    controller_epoch: int
    brokers: tuple[UpdateMetadataBroker, ...] = ()
    partitions: tuple[MetadataPartition, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShutdownBrokerRequest:
    """To a broker: shut down in a controlled way; answered before the process ends."""


@dataclass(frozen=True, slots=True)
class ShutdownBrokerResponse:
    """The partitions that the controller could not move; the broker stops anyway."""

    error_code: Errors
    remaining_partitions: tuple[TopicPartition, ...] = ()


class FetchPartition(NamedTuple):
    """Where a follower stands in one partition.

    ``current_leader_epoch`` is the one it follows; ``last_fetched_epoch`` that of its last record,
    -1 for an empty log.
    """

    partition_index: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class FetchTopic:
    """The partitions of one topic in a Fetch request."""

    topic_name: str
    topic_id: TopicId | None
    partitions: tuple[FetchPartition, ...]


@dataclass(frozen=True, slots=True)
class ForgottenTopic:
    """Partitions of one topic that leave a fetch session."""

    topic_name: str
    partitions: tuple[int, ...]


NO_SESSION_ID = 0
SESSIONLESS_EPOCH = -1  # this fetch belongs to no session
INITIAL_SESSION_EPOCH = 0  # this fetch lists everything and wants a session
# The answers to which a follower begins a new session at once.
SESSION_ERRORS = frozenset({Errors.FETCH_SESSION_ID_NOT_FOUND, Errors.INVALID_FETCH_SESSION_EPOCH})


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """To a leader: give me what follows, or hold the answer until there is something (Kafka api 1).

    ``replica_epoch`` is the follower's broker epoch: the incarnation that has the log (KIP-903). In
    a session (KIP-227) ``topics`` are only those partitions that are new or stand elsewhere since
    the fetch before; ``session_epoch`` counts its fetches, so that a lost one is noticed. The
    answer may be held for ``max_wait_ms`` while there are fewer than ``min_bytes`` of records; it
    has at most ``max_bytes`` in all and ``partition_max_bytes`` of one partition, or one batch.
    """

    replica_id: BrokerId
    replica_epoch: int = UNKNOWN_BROKER_EPOCH
    max_wait_ms: int = 0
    topics: tuple[FetchTopic, ...] = ()
    session_id: int = NO_SESSION_ID
    session_epoch: int = SESSIONLESS_EPOCH
    forgotten_topics: tuple[ForgottenTopic, ...] = ()
    min_bytes: int = 1
    max_bytes: int = 10 * 1024 * 1024
    partition_max_bytes: int = 1024 * 1024

    @property
    def is_incremental(self) -> bool:
        """Whether it lists only what changed in its session."""
        return self.session_epoch > INITIAL_SESSION_EPOCH

    def partitions(self) -> Iterator[tuple[TopicPartition, FetchPartition]]:
        """Yield every partition with where the follower stands."""
        for topic in self.topics:
            for row in topic.partitions:
                yield TopicPartition(topic.topic_name, row.partition_index), row

    def forgotten(self) -> Iterator[TopicPartition]:
        """Yield every partition that leaves the session."""
        for topic in self.forgotten_topics:
            for partition in topic.partitions:
                yield TopicPartition(topic.topic_name, partition)


class FetchedPartition(NamedTuple):
    """The leader's answer for one partition.

    ``diverging_epoch`` is not -1 when the follower's log leaves the leader's: it must truncate to
    ``diverging_end_offset`` (KIP-595). With OFFSET_OUT_OF_RANGE ``log_start_offset`` and
    ``log_end_offset`` tell what the leader has.
    """

    partition_index: int
    error_code: Errors
    high_watermark: int
    log_start_offset: int
    diverging_epoch: int = NO_EPOCH
    diverging_end_offset: int = -1
    log_end_offset: int = -1
    records: RecordBytes = b""


@dataclass(frozen=True, slots=True)
class FetchedTopic:
    """The partitions of one topic in a Fetch response."""

    topic_name: str
    partitions: tuple[FetchedPartition, ...]


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """Answer to Fetch; in a session it lists only partitions with something new to say.

    ``session_id`` is not 0 when the leader keeps a session for the next fetch.
    """

    error_code: Errors
    topics: tuple[FetchedTopic, ...] = ()
    session_id: int = NO_SESSION_ID

    def partitions(self) -> Iterator[tuple[TopicPartition, FetchedPartition]]:
        """Yield every partition with its answer."""
        for topic in self.topics:
            for row in topic.partitions:
                yield TopicPartition(topic.topic_name, row.partition_index), row
