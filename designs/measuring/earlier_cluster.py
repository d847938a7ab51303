"""v1 and v2 as clusters to measure: their broker processes, and what they say of their replicas."""

from __future__ import annotations

import select
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from regent.actors.scheduler import monotonic_ms
from regent.cluster.child_process import ChildProcess, DeathPipe
from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.core.model import BrokerId, TopicPartition
from regent.core.placement.replica_placer import place_ring
from regent.designs.measuring.held_processes import held
from regent.designs.measuring.measured_cluster import (
    REPLICATION_FACTOR,
    SESSION_TIMEOUT_MS,
    TOPIC,
    Believers,
    BrokerCounts,
    LeaderTimes,
    MeasuringError,
    StateChangeCost,
)
from regent.designs.requests import (
    AppendRecordsRequest,
    Belief,
    DescribeReplicasRequest,
    DescribeReplicasResponse,
    ReplicaRole,
)
from regent.designs.state_change_queue import (
    ADMIN_EPOCH,
    StateChange,
    StateChangeCommand,
    StateChangeQueue,
)
from regent.designs.watched_zookeeper import WatchedZooKeeper
from regent.designs.wire import Peer, SilentPeerError
from regent.designs.znodes import (
    BROKER_IDS,
    PARTITIONS_ADD,
    encode_ids,
    isr_path,
    leader_path,
    partition_name,
    partition_path,
    replicas_path,
    topic_path,
)
from regent.zk.client.operations import Create, Operation
from regent.zk.client.zookeeper_client import ZooKeeperClient

KEEP_IN_SYNC_MS: Final = 1_000
"""``believers`` stops ZooKeeper for this time: shorter than a session, not Kafka's 30 s."""

_BROKER_COMMAND: Final = (sys.executable, "-P", "-m", "regent.designs", "broker")
_FIRST: Final = TopicPartition(TOPIC, 0)
_PARTITIONS_AT_ONCE: Final = 500
_COMMANDS: Final = 10
_START_TIMEOUT_S: Final = 30.0
_TIMEOUT_S: Final = 1_200.0
_ASK_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.02
_END_TIMEOUT_S: Final = 10.0


