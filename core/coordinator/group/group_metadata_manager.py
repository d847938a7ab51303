"""The groups of this coordinator: which partitions it owns, what it stores and reads.

A group belongs to a partition of ``__consumer_offsets``, and to the leader of that partition. The
leader reads the log of the partition before it answers. A *term* is the leader epoch with which its
leadership began. Every append names the term, so that nothing is written that was decided on what
the coordinator knew in an earlier one. Mirrors ``kafka.coordinator.group.GroupMetadataManager``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from regent.core.coordinator.group.consumer_protocol import CONSUMER
from regent.core.coordinator.group.group_loading import LoadedGroup
from regent.core.coordinator.group.group_metadata import (
    DEAD,
    EMPTY,
    STABLE,
    GroupMetadata,
    MemberMetadata,
)
from regent.core.coordinator.group.group_records import (
    GroupKey,
    OffsetKey,
    Record,
    StoredGroup,
    StoredMember,
)
from regent.core.coordinator.owned_partitions import OwnedPartitions
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.groups import (
    NO_TIMESTAMP,
    CommitOffsets,
    DeleteOffsetsResult,
    FetchedOffset,
    FetchOffsetsResult,
    OffsetAndMetadata,
    SupportedProtocol,
    VerifiedProducer,
)
from regent.core.protocol.messages.groups import ListedGroup, ListGroupsResponse
from regent.core.setting import INT_MAX

ACKS_ALL: Final = -1
_CLASSIC: Final = "classic"
"""The type of all groups; KIP-848 has another."""
ACKS_NONE: Final = 0
_NOTHING_LATER: Final = 2**63 - 1
"""Stands for the offset of a tombstone that need not be written: no record follows it."""

Respond = Callable[[Errors], None]
RespondToAppend = Callable[[Errors, int], None]

_COMMIT_ERRORS: Final[Mapping[Errors, Errors]] = {
    Errors.UNKNOWN_TOPIC_OR_PARTITION: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.NOT_ENOUGH_REPLICAS: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.NOT_LEADER_OR_FOLLOWER: Errors.NOT_COORDINATOR,
    Errors.KAFKA_STORAGE_ERROR: Errors.NOT_COORDINATOR,
    Errors.MESSAGE_TOO_LARGE: Errors.INVALID_COMMIT_OFFSET_SIZE,
    Errors.RECORD_LIST_TOO_LARGE: Errors.INVALID_COMMIT_OFFSET_SIZE,
    Errors.INVALID_FETCH_SIZE: Errors.INVALID_COMMIT_OFFSET_SIZE,
    Errors.NETWORK_EXCEPTION: Errors.COORDINATOR_LOAD_IN_PROGRESS,
}
_STORE_ERRORS: Final[Mapping[Errors, Errors]] = {
    **_COMMIT_ERRORS,
    Errors.MESSAGE_TOO_LARGE: Errors.UNKNOWN_SERVER_ERROR,
    Errors.RECORD_LIST_TOO_LARGE: Errors.UNKNOWN_SERVER_ERROR,
    Errors.INVALID_FETCH_SIZE: Errors.UNKNOWN_SERVER_ERROR,
    Errors.REQUEST_TIMED_OUT: Errors.REBALANCE_IN_PROGRESS,
}


@dataclass(frozen=True)
class GroupConfig:
    """Kafka's settings and defaults, and two limits of the bytes that members may tell."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = INT_MAX
    group_max_bytes: int = 64 * 1024 * 1024
    group_coordinator_max_bytes: int = 256 * 1024 * 1024
    group_initial_rebalance_delay_ms: int = 3_000
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_minutes: int = 7 * 24 * 60

    @property
    def offsets_retention_ms(self) -> int:
        """How long positions are kept."""
        return self.offsets_retention_minutes * 60_000


@dataclass(frozen=True)
class GroupLogSettings:
    """How positions are stored: Kafka's settings of the same names, and Kafka's defaults."""

    offsets_commit_timeout_ms: int = 5_000
    offsets_load_buffer_size: int = 5 * 1024 * 1024
    offsets_topic_compression_codec: int = 0


class Clock(NamedTuple):
    """``monotonic_ms``: for timers; ``time_ms``: since 1970, for what is stored."""

    monotonic_ms: Callable[[], int]
    time_ms: Callable[[], int]


