"""Deleted topics that can come back, as long as brokers keep their logs.

When the deletion of a topic begins, before a replica is stopped, what is needed to bring it back is
written to ``/regent/deleted_topics``: its id, replicas, ISRs, leader epochs and settings. Each
member of such an ISR has every record that was committed until then. From the next step on leaders
commit nothing more: stopped replicas leave the ISRs in ZooKeeper, and leaders are not told. If the
controller dies then, its successor tells brokers the smaller ISRs before it deletes again. So it
removes from what is remembered who is in these ISRs no more.

An operator's command reads what is remembered, asks the brokers to hold their deleted logs, and
tells us which are held. Time, a loss of power, a repeated StopReplica do not end that: only a
LeaderAndIsr request does, which assigns the log to the broker again. A controller sends it also for
a topic that is being deleted: to a broker that registers, and to all when its term begins. An
answer therefore counts only

- in the broker epoch in which the broker gave it,
- if what is remembered is as the command read it, and says that all replicas were deleted: then
  no request about the topic is on its way. It is written when a deletion begins in a term, and
  when it is complete.

The topic is written again, with its states, in one transaction that fails if the name is taken or
the deletion is forgotten, or if we are deposed. Then it is a new topic to us that has states, whose
leaders are elected from what is left of the ISRs. Its states begin a leader epoch: partition epochs
begin again at 0, and brokers know higher ones of the last leader epoch. A repeated request finds
the topic there. The log of a broker whose answer does not count stays until it is asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from regent.core.controller.events import TopicDeletion
from regent.core.controller.services import ControllerServices
from regent.core.errors import BadDataError, Errors, UnreadableError
from regent.core.model import (
    MAX_LEADER_EPOCH,
    NO_LEADER,
    BrokerId,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    TopicPartition,
)
from regent.core.ports import (
    DeletedPartition,
    DeletedTopic,
    PartitionStates,
    TopicAssignment,
    WriteError,
)
from regent.core.protocol.control import TopicId
from regent.core.protocol.controller import HeldLogs, UndeleteTopicRequest, UndeleteTopicResponse
from regent.core.topic_validation import INTERNAL_TOPICS

_MAX_DELAY_MS = 10 * 365 * 24 * 3_600_000  # the setting may mean "never"
_KEPT_FOR_DELAYS = 2  # an operator who sees that it is too late shall read why


class DeletedTopics:
    """Remembers topics whose deletion begins, and brings them back."""

    def __init__(self, services: ControllerServices) -> None:
        self._services = services
        self._context = services.context

    # --- deletions ---

    def remember(self, topics: Collection[str]) -> None:
        """Remember topics before their replicas are stopped."""
        wanted = self._ids_of([topic for topic in topics if topic not in INTERNAL_TOPICS])
        if not wanted:
            return
        known = self._services.store.read_deleted_topics(list(wanted.values()))
        states = self._read_states(wanted)
        delay_ms = min(self._services.settings.log_segment_delete_delay_ms, _MAX_DELAY_MS)
        now_ms = self._context.now_ms
        found: list[DeletedTopic] = []
        for topic, topic_id in wanted.items():
            earlier = known.get(topic_id)
            if isinstance(earlier, DeletedTopic):
                found.append(_changed(earlier, states, _still_in_sync))
            elif partitions := self._partitions_of(topic, states):
                until_ms = now_ms + delay_ms
                found.append(DeletedTopic(topic, topic_id, now_ms, until_ms, partitions, {}))
        self._write(found)
        self._services.schedule(_KEPT_FOR_DELAYS * delay_ms + 1, TopicDeletion())

    def settle(self, topics: Collection[str]) -> None:
        """Remember that all replicas are deleted, and the last leader epochs.

        Brokers may know these epochs, so that leaders need higher ones. A topic with a state that
        cannot be read is forgotten: when this is repeated, the state may be deleted.
        """
        ids = self._ids_of(topics)
        known = self._services.store.read_deleted_topics(list(ids.values()))
        states = self._read_states([topic for topic in ids if ids[topic] in known])
        found = [deleted for deleted in known.values() if isinstance(deleted, DeletedTopic)]
        unread = {p.topic for p, state in states.items() if isinstance(state, BadDataError)}
        self._forget([deleted for deleted in found if deleted.topic in unread])
        settled = [
            _changed(deleted, states, _in_last_epoch)
            for deleted in found
            if deleted.topic not in unread
        ]
        self._write([replace(deleted, is_complete=True) for deleted in settled])

    def forget_old(self) -> None:
        """Forget topics that brokers have no records of any more, and those that were kept."""
        old: list[TopicId] = []
        for topic_id, deleted in self._services.store.read_deleted_topics().items():
            if isinstance(deleted, BadDataError):
                if not isinstance(deleted, UnreadableError):
                    old.append(topic_id)
                continue
            kept_ms = (_KEPT_FOR_DELAYS - 1) * (deleted.until_ms - deleted.deleted_ms)
            name = self._context.topic_name(topic_id)
            is_kept = name is not None and not self._context.is_topic_queued_for_deletion(name)
            if is_kept or self._context.now_ms > deleted.until_ms + kept_ms:
                old.append(topic_id)
        if old:
            self._services.store.forget_deleted_topics(old, self._context.epoch_zk_version)

    def _ids_of(self, topics: Collection[str]) -> dict[str, TopicId]:
        ids = {topic: self._context.topic_id(topic) for topic in topics}
        return {topic: topic_id for topic, topic_id in ids.items() if topic_id is not None}

    def _write(self, topics: Collection[DeletedTopic]) -> None:
        if not topics:
            return
        fence = self._context.epoch_zk_version
        written = self._services.store.remember_deleted_topics(topics, fence)
        for deleted in topics:
            if deleted.topic_id not in written:
                text = "%s: cannot come back: it is too large, or its settings cannot be read"
                self._services.outbox.note(text, deleted.topic)

    def _forget(self, topics: Collection[DeletedTopic]) -> None:
        if topics:
            ids = [deleted.topic_id for deleted in topics]
            self._services.store.forget_deleted_topics(ids, self._context.epoch_zk_version)
        for deleted in topics:
            text = "%s: cannot come back: the state of a partition cannot be read"
            self._services.outbox.note(text, deleted.topic)

    def _read_states(self, topics: Collection[str]) -> PartitionStates:
        partitions = [p for topic in topics for p in self._context.partitions_of(topic)]
        return self._services.store.read_partition_states(partitions)

    def _partitions_of(
        self, topic: str, states: PartitionStates
    ) -> dict[int, DeletedPartition] | None:
        """Return the partitions of a topic; None: a state is missing, or cannot be read.

        Without it nothing is known of the records: the states may be deleted already. A replica
        that a move removed may still be in the ISR: it is none when the topic comes back.
        """
        partitions: dict[int, DeletedPartition] = {}
        for topic_partition, assignment in self._context.partition_assignments(topic).items():
            state = states.get(topic_partition)
            if state is None or isinstance(state, BadDataError):
                return None
            now = state.leader_and_isr
            isr = tuple(broker_id for broker_id in now.isr if broker_id in assignment.replicas)
            row = DeletedPartition(assignment.replicas, isr, now.leader_epoch)
            partitions[topic_partition.partition] = row
        return partitions

    # --- topics that come back ---

    def undelete(self, request: UndeleteTopicRequest) -> UndeleteTopicResponse:
        """Bring a topic back, or say why not. Idempotent."""
        topic, store = request.topic, self._services.store
        deleted = store.read_deleted_topics([request.topic_id]).get(request.topic_id)
        if isinstance(deleted, BadDataError):
            return _refused(f"what is remembered of topic {topic} cannot be read: {deleted}")
        if deleted is None:
            if self._is_back(request):
                return UndeleteTopicResponse(Errors.NONE)  # an earlier attempt has succeeded
            return _refused(f"topic {topic} cannot come back: its deletion is forgotten")
        if not deleted.is_complete or deleted.zxid != request.deletion_zxid:
            return _refused(f"the deletion of topic {topic} went on meanwhile, or never ended")
        states = restored_states(deleted, self._valid(request.held), self._context.epoch)
        if isinstance(states, str):
            return _refused(states)
        error = store.restore_topic(deleted, states, self._context.epoch_zk_version)
        if error is not None and self._is_back(request):  # the answer to the first write was lost
            error = None
        if error is WriteError.NODE_EXISTS:
            return _refused(
                f"a topic {topic} exists: delete it before the deleted one can come back"
            )
        if error is not None:
            return _refused(f"ZooKeeper refused topic {topic}: {error.value}")
        self._services.outbox.note("%s: brought back, topic id %s", topic, deleted.topic_id)
        return UndeleteTopicResponse(Errors.NONE)

    def _is_back(self, request: UndeleteTopicRequest) -> bool:
        there = self._services.store.read_topics([request.topic]).get(request.topic)
        return isinstance(there, TopicAssignment) and there.topic_id == request.topic_id

    def _valid(self, held: Collection[HeldLogs]) -> list[HeldLogs]:
        """Return the answers that brokers gave in their present broker epochs.

        A broker that has started since then may have lost a directory.
        """
        epochs = self._context.live_broker_epochs
        return [row for row in held if epochs.get(row.broker_id) == row.broker_epoch]


def restored_states(
    deleted: DeletedTopic, held: Collection[HeldLogs], controller_epoch: int
) -> dict[TopicPartition, LeaderIsrAndControllerEpoch] | str:
    """Return the states with which a topic comes back, or why it cannot.

    Each partition needs a log of a member of its ISR: no other is known to have all committed
    records.
    """
    holders: dict[int, set[BrokerId]] = {}
    for broker_id, _, partitions in held:
        for number in partitions:
            holders.setdefault(number, set()).add(broker_id)
    states: dict[TopicPartition, LeaderIsrAndControllerEpoch] = {}
    for number, row in deleted.partitions.items():
        isr = tuple(broker_id for broker_id in row.isr if broker_id in holders.get(number, ()))
        if not isr:
            brokers = ", ".join(map(str, row.isr)) or "none"
            return (
                f"topic {deleted.topic} cannot come back: no broker that was in sync has the"
                f" records of partition {number} any more, or it does not answer; in sync were:"
                f" {brokers}"
            )
        states[TopicPartition(deleted.topic, number)] = LeaderIsrAndControllerEpoch(
            LeaderAndIsr(NO_LEADER, isr, min(row.leader_epoch + 1, MAX_LEADER_EPOCH)),
            controller_epoch,
        )
    return states


def _changed(
    deleted: DeletedTopic,
    states: PartitionStates,
    change: Callable[[DeletedPartition, LeaderAndIsr], DeletedPartition],
) -> DeletedTopic:
    """Change the partitions whose states are still there; their replicas are there, too."""
    partitions: dict[int, DeletedPartition] = {}
    for number, row in deleted.partitions.items():
        state = states.get(TopicPartition(deleted.topic, number))
        partitions[number] = row
        if isinstance(state, LeaderIsrAndControllerEpoch):
            partitions[number] = change(row, state.leader_and_isr)
    return replace(deleted, partitions=partitions, is_complete=False)


def _in_last_epoch(row: DeletedPartition, now: LeaderAndIsr) -> DeletedPartition:
    return row._replace(leader_epoch=max(row.leader_epoch, now.leader_epoch))


def _still_in_sync(row: DeletedPartition, now: LeaderAndIsr) -> DeletedPartition:
    isr = tuple(broker_id for broker_id in row.isr if broker_id in now.isr)
    return _in_last_epoch(row, now)._replace(isr=isr)


def _refused(problem: str) -> UndeleteTopicResponse:
    return UndeleteTopicResponse(Errors.NONE, problem)