class EarlierCluster:
    """Brokers of one design; ``design`` is a name of ``design_process.DESIGNS``."""

    period_s = 5.0  # brokers ask each other so often whether they are the same process

    def __init__(
        self,
        design: str,
        folder: Path,
        brokers: int,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
    ) -> None:
        self.zookeeper = EmbeddedZooKeeper(folder / "zookeeper")
        self.brokers: list[BrokerId] = list(range(brokers))
        self.design = design
        self._session_timeout_ms = session_timeout_ms
        self._death_pipe = DeathPipe()
        self._children: dict[BrokerId, ChildProcess] = {}
        self._actors: dict[BrokerId, Peer] = {}
        self._replicas: list[tuple[BrokerId, ...]] = []
        try:
            self.zookeeper.start()
            self._start(folder)
        except BaseException:
            self.close()
            raise

    # --- MeasuredCluster ---

    def create_partitions(self, count: int) -> None:
        """See ``MeasuredCluster``; a broker knows the leaders of its own replicas only."""
        factor = min(REPLICATION_FACTOR, len(self.brokers))
        self._replicas = [place_ring(self.brokers, number, factor) for number in range(count)]
        with self._session() as session:
            while len(session.children(BROKER_IDS) or ()) < len(self.brokers):
                time.sleep(_POLL_S)
            if self.design == "v2":
                self._ask_for_partitions(session)
            else:
                self._write_partitions(session)
        self._await(lambda: self._are_led(()), "not every partition is led")

    def controller(self) -> BrokerId | None:
        """See ``MeasuredCluster``: nobody decides for all."""
        return None

    def leader_of(self, partition: int) -> BrokerId:
        """See ``MeasuredCluster``."""
        return self._leaders()[partition]

    def pid(self, broker_id: BrokerId) -> int:
        """See ``MeasuredCluster``."""
        pid = self._children[broker_id].pid
        assert pid is not None
        return pid

    def await_leaders(self, dead: Collection[BrokerId], since: float) -> LeaderTimes:
        """See ``MeasuredCluster``; brokers note when their replicas began to lead or to follow."""
        for broker_id in dead:
            self._actors.pop(broker_id).close()
        self._await(lambda: self._are_led(dead), f"not every partition is led without {dead}")
        changed = [belief for belief in self._beliefs() if belief.since_ms >= since * 1000 - 1]
        led = [belief.since_ms for belief in changed if belief.role is ReplicaRole.LEADER]
        known = [belief.since_ms for belief in changed]
        return LeaderTimes(
            max(led, default=since * 1000) - since * 1000,
            max(known, default=since * 1000) - since * 1000,
        )

    def partitions_led_by(self, broker_ids: Collection[BrokerId]) -> int:
        """See ``MeasuredCluster``."""
        return sum(leader in broker_ids for leader in self._leaders().values())

    def broker_counts(self, broker_ids: Collection[BrokerId]) -> BrokerCounts:
        """See ``MeasuredCluster``: the brokers send each other nothing but fetches."""
        question = DescribeReplicasRequest(with_beliefs=False)
        answers = [self._ask(broker_id, question) for broker_id in broker_ids]
        return BrokerCounts(0, sum(answer.listeners_called for answer in answers))

    def believers(self) -> Believers:
        """See ``MeasuredCluster``.

        The leader stands still until another one leads, and a record waits in its socket: nobody
        else can have that one. When the leader continues, ZooKeeper stands still, and cannot tell
        that the session is over until the leader asks to remove the followers from the in-sync
        replicas. Every broker notes when its replicas began and ceased to believe that they lead.
        """
        former = self.leader_of(0)
        others = [broker_id for broker_id in self._replicas[0] if broker_id != former]
        writes = self._describe(former).zookeeper_writes
        with ExitStack() as zookeeper_held:
            with held([self.pid(former)]):
                self._actors[former].tell(AppendRecordsRequest(_FIRST, ("a record",)))
                self._await(
                    lambda: any(self._belief(b).role is ReplicaRole.LEADER for b in others),
                    "no other replica leads",
                )
                zookeeper_held.enter_context(held([self.zookeeper.pid]))
                continued_ms = monotonic_ms()
            self._await(
                lambda: self._describe(former).zookeeper_writes > writes,
                "the former leader does not write the in-sync replicas",
            )
        self._await(lambda: self._has_answered(former), "the record is not answered")
        answers = [self._describe(broker_id) for broker_id in self._replicas[0]]
        leaders = sum(_leads_at(continued_ms, answer) for answer in answers)
        kept = max(self._belief(broker_id).log_end_offset for broker_id in others)
        return Believers(leaders, self._describe(former).appends_acknowledged > kept)

    def _has_answered(self, former: BrokerId) -> bool:
        """Whether a broker has answered the record."""
        answer = self._describe(former)
        return answer.appends_acknowledged + answer.appends_refused == 1

    def state_change_cost(self) -> StateChangeCost | None:
        """See ``MeasuredCluster``: a command to stop a replica that is not there (v2)."""
        if self.design != "v2":
            return None
        receiver = self.brokers[-1]
        change = StateChange(
            StateChangeCommand.STOP_REPLICA, TopicPartition("none", 0), ADMIN_EPOCH
        )
        with ThreadPoolExecutor(1) as pool, self._session() as session:
            zookeeper = WatchedZooKeeper(pool, lambda *_: session)
            queue = StateChangeQueue(zookeeper, receiver)
            before = self._describe(receiver)
            for number in range(1, _COMMANDS + 1):
                queue.put(change)
                # Its creation and its deletion fire the watch, which is set again.
                told = before.watches_set + 2 * number
                self._await(partial(self._has_set_watches, receiver, told), "a command waits")
            after, own = self._describe(receiver), zookeeper.counts
        operations = (
            own.reads
            + own.writes
            + sum(
                getattr(after, name) - getattr(before, name)
                for name in ("zookeeper_reads", "zookeeper_writes", "watches_fired")
            )
        )
        return StateChangeCost(round(operations / _COMMANDS), 0)

    def _has_set_watches(self, broker_id: BrokerId, count: int) -> bool:
        question = DescribeReplicasRequest(with_beliefs=False)
        return self._ask(broker_id, question).watches_set >= count

    def close(self) -> None:
        """See ``MeasuredCluster``."""
        for actor in self._actors.values():
            actor.close()
        for child in self._children.values():
            child.send_signal(signal.SIGKILL)
        for child in self._children.values():
            deadline = time.monotonic() + _END_TIMEOUT_S
            while child.poll() is None and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            if child.stdout is not None:
                child.stdout.close()
        self._death_pipe.close()
        self.zookeeper.stop()

    # --- processes ---

    def _start(self, folder: Path) -> None:
        for broker_id in self.brokers:
            child = ChildProcess(
                f"broker {broker_id}",
                partial(self._command, broker_id),
                output=folder / f"broker-{broker_id}.log",
                death_pipe=self._death_pipe,
            )
            child.launch()
            self._children[broker_id] = child
        for broker_id, child in self._children.items():
            self._actors[broker_id] = Peer(_ready(child))

    def _command(self, broker_id: BrokerId) -> list[str]:
        return [
            *(*_BROKER_COMMAND, "--design", self.design, "--id", str(broker_id)),
            *("--zookeeper", self.zookeeper.address),
            *("--session-timeout-ms", str(self._session_timeout_ms)),
            *("--keep-in-sync-ms", str(KEEP_IN_SYNC_MS)),
        ]

    # --- ZooKeeper ---

    @contextmanager
    def _session(self) -> Iterator[ZooKeeperClient]:
        session = ZooKeeperClient(
            self.zookeeper.address, self._session_timeout_ms, on_watch=lambda event: None
        )
        session.start(_START_TIMEOUT_S)
        try:
            yield session
        finally:
            session.close()

    def _write_partitions(self, session: ZooKeeperClient) -> None:
        """Write the partitions as an administrator did it in v1."""
        session.multi([Create(topic_path(TOPIC))])
        for first in range(0, len(self._replicas), _PARTITIONS_AT_ONCE):
            writes: list[Operation] = []
            for number in range(first, min(first + _PARTITIONS_AT_ONCE, len(self._replicas))):
                topic_partition = TopicPartition(TOPIC, number)
                ids = encode_ids(self._replicas[number])
                writes += [
                    Create(partition_path(topic_partition)),
                    Create(replicas_path(topic_partition), ids),
                    Create(isr_path(topic_partition)),
                ]
                if self.design == "v1-sequential":
                    writes.append(Create(leader_path(topic_partition)))
            session.multi(writes)

    def _ask_for_partitions(self, session: ZooKeeperClient) -> None:
        """Ask brokers of v2 for the partitions, and wait until they have taken all of them up."""
        for first in range(0, len(self._replicas), _PARTITIONS_AT_ONCE):
            writes = [
                Create(
                    f"{PARTITIONS_ADD}/{partition_name(TopicPartition(TOPIC, number))}",
                    encode_ids(self._replicas[number]),
                )
                for number in range(first, min(first + _PARTITIONS_AT_ONCE, len(self._replicas)))
            ]
            session.multi(writes)
            self._await(lambda: not session.children(PARTITIONS_ADD), "partitions are not taken up")

    # --- what the brokers believe ---

    def _leaders(self) -> Mapping[int, BrokerId]:
        return {
            belief.topic_partition.partition: broker_id
            for broker_id in self._actors
            for belief in self._describe(broker_id).beliefs
            if belief.role is ReplicaRole.LEADER
        }

    def _beliefs(self) -> Iterator[Belief]:
        for broker_id in self._actors:
            yield from self._describe(broker_id).beliefs

    def _belief(self, broker_id: BrokerId) -> Belief:
        """Return what a broker believes about partition 0."""
        return next(
            belief
            for belief in self._describe(broker_id).beliefs
            if belief.topic_partition == _FIRST
        )

    def _are_led(self, dead: Collection[BrokerId]) -> bool:
        """Whether every live replica knows a live leader."""
        question = DescribeReplicasRequest(tuple(dead), with_beliefs=False)
        answers = [self._ask(broker_id, question) for broker_id in self._actors]
        expected = sum(b in self._actors for replicas in self._replicas for b in replicas)
        return sum(answer.replicas for answer in answers) == expected and not any(
            answer.without_leader for answer in answers
        )

    def _describe(self, broker_id: BrokerId) -> DescribeReplicasResponse:
        return self._ask(broker_id, DescribeReplicasRequest())

    def _ask(
        self, broker_id: BrokerId, question: DescribeReplicasRequest
    ) -> DescribeReplicasResponse:
        actor = self._actors[broker_id]
        try:
            return actor.ask(question, DescribeReplicasResponse, timeout_s=_ASK_TIMEOUT_S)
        except SilentPeerError as error:
            raise MeasuringError(f"broker {broker_id} does not answer: {error}") from None

    def _await(self, is_reached: Callable[[], bool], otherwise: str) -> None:
        """Wait for a state of the brokers. Between two looks there is as much time as one took."""
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            looked = time.monotonic()
            if is_reached():
                return
            if looked > deadline:
                raise MeasuringError(f"{self.design}: {otherwise}")
            time.sleep(max(_POLL_S, time.monotonic() - looked))


def _ready(child: ChildProcess) -> str:
    """Wait until a process is ready; return what it says."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    assert child.stdout is not None
    while child.ready is None:
        select.select([child.stdout], [], [], _POLL_S)
        if not child.read() or time.monotonic() > deadline:
            raise MeasuringError(f"{child.name} does not start: {child.last_line()}")
    return child.ready


def _leads_at(moment_ms: int, answer: DescribeReplicasResponse) -> bool:
    """Whether a broker believed at a moment that it leads the first partition."""
    return any(
        belief.role is ReplicaRole.LEADER and belief.since_ms <= moment_ms
        for belief in answer.beliefs
        if belief.topic_partition == _FIRST
    ) or any(
        ended.since_ms <= moment_ms <= ended.until_ms
        for ended in answer.ended
        if ended.topic_partition == _FIRST
    )
