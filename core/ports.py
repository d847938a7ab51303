"""The ports of the state machines: narrow synchronous Protocols.

A state machine reads and writes through them while it handles an event. It returns everything else
as effects. ``zk.stores.controller_store`` implements ``ControllerStore``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

from regent.core.errors import BadDataError
from regent.core.model import (
    BrokerId,
    BrokerInfo,
    BrokerRegistration,
    LeaderIsrAndControllerEpoch,
    ReplicaAssignment,
    SuspectReplicas,
    TopicPartition,
)
from regent.core.protocol.control import ControlHeader, TopicId
from regent.core.security.delegation_token_manager import DelegationToken


@dataclass(frozen=True, slots=True)
class ControllerRegistration:
    """``/controller`` as read.

    ``broker_id`` is -1 when the data cannot be decoded. An election creates the node as ephemeral;
    a node that is not ephemeral was written by someone else: a KRaft controller writes it so while
    a cluster is migrated to KRaft (``is_of_kraft``).
    """

    broker_id: BrokerId
    is_own_session: bool
    is_ephemeral: bool
    is_of_kraft: bool = False


class ControllerEpoch(NamedTuple):
    """``/controller_epoch``: the number and the znode version that fences writes."""

    epoch: int
    zk_version: int


class ControlFacts(NamedTuple):
    """What ZooKeeper says about the sender and the receiver of a control request.

    ``controller_id`` holds ``/controller`` in ``controller_epoch``; -1: nobody, or unknown.
    ``broker_epoch`` is that of the receiver's registration in its own session; -1: it has none.
    """

    controller_id: BrokerId
    controller_epoch: int
    broker_epoch: int

    def confirm(self, header: ControlHeader) -> bool:
        """Whether a request with this header is the active controller's for this registration."""
        return self == (header.controller_id, header.controller_epoch, header.broker_epoch)


class WriteError(Enum):
    """Why one conditional write of a batch was refused."""

    BAD_VERSION = "bad version"
    NO_NODE = "no node"
    NODE_EXISTS = "node exists"
    NOT_EMPTY = "not empty"
    NOT_ALLOWED = "not allowed"  # by the ACL, or below an ephemeral node
    TOO_LARGE = "too large"  # ZooKeeper would cut the connection


@dataclass(frozen=True, slots=True)
class TopicAssignment:
    """``/brokers/topics/T`` as read; partitions are in ascending order.

    ``topic_id`` is None when the writer gave none. ``zk_version`` is the condition for writing it
    back, ``created_zxid`` tells a topic from an earlier one of the same name.
    """

    topic_id: TopicId | None
    partitions: Mapping[int, ReplicaAssignment]
    zk_version: int
    created_zxid: int


class DeletedPartition(NamedTuple):
    """A partition when the deletion of its topic began.

    ``isr``: the replicas that have all committed records of it.
    """

    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """What is needed to bring a deleted topic back; times in milliseconds since the epoch.

    Brokers keep the records about until ``until_ms``. ``is_complete``: all replicas were deleted.
    ``zxid`` is that of the last change of what is remembered.
    """

    topic: str
    topic_id: TopicId
    deleted_ms: int
    until_ms: int
    partitions: Mapping[int, DeletedPartition]
    config: Mapping[str, str]
    is_complete: bool = False
    zxid: int = -1


PartitionStates: TypeAlias = Mapping[TopicPartition, LeaderIsrAndControllerEpoch | BadDataError]
"""``state`` znodes as read; their versions are the partition epochs. Absent ones have no entry."""


IsKept: TypeAlias = Callable[[str, TopicId | None], bool]
"""Whether a topic to be deleted stays after all, now that its znode can be decoded."""


class ControllerFailure(NamedTuple):
    """A topic or an event whose handling raised an unexpected exception, which ended a term.

    ``what`` is ``topic T`` or the name of the event; ``event`` is what was handled, ``error`` what
    was raised. ``controllers`` is how many terms it ended; all but the first of these terms count
    only if it ended them within their first minute.
    """

    what: str
    event: str
    error: str
    controllers: int
    broker_id: BrokerId
    controller_epoch: int


class StoredToken(NamedTuple):
    """A delegation token as read; ``zk_version`` is the condition for deleting it."""

    token: DelegationToken
    zk_version: int


