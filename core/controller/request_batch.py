"""The control requests of one state change, at most one of each kind per broker if it fits.

Mirrors ``kafka.controller.ControllerBrokerRequestBatch``, as a local value: filled, turned into
effects, dropped. (Kafka reuses one batch. If an error leaves requests in it, every later use of it
fails.)

Leaderships are captured when they are added; metadata, live brokers and epochs when the batch
becomes effects, so that a partition added many times is looked up once.

A leader that must be replaced, and cannot be yet, is not named: the requests say NO_LEADER.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import starmap
from typing import TypeAlias, TypeVar

from regent.core.controller.context import ControllerContext, ControllerLog
from regent.core.controller.effects import SendControlRequest
from regent.core.controller.election.election import Brokers, PartitionChange
from regent.core.controller.partition_entries import PartitionEntry
from regent.core.model import (
    EPOCH_DURING_DELETE,
    EPOCH_OF_LOST_TOPIC,
    LEADER_DURING_DELETE,
    NO_EPOCH,
    NO_LEADER,
    BrokerId,
    BrokerRegistration,
    TopicPartition,
)
from regent.core.protocol.control import (
    ControlHeader,
    ControlRequest,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
    LeaderAndIsrType,
    LiveLeader,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaTopic,
    UpdateMetadataBroker,
    UpdateMetadataEndPoint,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)

Row = TypeVar("Row", bound=tuple[object, ...])
_new_leader_and_isr_row = partial(tuple.__new__, LeaderAndIsrPartition)
_new_metadata_row = partial(tuple.__new__, UpdateMetadataPartition)

MAX_REQUEST_BYTES = 2 * 1024 * 1024  # of rows: decoded in milliseconds, far below any limit
TOPIC_BYTES = 64  # beside its name
ROW_BYTES = 64  # beside its broker ids
REPLICA_BYTES = 20  # an id may stand in four lists: replicas, ISR, adding, removing

RowsByTopic: TypeAlias = dict[str, dict[int, Row]]
"""The rows of a request by topic and partition."""


class ControlRequestBatch:
    """Requests being gathered for one state change."""

    def __init__(
        self,
        controller_id: BrokerId,
        context: ControllerContext,
        max_request_bytes: int = MAX_REQUEST_BYTES,
    ) -> None:
        self._controller_id = controller_id
        self._max_request_bytes = max_request_bytes
        self._context = context
        self._log = ControllerLog("state.change", controller_id, context)
        self._leader_and_isr: dict[BrokerId, RowsByTopic[LeaderAndIsrPartition]] = {}
        self._with_eligible: defaultdict[str, set[int]] = defaultdict(set)
        self._full: set[BrokerId] = set()
        self._removed_topics: dict[str, list[int]] = {}
        self._stop_replica: dict[BrokerId, RowsByTopic[StopReplicaPartition]] = {}
        self._metadata_brokers: set[BrokerId] = set()
        self._metadata_to_all = False
        self._metadata_of_all_partitions = False
        self._metadata_partitions: defaultdict[str, set[int]] = defaultdict(set)

    def make_full(self, broker_ids: Iterable[BrokerId]) -> None:
        """Send these brokers a FULL LeaderAndIsr, even if it is empty."""
        self._full.update(broker_ids)

    def is_full_for(self, broker_id: BrokerId) -> bool:
        """Whether the broker gets a FULL request, and replicas that it does not list are stray."""
        return broker_id in self._full

    def add_full_metadata(self, broker_ids: Collection[BrokerId] | None = None) -> None:
        """Tell brokers (None: all) every partition, so that they forget all others.

        They forget nothing while a znode is unreadable.
        """
        self.add_update_metadata((), broker_ids)
        self._metadata_of_all_partitions = True

    def add_removed_topics(self, broker_ids: Collection[BrokerId]) -> None:
        """Tell brokers which partitions were removed with their topics in this term."""
        for topic, numbers in self._context.removed_topics.items():
            if gone := numbers - self._context.entries(topic).keys():
                self._removed_topics[topic] = sorted(gone)
        if self._removed_topics:
            self.add_update_metadata((), broker_ids)

    def add_leader_and_isr(
        self,
        broker_ids: Collection[BrokerId],
        partitions: Iterable[TopicPartition],
        *,
        is_new: bool = False,
    ) -> None:
        """Tell replicas the leaderships that the context holds, and every broker the metadata.

        A partition without a leadership is left out.
        """
        for entry in self._context.entries_of(partitions):
            if entry.leadership is not None:
                self.add_entry(broker_ids, entry, is_new=is_new)

    def add_entry(
        self, broker_ids: Iterable[BrokerId], entry: PartitionEntry, *, is_new: bool = False
    ) -> None:
        """Tell replicas the leadership in an entry of the context, as ``add_leader_and_isr``."""
        row = self._leader_and_isr_row(entry, is_new=is_new)
        topic, partition = entry.topic_partition
        for broker_id in broker_ids:
            rows = self._leader_and_isr.setdefault(broker_id, {}).setdefault(topic, {})
            earlier = rows.get(partition)
            is_still_new = earlier is not None and earlier.is_new and not is_new
            rows[partition] = row._replace(is_new=True) if is_still_new else row
        self._metadata_partitions[topic].add(partition)
        self._metadata_to_all = True

    def add_every_leader_and_isr(self) -> None:
        """Tell every replica that is online its leadership; the metadata are not added."""
        context = self._context
        live = frozenset(context.live_broker_ids)
        failed = context.replicas_on_offline_dirs
        for topic in context.all_topics:
            of_topic: dict[BrokerId, dict[int, LeaderAndIsrPartition]] = {}
            for partition, entry in context.entries(topic).items():
                if entry.leadership is None:
                    continue
                row = self._leader_and_isr_row(entry)
                for broker_id in entry.assignment.replicas:
                    if broker_id not in live or entry.topic_partition in failed.get(broker_id, ()):
                        continue
                    rows = of_topic.get(broker_id)
                    if rows is None:
                        rows = of_topic[broker_id] = {}
                    rows[partition] = row
            for broker_id, rows in of_topic.items():
                self._leader_and_isr.setdefault(broker_id, {})[topic] = rows

    def add_changes(self, changes: Mapping[TopicPartition, PartitionChange]) -> None:
        """Tell the recipients of each change the leadership that the context holds now.

        A replica that its broker does not keep is not told: a reassignment could not create it yet,
        or it is being deleted. It would exist on its broker only, and nothing would ever stop it.
        """
        kept: dict[tuple[Brokers, Brokers, bytes], list[BrokerId]] = {}
        for entry in self._context.entries_of(changes):
            recipients, replicas = (
                changes[entry.topic_partition].recipients,
                entry.assignment.replicas,
            )
            key = recipients, replicas, entry.replica_states
            told = kept.get(key)
            if told is None:
                told = self._context.kept_replicas(recipients, entry.topic_partition)
                if set(recipients) <= set(replicas):
                    kept[key] = told
            self.add_entry(told, entry)

    def add_stop_replica(
        self,
        broker_id: BrokerId,
        partitions: Iterable[TopicPartition],
        *,
        delete: bool,
        is_topic_lost: bool = False,
    ) -> None:
        """Tell a broker to stop its replicas, and with ``delete`` to forget their data.

        ``is_topic_lost``: the deletion was not requested, so the broker keeps the data as stray.
        """
        if broker_id not in self._context.registrations:
            return
        for entry in self._context.entries_of(partitions):
            topic, partition = entry.topic_partition
            rows = self._stop_replica.setdefault(broker_id, {}).setdefault(topic, {})
            earlier = rows.get(partition)
            rows[partition] = StopReplicaPartition(
                partition,
                EPOCH_OF_LOST_TOPIC if is_topic_lost else self._stop_replica_epoch(entry),
                delete or (earlier is not None and earlier.delete_partition),
            )

    def add_deletion_of_earlier(
        self, broker_id: BrokerId, partitions: Iterable[TopicPartition]
    ) -> None:
        """Let a broker delete its logs of earlier topics of these names, of any leader epoch."""
        for topic, partition in partitions:
            rows = self._stop_replica.setdefault(broker_id, {}).setdefault(topic, {})
            rows[partition] = StopReplicaPartition(partition, NO_EPOCH, delete_partition=True)

    def add_update_metadata(
        self,
        partitions: Iterable[TopicPartition],
        broker_ids: Collection[BrokerId] | None = None,
    ) -> None:
        """Tell brokers (None: all of them) the live brokers and the state of these partitions."""
        if broker_ids is None:
            self._metadata_to_all = True
        else:
            self._metadata_brokers.update(broker_ids)
        for topic, partition in partitions:
            self._metadata_partitions[topic].add(partition)

    def take_urgent(self) -> list[SendControlRequest]:
        """Return the LeaderAndIsr requests of what was added until now, and drop that.

        Metadata stay. If a FULL request will tell brokers everything, everything stays.
        """
        if self._full:
            return []
        registered = self._context.registrations
        requests = self._leader_and_isr_requests(registered)
        self._leader_and_isr.clear()
        self._with_eligible.clear()
        return self._effects(requests, registered)

    def effects(self) -> list[SendControlRequest]:
        """Return the requests to registered brokers: LeaderAndIsr, UpdateMetadata, StopReplica."""
        registered = self._context.registrations
        requests: list[tuple[BrokerId, ControlRequest]] = []
        requests += self._leader_and_isr_requests(registered)
        requests += self._update_metadata_requests(registered)
        requests += self._stop_replica_requests(registered)
        return self._effects(requests, registered)

    def _effects(
        self,
        requests: Iterable[tuple[BrokerId, ControlRequest]],
        registered: Mapping[BrokerId, BrokerRegistration],
    ) -> list[SendControlRequest]:
        return [
            SendControlRequest(
                broker_id,
                ControlHeader(
                    self._controller_id,
                    self._context.epoch,
                    registered[broker_id].broker_epoch,
                    event_id=self._context.event_id,
                    broker_id=broker_id,
                ),
                request,
            )
            for broker_id, request in requests
        ]

    # --- rows ---

    def _stop_replica_epoch(self, entry: PartitionEntry) -> int:
        if entry.topic_partition.topic in self._context.topics_to_be_deleted:
            return EPOCH_DURING_DELETE
        return (
            NO_EPOCH if entry.leadership is None else entry.leadership.leader_and_isr.leader_epoch
        )

    def _leader_and_isr_row(
        self, entry: PartitionEntry, *, is_new: bool = False
    ) -> LeaderAndIsrPartition:
        leadership, assignment = entry.leadership, entry.assignment
        assert leadership is not None
        leader, isr, leader_epoch, partition_epoch, recovery, eligible = leadership.leader_and_isr
        if entry.topic_partition in self._context.leaders_with_losses:
            leader = self._named(leader, entry.topic_partition)
        if eligible or self._with_eligible:
            of_topic = self._with_eligible[entry.topic_partition.topic]
            (of_topic.add if eligible else of_topic.discard)(entry.topic_partition.partition)
        return _new_leader_and_isr_row(
            (
                entry.topic_partition.partition,
                leadership.controller_epoch,
                leader,
                leader_epoch,
                isr,
                partition_epoch,
                assignment.replicas,
                assignment.adding_replicas,
                assignment.removing_replicas,
                is_new,
                int(recovery),
            )
        )

    def _metadata_rows(self) -> RowsByTopic[UpdateMetadataPartition]:
        """Return the rows; a partition without a leadership has none, except unreadable ones."""
        context = self._context
        partitions: Mapping[str, Iterable[int]] = self._metadata_partitions
        if self._metadata_of_all_partitions:
            partitions = {topic: context.entries(topic) for topic in context.all_topics}
        live = frozenset(context.live_broker_ids)
        failed = {broker: logs for broker, logs in context.replicas_on_offline_dirs.items() if logs}
        dead: dict[Brokers, Brokers] = {}  # thousands of partitions have the same replicas
        rows: RowsByTopic[UpdateMetadataPartition] = {}
        for topic, numbers in partitions.items():
            entries = context.entries(topic)
            of_topic: dict[int, UpdateMetadataPartition] = {}
            is_deleted = topic in context.topics_to_be_deleted
            lists_unreadable = self._metadata_of_all_partitions or is_deleted
            for number in numbers:
                entry = entries.get(number)
                if entry is None:
                    continue
                replicas = entry.assignment.replicas
                offline = dead.get(replicas)
                if offline is None:
                    offline = dead[replicas] = tuple([r for r in replicas if r not in live])
                if entry.leadership is None:
                    if entry.topic_partition in context.unreadable_partitions and lists_unreadable:
                        row = self._unreadable_row(entry, offline, is_deleted=is_deleted)
                        of_topic[number] = row
                    continue
                if failed:
                    offline = tuple(
                        [
                            r
                            for r in replicas
                            if r in offline or entry.topic_partition in failed.get(r, ())
                        ]
                    )
                of_topic[number] = self._metadata_row(entry, offline, is_deleted=is_deleted)
            if of_topic:
                rows[topic] = of_topic
        return rows

    def _removed_rows(self) -> RowsByTopic[UpdateMetadataPartition]:
        epoch = self._context.epoch
        return {
            topic: {number: _removed_row(number, epoch) for number in numbers}
            for topic, numbers in self._removed_topics.items()
        }

    def _metadata_row(
        self, entry: PartitionEntry, offline: Brokers, *, is_deleted: bool
    ) -> UpdateMetadataPartition:
        topic_partition, leadership = entry.topic_partition, entry.leadership
        assert leadership is not None
        leader, isr, leader_epoch, partition_epoch, _, _ = leadership.leader_and_isr
        if is_deleted:
            leader, leader_epoch, partition_epoch = LEADER_DURING_DELETE, 0, 0
        elif topic_partition in self._context.leaders_with_losses:
            leader = self._named(leader, topic_partition)
        return _new_metadata_row(
            (
                topic_partition.partition,
                leadership.controller_epoch,
                leader,
                leader_epoch,
                isr,
                partition_epoch,
                entry.assignment.replicas,
                offline,
            )
        )

    def _named(self, leader: BrokerId, topic_partition: TopicPartition) -> BrokerId:
        return NO_LEADER if self._context.must_not_lead(leader, topic_partition) else leader

    def _unreadable_row(
        self, entry: PartitionEntry, offline: Brokers, *, is_deleted: bool
    ) -> UpdateMetadataPartition:
        """Return a row for a partition whose state is unreadable.

        Without it, clients of a broker that has just started would see a topic that lacks a
        partition. It is older than any other row: brokers that know the partition keep theirs.
        """
        return UpdateMetadataPartition(
            entry.topic_partition.partition,
            self._context.epoch,
            LEADER_DURING_DELETE if is_deleted else NO_LEADER,
            NO_EPOCH,
            (),
            NO_EPOCH,
            entry.assignment.replicas,
            offline,
        )

    # --- requests ---

    def _split(self, rows: RowsByTopic[Row]) -> list[list[tuple[str, tuple[Row, ...]]]]:
        return split_by_size(_sorted(rows), self._max_request_bytes)

    def _leader_and_isr_topic(
        self, topic: str, states: tuple[LeaderAndIsrPartition, ...]
    ) -> LeaderAndIsrTopic:
        eligible = self._with_eligible.get(topic, ())
        numbers = tuple(s.partition_index for s in states if s.partition_index in eligible)
        return LeaderAndIsrTopic(topic, self._context.topic_id(topic), states, numbers)

    def _leader_and_isr_requests(
        self, registered: Mapping[BrokerId, BrokerRegistration]
    ) -> list[tuple[BrokerId, ControlRequest]]:
        requests: list[tuple[BrokerId, ControlRequest]] = []
        for broker_id in sorted({*self._leader_and_isr, *self._full} & registered.keys()):
            rows = self._leader_and_isr.get(broker_id, {})
            type = LeaderAndIsrType(broker_id in self._full)
            # After the first one Kafka's broker writes its checkpoint of high watermarks anew.
            is_whole = registered[broker_id].info.is_of_kafka
            parts = [_sorted(rows)] if is_whole else self._split(rows)
            for part, topics in enumerate(parts):
                leaders = {row.leader for _, states in topics for row in states}
                request = LeaderAndIsrRequest(
                    type=type,
                    topic_states=tuple(starmap(self._leader_and_isr_topic, topics)),
                    live_leaders=tuple(
                        LiveLeader(leader, registered[leader].info.replication_endpoint)
                        for leader in sorted(leaders & registered.keys())
                    ),
                    part=part,
                    parts=len(parts),
                )
                requests.append((broker_id, request))
            self._log.info(
                "event %d-%d: LeaderAndIsr %s to broker %d: %d partitions",
                self._context.epoch,
                self._context.event_id,
                type.name,
                broker_id,
                _count(rows),
            )
            self._each(
                f"become-%s LeaderAndIsr request %s to broker {broker_id} for partition %s",
                (
                    ("leader" if row.leader == broker_id else "follower", row, topic_partition)
                    for topic_partition, row in _each_row(rows)
                ),
            )
        return requests

    def _update_metadata_requests(
        self, registered: Mapping[BrokerId, BrokerRegistration]
    ) -> list[tuple[BrokerId, ControlRequest]]:
        every_broker = registered.keys()
        targets = sorted(
            every_broker if self._metadata_to_all else self._metadata_brokers & every_broker
        )
        if not targets:
            return []
        rows = {**self._metadata_rows(), **self._removed_rows()}
        lists_all = self._metadata_of_all_partitions
        live_brokers = tuple(_live_broker(registered[b]) for b in sorted(registered))
        parts = self._split(rows)
        requests = [
            UpdateMetadataRequest(
                topic_states=tuple(
                    UpdateMetadataTopic(
                        topic,
                        self._context.topic_id(topic),
                        states,
                        self._context.coordinated_partitions.get(topic, 0),
                    )
                    for topic, states in topics
                ),
                live_brokers=live_brokers,
                is_full=lists_all and self._context.knows_everything,
                part=part,
                parts=len(parts),
                lists_all=lists_all,
            )
            for part, topics in enumerate(parts)
        ]
        self._log.info(
            "event %d-%d: UpdateMetadata to brokers %s: %d partitions",
            self._context.epoch,
            self._context.event_id,
            targets,
            _count(rows),
        )
        self._each(
            f"UpdateMetadata request %s to brokers {targets} for partition %s",
            ((row, topic_partition) for topic_partition, row in _each_row(rows)),
        )
        return [(broker_id, request) for broker_id in targets for request in requests]

    def _stop_replica_requests(
        self, registered: Mapping[BrokerId, BrokerRegistration]
    ) -> list[tuple[BrokerId, ControlRequest]]:
        requests: list[tuple[BrokerId, ControlRequest]] = []
        for broker_id in sorted(self._stop_replica.keys() & registered.keys()):
            rows = self._stop_replica[broker_id]
            for topics in self._split(rows):
                request = StopReplicaRequest(
                    tuple(
                        StopReplicaTopic(topic, self._context.topic_id(topic), states)
                        for topic, states in topics
                    )
                )
                requests.append((broker_id, request))
            self._log.info(
                "event %d-%d: StopReplica to broker %d: %d partitions",
                self._context.epoch,
                self._context.event_id,
                broker_id,
                _count(rows),
            )
            self._each(
                f"StopReplica request %s to broker {broker_id} for partition %s",
                ((row, topic_partition) for topic_partition, row in _each_row(rows)),
            )
        return requests

    def _each(self, template: str, rows: Iterable[tuple[object, ...]]) -> None:
        event = f"{self._context.epoch}-{self._context.event_id}"
        self._log.each(f"event {event}: Sending {template}", rows)


def split_by_size(
    topics: Iterable[tuple[str, tuple[Row, ...]]], max_bytes: int
) -> list[list[tuple[str, tuple[Row, ...]]]]:
    """Divide topics and their rows, in order, into as few bodies as possible, at least one.

    Sizes in bytes are what msgpack needs at most. A row that is larger than ``max_bytes`` gets a
    body of its own.
    """
    parts: list[list[tuple[str, tuple[Row, ...]]]] = [[]]
    room = max_bytes
    for topic, rows in topics:
        start = 0
        room -= len(topic) + TOPIC_BYTES
        whole = len(rows) * ROW_BYTES + REPLICA_BYTES * sum(
            [len(getattr(row, "replicas", ())) for row in rows]
        )
        if whole <= room:
            room -= whole
            parts[-1].append((topic, rows))
            continue
        for number, row in enumerate(rows):
            size = ROW_BYTES + REPLICA_BYTES * len(getattr(row, "replicas", ()))
            if size > room and (parts[-1] or number > start):
                if number > start:
                    parts[-1].append((topic, rows[start:number]))
                parts.append([])
                start = number
                room = max_bytes - len(topic) - TOPIC_BYTES
            room -= size
        if start < len(rows):
            parts[-1].append((topic, rows[start:] if start else rows))
    return parts


def _sorted(rows: RowsByTopic[Row]) -> list[tuple[str, tuple[Row, ...]]]:
    """Return rows in the order of topic and partition."""
    return [
        (topic, tuple(map(rows[topic].__getitem__, sorted(rows[topic])))) for topic in sorted(rows)
    ]


def _each_row(rows: RowsByTopic[Row]) -> Iterator[tuple[TopicPartition, Row]]:
    return (
        (TopicPartition(topic, partition), row)
        for topic, of_topic in rows.items()
        for partition, row in of_topic.items()
    )


def _count(rows: RowsByTopic[Row]) -> int:
    return sum(map(len, rows.values()))


def _live_broker(registration: BrokerRegistration) -> UpdateMetadataBroker:
    info = registration.info
    return UpdateMetadataBroker(
        broker_id=info.broker_id,
        broker_epoch=registration.broker_epoch,
        endpoints=tuple(
            UpdateMetadataEndPoint(e.listener, e.host, e.port, e.security_protocol)
            for e in info.endpoints
        ),
        rack=info.rack,
        control_endpoint=info.control_endpoint,
        replication_endpoint=info.replication_endpoint,
        control_key=info.control_key,
        no_replicas=info.no_replicas,
        node_host=info.node_host,
    )


def _removed_row(number: int, controller_epoch: int) -> UpdateMetadataPartition:
    return UpdateMetadataPartition(number, controller_epoch, LEADER_DURING_DELETE, 0, (), 0, (), ())
