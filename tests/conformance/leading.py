"""One broker that leads, or hosts, a partition: the real replica manager, a log of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from regent.core.errors import Errors, StorageError
from regent.core.model import NO_EPOCH, BrokerId, TopicPartition
from regent.core.protocol.broker import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from regent.core.protocol.control import (
    ControlHeader,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
    LeaderAndIsrType,
    TopicId,
    UpdateMetadataRequest,
)
from regent.core.protocol.controller import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
)
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.partition import Partition
from regent.core.replication.replica_manager import ReplicaManager
from regent.core.replication.replication_settings import ReplicationSettings
from tests.core.replication.numbered_logs import NumberedLogs
from tests.support.world import live_broker

NAME = TopicPartition("t", 0)
LAG_MS = 30_000


class CountedLogs(NumberedLogs):
    """Logs that only have an end offset, in a directory that may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.fails_to_delete = False
        self._has_failed = False

    @property
    def end(self) -> int:
        """The log end offset of the partition."""
        return self.ends.get(NAME, 0)

    @end.setter
    def end(self, end: int) -> None:
        self.ends[NAME] = end

    def fail(self) -> None:
        """Let the directory of all logs fail."""
        self._has_failed = True

    def hosted(self) -> Mapping[TopicPartition, TopicId | None]:
        """Return the logs unless the directory has failed."""
        return MappingProxyType({}) if self._has_failed else super().hosted()

    def delete(
        self, topic_partition: TopicPartition, *, deleted_topic: TopicId | None = None
    ) -> None:
        """Delete a log, or raise if its directory has failed."""
        if self.fails_to_delete:
            self.fail()
            raise StorageError(f"cannot delete {topic_partition}")
        super().delete(topic_partition, deleted_topic=deleted_topic)

    def is_offline(self, topic_partition: TopicPartition) -> bool:
        """Whether the directory has failed."""
        del topic_partition
        return self._has_failed


def fresh_manager(
    broker_id: BrokerId = 0, lag_ms: int = LAG_MS, logs: CountedLogs | None = None
) -> tuple[ReplicaManager, CountedLogs]:
    """Return a broker without any request yet, and its logs."""
    logs = logs or CountedLogs()
    settings = ReplicationSettings(replica_lag_time_max_ms=lag_ms)
    return ReplicaManager(broker_id, logs, MetadataCache(), settings), logs


def leader_and_isr_row(
    leader: BrokerId,
    isr: Sequence[BrokerId],
    replicas: Sequence[BrokerId],
    *,
    leader_epoch: int = 0,
    adding: Sequence[BrokerId] = (),
    removing: Sequence[BrokerId] = (),
) -> LeaderAndIsrPartition:
    """Return control requests for the partition."""
    return LeaderAndIsrPartition(
        NAME.partition,
        controller_epoch=1,
        leader=leader,
        leader_epoch=leader_epoch,
        isr=tuple(isr),
        partition_epoch=leader_epoch,
        replicas=tuple(replicas),
        adding_replicas=tuple(adding),
        removing_replicas=tuple(removing),
        is_new=True,
        leader_recovery_state=0,
    )


class Leader:
    """A leader with a log that ends at ``log_end_offset``; the brokers of all replicas are alive.

    Its epoch began at ``epoch_start``, by default at the end of the log.
    """

    def __init__(
        self,
        replicas: Sequence[BrokerId],
        isr: Sequence[BrokerId],
        leader: BrokerId,
        log_end_offset: int,
        lag_ms: int,
        *,
        epoch_start: int | None = None,
    ) -> None:
        self.now_ms = 0
        self.in_flight: AlterPartitionRequest | None = None
        self.manager, self._logs = fresh_manager(leader, lag_ms)
        self._logs.end = log_end_offset if epoch_start is None else epoch_start
        header = ControlHeader(leader, 1, -1)
        brokers = tuple(live_broker(r, NO_EPOCH) for r in replicas)
        self.manager.handle(header, UpdateMetadataRequest((), brokers), self.now_ms)
        row = leader_and_isr_row(leader, isr, replicas)
        topic = LeaderAndIsrTopic(NAME.topic, None, (row,))
        request = LeaderAndIsrRequest(LeaderAndIsrType.INCREMENTAL, (topic,), ())
        self.manager.handle(header, request, self.now_ms)
        self._logs.end = log_end_offset

    @property
    def partition(self) -> Partition:
        """The leader's partition."""
        return self.manager.partitions[NAME]

    @property
    def log_end_offset(self) -> int:
        """The log end offset."""
        return self._logs.end

    def append_to(self, log_end_offset: int) -> None:
        """Append records up to this offset."""
        self._logs.end = log_end_offset

    def check(self) -> None:
        """Fire the shrink timer."""
        self.manager.shrink_isrs(self.now_ms)

    def send(self) -> AlterPartitionRequest | None:
        """Send the pending proposal unless one is in flight."""
        request = self.manager.alter_partition_request()
        self.in_flight = request or self.in_flight
        return request

    def answer(self, error: Errors) -> None:
        """Answer the proposal as the controller; an error has no other content."""
        self.send()
        request, self.in_flight = self.in_flight, None
        assert request is not None, "there is no proposal"
        answers = [
            AlteredPartition(*row.topic_partition, error)
            if error is not Errors.NONE
            else AlteredPartition(
                *row.topic_partition,
                error,
                request.broker_id,
                row.leader_epoch,
                row.new_isr,
                row.leader_recovery_state,
                row.partition_epoch + 1,
            )
            for row in request.partitions
        ]
        response = AlterPartitionResponse(Errors.NONE, tuple(answers))
        self.manager.on_alter_partition_response(request, response, self.now_ms)


class Follower:
    """A follower of that leader."""

    def __init__(self, leader: Leader, broker_id: BrokerId) -> None:
        self._leader = leader
        self._broker_id = broker_id

    def fetch(self, offset: int) -> None:
        """Fetch from ``offset``, which acknowledges everything before it."""
        epoch = self._leader.partition.leader_epoch
        row = FetchPartition(NAME.partition, epoch, offset, NO_EPOCH, 0)
        request = FetchRequest(self._broker_id, topics=(FetchTopic(NAME.topic, None, (row,)),))
        responses: list[FetchResponse] = []
        self._leader.manager.fetch(request, self._leader.now_ms, responses.append)
        ((_, answer),) = responses[0].partitions()
        assert answer.error_code is Errors.NONE