class ControllerStore(Protocol):
    """ZooKeeper as the controller sees it.

    Every call raises ``SessionExpiredError`` when the session is over; it retries by itself after a
    connection loss. Every write marked *fenced* takes effect only while ``/controller_epoch`` still
    has version ``epoch_zk_version`` and no controller was elected since ``register_controller``
    succeeded, and raises ``ControllerMovedError`` otherwise (some writes of the batch may have been
    applied by then). Mirrors ``kafka.zk.KafkaZkClient``.
    """

    # --- election ---

    def read_controller(self) -> ControllerRegistration | None:
        """Read ``/controller`` and watch it, whether it exists or not."""
        ...

    def read_controller_epoch(self) -> ControllerEpoch | None:
        """Read ``/controller_epoch``; None when it was never created."""
        ...

    def check_lists(self) -> None:
        """Raise ``UnreadableError`` when brokers or topics cannot be listed now."""
        ...

    def create_controller_epoch(self) -> None:
        """Create ``/controller_epoch`` with 0 unless it exists."""
        ...

    def register_controller(
        self,
        broker_id: BrokerId,
        current: ControllerEpoch,
        now_ms: int,
        *,
        accepted_epoch: int = 0,
        replaces: bool = False,
    ) -> ControllerEpoch | None:
        """Create ``/controller``, raise ``/controller_epoch``, begin a term in one transaction.

        With ``replaces`` the same transaction takes ``/controller`` from the controller of the
        epoch ``current``.
        The new epoch is above ``current`` and above ``accepted_epoch``, the highest one this broker
        has accepted. Returns None when another broker holds the node or raised the epoch first.
        Raises ``ForeignDirectoryError`` when ZooKeeper is not of our cluster.
        """
        ...

    def raise_controller_epoch(
        self, broker_id: BrokerId, epoch: int, epoch_zk_version: int
    ) -> ControllerEpoch:
        """Replace ``/controller_epoch`` by a higher one while ``/controller`` is ours (fenced)."""
        ...

    def delete_controller(self, epoch_zk_version: int) -> None:
        """Delete ``/controller``; no-op if it is absent.

        Raises ``ControllerMovedError`` unless ``/controller_epoch`` has version
        ``epoch_zk_version``. No term is checked: a candidate, which has none, may delete it too.
        """
        ...

    # --- brokers ---

    def register_broker(self, info: BrokerInfo, suspects: SuspectReplicas) -> int:
        """Create ``/brokers/ids/N``, watch it, and return the broker epoch.

        A controller that sees the broker also sees its suspect replicas. Idempotent within a
        session.
        Raises ``BrokerIdInUseError`` while another session owns it, and ``ForeignDirectoryError``
        when ZooKeeper is not of our cluster.
        """
        ...

    def renew_registration(self, broker_id: BrokerId) -> int | None:
        """Replace our registration by an equal one, and return its broker epoch.

        One transaction does it, so that the broker is never missing. None: no controller of Kafka
        rules, or this session has no registration; nothing is changed.
        """
        ...

    def publish_suspects(self, info: BrokerInfo, suspects: SuspectReplicas) -> bool:
        """Write which replicas are suspect; return False if the broker is not registered."""
        ...

    def read_brokers(self) -> Mapping[BrokerId, BrokerRegistration | BadDataError]:
        """Read every registration, ascending by id.

        Watches the list and every registration. Raises ``UnreadableError`` when the list itself
        cannot be read: that is not an empty list.
        """
        ...

    def read_broker(self, broker_id: BrokerId) -> BrokerRegistration | BadDataError | None:
        """Read one registration and watch it."""
        ...

    # --- topics ---

    def read_topic_names(self) -> tuple[str, ...]:
        """List the topics, sorted, and watch the list.

        Raises ``UnreadableError``, as ``read_brokers``.
        """
        ...

    def read_topics(self, topics: Collection[str]) -> Mapping[str, TopicAssignment | BadDataError]:
        """Read and watch topic znodes; topics without one have no entry."""
        ...

    def write_topics(
        self, topics: Mapping[str, TopicAssignment], epoch_zk_version: int
    ) -> Mapping[str, int | WriteError]:
        """Replace topic znodes whose version is the given ``zk_version`` (fenced).

        The outcome of each is its new version, or BAD_VERSION, or NO_NODE.
        """
        ...

    def read_unclean_leader_election(
        self, topics: Collection[str]
    ) -> Mapping[str, bool | BadDataError]:
        """Read ``unclean.leader.election.enable`` of each topic; no entry: not overridden."""
        ...

    def read_min_insync_replicas(self, topics: Collection[str]) -> Mapping[str, int]:
        """Read ``min.insync.replicas`` of each topic, or else that of all brokers.

        No entry: neither is set, or the text is not valid.
        """
        ...

    def read_config_zxids(self, topics: Collection[str]) -> Mapping[str, int]:
        """Read the zxid of the last change of each topic's configuration, or of all brokers'."""
        ...

    def assign_topic_ids(
        self, topics: Mapping[str, TopicAssignment], epoch_zk_version: int
    ) -> Mapping[str, int | WriteError]:
        """Replace topic znodes as ``write_topics`` does.

        Note the ids, too, of topics that have states. The first state of the others does that.
        """
        ...

    def read_noted_topic_id(self, topic: str) -> TopicId | None:
        """Return the topic id that was noted for a topic with states; None: there is none.

        Raises ``UnreadableError``.
        """
        ...

    def note_coordinated_partitions(
        self, present: Mapping[str, int], epoch_zk_version: int
    ) -> Mapping[str, int]:
        """Return over how many partitions the keys of internal topics are spread (fenced).

        ``present`` has how many partitions each topic has now. That number is noted, once, for a
        topic that has states without it. A topic whose note an ACL hides has no entry.
        """
        ...

    # --- partition states ---

    def read_partition_states(self, partitions: Collection[TopicPartition]) -> PartitionStates:
        """Read ``state`` znodes in bulk."""
        ...

    def read_partition_states_with_zxids(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[PartitionStates, Mapping[TopicPartition, int]]:
        """Read ``state`` znodes in bulk, and the zxid of the last write of each."""
        ...

    def create_partition_states(
        self,
        states: Mapping[TopicPartition, LeaderIsrAndControllerEpoch],
        epoch_zk_version: int,
        topic_ids: Mapping[str, TopicId | None] | None = None,
        coordinated_partitions: Mapping[str, int] | None = None,
    ) -> Mapping[TopicPartition, int | WriteError]:
        """Create ``state`` znodes and their parents (fenced).

        ``topic_ids`` are noted in ``/brokers/topics/T/partitions``, with the first state of T, as
        are the ``coordinated_partitions`` of internal topics.
        The outcome of each is its partition epoch (0), or NODE_EXISTS, or NO_NODE when the topic
        znode is gone.
        """
        ...

    def update_partition_states(
        self,
        states: Mapping[TopicPartition, LeaderIsrAndControllerEpoch],
        epoch_zk_version: int,
    ) -> Mapping[TopicPartition, int | WriteError]:
        """Replace ``state`` znodes whose version is the given ``partition_epoch`` (fenced).

        The outcome of each is its new partition epoch, or BAD_VERSION, or NO_NODE.
        """
        ...

    # --- watches ---

    @property
    def unreadable(self) -> Mapping[str, str]:
        """The lists and request nodes that could not be read at the last attempt, and why.

        They count as empty, except where a method raises ``UnreadableError``.
        """
        ...

    def unwatch_all_but_controller(self) -> None:
        """Remove every watch that only the active controller needs.

        ``/controller`` and our own registration stay watched. Never raises: when the session is
        over, its watches are gone anyway.
        """
        ...

    # --- deletion of topics ---

    def read_topics_to_delete(self) -> Mapping[str, int]:
        """List the topics queued for deletion, sorted, and watch the list.

        The value is the zxid at which the request znode was created.
        """
        ...

    def read_refused_deletions(
        self, requests: Mapping[str, int], broker_id: BrokerId, *, is_enabled: bool
    ) -> Collection[str]:
        """Return the topics whose deletion was not allowed when it was requested.

        These are the protected topics; all of them if ``delete.topic.enable`` is false. It is
        ``is_enabled`` where neither this broker nor all brokers override it. ``requests``: topics,
        and the zxids of their requests. A request that is older than the last change of its
        settings counts as allowed: a former controller may have deleted replicas already.
        """
        ...

    def delete_topic_deletions(self, topics: Collection[str], epoch_zk_version: int) -> None:
        """Delete the requests to delete these topics (fenced); absent ones are skipped."""
        ...

    def delete_topics(
        self, topics: Mapping[str, int], epoch_zk_version: int, is_kept: IsKept | None = None
    ) -> frozenset[str]:
        """Delete topics with all znodes below them, their configurations and deletion requests.

        The value is the largest zxid at which the topic may have been created. A later topic of
        that name stays, with its configuration, and so does a later deletion request. Fenced.
        Children are deleted first; topic, configuration and request are deleted together, so that
        the next controller continues after a crash. Returns the topics whose deletion is complete.
        It is not complete while others create znodes below the topic, when a later topic of that
        name is queued for deletion too, when the topic cannot be read, and when ``is_kept``. With
        ``is_kept`` nothing is deleted of a topic that was written after that was asked.
        """
        ...

    # --- deleted topics that can come back ---

    def read_deleted_topics(
        self, topic_ids: Collection[TopicId] | None = None
    ) -> Mapping[TopicId, DeletedTopic | BadDataError]:
        """Read what is remembered of deleted topics; None: of all. Watches nothing."""
        ...

    def remember_deleted_topics(
        self, topics: Collection[DeletedTopic], epoch_zk_version: int
    ) -> frozenset[TopicId]:
        """Write what is needed to bring topics back (fenced).

        The settings in ZooKeeper are remembered, not those in ``topics``, unless the topic is
        remembered already. Returns the topics that are remembered: not those that are too large to
        be brought back by one transaction.
        """
        ...

    def forget_deleted_topics(self, topic_ids: Collection[TopicId], epoch_zk_version: int) -> None:
        """Forget deleted topics (fenced); absent ones are skipped."""
        ...

    def restore_topic(
        self,
        deleted: DeletedTopic,
        states: Mapping[TopicPartition, LeaderIsrAndControllerEpoch],
        epoch_zk_version: int,
    ) -> WriteError | None:
        """Write a topic, its settings and states, and forget its deletion, at once (fenced).

        NODE_EXISTS: there is a topic of that name. NO_NODE: the deletion is forgotten. After a lost
        answer the write may be refused because its first attempt succeeded.
        """
        ...

    # --- /admin/reassign_partitions ---

    def read_reassignments(
        self,
    ) -> Mapping[TopicPartition, tuple[BrokerId, ...]] | BadDataError | None:
        """Read the requested target replicas and watch the node; None: there is no such node."""
        ...

    def remove_reassignments(
        self, settled: Mapping[TopicPartition, tuple[BrokerId, ...]], epoch_zk_version: int
    ) -> None:
        """Remove the entries that still have these targets (fenced); absent ones are skipped.

        A node without entries, or with data that cannot be decoded, is deleted.
        """
        ...

    def watch_partition_states(self, partitions: Collection[TopicPartition]) -> None:
        """Watch ``state`` znodes; needed when leaders write ISRs to ZooKeeper themselves."""
        ...

    def unwatch_partition_states(self, partitions: Collection[TopicPartition]) -> None:
        """Remove the watches of ``watch_partition_states``."""
        ...

    # --- /admin/preferred_replica_election ---

    def read_preferred_elections(self) -> tuple[TopicPartition, ...] | BadDataError | None:
        """Read the requested elections and watch the node; None when there is no such node."""
        ...

    def delete_preferred_elections(self, epoch_zk_version: int) -> None:
        """Delete the node (fenced), if it exists."""
        ...

    # --- notifications of brokers ---
    #
    # The key is the name of the notification's node. A notification that cannot be decoded has an
    # empty value, and is deleted like the others.

    def read_isr_changes(self) -> Mapping[str, tuple[TopicPartition, ...]]:
        """Read the partitions whose ISR leaders changed, oldest first, and watch the list."""
        ...

    def delete_isr_changes(self, names: Collection[str], epoch_zk_version: int) -> None:
        """Delete notifications (fenced); absent ones are skipped."""
        ...

    def read_log_dir_events(self) -> Mapping[str, BrokerId]:
        """Read the brokers whose log directories failed, oldest first, and watch the list.

        The value is -1 when the notification cannot be decoded.
        """
        ...

    def delete_log_dir_events(self, names: Collection[str], epoch_zk_version: int) -> None:
        """Delete notifications (fenced); absent ones are skipped."""
        ...

    # --- delegation tokens ---

    def read_delegation_tokens(
        self, after: str, limit: int
    ) -> tuple[Sequence[StoredToken], str | None]:
        """Read at most ``limit`` tokens whose ids follow ``after``, in the sequence of their ids.

        The second value is the ``after`` with which to go on; None: there are no more. Tokens that
        cannot be read or decoded are left out. Watches nothing.
        """
        ...

    def delete_delegation_tokens(
        self, tokens: Collection[StoredToken], epoch_zk_version: int
    ) -> None:
        """Delete tokens with a notification for each (fenced).

        A token that was written since it was read stays, and absent ones are skipped.
        """
        ...

    # --- /regent/controller_failures ---

    def read_failures(self) -> Sequence[ControllerFailure]:
        """Read the failures that ended controllers, oldest first, and watch for changes."""
        ...

    def change_failures(
        self,
        change: Callable[[Sequence[ControllerFailure]], Sequence[ControllerFailure]],
        epoch_zk_version: int,
    ) -> None:
        """Replace the list by what ``change`` returns (fenced); it may be called repeatedly."""
        ...


class TopicIds(Protocol):
    """The source of topic ids; a simulation has its own, so that its runs can be repeated."""

    def new_topic_id(self) -> TopicId:
        """Return a topic id never returned before."""
        ...

    def last_known(self, topic: str) -> TopicId | None:
        """Return the id that this broker last learnt for a topic of that name; None: none."""
        ...
