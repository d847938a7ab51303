"""A broker's obedience: LeaderAndIsr, StopReplica and UpdateMetadata with every epoch check.

Mirrors ``kafka.server.ReplicaManager``. Every request may be repeated, late, or from a controller
that does not know yet that it was deposed. What protects whom:

* ``broker_epoch``: a request for an earlier life of this broker changes nothing (KIP-380). A
  greater one is accepted: the controller may learn of our registration before we do.
* ``controller_epoch``: a request of a deposed controller changes nothing (KAFKA-1188).
* ``leader_epoch``: an order for a partition is obeyed once, and never after a newer one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from core.errors import Errors, StorageError
from core.model import (
    EPOCH_DURING_DELETE,
    NO_EPOCH,
    UNKNOWN_BROKER_EPOCH,
    BrokerId,
    TopicPartition,
)
from core.ports import ReplicaLogs
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
from core.replication.metadata_cache import MetadataCache
from core.replication.partition import Partition, Role

log = logging.getLogger("state.change")


class ReplicaManager:
    """The replicas of one broker. Not thread-safe: one actor owns it."""

    def __init__(self, broker_id: BrokerId, logs: ReplicaLogs, cache: MetadataCache) -> None:
        self.broker_id = broker_id
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        self.controller_epoch = 0  # the highest seen
        self._full_of = (-1, -1)  # controller and broker epoch of the newest FULL
        self._logs = logs
        self._cache = cache
        self._partitions: dict[TopicPartition, Partition] = {}

    @property
    def partitions(self) -> Mapping[TopicPartition, Partition]:
        """The hosted replicas."""
        return self._partitions

    def handle(self, header: ControlHeader, request: ControlRequest) -> ControlResponse:
        """Obey a request, or refuse it as a whole when its epochs are stale."""
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
        match request:
            case LeaderAndIsrRequest():
                return self._become_leader_or_follower(header, request)
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
        return Errors.NONE

    # --- LeaderAndIsr ---

    def _become_leader_or_follower(
        self, header: ControlHeader, request: LeaderAndIsrRequest
    ) -> LeaderAndIsrResponse:
        errors: list[PartitionError] = []
        named: set[TopicPartition] = set()
        for topic in request.topic_states:
            for state in topic.partition_states:
                partition = TopicPartition(topic.topic_name, state.partition_index)
                named.add(partition)
                error = self._obey(partition, topic.topic_id, state)
                errors.append(PartitionError(*partition, error))
        # Only the first FULL of a term: a late copy of it does not list what was created since.
        term = (header.controller_epoch, header.broker_epoch)
        if request.type is LeaderAndIsrType.FULL and term > self._full_of:
            self._full_of = term
            self._set_strays_aside(named)
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
        self, name: TopicPartition, topic_id: TopicId | None, state: LeaderAndIsrPartition
    ) -> Errors:
        if self._logs.is_offline(name):
            return self._mark_offline(name)
        partition = self._partitions.get(name) or Partition(name)
        if _differ(partition.topic_id, topic_id):
            return Errors.INCONSISTENT_TOPIC_ID
        is_same_epoch = state.leader_epoch == partition.leader_epoch
        # An id may be given later, without a new epoch (KAFKA-13132).
        gets_id = is_same_epoch and partition.topic_id is None is not topic_id
        if state.leader_epoch <= partition.leader_epoch and not gets_id:
            return Errors.STALE_CONTROLLER_EPOCH
        if self.broker_id not in state.replicas:
            return Errors.UNKNOWN_TOPIC_OR_PARTITION
        try:
            stored_id = self._logs.get_or_create(name, topic_id, is_new=state.is_new)
        except StorageError as error:
            log.error("%s: %s", name, error)
            return self._mark_offline(name)
        if _differ(stored_id, topic_id):
            return Errors.INCONSISTENT_TOPIC_ID
        partition.topic_id = stored_id
        if not is_same_epoch:
            partition.obey(state, self.broker_id)
        self._partitions[name] = partition
        return Errors.NONE

    def _mark_offline(self, name: TopicPartition) -> Errors:
        self._partitions.setdefault(name, Partition(name)).role = Role.OFFLINE
        return Errors.KAFKA_STORAGE_ERROR

    def _set_strays_aside(self, named: set[TopicPartition]) -> None:
        strays = sorted(({*self._partitions} | {*self._logs.hosted()}) - named)
        for name in strays:
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
                partition.role = Role.NONE
            return Errors.NONE
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
