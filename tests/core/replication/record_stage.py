"""Brokers with logs of real batches, which fetch from each other when a test says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Generic, TypeVar

from regent.core.errors import Errors
from regent.core.log_config import LogConfig
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.broker import FetchedPartition, FetchRequest, FetchResponse
from regent.core.protocol.client import (
    ConsumedPartition,
    ConsumerFetch,
    ConsumerPosition,
    DeletedRecords,
    ProducedPartition,
)
from regent.core.protocol.control import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopic,
    LeaderAndIsrType,
    UpdateMetadataRequest,
)
from regent.core.records import RecordBytes
from regent.core.replication.all_partitions import RunBeside
from regent.core.replication.delayed_operation import DelayedOperation
from regent.core.replication.produce import AppendRules
from regent.core.replication.replica_manager import ReplicaManager
from regent.core.replication.replication_settings import ReplicationSettings
from tests.core.replication.stage import SETTINGS, T0, A, ReplicaBroker, accepted, live, state
from tests.support.memory_logs import MemoryLog, MemoryLogs
from tests.support.record_batches import batch, values_of
from tests.support.world import topic_id

T = TypeVar("T")
TWO_IN_SYNC = LogConfig(min_insync_replicas=2)


class Pending(Generic[T]):
    """A request that may wait, and its answer when there is one."""

    def __init__(
        self, manager: ReplicaManager, ask: Callable[[Callable[[T], None]], DelayedOperation | None]
    ) -> None:
        self._manager = manager
        self._answers: list[T] = []
        self._operation = ask(self._answers.append)
        assert (self._operation is None) is (len(self._answers) == 1), "it waits or is answered"

    @property
    def is_waiting(self) -> bool:
        """Whether there is no answer yet."""
        assert self._operation is None or self._operation.is_completed is bool(self._answers)
        return not self._answers

    @property
    def answer(self) -> T:
        """The answer, of which there is exactly one."""
        (answer,) = self._answers
        return answer

    def expire(self, now_ms: int = 0, *, is_early: bool = False) -> T:
        """Let the request expire."""
        if self._operation is not None:
            self._manager.expire(self._operation, now_ms, is_early=is_early)
        return self.answer


class RecordBroker(ReplicaBroker):
    """A broker with logs of real batches."""

    def __init__(
        self,
        broker_id: BrokerId = 1,
        config: LogConfig | None = None,
        settings: ReplicationSettings | None = None,
        lock: AbstractContextManager[object] | None = None,
        logs: MemoryLogs | None = None,
        run_beside: RunBeside | None = None,
    ) -> None:
        self.logs = logs or MemoryLogs({"t": config} if config else None)
        super().__init__(broker_id, self.logs, settings or SETTINGS, lock, run_beside)
        self.meet(1, 2, 3)

    def meet(self, *brokers: BrokerId) -> None:
        """Set the live brokers."""
        self.handle(UpdateMetadataRequest((), tuple(live(b, 100) for b in brokers), lists_all=True))

    def apply(
        self,
        leader: BrokerId,
        leader_epoch: int,
        *partitions: TopicPartition,
        isr: tuple[BrokerId, ...] = (1, 2),
        replicas: tuple[BrokerId, ...] = (1, 2),
    ) -> dict[TopicPartition, Errors]:
        """Set the leader of partitions, T0 by default; return the errors."""
        topics: dict[str, list[int]] = {}
        for topic, number in partitions or (T0,):
            topics.setdefault(topic, []).append(number)
        row = state(leader, leader_epoch, isr=isr, replicas=replicas)
        request = LeaderAndIsrRequest(
            LeaderAndIsrType.INCREMENTAL,
            tuple(
                LeaderAndIsrTopic(
                    topic,
                    A if topic == "t" else topic_id(9),
                    tuple(row._replace(partition_index=number) for number in numbers),
                )
                for topic, numbers in topics.items()
            ),
            (),
        )
        response = self.handle(request)
        assert isinstance(response, LeaderAndIsrResponse)
        return {error.topic_partition: error.error_code for error in response.partition_errors}

    def log(self, topic_partition: TopicPartition = T0) -> MemoryLog:
        """Return a log."""
        return self.logs.log(topic_partition)

    def values(self, topic_partition: TopicPartition = T0) -> list[bytes | None]:
        """Return the values of the records in a log."""
        return [record.value for record in self.log(topic_partition).records()]

    # --- clients ---

    def produce_to(
        self,
        records: Mapping[TopicPartition, RecordBytes],
        acks: int = -1,
        guards: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> Pending[Mapping[TopicPartition, ProducedPartition]]:
        """Produce to several partitions."""
        rules = AppendRules(guards=guards)
        return Pending(
            self.manager, lambda r: self.manager.produce(acks, records, self.now_ms, r, rules)
        )

    def produce(
        self, *values: bytes, acks: int = -1, topic_partition: TopicPartition = T0
    ) -> Pending[Mapping[TopicPartition, ProducedPartition]]:
        """Produce one batch."""
        return self.produce_to({topic_partition: batch(*values)}, acks)

    def consume(
        self,
        positions: Mapping[TopicPartition, int | ConsumerPosition],
        *,
        min_bytes: int = 1,
        max_bytes: int = 2**31 - 1,
        waits: bool = True,
        from_followers: bool = False,
        is_read_committed: bool = False,
    ) -> Pending[Mapping[TopicPartition, ConsumedPartition]]:
        """Consume from these offsets."""
        request = ConsumerFetch(
            {
                topic_partition: ConsumerPosition(at, 2**20) if isinstance(at, int) else at
                for topic_partition, at in positions.items()
            },
            min_bytes,
            max_bytes,
            from_followers,
            is_read_committed,
        )
        return Pending(
            self.manager,
            lambda r: self.manager.fetch_for_consumer(request, self.now_ms, r, waits=waits),
        )

    def delete_records(
        self, offsets: Mapping[TopicPartition, int]
    ) -> Pending[Mapping[TopicPartition, DeletedRecords]]:
        """Delete records."""
        return Pending(self.manager, lambda r: self.manager.delete_records(offsets, self.now_ms, r))

    # --- replication ---

    def fetch_from(self, leader: RecordBroker) -> tuple[FetchRequest, Pending[FetchResponse]]:
        """Send a fetch, which may wait."""
        request = self.manager.fetch_request(leader.broker_id, self.now_ms)
        assert request is not None
        return request, leader.serve(request)

    def serve(self, request: FetchRequest) -> Pending[FetchResponse]:
        """Handle a follower's fetch."""
        return Pending(self.manager, lambda r: self.manager.fetch(request, self.now_ms, r))

    def take(self, leader: RecordBroker, request: FetchRequest, response: FetchResponse) -> None:
        """Handle a leader's answer."""
        self.manager.on_fetch_response(leader.broker_id, request, response, self.now_ms)

    def follow(self, leader: RecordBroker, times: int = 1) -> FetchResponse:
        """Fetch and handle the answer; a fetch that would wait is answered at once."""
        for _ in range(times):
            request, asked = self.fetch_from(leader)
            response = asked.expire(leader.now_ms)
            self.take(leader, request, response)
        return response

    def commit_isr(self) -> None:
        """Let the controller accept the proposed ISR."""
        request = self.send()
        self.answer(request, *(accepted(r, leader=self.broker_id) for r in request.partitions))


def rows(response: FetchResponse) -> dict[TopicPartition, FetchedPartition]:
    """Return the answers by partition."""
    return dict(response.partitions())


def fetched_values(response: FetchResponse) -> dict[TopicPartition, list[bytes | None]]:
    """Return the values of the records in an answer."""
    return {
        topic_partition: values_of(row.records.read())
        for topic_partition, row in response.partitions()
        if row.records.size > 0
    }


def consumed(answer: ConsumedPartition) -> list[bytes | None]:
    """Return the values of the records for a consumer."""
    return values_of(answer.records.read())
