"""Check the records: the appending broker, commits, answers to clients. S5, S7 and S8."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from regent.core.errors import Errors
from regent.core.model import BrokerId, LeaderAndIsr, ReplicaAssignment, TopicPartition
from regent.core.protocol.broker import FetchRequest, FetchResponse
from regent.core.protocol.client import ACKS_ALL, ConsumedPartition, ProducedPartition
from regent.core.replication.partition import Partition, Role
from regent.zk.client.operations import Operation
from tests.simulation.broker import SimulatedBroker
from tests.simulation.client_requests import ConsumeRequest, ProduceRequest
from tests.simulation.cluster import Cluster
from tests.simulation.committed_records import CommittedRecords, LogKey, batch_at
from tests.simulation.leadership_history import Belief, LeadershipHistory
from tests.simulation.records import RecordObserver
from tests.simulation.simulated_logs import NamedLog, SimulatedLog
from tests.simulation.situations import Situation, Situations
from tests.simulation.undeletions import PromisedRecords
from tests.support.memory_logs import StoredBatch
from tests.support.record_batches import records_of, values_of
from tests.support.record_checks import Header, headers_of

OnRead: TypeAlias = Callable[
    [SimulatedBroker, ConsumeRequest, TopicPartition, ConsumedPartition, SimulatedLog | None], None
]


class RecordHistory(RecordObserver):
    """Observes brokers; raises ``AssertionError`` in the call that breaks a guarantee."""

    def __init__(
        self, cluster: Cluster, leaderships: LeadershipHistory, situations: Situations
    ) -> None:
        self._cluster = cluster
        self._situations = situations
        self._leaderships = leaderships
        self._known: dict[LogKey, CommittedRecords] = {}
        # The last seen topic id, leader epoch and high watermark of each replica.
        self._seen: dict[SimulatedBroker, dict[TopicPartition, tuple[str | None, int, int]]] = {}
        # Replicas whose disks lost records while they were in the ISR, or were proposed for it,
        # and the leader epoch in which they left it. They do not excuse a loss: the controller must
        # not elect them.
        self._lossy: dict[tuple[BrokerId, TopicPartition], int | None] = {}
        # Replicas whose disks lost records outside the ISR. A fetch of theirs that is still in
        # flight may bring them into the ISR before their broker starts again.
        self._lossy_outside: set[tuple[BrokerId, TopicPartition]] = set()
        self._led: dict[TopicPartition, tuple[BrokerId, int]] = {}  # leaders and leader epochs
        self._doomed: set[str] = set()
        self._promised = PromisedRecords(cluster, situations)
        # Are told of each batch, by the checks of transactions.
        self.on_led_batch: Callable[[BrokerId, CommittedRecords, StoredBatch], None]
        self.on_led_batch = lambda broker_id, known, batch: None
        self.on_committed_batch: Callable[[CommittedRecords, StoredBatch], None]
        self.on_committed_batch = lambda known, batch: None
        self.on_read: OnRead = lambda broker, request, name, outcome, log: None
        # Given to two producers, because the log of their coordinator has lost records.
        self.producers_given_again: set[tuple[int, int]] = set()
        # State before the request that is being handled.
        self._full_at: int | None = None
        self._proposals: dict[tuple[SimulatedBroker, TopicPartition], object] = {}
        self._must_not_count = False
        self._positions: dict[TopicPartition, tuple[int, int]] = {}
        self._other_epochs: set[TopicPartition] = set()
        # The leader epochs that followers have listed.
        self._listed: set[tuple[SimulatedBroker, BrokerId, TopicPartition, int]] = set()
        # Logs of topics whose znodes were removed by hand: partition, topic id, broker.
        self._kept: set[tuple[TopicPartition, str | None, BrokerId]] = set()
        # Contents of deleted logs: a fetch with their end offset may still be in flight.
        self._dropped: dict[tuple[TopicPartition, str | None, BrokerId], list[StoredBatch]] = {}

    def of(self, log: NamedLog) -> CommittedRecords | None:
        """Return the records of a log; None for a topic without an id."""
        if log.topic_id is None:
            return None
        return self._records_of(LogKey(log.topic_partition, log.topic_id))

    def _records_of(self, key: LogKey) -> CommittedRecords:
        known = self._known.get(key)
        if known is None:
            is_doomed = key.name.topic in self._doomed
            known = self._known[key] = CommittedRecords(key, is_tainted=is_doomed)
        return known

    def latest(self, name: TopicPartition) -> CommittedRecords | None:
        """Return the records of a partition of the present topic with this name."""
        return self._known.get(LogKey(name, self._leaderships.topic_id(name.topic)))

    # --- explanations of a loss ---

    def on_unclean_election(self, name: TopicPartition, topic_id: str, leader_epoch: int) -> None:
        """A leader was elected that was not in the ISR."""
        self._records_of(LogKey(name, topic_id)).unclean_epochs.append(leader_epoch)
        self._promised.give_up(LogKey(name, topic_id))

    def on_deletion_requested(self, topic: str) -> None:
        """A topic is queued for deletion: brokers may delete its logs now."""
        topic_id = self._leaderships.topic_id(topic)
        for key, known in self._known.items():
            if key.name.topic == topic and key.topic_id == topic_id:
                self._promised.on_deletion_requested(key, known)
        self.on_given_up(topic)
        self._doomed.add(topic)
        self._kept = {kept for kept in self._kept if kept[0].topic != topic}

    def on_operation(self, operation: Operation) -> None:
        """ZooKeeper was written."""
        self._promised.on_operation(operation, self._records_of)

    def on_topic_lost(
        self, topic: str, topic_id: str, assignment: Mapping[int, ReplicaAssignment]
    ) -> None:
        """The znode of a topic was removed by hand: no assigned replica may delete its log."""
        for number, replicas in assignment.items() if topic not in self._doomed else ():
            moved = {*replicas.adding_replicas, *replicas.removing_replicas}
            name = TopicPartition(topic, number)
            self._kept |= {(name, topic_id, b) for b in replicas.replicas if b not in moved}

    def on_deleted(self, broker_id: BrokerId, log: NamedLog) -> None:
        """A log is deleted, not set aside: a request must be the reason."""
        self._leaderships.check()
        kept = (log.topic_partition, log.topic_id, broker_id)
        assert kept not in self._kept, f"LostTopicsAreKept: {kept}"
        broker = self._cluster.brokers.get(broker_id)
        if broker is not None:  # a later log starts empty, even in the same epoch
            self._seen.get(broker, {}).pop(log.topic_partition, None)
        self._note_dropped(broker_id, log)

    def on_set_aside(self, broker_id: BrokerId, log: NamedLog) -> None:
        """A stray log is kept under another name."""
        self._note_dropped(broker_id, log)

    def _note_dropped(self, broker_id: BrokerId, log: NamedLog) -> None:
        """Store the batches of a log that is gone: an acknowledgement may need them later."""
        found = self._cluster.disks[broker_id].find(log.topic_partition)
        dropped = self._dropped.setdefault((log.topic_partition, log.topic_id, broker_id), [])
        dropped += [] if found is None else found.batches

    def on_given_up(self, topic: str) -> None:
        """A topic is gone, or has another id: do not check its records any more."""
        self._doomed.discard(topic)
        for key, known in self._known.items():
            known.is_tainted |= key.name.topic == topic

    def on_state(self, name: TopicPartition, now: LeaderAndIsr) -> None:
        """ZooKeeper has a new leadership: all members of the ISR have all committed batches."""
        self._excuse_unknown_loss(name, now)
        for member in now.isr:
            if (member, name) in self._lossy_outside:
                self._lossy_outside.discard((member, name))
                if not self._is_loss_known(member):
                    self._lossy[member, name] = None
        self._note_lossy_members(name, now)
        if now.eligible_leader_replicas and not any(
            broker.is_of_kafka for broker in self._cluster.brokers.values()
        ):  # brokers of Kafka do not know of them, and their controllers do not tell
            key = LogKey(name, self._leaderships.topic_id(name.topic))
            self._records_of(key).on_eligible_replicas(now)
        for member, log in self._replicas(name, self._leaderships.topic_id(name.topic)):
            known = self.of(log)
            if member in now.isr and known is not None and (member, name) not in self._lossy:
                known.check_member(member, log, now.leader_epoch)

    def _excuse_unknown_loss(self, name: TopicPartition, now: LeaderAndIsr) -> None:
        """Count an election as unclean if nobody could know that the leader had lost records.

        A broker of Kafka does not say that its replicas are suspect, and a controller of Kafka does
        not ask.
        """
        is_lossy = {(now.leader, name)} & (self._lossy.keys() | self._lossy_outside)
        leader = self._cluster.brokers.get(now.leader)
        is_of_kafka = leader is not None and leader.is_of_kafka
        before = self._led.get(name)
        self._led[name] = now.leader, now.leader_epoch
        if not is_lossy or before == self._led[name]:
            return
        if is_of_kafka or self._leaderships.is_ruled_by_kafka:
            topic_id = self._leaderships.topic_id(name.topic)
            self.on_unclean_election(name, topic_id, now.leader_epoch)
            self._lossy.pop((now.leader, name), None)

    def _note_lossy_members(self, name: TopicPartition, now: LeaderAndIsr) -> None:
        for (broker_id, lossy), left_in in list(self._lossy.items()):
            if lossy != name:
                continue
            is_member = broker_id in now.isr
            if not is_member and left_in is None:
                self._lossy[broker_id, name] = now.leader_epoch
            elif is_member and left_in is not None:
                if self._is_loss_known(broker_id):
                    del self._lossy[broker_id, name]  # it has caught up again
                else:  # elected as an eligible leader, before its loss is known
                    self._lossy[broker_id, name] = None

    def _is_loss_known(self, broker_id: BrokerId) -> bool:
        """Whether the controller has read the registration that a broker made after its loss.

        Until then an older fetch may add it to an ISR, and the controller may elect it as an
        eligible leader: no write is conditional on a registration. It does not lead: requests with
        its former broker epoch are refused.
        """
        brokers = self._cluster.brokers
        broker = brokers.get(broker_id)
        return (broker is not None and broker.broker_epoch >= 0) and all(
            controller.controller.context.broker_epoch(broker_id) == broker.broker_epoch
            for controller in brokers.values()
            if self._leaderships.is_active_controller(controller)
        )

    def on_lost(self, broker_id: BrokerId, log: NamedLog) -> None:
        """A disk lost some or all records of a log."""
        self._leaderships.check()
        name = log.topic_partition
        now = self._leaderships.current.get(name)
        if now is not None and (broker_id in now.isr or self._is_proposed(broker_id, name)):
            self._lossy[broker_id, name] = None
        else:
            self._lossy_outside.add((broker_id, name))

    def on_out_of_service(self, broker_id: BrokerId, log: NamedLog) -> None:
        """A replica with damaged records leaves service: other replicas are in sync."""
        broker = self._cluster.brokers[broker_id]
        partition = broker.replica_manager.partitions[log.topic_partition]
        assert set(partition.isr) - {broker_id}, (
            f"LastCopyStays: broker {broker_id} takes it out of service: {partition}"
        )
        self.on_acted(broker)  # its last commits cannot be seen later

    def on_replaced(self, broker_id: BrokerId, log: NamedLog) -> None:
        """A damaged log is dropped: no leader may count on it."""
        self._leaderships.check()
        self._note_dropped(broker_id, log)
        name, known = log.topic_partition, self.of(log)
        now = self._leaderships.current.get(name)
        if known is None or now is None:
            return
        hosted = self._cluster.brokers[broker_id].replica_manager.partitions.get(name)
        known_epoch = -1 if hosted is None else hosted.leader_epoch
        if log.topic_id == self._leaderships.topic_id(name.topic):
            is_needed = broker_id in now.isr and not known.is_covered(known_epoch, now.leader_epoch)
            assert not is_needed, f"InSyncLogsStay: broker {broker_id} drops {name}: {now}"

    def _is_proposed(self, broker_id: BrokerId, name: TopicPartition) -> bool:
        hosted = (b.replica_manager.partitions.get(name) for b in self._cluster.brokers.values())
        return self._leaderships.is_proposed(broker_id, name) or any(
            p is not None and broker_id in p.maximal_isr for p in hosted
        )

    # --- appends ---

    def on_led(self, broker_id: BrokerId, log: SimulatedLog, batch: StoredBatch) -> None:
        """A broker appended as leader: it was elected in this leader epoch."""
        self._leaderships.check()
        led = (log.topic_partition, broker_id, batch.leader_epoch)
        assert led in self._leaderships.ever_led, f"the appending broker is not the leader: {led}"
        known = self.of(log)
        if known is not None:
            known.on_led(broker_id, log, batch)
            self.on_led_batch(broker_id, known, batch)

    def on_followed(self, broker_id: BrokerId, log: SimulatedLog, first: int) -> None:
        """A broker appended as follower."""
        broker = self._cluster.brokers.get(broker_id)
        partition = (
            None if broker is None else broker.replica_manager.partitions.get(log.topic_partition)
        )
        follows = partition is not None and partition.role is Role.FOLLOWER
        assert follows, f"broker {broker_id} copies records and is not a follower: {partition}"
        known = self.of(log)
        if known is not None:
            for index in range(first, len(log.batches)):
                known.on_followed(broker_id, log, index)

    # --- commits ---

    def on_acted(self, broker: SimulatedBroker) -> None:
        """Check the high watermarks of a broker."""
        seen = self._seen.setdefault(broker, {})
        for name, partition in broker.replica_manager.partitions.items():
            role = partition.role
            if role is not Role.LEADER and role is not Role.FOLLOWER:
                continue
            log = broker.disk.get(name)
            if log is None:
                continue
            high_watermark = partition.high_watermark
            assert high_watermark <= log.log_end_offset, (
                f"broker {broker.broker_id}: the log ends at {log.log_end_offset}: {partition}"
            )
            if partition.proposal is not None:
                self._check_proposal(broker, partition)
            elif role is Role.LEADER:
                self._check_waits_for_all(broker, partition, log)
            present = (log.topic_id, partition.leader_epoch, high_watermark)
            if role is Role.LEADER and log.topic_id is not None and seen.get(name) != present:
                before = seen.get(name)
                seen[name] = present
                is_same = before is not None and before[:2] == present[:2]
                self._on_leader(broker, partition, log, before[2] if before and is_same else None)
            elif role is Role.FOLLOWER and seen.get(name) != present:
                seen[name] = present
                self._check_follower_knows(broker, partition, log)

    def _check_waits_for_all(
        self, broker: SimulatedBroker, partition: Partition, log: SimulatedLog
    ) -> None:
        """A leader without a proposal counts every member of the stored ISR before it commits."""
        known = self.of(log)
        if known is None or known.is_tainted:
            return
        self._leaderships.check()
        now = self._leaderships.current.get(partition.topic_partition)
        led = (broker.broker_id, partition.leader_epoch, log.topic_id)
        topic_id = self._leaderships.topic_id(partition.topic_partition.topic)
        if now is not None and (now.leader, now.leader_epoch, topic_id) == led:
            assert set(now.isr) <= set(partition.maximal_isr), (
                f"LeaderKnowsItsIsr: broker {broker.broker_id} commits without members of"
                f" {now}: {partition}"
            )

    def _check_follower_knows(
        self, broker: SimulatedBroker, partition: Partition, log: SimulatedLog
    ) -> None:
        """A leader committed what is below a follower's high watermark."""
        known = self.of(log)
        if known is None or known.is_tainted:
            return
        self._leaderships.check()
        now = self._leaderships.current.get(partition.topic_partition)
        newest = max(partition.leader_epoch, -1 if now is None else now.leader_epoch)
        start = max(log.log_start_offset, known.deleted_to)
        for batch in log.batches:
            is_followed = (
                start <= batch.base_offset and batch.last_offset < partition.high_watermark
            )
            if is_followed and not known.has(batch):
                assert known.is_covered(batch.leader_epoch, newest), (
                    f"FollowerHighWatermark: broker {broker.broker_id} counts the batch at"
                    f" {batch.base_offset} as committed: {partition}"
                )

    def _on_leader(
        self,
        broker: SimulatedBroker,
        partition: Partition,
        log: SimulatedLog,
        before: int | None,
    ) -> None:
        """Check a leader that is new (``before`` is None) or raised its high watermark."""
        self._check_leader_knows(broker, partition, log, is_new=before is None)
        self._leaderships.check()  # members of earlier ISRs are checked against earlier commits
        name, epoch = partition.topic_partition, partition.leader_epoch
        known = self.of(log)
        assert known is not None
        # Records below the log start offset were deleted and may differ between replicas.
        checked = log.log_start_offset if before is None else before
        if before is None:
            known.check_leader(broker.broker_id, log, epoch)
            if (broker.broker_id, name) in self._lossy.keys() | self._lossy_outside:
                self._promised.give_up(known.key)  # others copy what it has
            self._promised.check_leader(known.key, broker.broker_id, log, known)
        else:
            assert partition.high_watermark > before, f"HighWatermarkFalls: {before}: {partition}"
            known.check_nobody_else_may_lead(partition)
        if log.log_start_offset > known.deleted_to and not known.is_tainted:
            raise AssertionError(f"{name} starts at {log.log_start_offset} without a request")
        first = max(checked, log.log_start_offset)  # deleted records are not checked
        for batch in log.batches:
            is_committed = first <= batch.last_offset < partition.high_watermark
            if is_committed and not known.has(batch):
                holders = self._holders(name, log.topic_id, batch)
                known.on_committed(broker.broker_id, batch, epoch, len(holders))
                self.on_committed_batch(known, batch)
        if before and not known.is_tainted:
            self._check_isr_has(broker, partition, log, known)

    def _check_proposal(self, broker: SimulatedBroker, partition: Partition) -> None:
        """A proposed member has all records up to the epoch start (KAFKA-7128) at this moment."""
        proposal, name = partition.proposal, partition.topic_partition
        start = partition.leader_epoch_start_offset
        if proposal is self._proposals.get((broker, name)) or proposal is None or start is None:
            return
        self._proposals[broker, name] = proposal
        for member in set(proposal.new_isr) - set(partition.isr):
            follower = partition.followers.get(member)
            is_there = follower is None or follower.log_end_offset >= start
            assert is_there, f"BelowEpochStart: broker {broker.broker_id}: {partition}"

    def _check_leader_knows(
        self, broker: SimulatedBroker, partition: Partition, log: SimulatedLog, *, is_new: bool
    ) -> None:
        """A leader uses an ISR that ZooKeeper had, and positions of its own leader epoch."""
        where = f"broker {broker.broker_id} leads {partition}"
        held = self._leaderships.ever_held.get(partition.topic_partition, ())
        belief = Belief(
            partition.leader, partition.leader_epoch, partition.isr, partition.partition_epoch
        )
        self._leaderships.check()
        assert belief in held, f"an ISR that ZooKeeper never had, {where}"
        if not is_new:
            return
        assert log.latest_epoch == partition.leader_epoch, f"NoEpochStart, {where}: {log}"
        if partition.leading_since == partition.leader_epoch:
            # A fetch that named this leader epoch may have waited until the broker had it too.
            known = {r for r, f in partition.followers.items() if f.log_end_offset >= 0}
            earlier = [
                replica
                for replica in known
                if (broker, replica, partition.topic_partition, partition.leader_epoch)
                not in self._listed
            ]
            assert not earlier, f"positions of an earlier leadership, {where}"
        elif any(f.log_end_offset >= 0 for f in partition.followers.values()):
            self._situations.meet(Situation.FORMER_POSITIONS)

    def _check_isr_has(
        self,
        broker: SimulatedBroker,
        partition: Partition,
        log: SimulatedLog,
        known: CommittedRecords,
    ) -> None:
        """Every replica that may be elected next has the committed batches."""
        self._leaderships.check()
        name = partition.topic_partition
        now = self._leaderships.current.get(name)
        led = (broker.broker_id, partition.leader_epoch, log.topic_id)
        topic_id = self._leaderships.topic_id(name.topic)
        if now is None or (now.leader, now.leader_epoch, topic_id) != led:
            return
        for member, other in self._replicas(name, topic_id):
            is_lossy = (member, name) in self._lossy
            if member in now.isr and not is_lossy:
                assert other.log_end_offset >= partition.high_watermark, (
                    f"HighWatermarkAheadOfIsr: broker {member} ends at {other.log_end_offset}:"
                    f" {partition}"
                )

    def _replicas(
        self, name: TopicPartition, topic_id: str | None
    ) -> Iterator[tuple[BrokerId, SimulatedLog]]:
        for broker_id, disk in self._cluster.disks.items():
            log = disk.get(name)
            if log is not None and log.topic_id == topic_id:
                yield broker_id, log

    # --- answers ---

    def on_produced(
        self,
        broker: SimulatedBroker,
        request: ProduceRequest,
        log: SimulatedLog | None,
        outcome: ProducedPartition,
    ) -> None:
        """An acknowledged batch is committed and on ``min.insync.replicas`` replicas.

        If there are fewer replicas, it is on all of them.
        """
        if outcome.error_code is not Errors.NONE or request.acks != ACKS_ALL:
            return
        self.on_acted(broker)
        where = f"broker {broker.broker_id} acknowledges {request.name} {outcome}"
        assert log is not None, where
        known = self.of(log)
        if known is None or known.is_tainted or self._is_given_again(request.batch):
            return
        partition = broker.replica_manager.partitions[request.name]
        batch = known.committed_at(outcome.base_offset, partition.leader_epoch)
        if batch is None and outcome.base_offset < log.log_start_offset:
            return  # committed, deleted and acknowledged in one step
        assert batch is not None, f"AckedIsCommitted: {where}"
        assert values_of(batch.data) == values_of(request.batch), f"AckedIsCommitted: {where}"
        holders = len(self._holders(request.name, log.topic_id, batch))
        holders = max(holders, known.holders_of(batch))  # some may have left since
        enough = min(log.config.min_insync_replicas, len(partition.assignment.replicas))
        assert holders >= enough, f"AckedByMinIsr: {where}, and {holders} have or had it"

    def _is_given_again(self, batch: bytes) -> bool:
        """Whether another producer with the same id and epoch may have written this sequence."""
        return any(
            (header.producer_id, header.producer_epoch) in self.producers_given_again
            for _, header in headers_of(batch)
        )

    def _holders(
        self, name: TopicPartition, topic_id: str | None, batch: StoredBatch
    ) -> set[BrokerId]:
        """Return the brokers that have a batch, had it in a deleted log, or may have lost it."""
        holders = {broker_id for broker_id, lost in self._lossy if lost == name}
        holders |= {b for b, disk in self._cluster.disks.items() if disk.has_failed}
        for broker_id, disk in self._cluster.disks.items():
            if batch in self._dropped.get((name, topic_id, broker_id), ()):
                holders.add(broker_id)
            log = disk.find(name)
            if log is None or log.topic_id != topic_id:
                continue
            held = batch_at(log, batch.base_offset)
            if held is not None and held.data == batch.data:
                holders.add(broker_id)
        return holders

    def on_fetch(self, broker: SimulatedBroker, request: FetchRequest) -> None:
        """Store the leader's view of a follower before a fetch that must not change it."""
        known = broker.cache.snapshot.brokers.get(request.replica_id)
        self._must_not_count = known is not None and -1 < request.replica_epoch < known.broker_epoch
        meet_if = self._situations.meet_if
        meet_if(self._must_not_count, Situation.FETCH_OF_FORMER_BROKER_EPOCH)
        self._positions = _positions(broker, request.replica_id)
        self._other_epochs = set()
        for name, row in request.partitions():
            # A late fetch with an earlier epoch may arrive after one that has counted.
            self._listed.add((broker, request.replica_id, name, row.current_leader_epoch))
            partition = broker.replica_manager.partitions.get(name)
            if partition is not None and row.current_leader_epoch != partition.leader_epoch:
                self._other_epochs.add(name)
        meet_if(self._other_epochs, Situation.FETCH_OF_ANOTHER_EPOCH)

    def on_fetch_taken(self, broker: SimulatedBroker, request: FetchRequest) -> None:
        """Fetches of former broker or leader epochs change no position (KIP-320, KIP-903)."""
        now = _positions(broker, request.replica_id)
        changed = {name for name in now if now[name] != self._positions.get(name)}
        if not self._must_not_count:
            changed &= self._other_epochs
        assert not changed, f"a stale fetch counts at {broker.broker_id}: {changed}, {request}"

    def on_produce(self, broker: SimulatedBroker, request: ProduceRequest) -> None:
        """Store the end of a log to which nothing may be appended."""
        self._full_at = None
        partition = broker.replica_manager.partitions.get(request.name)
        is_led = partition is not None and partition.role is Role.LEADER
        if is_led and partition is not None and request.acks == ACKS_ALL:
            is_too_few = len(partition.isr) < partition.min_isr
            self._situations.meet_if(is_too_few, Situation.TOO_FEW_IN_SYNC)
            self._full_at = partition.local_log.log_end_offset if is_too_few else None

    def on_produce_taken(self, broker: SimulatedBroker, request: ProduceRequest) -> None:
        """A batch is not appended with too few in-sync replicas."""
        log = broker.disk.get(request.name)
        if self._full_at is not None and log is not None:
            is_same = log.log_end_offset == self._full_at
            assert is_same, f"MinIsr: broker {broker.broker_id} appends to {request.name}"

    def on_truncated(self, log: SimulatedLog) -> None:
        """A follower dropped records."""
        self._situations.meet(Situation.FOLLOWER_TRUNCATES)

    def on_fetched(self, broker: SimulatedBroker, answer: FetchResponse) -> None:
        """Copied batches are undamaged, and the high watermark in the answer is committed."""
        self.on_acted(broker)
        for name, row in answer.partitions():
            if row.records.size > 0:
                copied = [header for _, header in headers_of(row.records.read())]
                # It may have in memory what it appended itself, whatever the disk has.
                led = self._leaderships.ever_led
                of_disk = [h for h in copied if (name, broker.broker_id, h.leader_epoch) not in led]
                _check_undamaged(broker, broker.disk.log(name), of_disk)

    def on_consumed(
        self,
        broker: SimulatedBroker,
        request: ConsumeRequest,
        logs: Mapping[TopicPartition, SimulatedLog | None],
        partitions: Mapping[TopicPartition, ConsumedPartition],
    ) -> None:
        """Read batches are undamaged, committed, and begin at the requested offset."""
        self.on_acted(broker)
        for name, outcome in partitions.items():
            self.on_read(broker, request, name, outcome, logs.get(name))
            data, log = outcome.records.read(), logs.get(name)
            if not data:
                continue
            where = f"broker {broker.broker_id} returns records of {name} up to"
            assert log is not None, where
            _check_undamaged(broker, log, [header for _, header in headers_of(data)])
            (_, first), *_ = headers_of(data)
            position = request.fetch.positions[name].fetch_offset
            is_there = first.base_offset <= position <= first.last_offset
            assert is_there, f"ReadsWhatIsAsked: {where}, from {first.base_offset}, not {position}"
            last = records_of(data)[-1].offset
            assert last < outcome.high_watermark, f"ReadsBelowHighWatermark: {where} {last}"
            known = self.of(log)
            if known is None or known.is_tainted:
                continue
            epoch = broker.replica_manager.partitions[name].leader_epoch
            if any(unclean > epoch for unclean in known.unclean_epochs):
                continue  # this leader was deposed and its later commits are void
            for position, header in headers_of(data):
                batch = known.committed.get(header.base_offset)
                read = data[position : position + header.size]
                assert batch is not None, f"ReadIsCommitted: {where} {last}"
                assert batch.data == read, f"ReadIsCommitted: {where} {last}, not {batch}"

    def on_delete_records(self, log: SimulatedLog | None, offset: int) -> None:
        """From now on records below an offset may be missing."""
        known = None if log is None else self.of(log)
        if known is not None and log is not None:
            known.deleted_to = max(known.deleted_to, log.log_end_offset if offset < 0 else offset)


def _positions(
    broker: SimulatedBroker, follower: BrokerId
) -> dict[TopicPartition, tuple[int, int]]:
    """Return a follower's position in the leader's view, and the broker epoch of its fetch."""
    return {
        name: (known.log_end_offset, known.broker_epoch)
        for name, partition in broker.replica_manager.partitions.items()
        if (known := partition.followers.get(follower)) is not None
    }


def _check_undamaged(broker: SimulatedBroker, log: SimulatedLog, headers: Sequence[Header]) -> None:
    damaged = {header.base_offset for header in headers} & log.damaged
    assert not damaged, (
        f"DamageStays: broker {broker.broker_id} returns damaged records {damaged} of {log}"
    )
