"""The replicas of a broker: LeaderAndIsr, StopReplica and UpdateMetadata with every epoch check.

Mirrors ``kafka.server.ReplicaManager``. What it leads and what it follows is looked after by
``LedPartitions`` and ``ReplicaFetcher``; the controller changes a role only here. Every request
may be repeated, late, or from a controller that does not know yet that it was deposed. What
protects whom:

* ``broker_epoch``: a request for an earlier life of this broker changes nothing (KIP-380). A
  greater one is accepted: the controller may learn of our registration before we do.
* ``controller_epoch``: a request of a deposed controller changes nothing (KAFKA-1188).
* ``sequence``: a late copy of an order that was followed by others changes nothing.
* ``leader_epoch``: an order for a partition is obeyed once, and never after a newer one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from core.errors import Errors, StorageError
from core.model import (
    EPOCH_DURING_DELETE,
    NO_EPOCH,
    UNKNOWN_BROKER_EPOCH,
    BrokerId,
    TopicPartition,
)
from core.ports import ReplicaLogs
from core.protocol.broker import FetchRequest, FetchResponse
from core.protocol.control import (
    ControlHeader,
    ControlRequest,
    ControlResponse,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrType,
    PartitionError,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    TopicId,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from core.protocol.controller import AlterPartitionRequest, AlterPartitionResponse
from core.replication.fetch_sessions import FetchSessions
from core.replication.follower_fetches import FollowerFetches
from core.replication.led_partitions import IsrCounters, LedPartitions
from core.replication.metadata_cache import MetadataCache
from core.replication.partition import Partition, Role
from core.replication.replica_fetcher import ReplicaFetcher

log = logging.getLogger("state.change")


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """Kafka's settings of the same names."""

    replica_lag_time_max_ms: int = 30_000
    replica_fetch_wait_max_ms: int = 500
    replica_fetch_backoff_ms: int = 1_000


DEFAULTS = ReplicationSettings()


