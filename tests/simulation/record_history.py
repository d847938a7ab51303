"""What happens to records: written by whom, committed when, answered how. S5, S7 and S8."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from regent.core.errors import Errors
from regent.core.model import BrokerId, LeaderAndIsr, ReplicaAssignment, TopicPartition
from regent.core.protocol.broker import FetchRequest, FetchResponse
from regent.core.protocol.client import ACKS_ALL, ConsumedPartition, ProducedPartition
from regent.core.records import RecordBytes
from regent.core.replication.partition import Partition, Role
from tests.simulation.broker import SimulatedBroker
from tests.simulation.client_requests import ConsumeRequest, ProduceRequest
from tests.simulation.cluster import Cluster
from tests.simulation.committed_records import CommittedRecords, LogKey, batch_at
from tests.simulation.leadership_history import Belief, LeadershipHistory
from tests.simulation.records import RecordObserver
from tests.simulation.simulated_logs import NamedLog, SimulatedLog
from tests.simulation.situations import Situation, Situations
from tests.support.memory_logs import StoredBatch
from tests.support.record_batches import records_of, values_of
from tests.support.record_checks import headers_of


class RecordHistory(RecordObserver):
    """Looks on; raises ``AssertionError`` out of what breaks a promise."""

    def __init__(
        self, cluster: Cluster, leaderships: LeadershipHistory, situations: Situations
    ) -> None:
        self._cluster = cluster
        self._situations = situations
        self._leaderships = leaderships
        self._known: dict[LogKey, CommittedRecords] = {}
        # Topic id, leader epoch and high watermark of each leadership when it was last looked at.
        self._seen: dict[SimulatedBroker, dict[TopicPartition, tuple[str | None, int, int]]] = {}
        # Replicas whose disks lost records while they were in the ISR, or were to join it as what
        # they were before, and the leader epoch in which they left it. They do not excuse a loss:
        # nobody is to elect them.
        self._lossy: dict[tuple[BrokerId, TopicPartition], int | None] = {}
        self._doomed: set[str] = set()
        # Of the fetch that is being taken.
        self._full_at: int | None = None
        self._proposals: dict[tuple[SimulatedBroker, TopicPartition], object] = {}
        self._must_not_count = False
        self._positions: dict[TopicPartition, tuple[int, int]] = {}
        self._other_epochs: set[TopicPartition] = set()
        # Logs of topics that somebody removed by hand: partition, topic id, broker.
        self._kept: set[tuple[TopicPartition, str | None, BrokerId]] = set()
        # What deleted logs held: a fetch that says so may still be on its way.
        self._dropped: dict[tuple[TopicPartition, str | None, BrokerId], list[StoredBatch]] = {}

    def of(self, log: NamedLog) -> CommittedRecords | None:
        """Return what is known of a log; None for a topic without an id."""
        if log.topic_id is None:
            return None
        key = LogKey(log.topic_partition, log.topic_id)
        known = self._known.get(key)
        if known is None:
            is_doomed = key.name.topic in self._doomed
            known = self._known[key] = CommittedRecords(key, is_tainted=is_doomed)
        return known

    def latest(self, name: TopicPartition) -> CommittedRecords | None:
        """Return what is known of a partition of the topic that has the name now."""
        return self._known.get(LogKey(name, self._leaderships.topic_id(name.topic)))

    # --- what excuses a loss ---

    def on_unclean_election(self, name: TopicPartition, topic_id: str, leader_epoch: int) -> None:
        """A leader was elected that was not in sync."""
        key = LogKey(name, topic_id)
        self._known.setdefault(key, CommittedRecords(key)).unclean_epochs.append(leader_epoch)

    def on_wish(self, topic: str) -> None:
        """A topic is to be deleted: until it is, brokers drop what they have of it."""
        self.on_given_up(topic)
        self._doomed.add(topic)
        self._kept = {kept for kept in self._kept if kept[0].topic != topic}

    def on_topic_lost(
        self, topic: str, topic_id: str, assignment: Mapping[int, ReplicaAssignment]
    ) -> None:
        """Somebody removed a topic's znode: no replica that was to stay may delete its log."""
        for number, replicas in assignment.items() if topic not in self._doomed else ():
            moved = {*replicas.adding_replicas, *replicas.removing_replicas}
            name = TopicPartition(topic, number)
            self._kept |= {(name, topic_id, b) for b in replicas.replicas if b not in moved}

    def on_deleted(self, broker_id: BrokerId, log: NamedLog) -> None:
        """A log is deleted, not set aside: somebody wanted that."""
        self._leaderships.check()
        kept = (log.topic_partition, log.topic_id, broker_id)
        assert kept not in self._kept, f"LostTopicsAreKept: {kept}"
        broker = self._cluster.brokers.get(broker_id)
        if broker is not None:  # what is there later begins anew, be it in the same epoch
            self._seen.get(broker, {}).pop(log.topic_partition, None)
        self._note_dropped(broker_id, log)

    def _note_dropped(self, broker_id: BrokerId, log: NamedLog) -> None:
        """Remember what a replica had: an acknowledgement may be told later than it was earned."""
        found = self._cluster.disks[broker_id].find(log.topic_partition)
        dropped = [] if found is None else list(found.batches)
        self._dropped[log.topic_partition, log.topic_id, broker_id] = dropped

    def on_given_up(self, topic: str) -> None:
        """A topic is gone, or got another id: nobody looks after what was written to it."""
        self._doomed.discard(topic)
        for key, known in self._known.items():
            known.is_tainted |= key.name.topic == topic

    def on_state(self, name: TopicPartition, now: LeaderAndIsr) -> None:
        """ZooKeeper holds a new leadership: all members of the ISR have what is committed."""
        for (broker_id, lossy), left_in in list(self._lossy.items()):
            if lossy != name:
                continue
            is_member = broker_id in now.isr
            if not is_member and left_in is None:
                self._lossy[broker_id, name] = now.leader_epoch
            elif is_member and left_in is not None and self._has_started_again(broker_id):
                del self._lossy[broker_id, name]  # it has come back, with everything
        for member, log in self._replicas(name, self._leaderships.topic_id(name.topic)):
            known = self.of(log)
            if member in now.isr and known is not None and (member, name) not in self._lossy:
                known.check_member(member, log, now.leader_epoch)

    def _has_started_again(self, broker_id: BrokerId) -> bool:
        """Whether it has registered since its loss: else a fetch from before may have let it in."""
        broker = self._cluster.brokers.get(broker_id)
        return broker is not None and broker.broker_epoch >= 0

    def on_lost(self, broker_id: BrokerId, log: NamedLog) -> None:
        """A disk lost records, be it all of them."""
        self._leaderships.check()
        name = log.topic_partition
        now = self._leaderships.current.get(name)
        if now is not None and (broker_id in now.isr or self._is_proposed(broker_id, name)):
            self._lossy[broker_id, name] = None

    def on_condemned(self, broker_id: BrokerId, log: NamedLog) -> None:
        """A replica with damaged records goes out of service: others are in sync."""
        broker = self._cluster.brokers[broker_id]
        partition = broker.replica_manager.partitions[log.topic_partition]
        assert set(partition.isr) - {broker_id}, (
            f"LastCopyStays: broker {broker_id} takes it out of service: {partition}"
        )
        self.on_acted(broker)  # what it commits in this moment nobody sees any more

    def on_replaced(self, broker_id: BrokerId, log: NamedLog) -> None:
        """A damaged log is dropped: nobody may rely on it."""
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

    # --- what is written ---

    def on_led(self, broker_id: BrokerId, log: SimulatedLog, batch: StoredBatch) -> None:
        """A broker appended as leader: it was elected to."""
        self._leaderships.check()
        led = (log.topic_partition, broker_id, batch.leader_epoch)
        assert led in self._leaderships.ever_led, f"who appended does not lead: {led}"
        known = self.of(log)
        if known is not None:
            known.on_led(broker_id, log, batch)

    def on_followed(self, broker_id: BrokerId, log: SimulatedLog, first: int) -> None:
        """A broker appended as follower."""
        broker = self._cluster.brokers.get(broker_id)
        partition = (
            None if broker is None else broker.replica_manager.partitions.get(log.topic_partition)
        )
        follows = partition is not None and partition.role is Role.FOLLOWER
        assert follows, f"broker {broker_id} copies, and does not follow: {partition}"
        known = self.of(log)
        if known is not None:
            for index in range(first, len(log.batches)):
                known.on_followed(broker_id, log, index)

    # --- what is committed ---

    def on_acted(self, broker: SimulatedBroker) -> None:
        """Look at the high watermarks of a broker."""
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
            present = (log.topic_id, partition.leader_epoch, high_watermark)
            if role is Role.LEADER and log.topic_id is not None and seen.get(name) != present:
                before = seen.get(name)
                seen[name] = present
                is_same = before is not None and before[:2] == present[:2]
                self._on_leader(broker, partition, log, before[2] if before and is_same else None)
            elif role is Role.FOLLOWER and seen.get(name) != present:
                seen[name] = present
                self._check_follower_knows(broker, partition, log)

    def _check_follower_knows(
        self, broker: SimulatedBroker, partition: Partition, log: SimulatedLog
    ) -> None:
        """What is below the high watermark of a follower some leader has committed."""
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
                    f"FollowerHighWatermark: broker {broker.broker_id} takes the batch at"
                    f" {batch.base_offset} for committed: {partition}"
                )

    def _on_leader(
        self,
        broker: SimulatedBroker,
        partition: Partition,
        log: SimulatedLog,
        before: int | None,
    ) -> None:
        """Look at a leader that is new (``before`` is None) or raised its high watermark."""
        self._check_leader_knows(broker, partition, log, is_new=before is None)
        self._leaderships.check()  # the ISRs until now had what was committed until now
        name, epoch = partition.topic_partition, partition.leader_epoch
        known = self.of(log)
        assert known is not None
        # What is below the start of a log was deleted: replicas need not have the same there.
        checked = log.log_start_offset if before is None else before
        if before is None:
            known.check_leader(broker.broker_id, log, epoch)
        else:
            assert partition.high_watermark > before, f"HighWatermarkFalls: {before}: {partition}"
        if log.log_start_offset > known.deleted_to and not known.is_tainted:
            raise AssertionError(f"{name} starts at {log.log_start_offset}, and nobody asked")
        first = max(checked, log.log_start_offset)  # what is before it nobody can read
        for batch in log.batches:
            is_committed = first <= batch.last_offset < partition.high_watermark
            if is_committed and not known.has(batch):
                holders = self._holders(name, log.topic_id, batch)
                known.on_committed(broker.broker_id, batch, epoch, len(holders))
        if before and not known.is_tainted:
            self._check_isr_has(broker, partition, log, known)

    def _check_proposal(self, broker: SimulatedBroker, partition: Partition) -> None:
        """Who is let in has what this leader began with (KAFKA-7128), as it decides so."""
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
        """What a leader goes by is of its own leadership: an ISR ZooKeeper held, and positions."""
        where = f"broker {broker.broker_id} leads {partition}"
        held = self._leaderships.ever_held.get(partition.topic_partition, ())
        belief = Belief(
            partition.leader, partition.leader_epoch, partition.isr, partition.partition_epoch
        )
        self._leaderships.check()
        assert belief in held, f"an ISR ZooKeeper never held, {where}"
        if not is_new:
            return
        assert log.latest_epoch == partition.leader_epoch, f"NoEpochStart, {where}: {log}"
        if partition.leading_since == partition.leader_epoch:
            known = [f for f in partition.followers.values() if f.log_end_offset >= 0]
            assert not known, f"positions of an earlier leadership, {where}"
        elif any(f.log_end_offset >= 0 for f in partition.followers.values()):
            self._situations.meet(Situation.FORMER_POSITIONS)

    def _check_isr_has(
        self,
        broker: SimulatedBroker,
        partition: Partition,
        log: SimulatedLog,
        known: CommittedRecords,
    ) -> None:
        """Whoever may be elected next has what is committed."""
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

    # --- what is answered ---

    def on_produced(
        self,
        broker: SimulatedBroker,
        request: ProduceRequest,
        log: SimulatedLog | None,
        outcome: ProducedPartition,
    ) -> None:
        """What is acknowledged is committed, and with as many as the topic wants."""
        if outcome.error_code is not Errors.NONE or request.acks != ACKS_ALL:
            return
        self.on_acted(broker)
        where = f"broker {broker.broker_id} acknowledged {request.name} {outcome}"
        assert log is not None, where
        known = self.of(log)
        if known is None or known.is_tainted:
            return
        batch = known.committed.get(outcome.base_offset)
        assert batch is not None, f"AckedIsCommitted: {where}"
        assert values_of(batch.data) == values_of(request.batch), f"AckedIsCommitted: {where}"
        holders = len(self._holders(request.name, log.topic_id, batch))
        holders = max(holders, known.holders[outcome.base_offset])  # a replica may have left since
        enough = log.config.min_insync_replicas
        assert holders >= enough, f"AckedByMinIsr: {where}, and {holders} have or had it"

    def _holders(
        self, name: TopicPartition, topic_id: str | None, batch: StoredBatch
    ) -> set[BrokerId]:
        """Return who has a batch, had it in a log that is gone, or may have lost it."""
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
        """Remember where a follower is believed to be, if what it says must not count."""
        known = broker.cache.snapshot.brokers.get(request.replica_id)
        self._must_not_count = known is not None and -1 < request.replica_epoch < known.broker_epoch
        meet_if = self._situations.meet_if
        meet_if(self._must_not_count, Situation.FETCH_OF_EARLIER_LIFE)
        self._positions = _positions(broker, request.replica_id)
        self._other_epochs = set()
        for name, row in request.partitions():
            partition = broker.replica_manager.partitions.get(name)
            if partition is not None and row.current_leader_epoch != partition.leader_epoch:
                self._other_epochs.add(name)
        meet_if(self._other_epochs, Situation.FETCH_OF_ANOTHER_EPOCH)

    def on_fetch_taken(self, broker: SimulatedBroker, request: FetchRequest) -> None:
        """Those of an earlier life, or of another leader epoch, move nobody (KIP-320, KIP-903)."""
        now = _positions(broker, request.replica_id)
        changed = {name for name in now if now[name] != self._positions.get(name)}
        if not self._must_not_count:
            changed &= self._other_epochs
        assert not changed, f"a stale fetch counts at {broker.broker_id}: {changed}, {request}"

    def on_produce(self, broker: SimulatedBroker, request: ProduceRequest) -> None:
        """Remember where a log ends to which nothing may be appended."""
        self._full_at = None
        partition = broker.replica_manager.partitions.get(request.name)
        is_led = partition is not None and partition.role is Role.LEADER
        if is_led and partition is not None and request.acks == ACKS_ALL:
            is_too_few = len(partition.isr) < partition.min_isr
            self._situations.meet_if(is_too_few, Situation.TOO_FEW_IN_SYNC)
            self._full_at = partition.local_log.log_end_offset if is_too_few else None

    def on_produce_taken(self, broker: SimulatedBroker, request: ProduceRequest) -> None:
        """What would not be on enough replicas is not appended."""
        log = broker.disk.get(request.name)
        if self._full_at is not None and log is not None:
            is_same = log.log_end_offset == self._full_at
            assert is_same, f"MinIsr: broker {broker.broker_id} appends to {request.name}"

    def on_truncated(self, log: SimulatedLog) -> None:
        """A follower dropped records."""
        self._situations.meet(Situation.FOLLOWER_TRUNCATES)

    def on_fetched(self, broker: SimulatedBroker, answer: FetchResponse) -> None:
        """What is copied is whole, and what the follower is told to be committed is."""
        self.on_acted(broker)
        for name, row in answer.partitions():
            if len(row.records) > 0:
                _check_undamaged(broker, broker.disk.log(name), row.records)

    def on_consumed(
        self,
        broker: SimulatedBroker,
        request: ConsumeRequest,
        logs: Mapping[TopicPartition, SimulatedLog | None],
        partitions: Mapping[TopicPartition, ConsumedPartition],
    ) -> None:
        """What is read is whole, committed, and begins where it was asked for."""
        self.on_acted(broker)
        for name, outcome in partitions.items():
            data, log = outcome.records.read(), logs.get(name)
            if not data:
                continue
            where = f"broker {broker.broker_id} let {name} be read up to"
            assert log is not None, where
            _check_undamaged(broker, log, data)
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
                continue  # it was deposed, and what it committed given up
            for position, header in headers_of(data):
                batch = known.committed.get(header.base_offset)
                read = data[position : position + header.size]
                assert batch is not None, f"ReadIsCommitted: {where} {last}"
                assert batch.data == read, f"ReadIsCommitted: {where} {last}, not {batch}"

    def on_delete_records(self, log: SimulatedLog | None, offset: int) -> None:
        """From now on what is below an offset may be missing."""
        known = None if log is None else self.of(log)
        if known is not None and log is not None:
            known.deleted_to = max(known.deleted_to, log.log_end_offset if offset < 0 else offset)


def _positions(
    broker: SimulatedBroker, follower: BrokerId
) -> dict[TopicPartition, tuple[int, int]]:
    """Return where a follower is believed to be, and in which life it said so."""
    return {
        name: (known.log_end_offset, known.broker_epoch)
        for name, partition in broker.replica_manager.partitions.items()
        if (known := partition.followers.get(follower)) is not None
    }


def _check_undamaged(broker: SimulatedBroker, log: SimulatedLog, data: RecordBytes) -> None:
    damaged = {header.base_offset for _, header in headers_of(data)} & log.damaged
    assert not damaged, f"DamageStays: broker {broker.broker_id} gave away {damaged} of {log}"
