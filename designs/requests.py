"""Requests to the brokers of the designs before the controller (``designs``)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from regent.core.errors import Errors
from regent.core.model import BrokerId, TopicPartition


class FetchRecords(NamedTuple):
    """A follower has everything before ``offset``, and knows this high watermark.

    The answer waits at the leader until there are records, or the high watermark has moved.
    ``turn`` comes back with it: a follower ignores answers to its former leaderships.
    """

    topic_partition: TopicPartition
    follower: BrokerId
    turn: int
    offset: int
    high_watermark: int


class RecordsFetched(NamedTuple):
    """``records`` begin at the offset that was asked for; ``is_leader`` False: ask another broker.

    Records are text.
    """

    topic_partition: TopicPartition
    turn: int
    is_leader: bool
    high_watermark: int = 0
    records: tuple[str, ...] = ()


ReplicaMail: TypeAlias = FetchRecords | RecordsFetched


@dataclass(frozen=True, slots=True)
class DeliverMailRequest:
    """Messages of the replicas of one broker to those of another."""

    fetches: tuple[FetchRecords, ...] = ()
    fetched: tuple[RecordsFetched, ...] = ()


@dataclass(frozen=True, slots=True)
class DeliverMailResponse:
    """Another ``incarnation`` than before: the broker has started again and forgotten fetches."""

    error_code: Errors
    incarnation: int


class ReplicaRole(IntEnum):
    """What a replica believes it is."""

    NONE = 0
    FOLLOWER = 1
    LEADER = 2


class Belief(NamedTuple):
    """What a replica believes about its partition, since when (monotonic milliseconds), its log."""

    topic_partition: TopicPartition
    role: ReplicaRole
    leader: BrokerId | None
    since_ms: int
    log_end_offset: int


class EndedLeadership(NamedTuple):
    """A replica believed from then to then that it led (monotonic milliseconds)."""

    topic_partition: TopicPartition
    since_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class DescribeReplicasRequest:
    """Asks a broker what its replicas believe.

    ``dead``: brokers that cannot lead. Without ``with_beliefs`` the answer has only counts: to
    list ten thousand replicas takes a broker as long as many of their elections.
    """

    dead: tuple[BrokerId, ...] = ()
    with_beliefs: bool = True


@dataclass(frozen=True, slots=True)
class DescribeReplicasResponse:
    """What the replicas believe, and what the broker counted since it started."""

    error_code: Errors
    replicas: int = 0
    without_leader: int = 0  # replicas that know no live leader
    beliefs: tuple[Belief, ...] = ()
    ended: tuple[EndedLeadership, ...] = ()  # the latest, also without beliefs
    zookeeper_reads: int = 0
    zookeeper_writes: int = 0
    watches_set: int = 0
    watches_fired: int = 0
    listeners_called: int = 0
    mail_sent: int = 0  # requests to other brokers
    appends_acknowledged: int = 0  # AppendRecords requests whose records are committed
    appends_refused: int = 0


@dataclass(frozen=True, slots=True)
class AppendRecordsRequest:
    """Records for the leader of a partition; answered when they are committed or refused."""

    topic_partition: TopicPartition
    records: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AppendRecordsResponse:
    """NONE: committed. NOT_LEADER_OR_FOLLOWER: refused."""

    error_code: Errors


DesignsRequest: TypeAlias = DeliverMailRequest | DescribeReplicasRequest | AppendRecordsRequest
