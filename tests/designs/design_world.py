"""Brokers of v1 or v2 in virtual time, on the fake ZooKeeper, with a network of their own."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from pykka import ActorRef

from regent.core.model import BrokerId, TopicPartition
from regent.designs.commit_thread import InSyncLimits
from regent.designs.design_process import DESIGNS
from regent.designs.design_replica import (
    PeerRestarted,
    ProduceRecords,
    ReplicaRole,
    Surroundings,
)
from regent.designs.mail import FetchRecords, ReplicaMail, refusal_of
from regent.designs.watched_zookeeper import Counts, WatchedZooKeeper
from regent.designs.znodes import (
    PARTITIONS_ADD,
    PARTITIONS_REASSIGNED,
    PARTITIONS_REMOVE,
    PERSISTENT_PATHS,
    StoredLeadership,
    broker_path,
    creations,
    decode_ids,
    encode_ids,
    isr_path,
    leader_and_isr_path,
    partition_name,
    replicas_path,
    state_path,
    topic_path,
)
from regent.zk.client.operations import ANY_VERSION, Create, Delete, WatchEvent
from tests.designs.virtual_time import VirtualTime
from tests.support.fake_zookeeper import Call, FakeZooKeeper, FakeZooKeeperServer, Hook, Moment

MAX_NETWORK_DELAY_MS = 3
COMMAND_MS = 100


class BrokerProcess:
    """The threads and timers of one broker: it can stand still, or end."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self._held: list[Callable[[], None]] = []
        self._is_paused = False
        self.is_dead = False

    def now_ms(self) -> int:
        return self._time.now_ms()

    def submit(self, step: Callable[[], None]) -> None:
        self._time.submit(partial(self._run, step))

    def later(self, after_ms: int, callback: Callable[[], None]) -> None:
        self._time.later(after_ms, partial(self._run, callback))

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        held, self._held = self._held, []
        for step in held:
            self._time.submit(step)

    def _run(self, step: Callable[[], None]) -> None:
        if self._is_paused:
            self._held.append(partial(self._run, step))
        elif not self.is_dead:
            step()


