"""Brokers with a controller (v3) on the schedules of ``DesignWorld``.

The core is the product's: ``tests.simulation.cluster`` runs it in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from regent.core.controller.effects import Effect
from regent.core.controller.events import ControllerEvent
from regent.core.controller.services import ControllerSettings
from regent.core.errors import Errors
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.broker import FetchRequest
from regent.core.protocol.client import (
    ConsumedPartition,
    ConsumerFetch,
    ConsumerPosition,
)
from regent.core.protocol.control import (
    ControlRequest,
    StopReplicaRequest,
    StopReplicaResponse,
)
from regent.core.protocol.controller import (
    AlterPartitionResponse,
)
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
)
from regent.core.replication.partition import Role
from regent.designs.commit_thread import InSyncLimits
from regent.zk.znodes import TopicZNode
from tests.designs.design_world import DesignWorld
from tests.simulation.broker import SimulatedBroker
from tests.simulation.client_requests import (
    ConsumeRequest,
    ConsumeResponse,
    ProduceRequest,
    ProduceResponse,
)
from tests.simulation.cluster import REPLICATION, Cluster, short_settings
from tests.simulation.network import AnswerBody, Exchange, Fate, Packet, usual_fate
from tests.support.memory_logs import MemoryLog
from tests.support.record_batches import batch

KEEP_IN_SYNC_MS = 4_000
"""After what time a replica that makes no progress leaves the ISR, in every design."""

CONTROLLER: BrokerId = 8
"""A broker without replicas, which is the first active controller."""

_STEPS_MS = 50
_ACKS_ALL = -1


class World(Protocol):
    """What a schedule does to the brokers of any design, and sees of them."""

    def run_for(self, duration_ms: int, /) -> None: ...

    def create(self, topic_partition: TopicPartition, replicas: tuple[BrokerId, ...], /) -> None:
        """Create a partition; run until it is led and every live replica is in sync."""

    def delete(self, topic_partition: TopicPartition, /) -> None:
        """Delete the topic of a partition, which has no other one."""

    def start(self, broker_id: BrokerId, /) -> None: ...

    def crash(self, broker_id: BrokerId, /) -> None: ...

    def pause(self, broker_id: BrokerId, /) -> None: ...

    def resume(self, broker_id: BrokerId, /) -> None:
        """Let it go on; it does not know yet that its session has ended."""

    def hear(self, broker_id: BrokerId, /) -> None:
        """Let its ZooKeeper client notice, if it has not, that its session has ended."""

    def end_session(self, broker_id: BrokerId, /) -> None: ...

    def cut(self, sender: BrokerId, receiver: BrokerId, /) -> None: ...

    def mend(self) -> None: ...

    def produce(
        self, broker_id: BrokerId, topic_partition: TopicPartition, /, *records: str
    ) -> list[bool]: ...

    def believers(self, topic_partition: TopicPartition, /) -> list[BrokerId]: ...

    def records(self, broker_id: BrokerId, topic_partition: TopicPartition, /) -> list[str]: ...

    def isr(self, topic_partition: TopicPartition, /) -> tuple[BrokerId, ...]: ...


def world_of(design: str, seed: int = 1, count: int = 3) -> World:
    """Return brokers 0 to ``count - 1`` of a design."""
    if design == "v3":
        return ControllerWorld(count)
    return DesignWorld(design, seed, count, InSyncLimits(keep_in_sync_ms=KEEP_IN_SYNC_MS))


def run_until(world: World, is_so: Callable[[], bool], within_ms: int = 20_000) -> None:
    """Run until something is so."""
    for _ in range(within_ms):
        if is_so():
            return
        world.run_for(1)
    raise AssertionError(f"it is not so within {within_ms} ms")


def _without_rebalances() -> ControllerSettings:
    return replace(short_settings(), auto_leader_rebalance_enable=False)


class ControllerWorld:
    """Brokers 0 to ``count - 1``, and one without replicas for the controller."""

    def __init__(self, count: int = 3) -> None:
        self.refusals: list[Errors] = []
        """What the controller answered to leaders that proposed an ISR, without errors."""
        self.sent: list[tuple[BrokerId, ControlRequest]] = []
        """The requests of controllers, with their receivers."""
        self.handled: list[tuple[BrokerId, ControllerEvent]] = []
        """The events that controllers handled; only the active one does anything then."""
        self.stop_answers: list[Errors] = []
        """What brokers answered to requests to stop a replica."""
        self.held: list[Packet] = []
        """Requests to stop a replica that ``hold_stop_replica`` caught."""
        self._cut: set[tuple[BrokerId, BrokerId]] = set()
        self._to_hold = 0
        replication = replace(
            REPLICATION,
            replica_lag_time_max_ms=KEEP_IN_SYNC_MS,
            replica_fetch_max_bytes=1_000_000,
            replica_fetch_response_max_bytes=1_000_000,
        )
        self.cluster = Cluster([CONTROLLER], _without_rebalances, replication)
        self.cluster.network.fate = self._fate
        self.cluster.network.on_answered = self._note_answer
        self.cluster.on_control_request = lambda _, order: self.sent.append(
            (order.broker_id, order.request)
        )
        self.cluster.handle = self._handle
        self.run_for(100)
        for broker_id in range(count):
            self.cluster.start(broker_id)
        self.run_for(100)

    def _handle(self, broker: SimulatedBroker, event: ControllerEvent) -> list[Effect]:
        self.handled.append((broker.broker_id, event))
        return broker.handle(event)

    def run_for(self, duration_ms: int) -> None:
        """Run everything that happens in this time."""
        self.cluster.rest_step_ms = min(duration_ms, _STEPS_MS)
        self.cluster.run_for(duration_ms)

    # --- brokers ---

    def start(self, broker_id: BrokerId) -> None:
        """Start a broker, on the logs of its former process."""
        self.cluster.start(broker_id)

    def crash(self, broker_id: BrokerId) -> None:
        """``kill -9``; the session ends at once."""
        session_id = self.cluster.brokers[broker_id].session.session_id
        self.cluster.kill(broker_id)
        self.cluster.expire(session_id)

    def pause(self, broker_id: BrokerId) -> None:
        """SIGSTOP."""
        self.cluster.brokers[broker_id].is_paused = True

    def resume(self, broker_id: BrokerId) -> None:
        """SIGCONT; the broker does not know yet that its session has ended, see ``hear``."""
        self.cluster.brokers[broker_id].is_paused = False
        self.cluster.in_call.add(broker_id)

    def hear(self, broker_id: BrokerId) -> None:
        """Let a broker that went on hear from ZooKeeper."""
        self.cluster.in_call.discard(broker_id)

    def end_session(self, broker_id: BrokerId) -> None:
        """Let ZooKeeper end the session of a broker."""
        self.cluster.expire(self.cluster.brokers[broker_id].session.session_id)

    # --- partitions ---

    def create(self, topic_partition: TopicPartition, replicas: tuple[BrokerId, ...]) -> None:
        """Create a partition; run until it is led and every live replica is in sync."""
        topic, partition = topic_partition
        self.cluster.rewrite_topic(topic, {partition: replicas})
        self.run_for(2_000)
        assert self.isr(topic_partition) == tuple(b for b in replicas if b in self.cluster.brokers)

    def delete(self, topic_partition: TopicPartition) -> None:
        """Delete the znodes of a topic: its deletion would wait for the brokers that are away."""
        path = TopicZNode.path(topic_partition.topic)
        below = [p for p in self.cluster.zookeeper.snapshot() if f"{p}/".startswith(f"{path}/")]
        for node in reversed(below):
            self.cluster.zookeeper.remove(node)
        self.run_for(2_000)

    def create_many(self, topic: str, count: int, replicas: tuple[BrokerId, ...]) -> None:
        """Create partitions that all have these replicas."""
        self.cluster.rewrite_topic(topic, dict.fromkeys(range(count), replicas))
        self.run_for(2_000)

    def move(self, topic_partition: TopicPartition, target: tuple[BrokerId, ...]) -> None:
        """Ask the active controller to move a partition."""
        controller = next(b for b in self.cluster.active_controllers if not b.is_paused)
        request = AlterPartitionReassignmentsRequest.of({topic_partition: target})
        self.cluster.request(request, controller.broker_id)

    def produce(
        self, broker_id: BrokerId, topic_partition: TopicPartition, *records: str
    ) -> list[bool]:
        """Send records to a broker; the list gets True when they are committed, else False."""
        outcome: list[bool] = []

        def on_answer(answer: AnswerBody) -> None:
            assert isinstance(answer, ProduceResponse)
            outcome.append(answer.outcome.error_code is Errors.NONE)

        data = batch(*(record.encode() for record in records))
        request = ProduceRequest(topic_partition, _ACKS_ALL, data)
        endpoint = self.cluster.brokers[broker_id].client_endpoint
        self.cluster.network.ask(None, endpoint, request, on_answer)
        return outcome

    def consume(
        self, broker_id: BrokerId, topic_partition: TopicPartition, leader_epoch: int
    ) -> Errors:
        """Let a consumer fetch that knows this leader epoch; return the error."""
        answers: list[ConsumedPartition] = []

        def on_answer(answer: AnswerBody) -> None:
            assert isinstance(answer, ConsumeResponse)
            answers.append(answer.partitions[topic_partition])

        position = ConsumerPosition(0, 1_000, current_leader_epoch=leader_epoch)
        request = ConsumeRequest(ConsumerFetch({topic_partition: position}), waits=False)
        endpoint = self.cluster.brokers[broker_id].client_endpoint
        self.cluster.network.ask(None, endpoint, request, on_answer)
        (answer,) = answers
        return answer.error_code

    def believers(self, topic_partition: TopicPartition) -> list[BrokerId]:
        """Return the live brokers whose replica believes that it leads."""
        return [
            broker_id
            for broker_id, broker in sorted(self.cluster.brokers.items())
            if topic_partition in broker.replica_manager.partitions
            and broker.replica_manager.partitions[topic_partition].role is Role.LEADER
        ]

    def records(self, broker_id: BrokerId, topic_partition: TopicPartition) -> list[str]:
        """Return the log of a replica; it is empty when there is none."""
        log = self.cluster.disks[broker_id].get(topic_partition)
        if log is None:
            return []
        assert isinstance(log, MemoryLog)
        return [(record.value or b"").decode() for record in log.records()]

    def isr(self, topic_partition: TopicPartition) -> tuple[BrokerId, ...]:
        """Return the in-sync replicas, as ZooKeeper has them."""
        stored = self.cluster.state(topic_partition)
        return () if stored is None else stored.leader_and_isr.isr

    def leader(self, topic_partition: TopicPartition) -> BrokerId:
        """Return the leader, as ZooKeeper has it."""
        stored = self.cluster.state(topic_partition)
        assert stored is not None
        return stored.leader_and_isr.leader

    def leader_epoch(self, topic_partition: TopicPartition) -> int:
        """Return the leader epoch, as ZooKeeper has it."""
        stored = self.cluster.state(topic_partition)
        assert stored is not None
        return stored.leader_and_isr.leader_epoch

    # --- the network ---

    def cut(self, sender: BrokerId, receiver: BrokerId) -> None:
        """Lose what a broker sends to another one about replication, until ``mend``."""
        self._cut.add((sender, receiver))

    def mend(self) -> None:
        """Lose nothing any more."""
        self._cut.clear()

    def hold_stop_replica(self, times: int) -> None:
        """Let the next requests to stop a replica wait in ``held``."""
        self._to_hold = times

    def release(self) -> list[Errors]:
        """Deliver what is held; return what the brokers answered to it."""
        before = len(self.stop_answers)
        for packet in self.held:
            self.cluster.network.deliver(packet.number)
        return self.stop_answers[before:]

    def _fate(self, packet: Packet) -> Fate:
        request = packet.exchange.request
        if isinstance(request, FetchRequest) and self._ends(packet) in self._cut:
            return Fate.LOST
        if isinstance(request, StopReplicaRequest) and self._to_hold and packet.answer is None:
            self._to_hold -= 1
            self.cluster.network.hold(packet.number, 10**9)
            self.held.append(packet)
        return usual_fate(packet)

    def _ends(self, packet: Packet) -> tuple[BrokerId, BrokerId]:
        """Return sender and receiver of a packet between brokers."""
        asked = self.cluster.network.listeners.get(packet.exchange.endpoint)
        asking = packet.exchange.sender
        assert isinstance(asking, SimulatedBroker)
        if not isinstance(asked, SimulatedBroker):  # it is dead
            return asking.broker_id, asking.broker_id
        ends = asking.broker_id, asked.broker_id
        return ends if packet.answer is None else (ends[1], ends[0])

    def _note_answer(self, exchange: Exchange, answer: AnswerBody) -> None:
        if isinstance(answer, AlterPartitionResponse):
            errors = [answer.error_code, *(row.error_code for row in answer.partitions)]
            self.refusals += [error for error in errors if error is not Errors.NONE]
        elif isinstance(answer, StopReplicaResponse):
            errors = [answer.error_code, *(row.error_code for row in answer.partition_errors)]
            self.stop_answers += errors
