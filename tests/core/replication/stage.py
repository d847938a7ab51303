"""A replica manager without an actor, and short ways to send it control requests."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from regent.core.errors import Errors
from regent.core.model import NO_EPOCH, BrokerId, LeaderRecoveryState, TopicPartition
from regent.core.protocol.broker import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from regent.core.protocol.control import (
    ControlHeader,
    ControlRequest,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopic,
    LeaderAndIsrType,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopic,
    TopicId,
    UpdateMetadataBroker,
    UpdateMetadataRequest,
)
from regent.core.protocol.controller import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionRow,
)
from regent.core.replica_logs import ReplicaLogs
from regent.core.replication.all_partitions import RunBeside
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.partition import Partition, Role
from regent.core.replication.replica_manager import ReplicaManager
from regent.core.replication.replication_settings import ReplicationSettings
from tests.core.replication.numbered_logs import NumberedLogs
from tests.support.world import live_broker, topic_id

ME = 1
A, B = topic_id(1), topic_id(2)
T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
HEADER = ControlHeader(controller_id=0, controller_epoch=7, broker_epoch=100)
FULL, INCREMENTAL = LeaderAndIsrType.FULL, LeaderAndIsrType.INCREMENTAL
LAG_MS = 30_000
SETTINGS = ReplicationSettings(replica_lag_time_max_ms=LAG_MS)


class ReplicaBroker:
    """A replica manager with broker epoch 100 and controller epoch 7; the test sets the time."""

    def __init__(
        self,
        broker_id: BrokerId,
        logs: ReplicaLogs,
        settings: ReplicationSettings = SETTINGS,
        lock: AbstractContextManager[object] | None = None,
        run_beside: RunBeside | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.cache = MetadataCache()
        self.manager = ReplicaManager(broker_id, logs, self.cache, settings, lock, run_beside)
        self.manager.broker_epoch = 100
        self.now_ms = 0

    def handle(self, request: ControlRequest, **epochs: int) -> object:
        """Handle a request of the controller; return the response."""
        return self.manager.handle(HEADER._replace(**epochs), request, self.now_ms)

    def hosted(self, topic_partition: TopicPartition = T0) -> Partition:
        """Return a hosted partition."""
        return self.manager.partitions[topic_partition]

    def send(self) -> AlterPartitionRequest:
        """Return the request with the present proposals, which is then in flight."""
        request = self.manager.alter_partition_request()
        assert request is not None
        return request

    def answer(
        self,
        request: AlterPartitionRequest,
        *answers: AlteredPartition,
        error: Errors = Errors.NONE,
    ) -> None:
        """Answer an AlterPartition request."""
        response = AlterPartitionResponse(error, answers)
        self.manager.on_alter_partition_response(request, response, self.now_ms)


class BareBroker(ReplicaBroker):
    """A broker with logs without records.

    ``is_told``: it knows that there are no topics.
    """

    def __init__(self, broker_id: int = ME, *, is_told: bool = True) -> None:
        self.logs = NumberedLogs()
        super().__init__(broker_id, self.logs)
        if is_told:
            self.cache.update(HEADER, UpdateMetadataRequest((), (), lists_all=True))

    def apply(
        self,
        rows: Mapping[TopicPartition, LeaderAndIsrPartition],
        *,
        id: TopicId | None = A,
        type: LeaderAndIsrType = INCREMENTAL,
        **epochs: int,
    ) -> dict[TopicPartition, Errors]:
        """Send a LeaderAndIsr and return the errors by partition."""
        response = self.handle(leader_and_isr(rows, id, type), **epochs)
        assert isinstance(response, LeaderAndIsrResponse)
        assert response.error_code is Errors.NONE
        return {e.topic_partition: e.error_code for e in response.partition_errors}

    def stop(
        self,
        topic_partition: TopicPartition,
        leader_epoch: int,
        *,
        delete: bool,
        id: TopicId | None = A,
    ) -> Errors:
        """Send a StopReplica for one partition and return its error."""
        response = self.handle(stop_replica(topic_partition, leader_epoch, delete=delete, id=id))
        assert isinstance(response, StopReplicaResponse)
        assert response.error_code is Errors.NONE
        (error,) = response.partition_errors
        assert error.topic_partition == topic_partition
        return error.error_code

    def role(self, topic_partition: TopicPartition) -> Role | None:
        """Return the role of a partition, or None if it is not hosted."""
        hosted = self.manager.partitions.get(topic_partition)
        return None if hosted is None else hosted.role

    def meet(self, brokers: Mapping[int, int]) -> None:
        """Set the live brokers with their broker epochs."""
        self.handle(UpdateMetadataRequest((), tuple(live(*broker) for broker in brokers.items())))

    # --- fetches of a follower --------------------------------------------------------------------

    def fetched_by(
        self, replica: int, offset: int = 0, *, replica_epoch: int = 100, leader_epoch: int = 1
    ) -> FetchedPartition:
        """Let a follower fetch t-0 and return the answer for it."""
        response = self.fetched(
            fetch(replica, position(leader_epoch, offset), replica_epoch=replica_epoch)
        )
        assert response.error_code is Errors.NONE
        ((_, answer),) = response.partitions()
        return answer

    def fetched(self, request: FetchRequest) -> FetchResponse:
        """Answer a follower; if there is nothing new, as after its whole wait."""
        responses: list[FetchResponse] = []
        held = self.manager.fetch(request, self.now_ms, responses.append)
        if held is not None:
            self.manager.expire(held, self.now_ms + request.max_wait_ms)
        (response,) = responses
        return response

    def proposals(self) -> list[AlterPartitionRow]:
        """Return the present proposals; they stay pending."""
        request = self.manager.alter_partition_request()
        if request is None:
            return []
        self.manager.on_alter_partition_response(request, None, self.now_ms)
        return list(request.partitions)


def live(broker_id: int, broker_epoch: int) -> UpdateMetadataBroker:
    """Return a live broker of an UpdateMetadata request."""
    return live_broker(broker_id, broker_epoch, replication_endpoint=f"tcp://{broker_id}")


def state(
    leader: int = ME,
    leader_epoch: int = 0,
    *,
    isr: tuple[int, ...] = (1, 2),
    replicas: tuple[int, ...] = (1, 2),
    adding: tuple[int, ...] = (),
    is_new: bool = False,
    recovery: LeaderRecoveryState = LeaderRecoveryState.RECOVERED,
) -> LeaderAndIsrPartition:
    """Return a LeaderAndIsr row at partition epoch 3."""
    return LeaderAndIsrPartition(
        0, 7, leader, leader_epoch, isr, 3, replicas, adding, (), is_new, recovery
    )


def leader_and_isr(
    rows: Mapping[TopicPartition, LeaderAndIsrPartition],
    id: TopicId | None = A,
    type: LeaderAndIsrType = INCREMENTAL,
) -> LeaderAndIsrRequest:
    """Return a LeaderAndIsr request for partitions."""
    states: dict[str, tuple[LeaderAndIsrPartition, ...]] = {}
    for topic_partition, row in rows.items():
        partitions = states.get(topic_partition.topic, ())
        states[topic_partition.topic] = (
            *partitions,
            row._replace(partition_index=topic_partition.partition),
        )
    topics = tuple(LeaderAndIsrTopic(topic, id, partitions) for topic, partitions in states.items())
    return LeaderAndIsrRequest(type, topics, ())


def stop_replica(
    topic_partition: TopicPartition, leader_epoch: int, *, delete: bool, id: TopicId | None = A
) -> StopReplicaRequest:
    """Return a request to stop one replica."""
    row = StopReplicaPartition(topic_partition.partition, leader_epoch, delete)
    return StopReplicaRequest((StopReplicaTopic(topic_partition.topic, id, (row,)),))


def position(
    leader_epoch: int, offset: int, last_fetched_epoch: int = NO_EPOCH, partition: int = 0
) -> FetchPartition:
    """Return a row of a follower's fetch."""
    return FetchPartition(partition, leader_epoch, offset, last_fetched_epoch, 0)


def fetch(
    replica: int,
    *rows: FetchPartition,
    replica_epoch: int = 100,
    topic: str = "t",
    id: TopicId | None = A,
) -> FetchRequest:
    """Return a follower's fetch."""
    return FetchRequest(replica, replica_epoch, 500, (FetchTopic(topic, id, rows),))


def no_answer(response: FetchResponse) -> Errors:
    """Return why a Fetch was refused as a whole."""
    assert response.topics == ()
    return response.error_code


def accepted(row: AlterPartitionRow, *, leader: int = ME) -> AlteredPartition:
    """Return the answer to an accepted proposal."""
    return AlteredPartition(
        row.topic,
        row.partition,
        Errors.NONE,
        leader,
        row.leader_epoch,
        row.new_isr,
        row.leader_recovery_state,
        row.partition_epoch + 1,
    )


def refused(row: AlterPartitionRow, error: Errors) -> AlteredPartition:
    """Return the answer to a refused proposal, without a state."""
    return AlteredPartition(row.topic, row.partition, error)


def errors(response: FetchResponse) -> dict[TopicPartition, Errors]:
    """Return the error of each partition in an answer."""
    return {topic_partition: row.error_code for topic_partition, row in response.partitions()}
