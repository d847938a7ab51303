"""The replicas of a broker: serves requests of the controller, clients and other brokers.

Mirrors ``kafka.server.ReplicaManager``. It takes the only lock and delegates: control requests to
``ControlRequestHandler``, leaders to ``LeaderPartitions``, followers to ``ReplicaFetcher``, and
requests that wait to ``DelayedOperationPurgatory``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TypeVar

from regent.core.errors import DamagedRecordsError, Errors, StorageError
from regent.core.model import NO_EPOCH, NO_LEADER, BrokerId, SuspectReplicas, TopicPartition
from regent.core.protocol.broker import FetchRequest, FetchResponse, FollowerPace
from regent.core.protocol.client import (
    ACKS_ALL,
    ConsumerFetch,
    EpochEnd,
    EpochQuery,
    ListedOffset,
    OffsetQuery,
    RecordRules,
)
from regent.core.protocol.control import (
    ControlHeader,
    ControlRequest,
    ControlResponse,
    LeaderAndIsrRequest,
    TopicId,
)
from regent.core.protocol.controller import AlterPartitionRequest, AlterPartitionResponse
from regent.core.records import RecordBytes
from regent.core.replica_logs import UNKNOWN_OFFSET, ActiveProducer, AppendOrigin, ReplicaLogs
from regent.core.replication.all_partitions import (
    AllPartitions,
    LogRead,
    Prefetches,
    RunBeside,
    read_log,
)
from regent.core.replication.broker_topic_stats import BrokerTopicStats
from regent.core.replication.consumer_fetches import ConsumerFetches, RespondToConsumer
from regent.core.replication.control_request_handler import ControlRequestHandler
from regent.core.replication.damaged_log_replacement import DamagedLogReplacement
from regent.core.replication.delayed_operation import (
    Answer,
    DelayedOperation,
    DelayedOperationPurgatory,
    LockedCall,
    locked_slices,
)
from regent.core.replication.delete_records import DeleteRecords, RespondToDeleteRecords
from regent.core.replication.fetch_session import FetchSessionCache, FetchSessionCount
from regent.core.replication.follower_fetches import FollowerFetches, RespondToFollower
from regent.core.replication.follower_times import FollowerTimes
from regent.core.replication.leader_partitions import IsrCounters, LeaderPartitions, Leadership
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.offset_lookups import OffsetLookups
from regent.core.replication.partition import Partition
from regent.core.replication.produce import (
    OF_CLIENT,
    AppendRules,
    OutOfOrderBatches,
    Produce,
    RespondToProduce,
    begin_verifications,
    record_rules,
)
from regent.core.replication.replica_fetcher import ReplicaFetcher
from regent.core.replication.replication_quota import ReplicationQuotas
from regent.core.replication.replication_settings import (
    DEFAULT_REPLICATION_SETTINGS,
    ReplicationSettings,
)
from regent.core.replication.suspect_replicas import SuspectTracker

T = TypeVar("T")


class ReplicaManager:
    """The replicas of one broker.

    Every method takes ``lock``; None: there is only one caller. Long work releases it between
    slices, and records that are only on the disk are read into memory by ``run_beside`` before;
    None: they are read under the lock. ``now_ms`` is monotonic.

    A method with ``respond`` calls it exactly once, after the lock is released: either before it
    returns None, or later, on the thread whose call completes the operation. This class has no
    timers: the caller must pass the returned operation to ``expire`` at its timeout.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        logs: ReplicaLogs,
        cache: MetadataCache,
        settings: ReplicationSettings = DEFAULT_REPLICATION_SETTINGS,
        lock: AbstractContextManager[object] | None = None,
        run_beside: RunBeside | None = None,
    ) -> None:
        self.broker_id = broker_id
        self._logs = logs
        self._cache = cache
        self.max_transaction_timeout_ms = settings.transaction_max_timeout_ms
        self._max_answer_bytes = settings.replica_fetch_response_max_bytes
        self._lock = LockedCall(nullcontext() if lock is None else lock, self._end_call)
        self._delayed = delayed = DelayedOperationPurgatory()
        self.quotas = quotas = ReplicationQuotas(broker_id, self._lock)
        """Use a quota inside ``exclusively``; the methods of this object take the lock."""
        self._partitions = partitions = AllPartitions(broker_id, logs, cache, self._end_role)
        self._sessions = sessions = FetchSessionCache(delayed)
        self._leaders = leaders = LeaderPartitions(
            partitions,
            cache,
            sessions,
            delayed,
            broker_id=broker_id,
            max_lag_ms=settings.replica_lag_time_max_ms,
        )
        self._fetcher = fetcher = ReplicaFetcher(
            broker_id, partitions, cache, quotas.follower, settings
        )
        self._out_of_order = OutOfOrderBatches(settings.idle_fetch_wait_ms)
        self._suspects = SuspectTracker(broker_id, logs)
        self._replacement = DamagedLogReplacement(
            broker_id, logs, cache, partitions, self._suspects
        )
        self._control_requests = ControlRequestHandler(
            broker_id, logs, cache, partitions, leaders, fetcher, self._replacement, self._suspects
        )
        self.fence = self._control_requests.fence
        """It must admit a control request before ``handle``. One thread uses it, without lock."""
        self._prefetches = prefetches = Prefetches(run_beside, self._on_prefetched)
        self._fetches = FollowerFetches(
            partitions, leaders, cache, sessions, delayed, quotas.leader, prefetches
        )
        self.follower_times = FollowerTimes()
        self._consumers = ConsumerFetches(partitions, delayed, prefetches)
        self._deletions = DeleteRecords(partitions, leaders, cache, delayed)
        self._lookups = OffsetLookups(partitions, self._lock)
        self._leadership_observers: list[Callable[[Sequence[Leadership]], None]] = []

    def observe_leaderships(self, observer: Callable[[Sequence[Leadership]], None]) -> None:
        """Call ``observer`` with every change of a leadership of an internal topic, in order.

        It is called with the lock held: it must only queue what it gets.
        """
        self._leadership_observers.append(observer)

    def _end_role(self, topic_partition: TopicPartition) -> None:
        """Stop fetching and leading a partition."""
        self._fetcher.unfollow(topic_partition)
        self._leaders.stop_leading(topic_partition)

    def _on_prefetched(self, topic_partition: TopicPartition, offset: int) -> None:
        """Let the fetches that wait for these records read them."""
        with self._lock:
            self._prefetches.end(topic_partition, offset)
            self._sessions.on_news(topic_partition)
            self._delayed.on_change(topic_partition)

    def _end_call(self) -> list[Answer]:
        self._delayed.settle()
        self._partitions.report_failures()
        changes = self._leaders.take_changes()
        if changes:
            for observe in self._leadership_observers:
                observe(changes)
        return self._delayed.take_answers()

    # --- state ---

    @property
    def broker_epoch(self) -> int:
        """The broker epoch of this broker's registration; -1 until it registered."""
        return self.fence.broker_epoch

    @broker_epoch.setter
    def broker_epoch(self, broker_epoch: int) -> None:
        self.fence.on_registered(broker_epoch)

    def begin_shutdown(self) -> None:
        """Begin no fetch of a partition whose ISR has left this broker out."""
        with self._lock:
            self._control_requests.is_shutting_down = True

    @property
    def controller_epoch(self) -> int:
        """The highest controller epoch seen."""
        return self.fence.controller_epoch

    def is_complete_topic(self, topic_id: TopicId) -> bool:
        """Whether the topic with that id exists, and this broker uses all of its logs that it has.

        Else one of its stray logs may be taken back soon: the metadata come before LeaderAndIsr.
        Thread-safe.
        """
        snapshot, hosted = self._cache.snapshot, self._partitions.by_topic_partition
        topic = next((t for t, its_id in snapshot.topic_ids.items() if its_id == topic_id), None)
        return topic is not None and all(
            TopicPartition(topic, number) in hosted
            for number, row in snapshot.topics.get(topic, {}).items()
            if self.broker_id in row.replicas
        )

    @property
    def partitions(self) -> Mapping[TopicPartition, Partition]:
        """The hosted replicas, as a live view, not thread-safe: single-threaded callers only."""
        return self._partitions.by_topic_partition

    @property
    def counters(self) -> IsrCounters:
        """Outcomes of ISR changes since the start."""
        with self._lock:
            counters = self._leaders.counters
            return replace(counters, removed=counters.removed.copy())

    def follower_paces(self, now_s: float) -> tuple[FollowerPace, ...]:
        """Return how soon those ask who follow a partition that this broker leads."""
        with self._lock:
            followers, removed = self._leaders.followers(), self._leaders.counters.removed
            paces = self.follower_times.paces(followers, now_s)
            return tuple(pace._replace(isr_shrinks=removed[pace.broker_id]) for pace in paces)

    @property
    def under_replicated_count(self) -> int:
        """How many partitions it leads have an ISR that lacks replicas."""
        with self._lock:
            return self._leaders.under_replicated_count

    @property
    def under_min_isr_count(self) -> int:
        """How many partitions it leads have fewer than ``min.insync.replicas`` in sync."""
        with self._lock:
            return self._leaders.under_min_isr_count

    @property
    def at_min_isr_count(self) -> int:
        """How many partitions it leads have exactly ``min.insync.replicas`` in sync."""
        with self._lock:
            return self._leaders.at_min_isr_count

    @property
    def max_lag(self) -> int:
        """The largest lag of a follower on this broker, in committed records."""
        with self._lock:
            return self._fetcher.max_lag

    @property
    def topic_stats(self) -> BrokerTopicStats:
        """What clients have written and read; only its thread-safe methods may be called."""
        return self._partitions.topic_stats

    def forget_topic_stats(self) -> None:
        """Forget the counters of topics that have no partition here any more."""
        hosted = {topic for topic, _ in list(self._partitions.by_topic_partition)}
        if not hosted.issuperset(self.topic_stats.by_topic()):
            with self._lock:
                self.topic_stats.keep_only({t for t, _ in self._partitions.by_topic_partition})

    @property
    def delayed_counts(self) -> Mapping[str, int]:
        """How many requests of each kind wait, by Kafka's names."""
        with self._lock:
            return self._delayed.counts

    @property
    def fetch_sessions(self) -> FetchSessionCount:
        """How many fetch sessions followers have, and how many partitions these have."""
        with self._lock:
            return self._sessions.count

    def exclusively(self, act: Callable[[AllPartitions], T]) -> T:
        """Run ``act`` with the hosted replicas: nothing else changes them meanwhile."""
        with self._lock:
            return act(self._partitions)

    # --- clients ---

    def produce(
        self,
        acks: int,
        records: Mapping[TopicPartition, RecordBytes],
        now_ms: int,
        respond: RespondToProduce,
        rules: AppendRules = OF_CLIENT,
    ) -> DelayedOperation | None:
        """Append to each partition independently; answer when ``acks`` (0, 1, -1: all) is met.

        The answer lists every partition; REQUEST_TIMED_OUT if it is not committed in time.
        """
        request = Produce(
            self._partitions,
            self._leaders,
            self._delayed,
            self._out_of_order,
            acks=acks,
            records=records,
            respond=respond,
            rules=rules,
        )
        return locked_slices(self._lock, request.append(now_ms))

    def append_markers(
        self, batches: Mapping[TopicPartition, RecordBytes], now_ms: int, respond: RespondToProduce
    ) -> DelayedOperation | None:
        """As ``produce`` with acks=all, of control batches from a transaction coordinator."""
        rules = AppendRules(origin=AppendOrigin.COORDINATOR)
        return self.produce(ACKS_ALL, batches, now_ms, respond, rules)

    def begin_verifications(
        self, batches: Mapping[TopicPartition, RecordBytes]
    ) -> Mapping[TopicPartition, int]:
        """Begin to verify that batches are part of transactions (KIP-890); return guards.

        ``NO_VERIFICATION``: the transaction is open already. ``NOT_VERIFIED``: this broker does
        not lead the partition. The batch is refused later, also if a leadership begins meanwhile.
        """
        with self._lock:
            return begin_verifications(self._partitions, batches)

    def append_in_term(
        self,
        topic_partition: TopicPartition,
        term: int,
        acks: int,
        batch: RecordBytes,
        now_ms: int,
        respond: RespondToProduce,
        guard: int | None = None,
    ) -> DelayedOperation | None:
        """As ``produce``, of this broker's own records, in one leadership of the partition.

        NOT_LEADER_OR_FOLLOWER if the leadership that began with leader epoch ``term`` has ended,
        also if another began since: the records were decided on what was known before.
        """
        guards = {} if guard is None else {topic_partition: guard}
        rules = AppendRules(term, AppendOrigin.COORDINATOR, guards)
        return self.produce(acks, {topic_partition: batch}, now_ms, respond, rules)

    def read_in_term(
        self, topic_partition: TopicPartition, term: int, offset: int, max_bytes: int
    ) -> LogRead:
        """Read a log that this broker leads, also records that are not committed yet.

        At least one batch is read, if there is one. NOT_LEADER_OR_FOLLOWER as ``append_in_term``.
        """
        self._partitions.prefetch(topic_partition, offset, max_bytes)  # without the lock
        with self._lock:
            partition = self._partitions.leader_or_error(topic_partition)
            if isinstance(partition, Errors):
                return LogRead(partition)
            if partition.leading_since != term:
                return LogRead(Errors.NOT_LEADER_OR_FOLLOWER)
            try:
                return read_log(partition.local_log, offset, max_bytes)
            except (StorageError, DamagedRecordsError) as error:
                return LogRead(self._partitions.on_error(topic_partition, error))

    def record_rules(self, topic_partition: TopicPartition) -> RecordRules:
        """Return what the topic of a hosted partition asks of records."""
        log = self._partitions.log_of(topic_partition)
        return RecordRules() if log is None else record_rules(log)

    def converts_records(self, topic_partition: TopicPartition) -> bool:
        """Whether clients that need an old message format get the records of a partition."""
        log = self._partitions.log_of(topic_partition)
        return log is None or log.config.message_downconversion_enable

    def current_leader(self, topic_partition: TopicPartition) -> tuple[BrokerId, int]:
        """Return the leader of a partition and its leader epoch, as known here; -1 if unknown.

        A LeaderAndIsr may be newer than the metadata cache, and the other way round.
        """
        cached = self._cache.snapshot.partitions.get(topic_partition)
        known = [(cached.leader, cached.leader_epoch)] if cached is not None else []
        with self._lock:
            partition = self._partitions.get(topic_partition)
            if partition is not None:
                known.append((partition.leader, partition.leader_epoch))
        return max(known, key=lambda leader: leader[1], default=(NO_LEADER, NO_EPOCH))

    def fetch_for_consumer(
        self,
        request: ConsumerFetch,
        now_ms: int,
        respond: RespondToConsumer,
        *,
        waits: bool = True,
    ) -> DelayedOperation | None:
        """Read committed records, in the order of the request, and wait until there are enough.

        The answer lists every partition. An error of any of them ends the wait.
        """
        with self._lock:
            self._leaders.advance_high_watermarks(request.positions, now_ms)
            return self._consumers.fetch(request, respond, waits=waits)

    def delete_records(
        self, offsets: Mapping[TopicPartition, int], now_ms: int, respond: RespondToDeleteRecords
    ) -> DelayedOperation | None:
        """Delete the records before these offsets (-1: all committed), here and on followers.

        Answers with the low watermark when all live replicas have done so; REQUEST_TIMED_OUT if
        they have not in time, although they will do so later.
        """
        with self._lock:
            self._leaders.advance_high_watermarks(offsets, now_ms)
            return self._deletions.delete(offsets, respond)

    def list_offsets(
        self, queries: Mapping[TopicPartition, OffsetQuery]
    ) -> Mapping[TopicPartition, ListedOffset]:
        """Return start offsets, end offsets and offsets of timestamps, for consumers."""
        return self._lookups.list_offsets(queries)

    def active_producers(
        self, topic_partition: TopicPartition
    ) -> Sequence[ActiveProducer] | Errors:
        """Return the idempotent producers of a hosted replica, which need not lead."""
        with self._lock:
            partition = self._partitions.hosted_or_error(topic_partition)
            if isinstance(partition, Errors):
                return partition
            log = partition.log
        # Outside of the lock: there may be many producers.
        return Errors.NOT_LEADER_OR_FOLLOWER if log is None else log.active_producers()

    def log_end_offset_lag(
        self, topic_partition: TopicPartition, log_end_offset: int, *, is_future: bool
    ) -> int:
        """Return how far a log is behind; -1: the replica is not in service. Takes no lock.

        A current log is compared with the high watermark, a future log with the current log.
        """
        partition = self._partitions.get(topic_partition)
        log = None if partition is None else partition.log
        if partition is None or log is None:
            return UNKNOWN_OFFSET
        if is_future:
            return log.log_end_offset - log_end_offset
        return max(partition.high_watermark - log_end_offset, 0)

    def offsets_for_leader_epoch(
        self, queries: Mapping[TopicPartition, EpochQuery]
    ) -> Mapping[TopicPartition, EpochEnd]:
        """Return the end offsets of leader epochs in logs this broker leads."""
        return self._lookups.offsets_for_leader_epoch(queries)

    def expire(self, operation: DelayedOperation, now_ms: int, *, is_early: bool = False) -> None:
        """Complete an operation now. No-op if already completed.

        ``is_early``: not because its wait is over, but because nobody wants to wait any more.
        """
        with self._lock:
            self._leaders.advance_high_watermarks(operation.partitions, now_ms)
            if not operation.is_completed and not is_early:
                operation.on_expiry()
            self._delayed.settle()
            self._delayed.complete(operation)

    # --- leader ---

    def fetch(
        self, request: FetchRequest, now_ms: int, respond: RespondToFollower
    ) -> DelayedOperation | None:
        """Record a follower's position, return records from there, and maybe expand the ISR.

        Waits up to ``max_wait_ms`` for records, an error, or a diverging log. A new high watermark
        alone does not end the wait. This broker's ``replica.fetch.response.max.bytes`` also limits
        the answer.
        """
        if request.max_bytes > self._max_answer_bytes:
            request = replace(request, max_bytes=self._max_answer_bytes)
        with self._lock:
            return self._fetches.fetch(request, now_ms, respond)

    def shrink_isrs(self, now_ms: int) -> None:
        """Propose ISRs without the members that are out of sync.

        Call it twice per ``replica.lag.time.max.ms``.
        """
        locked_slices(self._lock, self._leaders.shrink_isrs(now_ms))

    # --- follower ---

    def leaders_to_fetch_from(self) -> Mapping[BrokerId, str]:
        """Return the replication endpoints of the live leaders that this broker follows."""
        with self._lock:
            return self._fetcher.leaders()

    def outdated_fetches(self) -> Collection[BrokerId]:
        """Return the leaders whose present fetch lacks what has changed since it was sent."""
        with self._lock:
            return self._fetcher.outdated()

    def fetch_request(self, leader: BrokerId, now_ms: int) -> FetchRequest | None:
        """Return the next fetch from a leader; None: there is nothing to fetch now."""
        with self._lock:
            return self._fetcher.request(leader, self.broker_epoch, now_ms)

    def fetch_delay_ms(self, leader: BrokerId, now_ms: int) -> int | None:
        """Return how long until there is something to fetch from a leader; None: unknown."""
        with self._lock:
            return self._fetcher.delay_ms(leader, now_ms)

    def on_fetch_response(
        self, leader: BrokerId, request: FetchRequest, response: FetchResponse, now_ms: int
    ) -> None:
        """Process the leader's answer to ``request``: append, truncate, or back off."""
        slices = self._fetcher.on_response(leader, request, response, now_ms)
        locked_slices(self._lock, slices)

    # --- proposals ---

    @property
    def has_proposals(self) -> bool:
        """Whether there may be something to send. Takes no lock: it is called often."""
        return self._leaders.has_proposals

    def alter_partition_request(self) -> AlterPartitionRequest | None:
        """Put the proposals in flight; None if there are none or a request is in flight already."""
        with self._lock:
            return self._leaders.alter_partition_request(self.broker_epoch)

    def on_alter_partition_response(
        self, request: AlterPartitionRequest, response: AlterPartitionResponse | None, now_ms: int
    ) -> None:
        """Process the controller's answer; None: no answer came, queue the proposals again."""
        with self._lock:
            self._leaders.on_alter_partition_response(request, response, now_ms)

    # --- control requests and failed disks ---

    def handle(
        self, header: ControlHeader, request: ControlRequest, now_ms: int
    ) -> ControlResponse:
        """Carry out a request that is admitted, or refuse all of it if its epochs are stale."""
        return locked_slices(self._lock, self._control_requests.handle(header, request, now_ms))

    def refuse_unread(
        self, header: ControlHeader, kind: type[ControlRequest]
    ) -> ControlResponse | None:
        """Return the refusal of a request whose header is stale, else None. Thread-safe."""
        return self._control_requests.refuse_unread(header, kind)

    def begins_copying(self, request: LeaderAndIsrRequest) -> bool:
        """Whether the request starts a reassignment of a replica that this broker hosts."""
        with self._lock:
            return self._control_requests.begins_copying(request)

    def on_log_directory_failed(self) -> list[TopicPartition]:
        """Take the replicas of failed directories out of service; return those newly affected."""
        with self._lock:
            return self._partitions.on_log_directory_failed()

    def on_records_damaged(
        self, topic_partition: TopicPartition, error: DamagedRecordsError
    ) -> None:
        """Take a replica with a damaged log out of service if other replicas have its records."""
        with self._lock:
            self._partitions.on_damaged(topic_partition, error)

    def replaceable_logs(self) -> list[TopicPartition]:
        """Return the damaged logs that the next LeaderAndIsr would replace, once per leadership.

        The caller notifies the controller as if a log directory had failed. Call after every
        UpdateMetadata, before ``take_suspect_changes``, and after ``on_suspects_listed``.
        """
        with self._lock:
            return self._replacement.candidates()

    def take_suspect_changes(self) -> bool:
        """Return whether the suspect replicas have changed since the last call.

        The caller then saves them and notifies the controller. Call after every control request.
        """
        with self._lock:
            return self._suspects.take_changes()

    def on_suspects_listed(self, suspects: SuspectReplicas) -> None:
        """Learn which replicas of this broker ZooKeeper lists as suspect."""
        with self._lock:
            self._suspects.on_listed(suspects)

    def take_given_up(self) -> bool:
        """Return whether a controller of Kafka has given up replicas that could serve.

        The caller then registers this broker again. Call after every control request.
        """
        with self._lock:
            return self._suspects.take_given_up()

    def checkpoint_high_watermarks(self) -> None:
        """Write the high watermarks of all replicas to disk. Thread-safe."""
        locked_slices(self._lock, self._partitions.note_high_watermarks())
        self._logs.checkpoint_high_watermarks({})