class ReplicaManager:
    """The replicas of one broker.

    Every method takes ``lock``; None: nobody else calls. ``now_ms`` is monotonic.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        logs: ReplicaLogs,
        cache: MetadataCache,
        settings: ReplicationSettings = DEFAULTS,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        self.controller_epoch = 0  # the highest seen
        self._sequence = 0  # of the newest order of that controller
        self._ordered_in = (0, UNKNOWN_BROKER_EPOCH)  # controller and broker epoch of that order
        self._full_of = (-1, -1)  # controller and broker epoch of the newest FULL
        self._logs = logs
        self._cache = cache
        self._lock = nullcontext() if lock is None else lock
        self._partitions: dict[TopicPartition, Partition] = {}
        sessions = FetchSessions()
        self._led = LedPartitions(
            broker_id, logs, cache, settings.replica_lag_time_max_ms, sessions.on_change
        )
        self._fetches = FollowerFetches(logs, cache, self._partitions, self._led, sessions)
        self._fetcher = ReplicaFetcher(
            broker_id,
            logs,
            cache,
            max_wait_ms=settings.replica_fetch_wait_max_ms,
            backoff_ms=settings.replica_fetch_backoff_ms,
        )

    # --- what there is ---

    @property
    def partitions(self) -> Mapping[TopicPartition, Partition]:
        """The hosted replicas, as a live view: for whoever may not meet another caller."""
        return self._partitions

    @property
    def counters(self) -> IsrCounters:
        """What became of proposals since the start."""
        with self._lock:
            return replace(self._led.counters)

    @property
    def leader_count(self) -> int:
        """How many partitions it leads."""
        with self._lock:
            return len(self._led)

    @property
    def under_replicated_count(self) -> int:
        """How many of those it leads miss replicas in their ISR."""
        with self._lock:
            return self._led.under_replicated_count

    @property
    def offline_replica_count(self) -> int:
        """How many replicas are in a failed log directory."""
        with self._lock:
            return sum(p.role is Role.OFFLINE for p in self._partitions.values())

    # --- a leader's side ---

    def fetch(self, request: FetchRequest, now_ms: int) -> FetchResponse:
        """Note how far a follower got, tell it what follows, and maybe propose it for the ISR."""
        with self._lock:
            return self._fetches.fetch(request, now_ms)

    def shrink_isrs(self, now_ms: int) -> None:
        """Propose ISRs without the members that are out of sync; call twice a lag limit."""
        with self._lock:
            self._led.shrink_isrs(now_ms)

    # --- a follower's side ---

    def leaders_to_fetch_from(self) -> Mapping[BrokerId, str]:
        """Return the replication endpoints of the leaders this broker follows that are alive."""
        with self._lock:
            return self._fetcher.leaders()

    def fetch_request(self, leader: BrokerId, now_ms: int) -> FetchRequest | None:
        """Return what to ask a leader for; None when there is nothing to ask right now."""
        with self._lock:
            return self._fetcher.request(leader, self.broker_epoch, now_ms)

    def on_fetch_response(
        self, leader: BrokerId, request: FetchRequest, response: FetchResponse, now_ms: int
    ) -> None:
        """Take the leader's answer to ``request``."""
        with self._lock:
            self._fetcher.on_response(leader, request, response, now_ms)

    # --- proposals ---

    def alter_partition_request(self) -> AlterPartitionRequest | None:
        """Return what is proposed and put it in flight; None when nothing is, or one is already."""
        with self._lock:
            return self._led.alter_partition_request(self.broker_epoch)

    def on_alter_partition_response(
        self, request: AlterPartitionRequest, response: AlterPartitionResponse | None, now_ms: int
    ) -> None:
        """Take the controller's answer; None when there is none: the proposals wait again."""
        with self._lock:
            self._led.on_alter_partition_response(request, response, now_ms)

    # --- the controller's orders ---

    def handle(
        self, header: ControlHeader, request: ControlRequest, now_ms: int
    ) -> ControlResponse:
        """Obey a request, or refuse it as a whole when its epochs are stale."""
        with self._lock:
            return self._handle(header, request, now_ms)

    def _handle(
        self, header: ControlHeader, request: ControlRequest, now_ms: int
    ) -> ControlResponse:
        refused = self._check_epochs(header)
        if refused is not Errors.NONE:
            log.warning(
                "[Broker id=%d epoch=%d] refused %s of controller %d, epoch %d: %s",
                self.broker_id,
                self.broker_epoch,
                type(request).__name__,
                header.controller_id,
                header.controller_epoch,
                refused.name,
            )
            return refusal(request, refused)
        self.controller_epoch = header.controller_epoch
        self._sequence = header.sequence or self._sequence
        self._ordered_in = (header.controller_epoch, header.broker_epoch)
        match request:
            case LeaderAndIsrRequest():
                return self._become_leader_or_follower(header, request, now_ms)
            case StopReplicaRequest():
                return self._stop_replicas(request)
            case UpdateMetadataRequest():
                self._cache.update(header, request)
                return UpdateMetadataResponse(Errors.NONE)

    def _check_epochs(self, header: ControlHeader) -> Errors:
        if UNKNOWN_BROKER_EPOCH != header.broker_epoch < self.broker_epoch:
            return Errors.STALE_BROKER_EPOCH
        if header.controller_epoch < self.controller_epoch:
            return Errors.STALE_CONTROLLER_EPOCH
        if header.controller_epoch > self.controller_epoch:
            self._sequence = 0
        elif 0 < header.sequence < self._sequence:
            return Errors.STALE_CONTROLLER_EPOCH  # its sender has sent it again, and more since
        return Errors.NONE

    # --- LeaderAndIsr ---

    def _become_leader_or_follower(
        self, header: ControlHeader, request: LeaderAndIsrRequest, now_ms: int
    ) -> LeaderAndIsrResponse:
        # Where late copies cannot be told only the first FULL of a term counts: another may be a
        # copy of it, which does not list what was created since.
        term = (header.controller_epoch, header.broker_epoch)
        is_news = header.sequence > 0 or term > self._full_of
        if request.type is LeaderAndIsrType.FULL and is_news:
            self._full_of = term
            self._set_strays_aside(request)
        errors: list[PartitionError] = []
        for topic in request.topic_states:
            for state in topic.partition_states:
                name = TopicPartition(topic.topic_name, state.partition_index)
                errors.append(
                    PartitionError(*name, self._obey(name, topic.topic_id, state, now_ms))
                )
        obeyed = sum(e.error_code is Errors.NONE for e in errors)
        log.info(
            "[Broker id=%d epoch=%d] LeaderAndIsr %s: obeyed %d of %d partitions",
            self.broker_id,
            self.broker_epoch,
            request.type.name,
            obeyed,
            len(errors),
        )
        return LeaderAndIsrResponse(Errors.NONE, tuple(errors))

    def _obey(
        self,
        name: TopicPartition,
        topic_id: TopicId | None,
        state: LeaderAndIsrPartition,
        now_ms: int,
    ) -> Errors:
        if self._logs.is_offline(name):
            return self._mark_offline(name)
        partition = self._partitions.get(name) or Partition(name)
        if _differ(partition.topic_id, topic_id):
            return Errors.INCONSISTENT_TOPIC_ID
        is_same_epoch = state.leader_epoch == partition.leader_epoch
        # An id may be given later, without a new epoch (KAFKA-13132).
        gets_id = is_same_epoch and partition.topic_id is None is not topic_id
        # Nor is there one for who was stopped to shut down, and stayed till another rules, or
        # till it registered again.
        stopped_in = partition.stopped_in
        resumes = is_same_epoch and stopped_in is not None and stopped_in < self._ordered_in
        if state.leader_epoch <= partition.leader_epoch and not (gets_id or resumes):
            return Errors.STALE_CONTROLLER_EPOCH
        if self.broker_id not in state.replicas:
            return Errors.UNKNOWN_TOPIC_OR_PARTITION
        try:
            stored_id = self._logs.get_or_create(name, topic_id, is_new=state.is_new)
            if _differ(stored_id, topic_id):
                return Errors.INCONSISTENT_TOPIC_ID
            if not is_same_epoch or resumes:
                self._take_role(partition, state, now_ms)
        except StorageError as error:
            log.error("%s: %s", name, error)
            return self._mark_offline(name)
        partition.topic_id = stored_id
        self._partitions[name] = partition
        return Errors.NONE

    def _take_role(self, partition: Partition, state: LeaderAndIsrPartition, now_ms: int) -> None:
        name = partition.topic_partition
        if state.leader == self.broker_id:
            self._logs.assign_epoch(name, state.leader_epoch)
            self._retire(name)
            partition.make_leader(state, self._logs.log_end_offset(name), now_ms)
            self._led.lead(partition, now_ms)
        else:
            self._retire(name)
            partition.make_follower(state)
            if partition.role is Role.FOLLOWER:
                self._fetcher.follow(partition)

    def _retire(self, name: TopicPartition) -> None:
        """End what the replica does; first of all, so that nothing is fetched into what changes."""
        self._fetcher.unfollow(name)
        self._led.cede(name)

    def _mark_offline(self, name: TopicPartition) -> Errors:
        self._retire(name)
        self._partitions.setdefault(name, Partition(name)).stop(Role.OFFLINE)
        return Errors.KAFKA_STORAGE_ERROR

    def _set_strays_aside(self, request: LeaderAndIsrRequest) -> None:
        """Make room: what is not listed is not ours, nor is a log of an earlier topic.

        The topic may have been deleted and created anew while this broker was away.
        """
        listed = {
            TopicPartition(topic.topic_name, state.partition_index): topic.topic_id
            for topic in request.topic_states
            for state in topic.partition_states
        }
        hosted = {name: partition.topic_id for name, partition in self._partitions.items()}
        hosted.update(self._logs.hosted())
        strays = sorted(
            name
            for name, topic_id in hosted.items()
            if name not in listed or _differ(topic_id, listed[name])
        )
        for name in strays:
            self._retire(name)
            self._partitions.pop(name, None)
            self._logs.set_aside(name)
        if strays:
            log.warning(
                "[Broker id=%d epoch=%d] set %d partitions aside that are not assigned to it, the"
                " first: %s",
                self.broker_id,
                self.broker_epoch,
                len(strays),
                strays[0],
            )

    # --- StopReplica ---

    def _stop_replicas(self, request: StopReplicaRequest) -> StopReplicaResponse:
        errors: list[PartitionError] = []
        for topic in request.topic_states:
            for stop in topic.partition_states:
                name = TopicPartition(topic.topic_name, stop.partition_index)
                errors.append(PartitionError(*name, self._stop(name, topic.topic_id, stop)))
        log.info(
            "[Broker id=%d epoch=%d] StopReplica: stopped %d of %d partitions",
            self.broker_id,
            self.broker_epoch,
            sum(e.error_code is Errors.NONE for e in errors),
            len(errors),
        )
        return StopReplicaResponse(Errors.NONE, tuple(errors))

    def _stop(
        self, name: TopicPartition, topic_id: TopicId | None, stop: StopReplicaPartition
    ) -> Errors:
        if self._logs.is_offline(name):
            return self._mark_offline(name)
        partition = self._partitions.get(name)
        if partition is not None and _differ(partition.topic_id, topic_id):
            return Errors.INCONSISTENT_TOPIC_ID  # meant for an earlier topic of that name
        is_checked = stop.leader_epoch not in (NO_EPOCH, EPOCH_DURING_DELETE)
        # An equal epoch is accepted (KAFKA-13972): the ISR may not have changed on the way out.
        if partition is not None and is_checked and stop.leader_epoch < partition.leader_epoch:
            return Errors.FENCED_LEADER_EPOCH
        if not stop.delete_partition:
            if partition is not None and partition.role is Role.FOLLOWER:
                self._fetcher.unfollow(name)
                partition.stop(Role.NONE)
                partition.stopped_in = self._ordered_in
            return Errors.NONE
        self._retire(name)
        try:
            self._logs.delete(name)
        except StorageError as error:
            log.error("%s: %s", name, error)
            return self._mark_offline(name)
        self._partitions.pop(name, None)
        return Errors.NONE


def _differ(one: TopicId | None, other: TopicId | None) -> bool:
    """Whether two topic ids are of different topics; an unknown one may be any."""
    return None not in (one, other) and one != other


def refusal(request: ControlRequest, error: Errors) -> ControlResponse:
    """Return the answer that refuses ``request`` as a whole."""
    match request:
        case LeaderAndIsrRequest():
            errors = tuple(PartitionError(*name, error) for name, _ in request.partitions())
            return LeaderAndIsrResponse(error, errors)
        case StopReplicaRequest():
            return StopReplicaResponse(error)
        case UpdateMetadataRequest():
            return UpdateMetadataResponse(error)