class GroupLog(Protocol):
    """The partitions of ``__consumer_offsets`` that this broker leads."""

    def append(
        self,
        partition: int,
        term: int,
        records: Sequence[Record],
        respond: RespondToAppend,
        *,
        acks: int = ACKS_ALL,
        producer: VerifiedProducer | None = None,
    ) -> None:
        """Append a batch; ``respond`` with the offset of its first record when ``acks`` is met.

        NOT_LEADER_OR_FOLLOWER if the leadership of ``term`` has ended, also if another began.
        ``producer``: the batch is part of its transaction.
        """
        ...

    def load(self, partition: int, term: int) -> None:
        """Begin to read a partition. ``GroupMetadataManager.on_loaded`` is called at the end."""
        ...


class GroupMetadataManager:
    """Used on the coordinator's thread only."""

    def __init__(
        self, config: GroupConfig, log: GroupLog, clock: Clock, partition_of: Callable[[str], int]
    ) -> None:
        self.partition_of = partition_of
        """Returns the partition that has the records of a group."""
        self.groups: dict[str, GroupMetadata] = {}
        self.is_active = False
        """Whether the coordinator was started, and is not stopping."""
        self.commits = self.expirations = self.deletions = self.completed_rebalances = 0
        """How many positions were committed since the start."""
        self._config = config
        self._log = log
        self._clock = clock
        self._owned = OwnedPartitions()
        self._most_bytes = 0  # that members of all groups may have told

    # --- ownership ---

    def problem(self, group_id: str, *, may_be_empty: bool = False) -> Errors:
        """Return why requests for a group cannot be answered here; NONE: they can."""
        if not group_id and not may_be_empty:
            return Errors.INVALID_GROUP_ID
        if not self.is_active:
            return Errors.COORDINATOR_NOT_AVAILABLE
        return self._owned.problem(self.partition_of(group_id))

    @property
    def is_loading(self) -> bool:
        """Whether a partition is being read."""
        return self._owned.is_loading

    def is_awaited(self, partition: int, term: int) -> bool:
        """Whether a partition is being read, and the leadership has not ended."""
        return self._owned.is_awaited(partition, term)

    def load_again(self, partition: int, term: int) -> None:
        """Read a partition that could not be read, unless the leadership has ended."""
        if self.is_awaited(partition, term):
            self._log.load(partition, term)

    def on_elected(self, partition: int, epoch: int, term: int) -> list[GroupMetadata]:
        """This broker leads a partition: read it, unless it did so already or knows of a later.

        ``epoch``: its leader epoch, which may be greater than ``term``. Return the groups that were
        in memory: of an earlier leadership, whose end was not told.
        """
        if not self._owned.on_elected(partition, epoch, term):
            return []
        gone = self._forget(partition)
        self._log.load(partition, term)
        return gone

    def on_loaded(
        self, partition: int, term: int, groups: Mapping[str, LoadedGroup] | None
    ) -> list[GroupMetadata]:
        """A partition was read; None: it could not be, and has to be read again.

        Return the groups that are new in memory.
        """
        is_owned = self._owned.on_loaded(partition, term, is_read=groups is not None)
        if not is_owned or groups is None:
            return []
        return [self._load(group_id, partition, group) for group_id, group in groups.items()]

    def _load(self, group_id: str, partition: int, loaded: LoadedGroup) -> GroupMetadata:
        group = self.groups[group_id] = GroupMetadata(group_id, partition, self._clock.time_ms())
        group.offsets.committed = loaded.committed
        group.offsets.transactional.update(loaded.transactional)
        if (stored := loaded.stored) is not None:
            since_ms = stored.state_timestamp_ms
            group.state_timestamp_ms = None if since_ms == NO_TIMESTAMP else since_ms
            group.generation_id = stored.generation_id
            group.protocol_type = stored.protocol_type or None
            group.protocol_name = stored.protocol_name
            group.leader_id = stored.leader_id
            group.state = STABLE if stored.members else EMPTY
            group.load(_member(row, stored.protocol_name) for row in stored.members)
            group.compute_subscribed_topics()
            self._most_bytes += group.protocol_bytes
        return group

    def on_resigned(self, partition: int, epoch: int | None) -> list[GroupMetadata]:
        """This broker does not lead a partition any more; None: its replica was deleted.

        Return the groups that were in memory. A topic that is created again has lower epochs.
        """
        return self._forget(partition) if self._owned.on_resigned(partition, epoch) else []

    def _forget(self, partition: int) -> list[GroupMetadata]:
        gone = [group for group in self.groups.values() if group.partition == partition]
        for group in gone:
            del self.groups[group.group_id]
        return gone

    # --- groups ---

    def get_or_create(self, group_id: str) -> GroupMetadata:
        """Return a group, a new one if there is none."""
        group = self.groups.get(group_id)
        if group is None:
            partition = self.partition_of(group_id)
            group = GroupMetadata(group_id, partition, self._clock.time_ms())
            self.groups[group_id] = group
        return group

    def has_room(self, group: GroupMetadata, more_bytes: int) -> bool:
        """Whether members of a group may tell so many bytes more about their protocols."""
        if group.protocol_bytes + more_bytes > self._config.group_max_bytes:
            return False
        limit = self._config.group_coordinator_max_bytes
        if self._most_bytes + more_bytes > limit:  # some members have left
            self._most_bytes = sum(group.protocol_bytes for group in self.groups.values())
        if self._most_bytes + more_bytes > limit:
            return False
        self._most_bytes += max(more_bytes, 0)
        return True

    def list_groups(self, states: Collection[str], types: Collection[str]) -> ListGroupsResponse:
        """Return the groups in one of ``states``, of one of ``types`` (KIP-518); empty: all."""
        if not self.is_active:
            return ListGroupsResponse(error_code=Errors.COORDINATOR_NOT_AVAILABLE)
        wanted = {state.lower() for state in states}
        has_type = not types or _CLASSIC in {name.lower() for name in types}
        error = Errors.COORDINATOR_LOAD_IN_PROGRESS if self.is_loading else Errors.NONE
        return ListGroupsResponse(
            error_code=error,
            groups=tuple(
                ListedGroup(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type or "",
                    group_state=group.state.value,
                    group_type=_CLASSIC,
                )
                for group in self.groups.values()
                if has_type and (not wanted or group.state.value.lower() in wanted)
            ),
        )

    def count_by_state(self) -> Counter[str]:
        """Return how many groups are in each state. Thread-safe."""
        return Counter(group.state.value for group in list(self.groups.values()))

    def position_count(self) -> int:
        """Return how many positions are kept. Thread-safe."""
        return sum(len(group.offsets.committed) for group in list(self.groups.values()))

    def store(
        self, group: GroupMetadata, assignments: Mapping[str, bytes], respond: Respond
    ) -> None:
        """Write the record of a group, with the assignments that it is to have."""

        def answered(error: Errors, _offset: int) -> None:
            respond(_STORE_ERRORS.get(error, error))

        record = Record(GroupKey(group.group_id), _stored(group, assignments))
        self._append(group, [record], answered)

    def _append(
        self,
        group: GroupMetadata,
        records: Sequence[Record],
        respond: RespondToAppend,
        *,
        acks: int = ACKS_ALL,
        producer: VerifiedProducer | None = None,
    ) -> None:
        term = self._owned.term(group.partition)
        if term is None:
            respond(Errors.NOT_LEADER_OR_FOLLOWER, -1)
        else:
            self._log.append(group.partition, term, records, respond, acks=acks, producer=producer)

    # --- positions ---

    def commit(
        self,
        group: GroupMetadata,
        request: CommitOffsets,
        respond: Callable[[Mapping[TopicPartition, Errors]], None],
    ) -> None:
        """Store positions; those with too much metadata are refused."""
        most = self._config.offset_metadata_max_bytes
        fitting = {
            topic_partition: value
            for topic_partition, value in request.offsets.items()
            if _utf16_length(value.metadata) <= most
        }
        refused = dict.fromkeys(request.offsets.keys() - fitting, Errors.OFFSET_METADATA_TOO_LARGE)
        if not fitting:
            respond(refused)
            return
        offsets, producer = group.offsets, request.producer
        producer_id = None if producer is None else producer.producer_id
        offsets.stage(fitting, producer_id)

        def answered(error: Errors, record_offset: int) -> None:
            if error is Errors.NONE:
                offsets.commit(fitting, record_offset, producer_id)
                self.commits += len(fitting)
            else:
                offsets.fail(fitting, producer_id)
            respond(dict.fromkeys(fitting, _COMMIT_ERRORS.get(error, error)) | refused)

        records = [
            Record(OffsetKey(group.group_id, topic_partition), value)
            for topic_partition, value in fitting.items()
        ]
        self._append(group, records, answered, producer=producer)

    def complete_transaction(
        self, partition: int, producer_id: int, marker_offset: int, *, is_commit: bool
    ) -> Errors:
        """A marker is in the log of a partition: the positions of the transaction take effect.

        COORDINATOR_LOAD_IN_PROGRESS: the log is being read, perhaps without the marker.
        """
        if self._owned.problem(partition) is Errors.COORDINATOR_LOAD_IN_PROGRESS:
            return Errors.COORDINATOR_LOAD_IN_PROGRESS
        for group in self.groups.values():
            if group.partition == partition:
                group.offsets.complete_transaction(producer_id, marker_offset, is_commit=is_commit)
        return Errors.NONE

    def fetch(
        self,
        group_id: str,
        partitions: Collection[TopicPartition] | None,
        *,
        require_stable: bool,
    ) -> FetchOffsetsResult:
        """Return positions; None: all that the group has."""
        error = self.problem(group_id, may_be_empty=True)
        if error is not Errors.NONE:
            return FetchOffsetsResult(error)
        group = self.groups.get(group_id)
        if group is None or group.state is DEAD:
            nothing = FetchedOffset(Errors.NONE)
            return FetchOffsetsResult(Errors.NONE, dict.fromkeys(partitions or (), nothing))
        wanted = group.offsets.committed if partitions is None else partitions
        return FetchOffsetsResult(
            Errors.NONE, {tp: _fetched(group, tp, require_stable=require_stable) for tp in wanted}
        )

    def delete_offsets(
        self,
        group_id: str,
        partitions: Collection[TopicPartition],
        respond: Callable[[DeleteOffsetsResult], None],
    ) -> None:
        """Delete positions of topics that the group does not consume."""
        error, group = self.problem(group_id), self.groups.get(group_id)
        if error is Errors.NONE:
            if group is None or group.state is DEAD:
                error = Errors.GROUP_ID_NOT_FOUND
            elif group.state is not EMPTY and group.protocol_type != CONSUMER:
                error = Errors.NON_EMPTY_GROUP
        if error is not Errors.NONE or group is None:
            respond(DeleteOffsetsResult(error))
            return
        used = group.state is not EMPTY
        errors = {
            tp: Errors.GROUP_SUBSCRIBED_TO_TOPIC
            for tp in partitions
            if used and group.is_subscribed_to(tp.topic)
        }
        unused = [tp for tp in partitions if tp not in errors]

        def deleted(error: Errors) -> None:
            answers = {**errors, **dict.fromkeys(unused, Errors.NONE)}
            if error is Errors.NONE:
                self.deletions += count
            respond(DeleteOffsetsResult(error, answers if error is Errors.NONE else {}))

        count = len(group.offsets.committed.keys() & set(unused))
        self._delete(group, unused, deleted)

    def delete_group(self, group_id: str, respond: Respond) -> None:
        """Delete a group without members, and its positions."""
        error, group = self.problem(group_id, may_be_empty=True), self.groups.get(group_id)
        if error is Errors.NONE:
            if group is None or group.state is DEAD:
                error = Errors.GROUP_ID_NOT_FOUND
            elif group.state is not EMPTY:
                error = Errors.NON_EMPTY_GROUP
        if error is not Errors.NONE or group is None:
            respond(error)
        else:
            self._delete(group, group.offsets.committed, respond, is_whole=True)

    def _delete(
        self,
        group: GroupMetadata,
        partitions: Iterable[TopicPartition],
        respond: Respond,
        *,
        acks: int = ACKS_ALL,
        is_whole: bool = False,
    ) -> None:
        """Append tombstones, then forget what they delete: Kafka forgets it before.

        They delete also commits that are not replicated yet. A position that does not count has no
        tombstone: a commit that is under way comes after the deletion, then.

        A group without members goes too, with ``is_whole`` or if it has no other positions; but not
        if it was used meanwhile: a later generation is in the log, without a tombstone.
        """
        generation_id = group.generation_id
        removed = group.offsets.known(partitions)
        goes = group.state is EMPTY and (is_whole or group.offsets.has_only(removed))
        records = [Record(OffsetKey(group.group_id, tp), None) for tp in removed]
        if goes and group.generation_id > 0:
            records.append(Record(GroupKey(group.group_id), None))

        def appended(error: Errors, tombstone_offset: int) -> None:
            if error is Errors.NONE:
                if is_whole:
                    group.offsets.remove_transactional(tombstone_offset)
                group.offsets.remove(removed, tombstone_offset)
                is_as_before = group.state is EMPTY and group.generation_id == generation_id
                if goes and is_as_before and group.offsets.has_only(()):
                    group.transition_to(DEAD, self._clock.time_ms())
                    self.groups.pop(group.group_id, None)
            respond(_COMMIT_ERRORS.get(error, error))

        if records:
            self._append(group, records, appended, acks=acks)
        else:
            appended(Errors.NONE, _NOTHING_LATER)

    def on_partitions_deleted(self, partitions: Collection[TopicPartition]) -> None:
        """Topics are gone: forget the positions of all groups in them."""
        for group in list(self.groups.values()):
            counted = group.offsets.forget(partitions)
            if counted:
                records = [Record(OffsetKey(group.group_id, tp), None) for tp in counted]
                self._append(group, records, _ignore, acks=ACKS_NONE)

    def expire(self, groups: Iterable[GroupMetadata]) -> int:
        """Delete the positions of groups that have expired; return how many."""
        count = 0
        for group in groups:
            expired = list(self._expired(group))
            count += len(expired)
            if expired or (group.state is EMPTY and group.offsets.has_only(())):
                self._delete(group, expired, lambda _error: None, acks=ACKS_NONE)
        self.expirations += count
        return count

    def _expired(self, group: GroupMetadata) -> Iterable[TopicPartition]:
        now_ms, retention_ms = self._clock.time_ms(), self._config.offsets_retention_ms
        offsets, topics = group.offsets, group.subscribed_topics
        if group.protocol_type is None:
            return offsets.expired(now_ms, retention_ms, None, ())
        if group.state is EMPTY:
            return offsets.expired(now_ms, retention_ms, group.state_timestamp_ms, ())
        if group.protocol_type == CONSUMER and group.state is STABLE and topics is not None:
            return offsets.expired(now_ms, retention_ms, None, topics)
        return ()


