"""Control requests: LeaderAndIsr, StopReplica and UpdateMetadata with every epoch check.

``ControlRequestFence`` decides which requests are carried out. Of their rows, ``leader_epoch``
decides: a row is applied once, and never after a newer one.

A row that no controller would send (a topic name that is a path, a number out of Kafka's range) is
refused, and the other rows are carried out. A partition's name becomes the name of a directory and
a line of a checkpoint.

Mirrors ``becomeLeaderOrFollower``, ``stopReplicas`` and ``maybeUpdateMetadataCache`` of
``kafka.server.ReplicaManager``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from regent.core.errors import Errors, StorageError
from regent.core.model import (
    EPOCH_DURING_DELETE,
    EPOCH_OF_LOST_TOPIC,
    UNKNOWN_BROKER_EPOCH,
    BrokerId,
    TopicPartition,
)
from regent.core.protocol.control import (
    ControlHeader,
    ControlRequest,
    ControlResponse,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopic,
    LeaderAndIsrType,
    PartitionError,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopic,
    TopicId,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    differ,
)
from regent.core.repeated_lines import RepeatedLines
from regent.core.replica_logs import PartitionLog, ReplicaLogs
from regent.core.replication.all_partitions import FOR_NOW, AllPartitions
from regent.core.replication.control_request_fence import ControlRequestFence
from regent.core.replication.control_request_log import ControlRequestLog
from regent.core.replication.damaged_log_replacement import DamagedLogReplacement
from regent.core.replication.delayed_operation import Slices, run_in_slices, slices_of_replicas
from regent.core.replication.leader_partitions import LeaderPartitions
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.partition import Partition, Role
from regent.core.replication.replica_fetcher import ReplicaFetcher
from regent.core.replication.request_parts import ListedPartitions, RequestParts
from regent.core.replication.suspect_replicas import SuspectTracker
from regent.core.topic_validation import topic_name_problem

log = logging.getLogger("state.change")

MAX_TRACEBACKS = 10
_INT32_MAX = 2**31 - 1  # partitions and leader epochs are no larger in Kafka's formats


class ControlRequestHandler:
    """Carries out control requests: replicas lead, follow, stop or are deleted. Not thread-safe."""

    def __init__(
        self,
        broker_id: BrokerId,
        logs: ReplicaLogs,
        cache: MetadataCache,
        partitions: AllPartitions,
        leaders: LeaderPartitions,
        fetcher: ReplicaFetcher,
        replacement: DamagedLogReplacement,
        suspects: SuspectTracker,
    ) -> None:
        self.fence = ControlRequestFence(broker_id, logs)
        self._lines = RepeatedLines()
        self.is_shutting_down = False
        self._broker_id = broker_id
        self._requested_in = (0, UNKNOWN_BROKER_EPOCH)  # its controller epoch and broker epoch
        self._full = RequestParts()
        self._failed: set[TopicPartition] = set()  # rows that raised something unexpected
        self._logs = logs
        self._cache = cache
        self._partitions = partitions
        self._leaders = leaders
        self._fetcher = fetcher
        self._replacement = replacement
        self._suspects = suspects

    def handle(
        self, header: ControlHeader, request: ControlRequest, now_ms: int
    ) -> Slices[ControlResponse]:
        """Carry out a request that the fence admits, or refuse it when its epochs are stale.

        The caller finishes one request before it begins the next.
        """
        request_log = ControlRequestLog(self._broker_id, self.broker_epoch, header)
        request_log.received(request)
        is_metadata = isinstance(request, UpdateMetadataRequest)
        refused = self.fence.refuse(header, is_metadata=is_metadata)
        if header.broker_epoch > self.fence.broker_epoch:
            refused = Errors.STALE_BROKER_EPOCH  # the fence has not admitted it
        if refused is not Errors.NONE:
            if self._lines.is_due((type(request).__name__, refused), now_ms):
                request_log.ignored(request, refused)
            return self._refusal(request, header, refused)
        self.fence.note(header, is_metadata=is_metadata)
        self._requested_in = (header.controller_epoch, header.broker_epoch)
        match request:
            case LeaderAndIsrRequest():
                changed = yield from self._become_leader_or_follower(header, request, now_ms)
                request_log.completed(request, changed.partition_errors, self._partitions.get)
                return changed
            case StopReplicaRequest():
                stopped = yield from self._stop_replicas(request)
                request_log.completed(request, stopped.partition_errors, self._partitions.get)
                return stopped
            case UpdateMetadataRequest():
                before = self._cache.snapshot.partitions
                self._cache.update(header, request)
                request_log.cached(request, before, self._cache.snapshot.partitions)
                if self._suspects.awaits_isrs:
                    for topic_partition, row in request.partitions():
                        self._suspects.on_leadership(topic_partition, row)
                return UpdateMetadataResponse(Errors.NONE)

    def refuse_unread(
        self, header: ControlHeader, kind: type[ControlRequest]
    ) -> ControlResponse | None:
        """Return the refusal of a request whose header is stale, before its body is decoded.

        None: the header is not stale, and ``handle`` decides. Thread-safe.
        """
        refused = self.fence.refuse(header)
        return None if refused is Errors.NONE else self._refusal(_EMPTY[kind], header, refused)

    def _refusal(
        self, request: ControlRequest, header: ControlHeader, refused: Errors
    ) -> ControlResponse:
        is_deposed = self.fence.is_deposed(header)
        return refusal(request, refused, self.fence.controller_epoch if is_deposed else 0)

    @property
    def broker_epoch(self) -> int:
        """The broker epoch of this broker's registration; -1 until it registered."""
        return self.fence.broker_epoch

    # --- LeaderAndIsr ---

    def begins_copying(self, request: LeaderAndIsrRequest) -> bool:
        """Whether the request adds replicas beyond those that are already being added.

        The throttles of a reassignment (KIP-73) are set right before it, in ``/config``, and must
        be read first.
        """
        for topic in request.topic_states:
            for state in topic.partition_states:
                if state.adding_replicas:
                    topic_partition = TopicPartition(topic.topic_name, state.partition_index)
                    partition = self._partitions.get(topic_partition)
                    known = () if partition is None else partition.assignment.adding_replicas
                    if not set(state.adding_replicas) <= set(known):
                        return True
        return False

    def _become_leader_or_follower(
        self, header: ControlHeader, request: LeaderAndIsrRequest, now_ms: int
    ) -> Slices[LeaderAndIsrResponse]:
        request, errors = _without_impossible(request)
        if not self._logs.knows_all:
            self._suspects.note_missing(request)
        if request.type is LeaderAndIsrType.FULL:
            named = self._full.add(header, request)
            if named is not None:
                self._find_lost_logs(request, named)
                self._set_strays_aside(named)

        def apply_portion(
            portion: Sequence[tuple[LeaderAndIsrTopic, LeaderAndIsrPartition]],
        ) -> None:
            for topic, state in portion:
                topic_partition = TopicPartition(topic.topic_name, state.partition_index)
                try:
                    error = self._apply(topic_partition, topic, state, now_ms)
                except Exception as unexpected:  # noqa: BLE001 - it concerns this replica only
                    error = self._fail_row(topic_partition, unexpected)
                else:
                    self._failed.discard(topic_partition)
                errors.append(PartitionError(*topic_partition, error))
                self._suspects.on_answer(topic_partition, state, error, header.controller_epoch)
                if self._suspects.awaits_isrs:
                    self._suspects.on_leadership(topic_partition, state)

        rows = (
            (topic, state) for topic in request.topic_states for state in topic.partition_states
        )
        yield from run_in_slices(slices_of_replicas(rows), apply_portion)
        is_short = any(error.error_code is FOR_NOW for error in errors)
        # After this error the controller sends the whole request again.
        outcome = Errors.UNKNOWN_SERVER_ERROR if is_short else Errors.NONE
        return LeaderAndIsrResponse(outcome, tuple(errors))

    def _apply(  # noqa: C901 - one check after the other
        self,
        topic_partition: TopicPartition,
        topic: LeaderAndIsrTopic,
        state: LeaderAndIsrPartition,
        now_ms: int,
    ) -> Errors:
        topic_id = topic.topic_id
        replica_log = self._logs.get(topic_partition)
        has_failed = replica_log is None and self._logs.is_offline(topic_partition)
        if has_failed and (error := self._make_room(topic_partition, state)) is not Errors.NONE:
            return error
        partition = self._partitions.get(topic_partition) or Partition(topic_partition)
        if differ(partition.topic_id, topic_id):
            return Errors.INCONSISTENT_TOPIC_ID
        is_same_epoch = state.leader_epoch == partition.leader_epoch
        # A topic id may be assigned later, without a new leader epoch (KAFKA-13132).
        gets_id = is_same_epoch and partition.topic_id is None is not topic_id
        resumes = is_same_epoch and self._may_resume(partition)
        if state.leader_epoch <= partition.leader_epoch and not (gets_id or resumes):
            return Errors.STALE_CONTROLLER_EPOCH
        if self._broker_id not in state.replicas:
            return Errors.UNKNOWN_TOPIC_OR_PARTITION
        try:
            if replica_log is not None and self._is_of_earlier_topic(topic_partition, topic_id):
                text = "[Broker id=%d] %s: its log of an earlier topic is stray now"
                log.warning(text, self._broker_id, topic_partition)
                self._logs.set_aside(topic_partition)
                self._forget(topic_partition)
                replica_log = None
            if replica_log is None or replica_log.topic_id is None:
                if replica_log is None:
                    self._suspects.on_created(topic_partition, state)
                is_new = state.is_new or has_failed
                replica_log = self._logs.get_or_create(topic_partition, topic_id, is_new=is_new)
            if (error := _why_not(replica_log, topic_id, state.leader_epoch)) is not Errors.NONE:
                return error
            if self._suspects.must_refuse(topic_partition, state, replica_log):
                return Errors.CORRUPT_MESSAGE
            if partition.log is not replica_log:
                partition.open(replica_log, self._logs.checkpointed_high_watermark(topic_partition))
            if not is_same_epoch or resumes:
                self._take_role(partition, topic, state, now_ms)
        except StorageError as error:
            return self._partitions.fail(topic_partition, error)
        partition.topic_id = replica_log.topic_id
        self._partitions.add(partition)
        if state.leader == self._broker_id:
            self._suspects.mark_sound(topic_partition)
        return Errors.NONE

    def _may_resume(self, partition: Partition) -> bool:
        """Whether a replica may take the same leader epoch again.

        It may if a controlled shutdown stopped it and was abandoned, when a newer controller
        requests it, or this one for a newer registration. It also may if its row raised an
        unexpected error: that row was not carried out.
        """
        stopped_in = partition.stopped_in
        is_abandoned = stopped_in is not None and stopped_in < self._requested_in
        return is_abandoned or partition.topic_partition in self._failed

    def _is_of_earlier_topic(
        self, topic_partition: TopicPartition, topic_id: TopicId | None
    ) -> bool:
        """Whether an earlier process left a log of another topic of this name.

        No request has been carried out for it in this process, so the request is the newer one: its
        broker epoch is of this process, and its controller epoch is no older than the log's. A
        FULL request finds such logs, too, but a controller of Kafka sends none.
        """
        is_unused = self._partitions.get(topic_partition) is None
        return is_unused and differ(self._logs.topic_id(topic_partition), topic_id)

    def _make_room(self, topic_partition: TopicPartition, state: LeaderAndIsrPartition) -> Errors:
        """Rename an unusable log as stray, or take its replica out of service."""
        error = self._replacement.make_room(topic_partition, state)
        if error is not Errors.NONE:
            self._partitions.mark_offline(topic_partition)
        else:
            self._suspects.on_replaced(topic_partition)
        return error

    def _fail_row(self, topic_partition: TopicPartition, unexpected: Exception) -> Errors:
        """Take only the replica of a row out of service that raised something unexpected.

        Otherwise the error would keep all later rows from being carried out, at every repetition.
        """
        if topic_partition not in self._failed and len(self._failed) < MAX_TRACEBACKS:
            text = "[Broker id=%d] the request for %s failed"
            log.error(text, self._broker_id, topic_partition, exc_info=unexpected)
        self._failed.add(topic_partition)
        return self._partitions.fail(
            topic_partition, StorageError(f"unexpected error: {unexpected!r}")
        )

    def _take_role(
        self,
        partition: Partition,
        topic: LeaderAndIsrTopic,
        state: LeaderAndIsrPartition,
        now_ms: int,
    ) -> None:
        topic_partition = partition.topic_partition
        partition.has_eligible_replicas = topic.has_eligible_replicas(state)
        if state.leader == self._broker_id:
            partition.local_log.assign_epoch(state.leader_epoch)
            self._partitions.end_role(topic_partition)
            partition.make_leader(state, now_ms)
            self._leaders.start_leading(partition, now_ms)
        else:
            self._partitions.end_role(topic_partition)
            partition.make_follower(state)
            # A broker that is shutting down gives its leaderships away, and leaves their ISRs. If
            # it fetched them again, the new leaders would propose it for ISRs that refuse it.
            stays_out = self.is_shutting_down and self._broker_id not in state.isr
            if partition.role is Role.FOLLOWER and not stays_out:
                self._fetcher.follow(partition)

    def _find_lost_logs(self, request: LeaderAndIsrRequest, named: ListedPartitions) -> None:
        """Mark replicas with lost logs as suspect, after the last part of a FULL request."""
        if not self._logs.knows_all:
            lost = self._suspects.gather_lost(request)
            if named.is_everything:
                self._suspects.on_lost(lost)

    def _set_strays_aside(self, named: ListedPartitions) -> None:
        """Rename stray logs: those of partitions not listed, and those of an earlier topic id.

        The topic may have been deleted and created again while this broker was down.
        """
        strays = sorted(
            topic_partition
            for topic_partition, topic_id in self._hosted(named).items()
            if (
                differ(topic_id, named.topics[topic_partition.topic].topic_id)
                if topic_partition in named
                else named.is_everything
            )
        )
        for topic_partition in strays:
            try:
                self._logs.set_aside(topic_partition)
            except Exception as error:  # noqa: BLE001 - one failure must not keep the others
                log.error("%s: could not rename the stray log: %r", topic_partition, error)
            finally:
                self._forget(topic_partition)  # now: a stray log keeps a note that it was suspect
        if strays:
            log.warning(
                "[Broker id=%d epoch=%d] renamed the logs of %d stray partitions, which are not"
                " assigned to this broker, the first: %s",
                self._broker_id,
                self.broker_epoch,
                len(strays),
                strays[0],
            )

    def _hosted(self, named: ListedPartitions) -> dict[TopicPartition, TopicId | None]:
        """Return the topic ids of what is hosted here; of what a part lists, if it is not all."""
        if named.is_everything:
            hosted = {p: known.topic_id for p, known in self._partitions.by_topic_partition.items()}
            return {**hosted, **self._logs.hosted()}
        found: dict[TopicPartition, TopicId | None] = {}
        for topic, listed in named.topics.items():
            for number in listed.partitions:
                topic_partition = TopicPartition(topic, number)
                log, partition = (
                    self._logs.get(topic_partition),
                    self._partitions.get(topic_partition),
                )
                known = partition if log is None else log
                if known is not None:
                    found[topic_partition] = known.topic_id
        return found

    # --- StopReplica ---

    def _stop_replicas(self, request: StopReplicaRequest) -> Slices[StopReplicaResponse]:
        errors: list[PartitionError] = []

        def stop(portion: Sequence[tuple[StopReplicaTopic, StopReplicaPartition]]) -> None:
            for topic, state in portion:
                topic_partition = TopicPartition(topic.topic_name, state.partition_index)
                try:
                    error = self._stop(topic_partition, topic.topic_id, state)
                except StorageError as failure:
                    self._failed.discard(topic_partition)
                    error = self._partitions.fail(topic_partition, failure)
                except Exception as unexpected:  # noqa: BLE001 - it concerns this replica only
                    error = self._fail_row(topic_partition, unexpected)
                else:
                    self._failed.discard(topic_partition)
                errors.append(PartitionError(*topic_partition, error))

        rows = (
            (topic, state) for topic in request.topic_states for state in topic.partition_states
        )
        yield from run_in_slices(slices_of_replicas(rows), stop)
        return StopReplicaResponse(Errors.NONE, tuple(errors))

    def _stop(
        self, topic_partition: TopicPartition, topic_id: TopicId | None, stop: StopReplicaPartition
    ) -> Errors:
        if not stop.delete_partition and not self.is_shutting_down:
            self._suspects.on_stop(topic_partition)
        if self._logs.is_offline(topic_partition) and not (
            stop.delete_partition and self._logs.is_damaged(topic_partition)
        ):
            return self._partitions.mark_offline(topic_partition)
        if stop.delete_partition and self._logs.may_be_offline(topic_partition):
            return Errors.KAFKA_STORAGE_ERROR
        partition = self._partitions.get(topic_partition)
        # An offline partition does not know its topic id, but its damaged log may.
        log_id = self._logs.topic_id(topic_partition)
        if differ(log_id, topic_id) or (
            partition is not None and differ(partition.topic_id, topic_id)
        ):
            return Errors.INCONSISTENT_TOPIC_ID  # the request or the log is of an earlier topic
        # An equal epoch is accepted (KAFKA-13972): a controlled shutdown that leaves the ISR
        # unchanged does not raise it.
        if partition is not None and 0 <= stop.leader_epoch < partition.leader_epoch:
            return Errors.FENCED_LEADER_EPOCH
        if not stop.delete_partition:
            if partition is not None and partition.role is Role.FOLLOWER:
                self._fetcher.unfollow(topic_partition)
                partition.stop(Role.NONE)
                partition.stopped_in = self._requested_in
            return Errors.NONE
        if stop.leader_epoch == EPOCH_OF_LOST_TOPIC:
            self._logs.set_aside(topic_partition)
        else:
            deleted_topic = topic_id if stop.leader_epoch == EPOCH_DURING_DELETE else None
            self._logs.delete(topic_partition, deleted_topic=deleted_topic)
        self._forget(topic_partition)
        return Errors.NONE

    def _forget(self, topic_partition: TopicPartition) -> None:
        """Remove a replica; a later one of the same name may belong to another topic id."""
        self._partitions.forget(topic_partition)
        self._suspects.forget(topic_partition)
        self._replacement.forget(topic_partition)