class DesignWorld:
    """Brokers 0 to ``count - 1`` of one design."""

    def __init__(
        self, design: str, seed: int, count: int = 3, limits: InSyncLimits | None = None
    ) -> None:
        self.time = VirtualTime(seed)
        self.server = FakeZooKeeperServer(self.time.now_ms)
        self.admin = FakeZooKeeper(self.server)
        self._design = design
        self._dice = random.Random(seed)
        self._limits = limits or InSyncLimits()
        self._processes: dict[BrokerId, BrokerProcess] = {}
        self._around: dict[BrokerId, Surroundings] = {}
        self._sessions: dict[BrokerId, FakeZooKeeper] = {}
        self._brokers: dict[BrokerId, ActorRef[Any]] = {}
        self._on_expired: dict[BrokerId, Callable[[], None]] = {}
        self._cut: dict[tuple[BrokerId, BrokerId], list[ReplicaMail]] = {}
        for path in PERSISTENT_PATHS:
            self.admin.multi([Create(path)])
        for broker_id in range(count):
            self.start(broker_id)

    def run_for(self, duration_ms: int) -> None:
        """Run everything that happens in this time."""
        self.time.run_for(duration_ms)

    # --- brokers ---

    def start(self, broker_id: BrokerId) -> None:
        """Start a broker, on the logs of its former process if there was one."""
        process = BrokerProcess(self.time)
        former = self._around.get(broker_id)
        zookeeper = WatchedZooKeeper(process, partial(self._connect, broker_id))
        self._processes[broker_id] = process
        around = Surroundings(
            broker_id, zookeeper, Network(self, broker_id), process, process, self._limits
        )
        if former is not None:
            around = replace(around, logs=former.logs)
        self._around[broker_id] = around
        self._brokers[broker_id] = DESIGNS[self._design](around, b"")
        for other, broker in self._brokers.items():
            if other != broker_id and not self._processes[other].is_dead:
                broker.tell(PeerRestarted(broker_id))

    def _connect(
        self,
        broker_id: BrokerId,
        on_watch: Callable[[WatchEvent], None],
        on_expired: Callable[[], None],
    ) -> FakeZooKeeper:
        session = FakeZooKeeper(self.server, on_watch)
        self._on_expired[broker_id] = on_expired
        self._sessions[broker_id] = session
        return session

    def crash(self, broker_id: BrokerId) -> None:
        """``kill -9``; the session ends at once."""
        self._processes[broker_id].is_dead = True
        self.end_session(broker_id)

    def pause(self, broker_id: BrokerId) -> None:
        """SIGSTOP."""
        self._processes[broker_id].pause()

    def resume(self, broker_id: BrokerId) -> None:
        """SIGCONT."""
        self._processes[broker_id].resume()

    def hear(self, broker_id: BrokerId) -> None:
        """Let a broker notice that its session has ended, before its next call to ZooKeeper."""
        if not self.server.is_alive(self._sessions[broker_id].session_id):
            self._on_expired[broker_id]()

    def end_session(self, broker_id: BrokerId) -> None:
        """Let ZooKeeper end the session of a broker."""
        self.server.expire(self._sessions[broker_id].session_id)

    def disconnect(self, broker_id: BrokerId) -> None:
        """Cut the connection to ZooKeeper: no watch fires, and the session lasts."""
        self.server.disconnect(self._sessions[broker_id].session_id)

    def reconnect(self, broker_id: BrokerId) -> None:
        """Restore it: the watches fire for what was missed."""
        self.server.reconnect(self._sessions[broker_id].session_id)

    def interrupt(self, broker_id: BrokerId, hook: Hook) -> None:
        """Let ``hook`` interrupt the calls of a broker's session."""
        self._sessions[broker_id].hook = hook

    def slow_down_commands(self, broker_id: BrokerId) -> None:
        """Let a broker need 100 ms for each command in its queue; its replicas go on meanwhile."""

        def take_time(call: Call) -> None:
            is_done = call.moment is Moment.AFTER and call.method == "multi"
            if is_done and call.paths[0].startswith(f"{state_path(broker_id)}/"):
                self.run_for(COMMAND_MS)

        self.interrupt(broker_id, take_time)

    def counts(self, broker_id: BrokerId) -> Counts:
        """Return what a broker asked of ZooKeeper, and was told."""
        return self._around[broker_id].zookeeper.counts

    # --- partitions ---

    def create(self, topic_partition: TopicPartition, replicas: tuple[BrokerId, ...]) -> None:
        """Create a partition; run until it is led and every live replica is in sync."""
        if self._design == "v2":
            path = f"{PARTITIONS_ADD}/{partition_name(topic_partition)}"
            self.admin.multi([Create(path, encode_ids(replicas))])
        else:
            self.admin.multi([Create(topic_path(topic_partition.topic))])
            self.admin.multi(creations(self._design, topic_partition, replicas))
        self.time.run_for(2_000)
        dead = {broker_id for broker_id, process in self._processes.items() if process.is_dead}
        assert set(self.isr(topic_partition)) == set(replicas) - dead

    def delete(self, topic_partition: TopicPartition) -> None:
        """Delete the topic of a partition: ask the leader (v2), or delete its znodes (v1)."""
        if self._design == "v2":
            path = f"{PARTITIONS_REMOVE}/{partition_name(topic_partition)}"
            self.admin.multi([Create(path)])
        else:
            self._delete_below(topic_path(topic_partition.topic))
        self.time.run_for(2_000)

    def _delete_below(self, path: str) -> None:
        for name in self.admin.children(path) or []:
            self._delete_below(f"{path}/{name}")
        self.admin.multi([Delete(path, ANY_VERSION)])

    def move(self, topic_partition: TopicPartition, target: tuple[BrokerId, ...]) -> None:
        """Ask the leader to move a partition (v2)."""
        path = f"{PARTITIONS_REASSIGNED}/{partition_name(topic_partition)}"
        self.admin.multi([Create(path, encode_ids(target))])

    def assigned(self, topic_partition: TopicPartition) -> tuple[BrokerId, ...]:
        """Return the replicas of a partition, as ZooKeeper has them."""
        node = self.server.node(replicas_path(topic_partition))
        return () if node is None else decode_ids(node.data)

    def produce(
        self, broker_id: BrokerId, topic_partition: TopicPartition, *records: str
    ) -> list[bool]:
        """Send records to a broker; the list gets True when they are committed, else False."""
        outcome: list[bool] = []
        replica = self._around[broker_id].replicas[topic_partition]
        replica.tell(ProduceRecords(records, outcome.append))
        return outcome

    def is_hosted(self, broker_id: BrokerId, topic_partition: TopicPartition) -> bool:
        """Whether a broker runs a replica of a partition."""
        return topic_partition in self._around[broker_id].replicas

    def believers(self, topic_partition: TopicPartition) -> list[BrokerId]:
        """Return the live brokers whose replica believes that it leads."""
        return [
            broker_id
            for broker_id, around in self._around.items()
            if not self._processes[broker_id].is_dead
            and topic_partition in around.beliefs
            and around.beliefs[topic_partition].role is ReplicaRole.LEADER
        ]

    def leader(self, topic_partition: TopicPartition) -> BrokerId:
        """Return the only leader."""
        (leader,) = self.believers(topic_partition)
        return leader

    def records(self, broker_id: BrokerId, topic_partition: TopicPartition) -> list[str]:
        """Return the log of a replica; it is empty when there is none."""
        log = self._around[broker_id].logs.get(topic_partition)
        return [] if log is None else list(log.records)

    def committed(self, broker_id: BrokerId, topic_partition: TopicPartition) -> list[str]:
        """Return what a replica knows to be committed."""
        log = self._around[broker_id].logs[topic_partition]
        return log.records[: log.high_watermark]

    def isr(self, topic_partition: TopicPartition) -> tuple[BrokerId, ...]:
        """Return the in-sync replicas, as ZooKeeper has them."""
        node = self.server.node(leader_and_isr_path(topic_partition))
        if node is not None:
            return StoredLeadership.decode(node.data).isr
        node = self.server.node(isr_path(topic_partition))
        return () if node is None else decode_ids(node.data)

    def is_registered(self, broker_id: BrokerId) -> bool:
        """Whether a broker is registered."""
        return self.server.node(broker_path(broker_id)) is not None

    # --- the network ---

    def cut(self, sender: BrokerId, receiver: BrokerId) -> None:
        """Hold up what a broker sends to another one, until ``mend``."""
        self._cut.setdefault((sender, receiver), [])

    def mend(self) -> None:
        """Deliver what was held up, and all that comes after it."""
        cut, self._cut = self._cut, {}
        for (sender, receiver), held in cut.items():
            for message in held:
                self.carry(sender, receiver, message)

    def carry(self, sender: BrokerId, receiver: BrokerId, message: ReplicaMail) -> None:
        """Deliver a message a little later, unless the link is cut."""
        held = self._cut.get((sender, receiver))
        if held is not None:
            held.append(message)
            return
        delay_ms = self._dice.randint(1, MAX_NETWORK_DELAY_MS)
        self.time.later(delay_ms, partial(self._arrive, sender, receiver, message))

    def _arrive(self, sender: BrokerId, receiver: BrokerId, message: ReplicaMail) -> None:
        if not self._processes[receiver].is_dead:
            self._around[receiver].deliver(message)
        elif isinstance(message, FetchRecords):
            self._around[sender].deliver(refusal_of(message))


class Network:
    """The other brokers, as one broker sees them."""

    def __init__(self, world: DesignWorld, broker_id: BrokerId) -> None:
        self._world = world
        self._broker_id = broker_id

    def send(self, broker_id: BrokerId, message: ReplicaMail) -> None:
        self._world.carry(self._broker_id, broker_id, message)