def _fetched(
    group: GroupMetadata, topic_partition: TopicPartition, *, require_stable: bool
) -> FetchedOffset:
    if require_stable and group.offsets.is_unstable(topic_partition):
        return FetchedOffset(Errors.UNSTABLE_OFFSET_COMMIT)
    committed = group.offsets.committed.get(topic_partition)
    if committed is None:
        return FetchedOffset(Errors.NONE)
    value: OffsetAndMetadata = committed.value
    return FetchedOffset(Errors.NONE, value.offset, value.leader_epoch, value.metadata)


def _member(row: StoredMember, protocol_name: str | None) -> MemberMetadata:
    """Return a stored member, which supports only the protocol of its group."""
    protocols = (SupportedProtocol(protocol_name or "", row.subscription),)
    member = MemberMetadata(
        row.member_id,
        row.group_instance_id,
        row.client_id,
        row.client_host,
        row.session_timeout_ms,
        row.rebalance_timeout_ms,
        protocols,
    )
    member.assignment = row.assignment
    return member


def _stored(group: GroupMetadata, assignments: Mapping[str, bytes]) -> StoredGroup:
    since_ms = group.state_timestamp_ms
    return StoredGroup(
        group.protocol_type or "",
        group.generation_id,
        group.protocol_name,
        group.leader_id,
        NO_TIMESTAMP if since_ms is None else since_ms,
        tuple(
            StoredMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.session_timeout_ms,
                member.metadata(group.protocol_name),
                assignments.get(member.member_id, b""),
            )
            for member in group.members.values()
        ),
    )


def _utf16_length(text: str) -> int:
    """Return the length of a string as Java counts it."""
    if text.isascii():
        return len(text)
    return len(text) + sum(character > "\uffff" for character in text)


def _ignore(_error: Errors, _offset: int) -> None:
    """A tombstone need not be written: a later coordinator finds the topic gone, too."""
