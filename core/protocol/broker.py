"""Requests to a broker: Fetch of followers; its metadata cache and its shutdown, for commands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from regent.core.errors import Errors
from regent.core.model import NO_EPOCH, UNKNOWN_BROKER_EPOCH, BrokerId, TopicPartition
from regent.core.protocol.control import TopicId, UpdateMetadataBroker
from regent.core.records import NO_RECORDS, Records


@dataclass(frozen=True, slots=True)
class DescribeMetadataRequest:
    """Asks a broker for its metadata cache; ``topics`` None: all."""

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


class FollowerPace(NamedTuple):
    """How soon a follower asked this broker again after each answer, in the last minute (ms).

    ``slowest_ms``: 99 of 100 took no longer. ``slow``: how many took more than half a second.
    ``silent_ms``: how long ago the last answer was, if it has not asked again. ``isr_shrinks``: how
    often this broker took it out of an ISR since its start. ``absent_ms``: how much of the minute
    this broker waited for it, where it took more than 200 ms.
    """

    broker_id: BrokerId
    fetches: int
    median_ms: int
    slowest_ms: int
    slow: int
    silent_ms: int
    isr_shrinks: int = 0
    absent_ms: int = 0


class Traffic(NamedTuple):
    """What clients have written to a broker and read from it since its start."""

    messages_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


NO_TRAFFIC: Final = Traffic()


@dataclass(frozen=True, slots=True)
class DescribeMetadataResponse:
    """A broker's metadata cache, its state, its warnings, one line each, and its followers.

    ``now_ms``: its wall clock; -1: it is an older broker.
    """

    error_code: Errors
    broker_id: BrokerId
    broker_state: str
    controller_id: BrokerId  # -1 = none known
    controller_epoch: int
    brokers: tuple[UpdateMetadataBroker, ...] = ()
    partitions: tuple[MetadataPartition, ...] = ()
    warnings: tuple[str, ...] = ()
    followers: tuple[FollowerPace, ...] = ()
    traffic: Traffic = NO_TRAFFIC
    now_ms: int = -1


@dataclass(frozen=True, slots=True)
class ShutdownBrokerRequest:
    """Asks a broker for a controlled shutdown; answered before the process ends."""


@dataclass(frozen=True, slots=True)
class ShutdownBrokerResponse:
    """The partitions that the controller could not move; the broker stops anyway."""

    error_code: Errors
    remaining_partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class HoldDeletedLogsRequest:
    """Asks a broker to keep its deleted logs of a topic until the topic comes back."""

    topic: str
    topic_id: TopicId
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HoldDeletedLogsResponse:
    """The partitions whose logs the broker keeps, and the broker epoch in which it says so."""

    error_code: Errors
    broker_id: BrokerId
    broker_epoch: int = -1
    held: tuple[int, ...] = ()


class JournalPosition(NamedTuple):
    """Where a line of a journal begins: the number of its file, and the offset in bytes."""

    file_number: int
    offset: int


@dataclass(frozen=True, slots=True)
class DescribeEventsRequest:
    """Asks a broker for a part of the journal of its controller, at most ``max_bytes`` of it.

    ``position`` is that of the last answer. None: the part begins with the journal, or near the
    first event after ``since_ms`` (wall clock), or not before the last ``last_bytes`` bytes.
    """

    position: JournalPosition | None = None
    since_ms: int = 0
    last_bytes: int | None = None
    max_bytes: int = 1024 * 1024


@dataclass(frozen=True, slots=True)
class DescribeEventsResponse:
    """Complete lines of a journal, and the position of the next one.

    ``is_end``: there are no more lines now. ``is_cut``: ``last_bytes`` left out earlier ones.
    ``unreadable`` lines are damaged, or too long, and left out.
    """

    error_code: Errors
    broker_id: BrokerId
    lines: tuple[str, ...] = ()
    position: JournalPosition | None = None
    is_end: bool = True
    is_cut: bool = False
    unreadable: int = 0


class FetchPartition(NamedTuple):
    """The position of a follower in one partition.

    ``current_leader_epoch``: the leader epoch in which it follows. ``last_fetched_epoch``: the
    leader epoch of its last record; -1: its log is empty. The answer has at most ``max_bytes`` of
    the partition.
    """

    partition_index: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FetchTopic:
    """The partitions of one topic in a Fetch request."""

    topic_name: str
    topic_id: TopicId | None
    partitions: tuple[FetchPartition, ...]


@dataclass(frozen=True, slots=True)
class ForgottenTopic:
    """Partitions of one topic that leave a fetch session; ``topic_name`` None: it is unknown."""

    topic_name: str | None
    partitions: tuple[int, ...]
    topic_id: TopicId | None = None


NO_SESSION_ID = 0
SESSIONLESS_EPOCH = -1  # this fetch belongs to no session
INITIAL_SESSION_EPOCH = 0  # this fetch lists all partitions and asks for a session
# After these errors a follower begins a new session at once.
SESSION_ERRORS = frozenset(
    {
        Errors.FETCH_SESSION_ID_NOT_FOUND,
        Errors.INVALID_FETCH_SESSION_EPOCH,
        Errors.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Asks a leader for the records after a follower's positions (Kafka api 1).

    ``replica_epoch`` is the follower's broker epoch (KIP-903). In a session (KIP-227) ``topics``
    has only the partitions that are new, or whose position changed since the last fetch.
    ``session_epoch`` counts the fetches of the session, so that a lost one is noticed. The leader
    may wait ``max_wait_ms`` with the answer while there are fewer than ``min_bytes`` of records.
    The answer has at most ``max_bytes`` in all; only its first batch may be larger.
    ``names_topics``: the topics of the session are known by name, because one of them has no id.
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
    names_topics: bool = False

    @property
    def is_incremental(self) -> bool:
        """Whether it lists only what changed in its session."""
        return self.session_epoch > INITIAL_SESSION_EPOCH

    def partitions(self) -> Iterator[tuple[TopicPartition, FetchPartition]]:
        """Yield every partition with the follower's position."""
        for topic in self.topics:
            for row in topic.partitions:
                yield TopicPartition(topic.topic_name, row.partition_index), row


class FetchedPartition(NamedTuple):
    """The leader's answer for one partition.

    ``diverging_epoch`` is not -1 when the follower's log diverges from the leader's: the follower
    must truncate its log to ``diverging_end_offset`` (KIP-595). With OFFSET_OUT_OF_RANGE,
    ``log_start_offset`` and ``log_end_offset`` are those of the leader's log.
    """

    partition_index: int
    error_code: Errors
    high_watermark: int
    log_start_offset: int
    diverging_epoch: int = NO_EPOCH
    diverging_end_offset: int = -1
    log_end_offset: int = -1
    records: Records = NO_RECORDS


@dataclass(frozen=True, slots=True)
class FetchedTopic:
    """The partitions of one topic in a Fetch response."""

    topic_name: str
    partitions: tuple[FetchedPartition, ...]
    topic_id: TopicId | None = None


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """Answer to Fetch; in a session it lists only partitions with records, changes or errors.

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
