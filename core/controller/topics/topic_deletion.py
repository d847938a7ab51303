"""Deletion of topics.

Mirrors ``kafka.controller.TopicDeletionManager`` and ``KafkaController.processTopicDeletion``. A
topic to be deleted is

* *queued*: it gets no leaders any more, unless a partition is being moved;
* *started*, unless it is ineligible: its partitions are NonExistent, every broker is told that it
  has no leader, every live replica is asked to delete its data;
* *ineligible*, while a broker is offline, or a replica is being moved or could not be deleted:
  no replica is asked again until the broker starts, the move completes, the log has been
  replaced, or ``topic_deletion_retry_ms`` have passed;
* *deleted*, when every replica has answered: its znodes, its configuration and the request.

Some topics were not announced to brokers in this term, because they are not known yet, or because
their znodes cannot be decoded. No replicas of such a topic are asked: its znodes are deleted at
once, and its logs on brokers become stray. A topic that an ACL hides waits until it can be read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

from regent.core.controller.election.election import OfflineElection
from regent.core.controller.events import TopicDeletion
from regent.core.controller.partition_state_machine import PartitionStateMachine
from regent.core.controller.replica_state_machine import ReplicaStateMachine
from regent.core.controller.services import ControllerServices
from regent.core.controller.states import PartitionState, ReplicaState
from regent.core.controller.topics.deleted_topics import DeletedTopics
from regent.core.errors import BadDataError, Errors
from regent.core.model import BrokerId, PartitionAndReplica, TopicPartition
from regent.core.ports import TopicAssignment, WriteError
from regent.core.protocol.control import TopicId

# Others may write a topic's znode while we remove added partitions. Then we try again, and give up
# after this many rounds: their next write triggers another attempt.
MAX_ROUNDS = 5


@dataclass(slots=True)
class _Deletion:
    """The progress of a started deletion. It repeats the states of the topic's replicas.

    Invariant: ``asked`` are those of ``undeleted`` in DELETION_STARTED, with the id of the event in
    which each was asked last.
    """

    undeleted: set[PartitionAndReplica]
    asked: dict[PartitionAndReplica, int] = field(default_factory=dict)


class TopicDeletions:
    """Deletes topics; a topic waits while one of its replicas cannot be deleted."""

    def __init__(
        self,
        services: ControllerServices,
        partitions: PartitionStateMachine,
        replicas: ReplicaStateMachine,
    ) -> None:
        self._services = services
        self._log = services.log(__name__)
        self._context = services.context
        self._partitions = partitions
        self._replicas = replicas
        self.deleted = DeletedTopics(services)
        self._deletions: dict[str, _Deletion] = {}
        self._failed: set[str] = set()  # to be tried again by the scheduled TopicDeletion
        self.grown: set[str] = set()  # have added partitions that an ACL forbids to remove

    # --- what is to be deleted ---

    def keep(self) -> None:
        """Learn at the start of a term what is to be deleted, although deletion is quarantined.

        These topics get no leaders, as always: their states may be deleted already, and the topics
        would begin again in leader epochs that brokers know.
        """
        self._clear()
        requests = self._services.store.read_topics_to_delete()
        refused = self._read_refused(requests)
        self._failed.update(
            topic
            for topic, zxid in requests.items()
            if topic not in refused
            and not self._context.is_topic_quarantined(topic)
            and self._is_meant(topic, zxid)
        )
        self._context.queue_topic_deletion(self._failed)
        self.mark_ineligible(self._failed, "deletion is quarantined")

    def _clear(self) -> None:
        self._deletions.clear()
        self._failed.clear()
        self.grown.clear()

    def load(self) -> None:
        """Learn at the start of a term what is to be deleted; nothing is sent yet."""
        self._clear()
        queued = self._read_requests()
        self._context.queue_topic_deletion(queued)
        self.mark_ineligible(self._being_reassigned(queued), "partitions are being reassigned")
        self.mark_ineligible(
            [t for t in queued if self._has_offline_replica(t)], "replicas offline"
        )
        self.deleted.forget_old()

    def on_topic_deletion(self) -> None:
        """Compare ``/admin/delete_topics`` with what we know; try again what failed."""
        failed = self._failed.copy()
        self._failed.clear()
        self.deleted.forget_old()
        new = self.queue_requested()
        self.resume(failed)
        self._advance(new)

    def queue_requested(self) -> list[str]:
        """Queue the topics whose deletion is requested, and return them; nothing is sent yet."""
        new = [
            topic
            for topic in self._read_requests()
            if not self._context.is_topic_queued_for_deletion(topic)
        ]
        self._context.queue_topic_deletion(new)
        for topic in new:
            self._services.outbox.note("%s: to be deleted", topic)
        self.mark_ineligible(self._being_reassigned(new), "partitions are being reassigned")
        return new

    def _read_requests(self) -> list[str]:
        """Return the known topics that are to be deleted; handle the other requests."""
        requests = self._services.store.read_topics_to_delete()
        refused = self._refuse(requests)
        requests = {t: zxid for t, zxid in requests.items() if t not in refused}
        # A quarantined topic waits, because the brokers that host it are not known.
        requests = {t: z for t, z in requests.items() if not self._context.is_topic_quarantined(t)}
        others = {t: zxid for t, zxid in requests.items() if not self._is_meant(t, zxid)}
        if others:
            self._delete_untold(others)
        return [topic for topic in requests if topic not in others]

    def _refuse(self, requests: Mapping[str, int]) -> Collection[str]:
        """Remove the new requests that were not allowed; return their topics.

        Brokers refuse them before: these are of tools that write to ZooKeeper themselves.
        """
        known = self._context.topics_to_be_deleted
        new = {topic: zxid for topic, zxid in requests.items() if topic not in known}
        refused = self._read_refused(new)
        if refused:
            store = self._services.store
            store.delete_topic_deletions(refused, self._context.epoch_zk_version)
            reason = "deletion is disabled, or the topic is protected"
            self._services.outbox.note("topics %s: %s", sorted(refused), reason)
        return refused

    def _read_refused(self, requests: Mapping[str, int]) -> Collection[str]:
        return self._services.store.read_refused_deletions(
            requests,
            self._services.broker_id,
            is_enabled=self._services.settings.delete_topic_enable,
        )

    def _is_meant(self, topic: str, requested_zxid: int) -> bool:
        """Whether a request is for the known topic; an older one is for an earlier topic."""
        created_zxid = self._context.topic_created_zxids.get(topic)
        return topic in self._context.all_topics and (
            created_zxid is None or created_zxid <= requested_zxid
        )

    def _delete_untold(self, requests: Mapping[str, int]) -> None:
        """Delete the znodes of topics that no broker was told of; often only the request exists.

        A topic that will be known soon is left: its brokers have logs of it and must be asked. Only
        the store can decide that: a znode may be repaired until the moment at which it is deleted.
        """
        gone = self._services.store.delete_topics(
            requests, self._context.epoch_zk_version, self._will_be_known
        )
        self._forget_bad(gone)
        for topic in sorted(gone):
            self._services.outbox.note("%s: nothing left to delete", topic)
        if len(gone) < len(requests):
            self._try_again_later(requests.keys() - gone)

    def _forget_bad(self, topics: Set[str]) -> None:
        """Forget unusable topics that are gone. Others stay: the request was for an earlier one."""
        bad = sorted(topics & self._context.bad_topics.keys() - self._context.all_topics)
        left = self._services.store.read_topics(bad) if bad else {}
        for topic in bad:
            if topic not in left:
                del self._context.bad_topics[topic]

    def _will_be_known(self, topic: str, topic_id: TopicId | None) -> bool:
        """Whether a topic that could not be used can be now: its znode was repaired."""
        is_unique = topic_id is None or self._context.topic_name(topic_id) in (None, topic)
        return is_unique and topic in self._context.bad_topics

    def on_grown(self, topic: str, assignment: TopicAssignment) -> None:
        """Remove partitions that were added to a topic queued for deletion (KAFKA-6612)."""
        known = self._context.partition_assignments(topic)
        wanted = {tp.partition: replicas for tp, replicas in sorted(known.items())}
        read: TopicAssignment | BadDataError | None = assignment
        self.grown.discard(topic)
        for _ in range(MAX_ROUNDS):
            if (
                not isinstance(read, TopicAssignment)
                or read.created_zxid != assignment.created_zxid
                or read.partitions.keys() <= wanted.keys()
            ):
                return
            restored = replace(read, topic_id=self._context.topic_id(topic), partitions=wanted)
            outcome = self._services.store.write_topics(
                {topic: restored}, self._context.epoch_zk_version
            )[topic]
            if isinstance(outcome, int):
                added = len(read.partitions.keys() - wanted.keys())
                self._services.outbox.note("%s: %d added partitions removed", topic, added)
                return
            if outcome is WriteError.NOT_ALLOWED:
                self.grown.add(topic)
                self._context.must_read_again = True
                return
            read = self._services.store.read_topics([topic]).get(topic)

    # --- ineligible topics ---

    def mark_ineligible(self, topics: Collection[str], reason: str) -> None:
        """Keep queued topics from being deleted until ``resume`` names them."""
        halted = sorted(self._queued(topics) - self._context.topics_ineligible_for_deletion)
        if not halted:
            return
        self._context.topics_ineligible_for_deletion.update(halted)
        for topic in halted:
            self._services.outbox.note("%s: deletion waits, %s", topic, reason)
        self._log.info(
            "the deletion of %d topics waits, the first %s: %s",
            len(halted),
            halted[0],
            reason,
        )

    def resume(self, topics: Collection[str] | None = None) -> None:
        """Make ``topics`` eligible again and continue their deletion.

        A topic with a partition that is still being moved stays ineligible. None: continue the
        deletion of every queued topic that is eligible.
        """
        self._lead_what_moves(self._context.topics_to_be_deleted if topics is None else topics)
        if topics is None:
            self._advance(self._context.topics_to_be_deleted)
            return
        queued = self._queued(topics)
        eligible = queued - self._being_reassigned(queued)
        self._context.topics_ineligible_for_deletion -= eligible
        self._advance(eligible)

    def repeat(self, broker_id: BrokerId) -> None:
        """Ask a broker again to delete its replicas: the requests queued for it were dropped."""
        lost = [
            replica
            for topic in sorted(self._context.topics_with_deletion_started)
            if (deletion := self._started(topic)) is not None
            for replica in sorted(deletion.asked)
            if replica.replica == broker_id
        ]
        self._give_up(lost)
        self.resume(_topics(lost))

    def _lead_what_moves(self, topics: Iterable[str]) -> None:
        """Elect leaders for reassignments of queued topics that wait for a leader.

        No other election includes queued topics. Without a leader such a reassignment would never
        complete, and the deletion would never start.
        """
        waiting = self._queued(topics) - self._context.topics_with_deletion_started
        if not waiting:
            return
        moving = self._context.partitions_being_reassigned
        leaderless = sorted(tp for tp in moving if tp.topic in waiting and self._lost_leader(tp))
        self._partitions.handle_state_changes(leaderless, PartitionState.OFFLINE)
        self._partitions.handle_state_changes(leaderless, PartitionState.ONLINE, OfflineElection())
        self.retry_damaged_replicas(leaderless)

    def retry_damaged_replicas(self, moving: Collection[TopicPartition]) -> None:
        """Retry damaged replicas of queued topics, because a reassignment may wait for them.

        Brokers do not know the leaders of these partitions, so they cannot report when a log can be
        replaced.
        """
        queued = [p for p in moving if p.topic in self._context.topics_to_be_deleted]
        if not queued:
            return
        self._replicas.resend_leadership(
            PartitionAndReplica(topic_partition, broker_id)
            for broker_id, lost in sorted(self._context.replicas_on_offline_dirs.items())
            for topic_partition in queued
            if topic_partition in lost
        )

    def _lost_leader(self, topic_partition: TopicPartition) -> bool:
        leadership = self._context.partition_leadership_info(topic_partition)
        if leadership is None:
            return False  # never had one: the reassignment brings it online
        is_led = self._context.is_replica_online(leadership.leader_and_isr.leader, topic_partition)
        return (
            not is_led or self._context.partition_state(topic_partition) is PartitionState.OFFLINE
        )

    def _queued(self, topics: Iterable[str]) -> set[str]:
        return self._context.topics_to_be_deleted.intersection(topics)

    def _being_reassigned(self, topics: Collection[str]) -> set[str]:
        if not topics:  # the usual case when one of thousands of reassignments completes
            return set()
        return {tp.topic for tp in self._context.partitions_being_reassigned}.intersection(topics)

    def _has_offline_replica(self, topic: str) -> bool:
        replicas = self._context.replicas_of(self._context.partitions_of(topic))
        return not all(map(self._is_reachable, replicas))

    def _is_reachable(self, replica: PartitionAndReplica) -> bool:
        """Whether the replica can be asked; a broker that shuts down still handles requests.

        A log that failed may be deleted anyway, if it is only damaged.
        """
        return replica.replica in self._context.live_or_shutting_down_broker_ids

    def _try_again_later(self, topics: Iterable[str]) -> None:
        if not self._failed:
            after_ms = self._services.settings.topic_deletion_retry_ms
            self._services.schedule(after_ms, TopicDeletion())
        self._failed.update(topics)

    # --- responses and failures of replicas ---

    def fail(self, replicas: Collection[PartitionAndReplica]) -> None:
        """Note that these replicas, of topics queued for deletion, could not be deleted."""
        undeleted = [r for r in replicas if not self._is_deleted(r)]
        self._give_up(undeleted)
        topics = _topics(undeleted)
        self.mark_ineligible(topics, "replicas went offline or could not be deleted")
        self._lead_what_moves(topics)
        self._advance(topics)

    def is_answer(self, replica: PartitionAndReplica, event_id: int) -> bool:
        """Whether the answer to a request of an event tells that a replica is deleted now.

        Since an earlier request its broker may have been told of the partition again, and have
        created a log.
        """
        deletion = self._started(replica.topic_partition.topic)
        return deletion is None or deletion.asked.get(replica, 0) <= event_id

    def on_stop_replica_response(
        self, broker_id: BrokerId, errors: Mapping[TopicPartition, Errors]
    ) -> None:
        """Learn which replicas of a broker were deleted, and which could not be deleted."""
        deleted: list[PartitionAndReplica] = []
        failed: list[PartitionAndReplica] = []
        for topic_partition, error in errors.items():
            replica = PartitionAndReplica(topic_partition, broker_id)
            deletion = self._started(topic_partition.topic)
            if deletion is not None and replica in deletion.asked:
                (deleted if error is Errors.NONE else failed).append(replica)
        self._replicas.handle_state_changes(deleted, ReplicaState.DELETION_SUCCESSFUL)
        for replica in deleted:
            deletion = self._deletions[replica.topic_partition.topic]
            deletion.asked.pop(replica, None)
            deletion.undeleted.discard(replica)
        self._give_up(failed)
        if failed:
            reason = f"{failed[0]} answered {errors[failed[0].topic_partition].name}"
            self.mark_ineligible(_topics(failed), reason)
            offline = self._context.replicas_on_offline_dirs.get(broker_id, ())
            # Its broker tells when a failed directory works again. It is not asked before.
            again = [
                replica
                for replica in failed
                if replica.topic_partition not in offline
                or errors[replica.topic_partition] is not Errors.KAFKA_STORAGE_ERROR
            ]
            if again:
                self._try_again_later(_topics(again))
        self._advance(_topics([*deleted, *failed]))

    def _give_up(self, replicas: Iterable[PartitionAndReplica]) -> None:
        """Stop waiting for those of these replicas that were asked and did not answer."""
        asked: list[PartitionAndReplica] = []
        for replica in replicas:
            deletion = self._started(replica.topic_partition.topic)
            if deletion is not None and replica in deletion.asked:
                deletion.asked.pop(replica, None)
                asked.append(replica)
        self._replicas.handle_state_changes(asked, ReplicaState.DELETION_INELIGIBLE)

    def _is_deleted(self, replica: PartitionAndReplica) -> bool:
        return self._context.replica_state(replica) is ReplicaState.DELETION_SUCCESSFUL

    # --- progress ---

    def _advance(self, topics: Iterable[str]) -> None:
        """Do what can be done for these topics now; mirrors ``resumeDeletions``."""
        halted: list[str] = []
        eligible: list[str] = []
        for topic in sorted(self._queued(topics)):
            deletion = self._started(topic)
            if deletion is not None and (deletion.asked or not deletion.undeleted):
                continue
            if topic not in self._context.topics_ineligible_for_deletion:
                eligible.append(topic)
            elif deletion is not None:
                halted.append(topic)
        self._stop([r for topic in halted for r in sorted(self._deletions[topic].undeleted)])
        self._start(eligible)
        self._complete(sorted(self._queued(topics)))

    def _started(self, topic: str) -> _Deletion | None:
        if topic not in self._context.topics_with_deletion_started:
            return None  # ``_deletions`` may still have a topic that was purged
        return self._deletions.get(topic)

    def _start(self, topics: list[str]) -> None:
        """Ask for the deletion of the remaining replicas; mirrors ``onTopicDeletion``."""
        if not topics:
            return
        self._begin([topic for topic in topics if self._started(topic) is None])
        self._services.announce_metadata(
            tp for topic in topics for tp in self._context.partitions_of(topic)
        )
        alive: list[PartitionAndReplica] = []
        dead: list[PartitionAndReplica] = []
        for topic in topics:
            for replica in sorted(self._deletions[topic].undeleted):
                (alive if self._is_reachable(replica) else dead).append(replica)
        self._stop([*alive, *dead])
        self._replicas.handle_state_changes(
            [r for r in dead if self._context.replica_state(r) is ReplicaState.OFFLINE],
            ReplicaState.DELETION_INELIGIBLE,
        )
        self._replicas.handle_state_changes(alive, ReplicaState.DELETION_STARTED)
        for replica in alive:
            if self._context.replica_state(replica) is ReplicaState.DELETION_STARTED:
                deletion = self._deletions[replica.topic_partition.topic]
                deletion.asked[replica] = self._context.event_id
        self.mark_ineligible(_topics(dead), "replicas offline")

    def _stop(self, replicas: Iterable[PartitionAndReplica]) -> None:
        """Move replicas to OFFLINE, the state in which they can be asked to delete their data."""
        stopped = ReplicaState.OFFLINE
        self._replicas.handle_state_changes(
            [r for r in replicas if self._context.replica_state(r) is not stopped], stopped
        )

    def _begin(self, topics: list[str]) -> None:
        self.deleted.remember(topics)
        partitions = [tp for topic in topics for tp in self._context.partitions_of(topic)]
        self._partitions.handle_state_changes(partitions, PartitionState.OFFLINE)
        self._partitions.handle_state_changes(partitions, PartitionState.NON_EXISTENT)
        for topic in topics:
            replicas = self._context.replicas_of(self._context.partitions_of(topic))
            self._deletions[topic] = _Deletion(set(replicas))
            self._services.outbox.note("%s: deletion started, %d replicas", topic, len(replicas))
        # Last: the count of offline partitions leaves out topics whose deletion has started.
        self._context.topics_with_deletion_started.update(topics)

    def _complete(self, topics: Iterable[str]) -> None:
        """Delete the znodes of topics that have no replica left, and forget them.

        The watch on a topic's znode stays: it reports a new topic of that name.
        """
        done: dict[str, int] = {}
        for topic in topics:
            deletion = self._started(topic)
            if deletion is not None and not deletion.undeleted:
                done[topic] = self._context.topic_created_zxids[topic]
        if not done:
            return
        self.deleted.settle(done)
        gone = self._services.store.delete_topics(done, self._context.epoch_zk_version)
        for topic in sorted(gone):
            self._context.remove_topic(topic)
            self._deletions.pop(topic)
            self._services.outbox.note("%s: deleted", topic)
        self._log.info(
            "%d topics are deleted, the first: %s",
            len(gone),
            min(gone, default="none"),
        )
        if len(gone) < len(done):
            self._try_again_later(done.keys() - gone)


def _topics(replicas: Iterable[PartitionAndReplica]) -> set[str]:
    return {replica.topic_partition.topic for replica in replicas}