def _why_not(replica_log: PartitionLog, topic_id: TopicId | None, leader_epoch: int) -> Errors:
    """Return why a log cannot be used in a leader epoch.

    A topic that was lost and created again begins with leader epoch 0. CORRUPT_MESSAGE asks the
    controller for a leader epoch above all epochs in the log.
    """
    if differ(replica_log.topic_id, topic_id):
        return Errors.INCONSISTENT_TOPIC_ID
    if replica_log.stray_high_watermark >= 0 and leader_epoch <= replica_log.latest_epoch:
        return Errors.CORRUPT_MESSAGE
    return Errors.NONE


def _without_impossible(
    request: LeaderAndIsrRequest,
) -> tuple[LeaderAndIsrRequest, list[PartitionError]]:
    """Return a request without its impossible rows, and the refusals of those rows."""
    impossible = {
        (topic.topic_name, state.partition_index)
        for topic in request.topic_states
        for is_legal in [topic_name_problem(topic.topic_name) is None]
        for state in topic.partition_states
        if not is_legal
        or not 0 <= state.partition_index <= _INT32_MAX
        or state.leader_epoch > _INT32_MAX
    }
    if not impossible:
        return request, []
    possible = tuple(
        replace(
            topic,
            partition_states=tuple(
                state
                for state in topic.partition_states
                if (topic.topic_name, state.partition_index) not in impossible
            ),
        )
        for topic in request.topic_states
    )
    errors = [PartitionError(*name, Errors.INVALID_TOPIC_EXCEPTION) for name in sorted(impossible)]
    return replace(request, topic_states=possible), errors


_EMPTY: Mapping[type[ControlRequest], ControlRequest] = {
    LeaderAndIsrRequest: LeaderAndIsrRequest(LeaderAndIsrType.INCREMENTAL, (), ()),
    StopReplicaRequest: StopReplicaRequest(()),
    UpdateMetadataRequest: UpdateMetadataRequest((), ()),
}


def refusal(request: ControlRequest, error: Errors, controller_epoch: int = 0) -> ControlResponse:
    """Return the answer that refuses ``request`` as a whole."""
    match request:
        case LeaderAndIsrRequest():
            errors = tuple(
                PartitionError(*topic_partition, error)
                for topic_partition, _ in request.partitions()
            )
            return LeaderAndIsrResponse(error, errors, controller_epoch)
        case StopReplicaRequest():
            return StopReplicaResponse(error)
        case UpdateMetadataRequest():
            return UpdateMetadataResponse(error, controller_epoch)
