"""Faults of whole processes: the fault modes of Kafka's system tests, on a simulated cluster.

Every record that was acknowledged is consumed in the end, and after every step the invariants hold:
each leader was in sync, under one controller, in its own epoch, with all that was committed. In the
end every partition is led by a broker that can be reached, with everybody in sync who can be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from core.errors import Errors
from core.log_config import LogConfig
from core.model import BrokerId, TopicPartition
from core.protocol.controller import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignablePartition,
)
from core.replication.partition import Role
from tests.conformance.fields import Case, Fields, UnknownInCaseError
from tests.conformance.record_clients import RecordClient, throttle
from tests.conformance.stage import MovedLog, Stage
from tests.simulation.convergence import assert_converged
from tests.simulation.invariants import Invariants
from tests.simulation.network import Fate, Packet, usual_fate
from zk.admin_znodes import LogDirEventNotificationSequenceZNode
from zk.operations import Committed, Create

TOPIC = "test-topic"
ROUNDS = 5
SECOND_DIRECTORY = 0  # the simulated disk's second directory has the even partitions

RECORD = "x" * 1_000

_NOT_OF_BROKERS = re.compile(
    "truncat|transaction|consumer|producer|clients|cut client|client cut|upgrade|security"
    "|migrat|acl|degrade|latency|offset|application|library|resum|unclean|revive"
)


class Field:
    """A cluster with one topic, under attack."""

    def __init__(self, log: MovedLog, cluster: Mapping[str, Any]) -> None:
        with Fields(cluster, "cluster") as fields:
            count = fields.take("brokers")
            factor = fields.take("rf", min(3, count))
            partitions = fields.take("partitions", 3)
            replicas: Sequence[BrokerId] = fields.take("replicas", [])
            self.min_isr: int = fields.take("min_isr", 1)
            for ignored in ("zookeeper", "log_dirs"):
                fields.take(ignored, None)  # ZooKeeper does not fail, and directories are two
        with Fields({}, "config") as settings:
            self.stage = Stage(list(range(count)), settings, log, starts_itself=False)
        self.cluster = self.stage.cluster
        for disk in self.cluster.disks.values():
            disk.configure({TOPIC: LogConfig(min_insync_replicas=self.min_isr)})
        ring = [*range(count), *range(count)]
        self.names = [TopicPartition(TOPIC, number) for number in range(partitions)]
        assigned = {n: tuple(replicas or ring[n % count :][:factor]) for n in range(partitions)}
        self.cluster.put_topic(TOPIC, assigned)
        self.stage.settle()
        self.invariants = Invariants(self.cluster)
        self.records = RecordClient(self.cluster)
        self.produce()
        self.cut_off: set[BrokerId] = set()

    def targets(self, names: Sequence[str]) -> list[BrokerId]:
        """Return whom the targets mean at the moment, each once."""
        found = [broker for name in names for broker in self._target(name)]
        return list(dict.fromkeys(found))

    def _target(self, name: str) -> list[BrokerId]:
        leader = self.leader(self.names[0])
        match name.split():
            case ["leader", *_]:
                return [leader]
            case ["follower", *_]:
                return [next(r for r in self.stage.isr(self.names[0]) if r != leader)]
            case ["controller", *_]:
                return [self.stage.controller.broker_id]
            case ["every", "other", "broker"]:
                return [b for b in self.cluster.brokers if b % 2]
            case ["several", "brokers"]:
                return [*[b for b in self.cluster.brokers if b != leader][:1], leader]
            case ["all", "brokers"] | ["every", "broker"]:
                return list(self.cluster.brokers)
            case ["broker", "node", number]:
                return [int(number)]
            case _:
                raise UnknownInCaseError(f"the target {name!r}")

    def leader(self, name: TopicPartition) -> BrokerId:
        """Return who leads."""
        leads = self.stage.leads(name)
        assert leads is not None, f"{name} has no state"
        return leads[0]

    def produce(self) -> None:
        """Write to every partition, unless there are fewer in sync than must be."""
        for name in self.names:
            value = f"{len(self.records.acked.get(name, ()))} {RECORD}"
            if len(self.cluster.brokers) < self.min_isr:
                assert self.records.try_to_produce(name, value) is Errors.NOT_ENOUGH_REPLICAS
            else:
                self.records.produce(name, value)

    # --- faults ---

    def stop(self, broker_id: BrokerId, mode: str) -> None:
        """End a process."""
        self.stage.shut_down(broker_id, mode)
        self.stage.settle()

    def pause(self, broker_id: BrokerId) -> None:
        """Stop a process by a signal, for longer than its session lasts."""
        broker = self.cluster.brokers[broker_id]
        self.cut_off.add(broker_id)
        broker.is_paused = True
        self.cluster.expire(broker.session.session_id)
        self.stage.settle()

    def isolate(self, broker_id: BrokerId) -> None:
        """Cut a broker off from all others and from ZooKeeper, while it goes on."""
        broker = self.cluster.brokers[broker_id]
        endpoints = {broker.control_endpoint, broker.replication_endpoint}

        def fate(packet: Packet) -> Fate:
            is_cut = packet.exchange.endpoint in endpoints or packet.exchange.sender is broker
            return Fate.LOST if is_cut else usual_fate(packet)

        self.cluster.network.fate = fate
        self.cluster.in_call.add(broker_id)  # in a call to ZooKeeper that does not return
        self.cut_off.add(broker_id)
        self.cluster.expire(broker.session.session_id)
        self.stage.settle()

    def lose_second_directory(self, broker_id: BrokerId) -> None:
        """Make a log directory unusable."""
        broker = self.cluster.brokers[broker_id]
        broker.notice_failed_directory()
        prefix = LogDirEventNotificationSequenceZNode.PATH_PREFIX
        data = LogDirEventNotificationSequenceZNode.encode(broker_id)
        assert isinstance(broker.session.multi([Create(prefix, data, sequential=True)]), Committed)
        self.stage.settle()

    def reassign(self) -> None:
        """Begin to move every partition one broker on."""
        count = len(self.cluster.brokers)
        stored = self.stage.topic(TOPIC)
        assert stored is not None
        rows = [
            ReassignablePartition(TOPIC, n, tuple((r + 1) % count for r in a.replicas))
            for n, a in stored.partitions.items()
        ]
        self.cluster.request(AlterPartitionReassignmentsRequest(tuple(rows)))

    def throttle(self, bytes_per_second: int) -> None:
        """Move slowly, whatever is moved."""
        every = {TOPIC: "*"}
        throttle(self.cluster, {"leader": every, "follower": every}, bytes_per_second)

    # --- what must come of it ---

    def assert_nothing_is_lost(self) -> None:
        """Every acknowledged record is consumed, where and as often as it was written."""
        for name in self.names:
            assert self.records.values(name) == self.records.acked[name], name

    def assert_available(self) -> None:
        """Every partition is led by somebody who can be reached, and all of those are in sync."""
        reachable = set(self.cluster.brokers) - self.cut_off
        assert {b.broker_id for b in self.cluster.active_controllers} & reachable
        stored = self.stage.topic(TOPIC)
        assert stored is not None
        for name in self.names:
            replicas = reachable & set(stored.partitions[name.partition].replicas)
            assert self.leader(name) in reachable, f"{name} is led by {self.leader(name)}"
            assert set(self.stage.isr(name)) == replicas, f"{name}: {self.stage.isr(name)}"

    def assert_whole(self) -> None:
        """Nothing is left of the fault."""
        self.stage.settle()
        assert_converged(self.cluster)

    def assert_without_directory(self, broker_id: BrokerId) -> None:
        """A broker serves nothing of its lost directory and everything of the other one."""
        assert broker_id in self.cluster.brokers
        manager = self.cluster.brokers[broker_id].replica_manager
        for name in self.names:
            is_lost = name.partition % 2 == SECOND_DIRECTORY
            assert (broker_id in self.stage.isr(name)) is not is_lost
            assert self.leader(name) != broker_id or not is_lost
        for other in [b for b in self.cluster.brokers if b != broker_id]:
            self.stage.shut_down(other, "hard")
        self.stage.settle()
        for name in self.names:
            is_lost = name.partition % 2 == SECOND_DIRECTORY
            assert (manager.partitions[name].role is Role.LEADER) is not is_lost


# --- the modes ------------------------------------------------------------------------------------


def _stop(mode: str) -> Callable[[Field, Sequence[str]], None]:
    def attack(field: Field, targets: Sequence[str]) -> None:
        for broker_id in field.targets(targets):
            field.stop(broker_id, mode)
        field.assert_available()
        field.produce()

    return attack


def _bounce(mode: str) -> Callable[[Field, Sequence[str]], None]:
    def attack(field: Field, targets: Sequence[str]) -> None:
        for _ in range(ROUNDS):
            for broker_id in field.targets(targets):
                field.stop(broker_id, mode)
                field.produce()
                field.stage.start(broker_id)
                field.assert_whole()

    return attack


def _pause(field: Field, targets: Sequence[str]) -> None:
    for broker_id in field.targets(targets):
        field.pause(broker_id)
    field.produce()
    field.assert_available()


def _isolate(field: Field, targets: Sequence[str]) -> None:
    for broker_id in field.targets(targets):
        field.isolate(broker_id)
    field.produce()
    field.assert_available()


def _kill_all_and_restart(field: Field, targets: Sequence[str]) -> None:
    killed = field.targets(targets)
    for broker_id in killed:
        field.stage.shut_down(broker_id, "hard")
    for broker_id in killed:
        field.stage.start(broker_id)
    field.produce()
    field.assert_whole()


def _lose_directory(field: Field, targets: Sequence[str]) -> None:
    (broker_id,) = field.targets(targets)
    field.lose_second_directory(broker_id)
    field.produce()
    field.assert_nothing_is_lost()
    field.assert_without_directory(broker_id)


def _reassign(*, bounces: bool, rate: int | None = None) -> Callable[[Field, Sequence[str]], None]:
    def attack(field: Field, targets: Sequence[str]) -> None:
        if rate is not None:
            field.throttle(rate)
        field.reassign()
        field.produce()
        if bounces:
            for broker_id in field.targets(targets):
                field.stage.shut_down(broker_id, "controlled")
                field.stage.start(broker_id)
        field.stage.settle()
        moving = field.cluster.request(ListPartitionReassignmentsRequest())
        assert isinstance(moving, ListPartitionReassignmentsResponse)
        assert moving.partitions == ()
        field.assert_whole()

    return attack


def _nothing(field: Field, targets: Sequence[str]) -> None:
    del targets
    field.assert_whole()


def attacks(how: str) -> list[Callable[[Field, Sequence[str]], None]]:
    """Return what a description describes; nothing when it is not about brokers."""
    text = how.lower()
    if _NOT_OF_BROKERS.search(text):
        return []
    if "write permission" in text or "director" in text:
        return [_lose_directory]
    if "reassign" in text or "rotate assignments" in text:
        return _reassignments(text)
    if "cut from" in text or "isolat" in text:
        return [_isolate]
    if "signal" in text or "pause" in text or "sigstop" in text:
        return [_pause]
    if "kill all" in text:
        return [_kill_all_and_restart]
    modes = [mode for mode, words in _MODES.items() if any(word in text for word in words)]
    found: list[Callable[[Field, Sequence[str]], None]] = []
    if "shutdown" in text or not _bounces(text):
        found += [_stop(mode) for mode in modes]
    if _bounces(text):
        found += [_bounce(mode) for mode in modes]
    if not found and (text in ("none", "nothing", "") or "no fault" in text):
        found = [_nothing]
    return found


_MODES = {"controlled": ("sigterm", "clean"), "hard": ("sigkill", "hard", "kill")}


def _bounces(text: str) -> bool:
    is_denied = "not restarted" in text or "no restart" in text
    return not is_denied and any(word in text for word in ("bounce", "restart", "round", "roll"))


def _reassignments(text: str) -> list[Callable[[Field, Sequence[str]], None]]:
    throttle = re.search(r"under a (?P<megabytes>\d+) mb/s throttle", text)
    if throttle is not None:
        return [_reassign(bounces=False, rate=int(throttle["megabytes"]) * 10**6)]
    return [_reassign(bounces=False), _reassign(bounces=True)]


def fault_mode(case: Case) -> None:
    """Every target under every fault that the case describes, each on a fresh cluster."""
    found = attacks(str(case.take("how", "")))
    if not found:
        raise UnknownInCaseError("this fault is not about brokers")
    cluster, targets = case.take("cluster"), case.take("targets", [])
    assert isinstance(case.take("expect"), str)
    groups = [[target] for target in targets] or [[]]
    for attack in found:
        for group in groups:
            with MovedLog() as log:
                field = Field(log, cluster)
                attack(field, group)
                if attack is not _lose_directory:  # which looked before it stopped the others
                    field.assert_nothing_is_lost()
                field.invariants.check()
