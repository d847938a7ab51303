"""A broker of Kafka in ZooKeeper mode: the replicas are those of this project, ruled as Kafka's.

What is Kafka's: the registration, which control requests it believes and what it does with their
rows, what it asks of a controller, how old releases truncate their logs, and that it knows of no
suspect replicas. Mirrors ``kafka.server.KafkaApis`` and ``ReplicaManager`` of Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from regent.core.errors import Errors, StorageError
from regent.core.model import (
    NO_EPOCH,
    UNKNOWN_BROKER_EPOCH,
    BrokerId,
    BrokerInfo,
    BrokerRegistration,
    EndPoint,
    TopicPartition,
)
from regent.core.protocol.broker import FetchRequest
from regent.core.protocol.client import ACKS_ALL, EpochEnd, EpochQuery, ProducedPartition
from regent.core.protocol.control import (
    ControlHeader,
    ControlRequest,
    ControlResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
)
from regent.core.protocol.controller import AlterPartitionRequest, ControlledShutdownRequest
from regent.core.replica_logs import NO_EPOCH_END_OFFSET, EpochEndOffset
from regent.core.replication.control_request_handler import refusal
from regent.core.replication.partition import Partition
from regent.core.replication.replica_fetcher import truncation_offset
from regent.zk.stores.controller_store import ZkControllerStore
from tests.simulation.broker import SimulatedBroker, SimulatedWorld
from tests.simulation.channel import Channel
from tests.simulation.client_requests import ProduceRequest
from tests.simulation.disk import Disk
from tests.simulation.fetchers import SOON_MS, Fetchers
from tests.simulation.kafka_channel import KafkaChannel
from tests.simulation.kafka_controller import KafkaController
from tests.simulation.kafka_protocol import (
    EpochEndsRequest,
    EpochEndsResponse,
    KafkaCall,
    KafkaRelease,
    control_answer,
    read_control_call,
    without_epochs,
)
from tests.simulation.network import AnswerBody, Exchange
from tests.simulation.simulated_logs import SimulatedDisk

TRUNCATION_BACKOFF_MS = 1_000  # ``replica.fetch.backoff.ms``


class PartitionThatCommitsAlone(Partition):
    """A partition of a release in which a leader does not wait for ``min.insync.replicas``."""

    __slots__ = ()

    @property
    def has_enough_in_sync(self) -> bool:
        """Whether records may be committed: always."""
        return True


class KafkaBroker(SimulatedBroker):
    """A process of one release."""

    is_of_kafka = True

    def __init__(
        self,
        world: SimulatedWorld,
        broker_id: BrokerId,
        port: int,
        disk: SimulatedDisk,
        release: KafkaRelease,
    ) -> None:
        self.release = release
        self.controller_epoch_seen = 0  # of a control request; it is not on the disk
        assert isinstance(disk, Disk)
        self._disk = disk
        self._suspects_before = disk.put_suspects_away()
        super().__init__(world, broker_id, port, disk)
        self.settings.isr_changes_through_zookeeper = release.alter_partition is None

    def note_end(self, *, is_clean: bool) -> None:
        """Leave the notes of this project in the log directories: Kafka does not know them.

        It notes no ends of logs: unless they were closed cleanly, all of them are suspect for ours.
        """
        self._disk.restore_suspects(self._suspects_before)
        if not is_clean:
            self._disk.suspect |= set(self._disk.hosted())

    def _info(self) -> BrokerInfo:
        return BrokerInfo(self.broker_id, (EndPoint("PLAINTEXT", "127.0.0.1", self.port),))

    def _new_controller(self, store: ZkControllerStore) -> KafkaController:  # type: ignore[override]
        return KafkaController(self, store)

    def _new_fetchers(self) -> Fetchers:
        return KafkaFetchers(self)

    def _new_channel(self, registration: BrokerRegistration) -> Channel:
        return KafkaChannel(self, registration)

    @property
    def ruler(self) -> KafkaController:
        """Its controller, which may rule the cluster or not."""
        ruler: Any = self.controller
        assert isinstance(ruler, KafkaController)
        return ruler

    @property
    def is_controller(self) -> bool:
        """Whether it rules the cluster."""
        return self.ruler.rules

    def produced(self, request: ProduceRequest, outcome: ProducedPartition) -> ProducedPartition:
        """Refuse at the end what too few replicas have: the records are committed all the same."""
        partition = self.replica_manager.partitions.get(request.name)
        is_written = outcome.error_code is Errors.NONE and request.acks == ACKS_ALL
        if not is_written or partition is None or len(partition.isr) >= partition.min_isr:
            return outcome
        return ProducedPartition(Errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    def _begin_shutdown(self) -> None:
        """Follow on until the controller stops the replicas."""

    def _mark_logs_known(self) -> None:
        """Do nothing: Kafka does not know that it may have lost logs."""

    # --- control requests ---

    def _receive_of_controller(self, exchange: Exchange, call: KafkaCall) -> None:
        asked, request = read_control_call(call)
        answer = self._obeyed(asked, request)
        self.world.control_requests_received += not isinstance(request, UpdateMetadataRequest)
        self.world.on_obeyed(self, request)
        self.world.network.answer(exchange, control_answer(call, asked, answer))

    def _obeyed(self, asked: Any, request: ControlRequest) -> ControlResponse:
        """Carry a request out, unless an epoch is old. It does not ask who sent it."""
        if UNKNOWN_BROKER_EPOCH != asked.broker_epoch < self.broker_epoch:
            return refusal(request, Errors.STALE_BROKER_EPOCH)
        if asked.controller_epoch < self.controller_epoch_seen:
            return refusal(request, Errors.STALE_CONTROLLER_EPOCH)
        self.controller_epoch_seen = asked.controller_epoch
        header = ControlHeader(
            asked.controller_id,
            asked.controller_epoch,
            self.broker_epoch,
            broker_id=self.broker_id,
        )
        refused: tuple[PartitionError, ...] = ()
        if isinstance(request, LeaderAndIsrRequest):
            request, refused = self._without_strays(request)
        answer = self.replica_manager.handle(header, request, self.now_ms)
        if self.release.commits_alone:
            for partition in self.replica_manager.partitions.values():
                partition.__class__ = PartitionThatCommitsAlone
        if isinstance(answer, LeaderAndIsrResponse):
            answer = replace(answer, partition_errors=(*answer.partition_errors, *refused))
        if isinstance(request, StopReplicaRequest) and isinstance(answer, StopReplicaResponse):
            for row in answer.partition_errors:
                if row.error_code is Errors.NONE:
                    # Its log stays. The next LeaderAndIsr is obeyed whatever its leader epoch.
                    self.replica_manager._control_requests._forget(row.topic_partition)
        return answer

    def _without_strays(
        self, request: LeaderAndIsrRequest
    ) -> tuple[LeaderAndIsrRequest, tuple[PartitionError, ...]]:
        """Refuse replicas whose logs are of former topics: our controller lets them be deleted.

        Under a controller of Kafka, and in the ISR, an operator must: here it is done at once.
        """
        handler = self.replica_manager._control_requests
        refused = []
        topics = []
        for topic in request.topic_states:
            rows = []
            for row in topic.partition_states:
                name = TopicPartition(topic.topic_name, row.partition_index)
                known = handler._logs.topic_id(name)
                is_former = known is not None and topic.topic_id not in (None, known)
                if is_former and not self.world.kafka_may_rule and self.broker_id not in row.isr:
                    refused.append(PartitionError(*name, Errors.INCONSISTENT_TOPIC_ID))
                    continue
                if known is not None and topic.topic_id is not None and known < topic.topic_id:
                    handler._logs.delete(name, deleted_topic=None)
                    handler._forget(name)
                rows.append(row)
            topics.append(replace(topic, partition_states=tuple(rows)))
        return replace(request, topic_states=tuple(topics)), tuple(refused)

    # --- requests to a controller ---

    def _ask_controller(
        self,
        request: AlterPartitionRequest | ControlledShutdownRequest,
        on_answer: Callable[[AnswerBody], None],
    ) -> Exchange | None:
        if isinstance(request, AlterPartitionRequest):
            request = without_epochs(request)
        return super()._ask_controller(request, on_answer)


class KafkaFetchers(Fetchers):
    """Before 2.7, a follower asks for the ends of leader epochs before it fetches."""

    def __init__(self, broker: KafkaBroker) -> None:
        super().__init__(broker)
        self._release = broker.release
        self._truncated: dict[TopicPartition, int] = {}  # in which leader epoch

    def _next_request(self, leader: BrokerId, endpoint: str) -> FetchRequest | None:
        if not self._release.truncates_by_fetch and self._ask_for_ends(leader, endpoint):
            return None
        return super()._next_request(leader, endpoint)

    def _sent(self, request: FetchRequest) -> FetchRequest:
        if not self._release.sends_epoch:
            request = replace(request, replica_epoch=UNKNOWN_BROKER_EPOCH)
        if self._release.truncates_by_fetch:
            return request
        topics = tuple(
            replace(
                topic,
                partitions=tuple(
                    row._replace(last_fetched_epoch=NO_EPOCH) for row in topic.partitions
                ),
            )
            for topic in request.topics
        )
        return replace(request, topics=topics)

    def _ask_for_ends(self, leader: BrokerId, endpoint: str) -> bool:
        """Ask for those of partitions that are not truncated yet; return whether there are any."""
        manager, now_ms = self._broker.replica_manager, self._broker.now_ms
        delays = manager._fetcher._followed[leader]._delayed_until_ms
        waiting = {name for name, until_ms in delays.items() if until_ms > now_ms}
        asked = {
            name: partition
            for name, followed in manager._fetcher._leaders.items()
            if followed == leader and name not in waiting
            for partition in [manager.partitions[name]]
            if self._truncated.get(name) != partition.leader_epoch
        }
        queries = {
            name: EpochQuery(partition.local_log.latest_epoch, partition.leader_epoch)
            for name, partition in asked.items()
        }
        if not queries:
            return False

        def on_answer(answer: AnswerBody) -> None:
            assert isinstance(answer, EpochEndsResponse)
            for name, end in answer.ends.items():
                self._truncate(name, asked[name], queries[name], end)
            self._broker.acted()
            self._world.time.schedule(
                self._broker, SOON_MS, lambda: self._fetch_more(leader, endpoint)
            )

        request = EpochEndsRequest(queries)
        self._fetches[leader] = self._world.network.ask(self._broker, endpoint, request, on_answer)
        return True

    def _truncate(
        self, name: TopicPartition, partition: Partition, query: EpochQuery, end: EpochEnd
    ) -> None:
        manager = self._broker.replica_manager
        if manager.partitions.get(name) is not partition or partition.log is None:
            return
        followed = manager._fetcher._followed.get(partition.leader)
        if partition.leader_epoch != query.current_leader_epoch or followed is None:
            return
        if end.error_code is not Errors.NONE:
            # It waits alone. Kafka fetches the other partitions meanwhile.
            followed.delay(name, self._broker.now_ms + TRUNCATION_BACKOFF_MS)
            return
        log, is_done = partition.local_log, True
        offset = min(partition.high_watermark, log.log_end_offset)
        if query.leader_epoch != NO_EPOCH and end.end_offset >= 0:
            leaders = EpochEndOffset(end.leader_epoch, end.end_offset)
            own = log.end_offset_for_epoch(end.leader_epoch)
            offset = truncation_offset(leaders, own, log.log_end_offset)
            is_done = own == NO_EPOCH_END_OFFSET or own.leader_epoch == end.leader_epoch
        try:
            log.truncate_to(offset)
        except StorageError:
            return
        partition.on_truncation()
        followed.on_change(name)
        if is_done:
            self._truncated[name] = partition.leader_epoch
