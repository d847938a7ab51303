"""Faults of whole processes, as in Kafka's system tests, on a simulated cluster.

At the end every acknowledged record is consumed, and after every step the invariants hold: each
leader was in sync, under one controller, in its own epoch, with all committed records. At the end
every partition is led by a reachable broker, with all reachable replicas in sync.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from regent.core.errors import Errors
from regent.core.log_config import LogConfig
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from regent.core.replication.partition import Role
from regent.zk.client.operations import Committed, Create
from regent.zk.znodes import LogDirEventNotificationSequenceZNode
from tests.conformance.fields import Case, Fields, UnknownInCaseError, one_of
from tests.conformance.record_clients import RecordClient, StandingConsumer, throttle
from tests.conformance.stage import MovedLog, Stage
from tests.simulation.convergence import assert_converged
from tests.simulation.invariants import Invariants
from tests.simulation.network import Fate, Packet, usual_fate

TOPIC = "test-topic"
SECOND_DIRECTORY = 0  # the simulated disk's second directory has the even partitions

RECORD = "x" * 1_000
THROTTLED_S = 4  # the minimal duration of a throttled move
BATCHES_A_SECOND = 10  # of a throttled move
MOVE_TIMEOUT_MS = 600_000

_EVERYTHING = {"brokers", "clients", "zookeeper"}
_MODES = {"clean": "controlled", "hard": "hard"}


class Kind(Enum):
    """What happens to brokers."""

    NONE = "none"
    STOP = "stop"
    BOUNCE = "bounce"
    PAUSE = "pause"
    CUT = "cut"
    RESTART_ALL = "restart_all"
    DIRECTORY = "directory"
    REASSIGN = "reassign"


@dataclass(frozen=True)
class Fault:
    """One fault; ``mode`` is how processes end: controlled or hard."""

    kind: Kind
    mode: str = "controlled"
    rounds: int = 1
    down_ms: int = 0  # until stopped processes start again; of a pause or cut, 0: never
    bounces: bool = False  # the targets, during another operation
    bytes_per_second: int | None = None  # of a reassignment; None: no throttle
    has_deleted_records: bool = False  # logs do not begin with 0


@dataclass(frozen=True)
class Outcome:
    """What a case expects beside what holds after every fault; None: not given."""

    is_available: bool = False
    done_within_s: float | None = None
    least_share: float | None = None  # of the time that the throttle makes a move take
    share_below: float | None = None
    is_directory_given_up: bool = False


def _fault(fields: Fields) -> Fault:
    kind = one_of(fields.take("kind"), {kind.value: kind for kind in Kind}, "fault.kind")
    rounds, down_ms = _number(fields, "rounds", 1), fields.take("down_ms", 0)
    match kind:
        case Kind.STOP | Kind.BOUNCE | Kind.RESTART_ALL:
            mode = one_of(fields.take("mode"), _MODES, "fault.mode")
            # A stopped broker is not started again before its registration has gone.
            one_of(fields.take("until", "unregistered"), {"unregistered": None}, "fault.until")
            return Fault(kind, mode, rounds, down_ms)
        case Kind.PAUSE | Kind.CUT:
            if kind is Kind.CUT and set(fields.take("from_")) != _EVERYTHING:
                raise UnknownInCaseError(f"fault.from_ is not {sorted(_EVERYTHING)}")
            if (fields.take("until", None) == "end") is bool(down_ms):
                raise UnknownInCaseError("fault.until must be end, or down_ms say how long")
            return Fault(kind, rounds=rounds, down_ms=down_ms)
        case Kind.DIRECTORY:
            one_of(fields.take("index"), {1: None}, "fault.index")
            return Fault(kind, bounces=fields.take("restart", False))
        case Kind.REASSIGN:
            one_of(fields.take("moves"), {"shuffle": None, "rotate": None}, "fault.moves")
            bounce = one_of(fields.take("bounce", "none"), {"none": None, **_MODES}, "fault.bounce")
            starts = {"zero": False, "above_zero": True}
            return Fault(
                kind,
                bounce or "controlled",
                bounces=bounce is not None,
                bytes_per_second=fields.take("bytes_per_second", None),
                has_deleted_records=one_of(
                    fields.take("log_start", "zero"), starts, "fault.log_start"
                ),
            )
        case _:
            return Fault(kind)


def _outcome(fields: Fields) -> Outcome:
    """Return what is expected; raises ``UnknownInCaseError`` if it is nothing."""
    if not fields.keys():
        raise UnknownInCaseError("no expectation")
    for always in ("acknowledged_consumed", "records_after_all_received"):
        _is(fields, always, expected=True)
    can_work = ("round_trip", "application_survives", "topic_writable")
    available = [_is(fields, key, expected=True) for key in can_work]
    directory = ("stays_up", "serves_alone_from_healthy_directory")
    given_up = [_is(fields, key, expected=True) for key in directory]
    given_up += [_is(fields, key, expected=False) for key in ("leads", "in_isr")]
    fields.take("round_trip_records", None)  # a number: here every partition gets some
    return Outcome(
        is_available=any(available),
        done_within_s=fields.take("done_within_s", None),
        least_share=fields.take("at_least_of_throttle_estimate", None),
        share_below=fields.take("below_of_throttle_estimate", None),
        is_directory_given_up=any(given_up),
    )


def _is(fields: Fields, key: str, *, expected: bool) -> bool:
    """Whether a key is there; it has one value that can be checked."""
    given = [one_of(value, {expected: True}, f"expect.{key}") for value in fields.expected(key)]
    return bool(given)


class Field:
    """A cluster with one topic, for one fault."""

    def __init__(self, log: MovedLog, cluster: Mapping[str, Any]) -> None:
        with Fields(cluster, "cluster") as fields:
            count = _number(fields, "brokers")
            factor = _number(fields, "rf", min(3, count))
            partitions = _number(fields, "partitions", 3)
            replicas: Sequence[BrokerId] = fields.take("replicas", [])
            if not set(replicas) <= set(range(count)):
                raise UnknownInCaseError(f"cluster.replicas are {replicas!r} of {count} brokers")
            self.min_isr = _number(fields, "min_isr", 1)
            _number(fields, "zookeeper", 1)  # it does not fail here
            _number(fields, "log_dirs", 2)  # there are two
        with Fields({}, "config") as settings:
            self.stage = Stage(list(range(count)), settings, log, starts_itself=False)
        self.cluster = self.stage.cluster
        self.invariants = Invariants(self.cluster)
        for disk in self.cluster.disks.values():
            disk.configure({TOPIC: LogConfig(min_insync_replicas=self.min_isr)})
        ring = [*range(count), *range(count)]
        self.names = [TopicPartition(TOPIC, number) for number in range(partitions)]
        assigned = {n: tuple(replicas or ring[n % count :][:factor]) for n in range(partitions)}
        self.cluster.put_topic(TOPIC, assigned)
        self.stage.settle()
        self.records = RecordClient(self.cluster)
        self._numbers = itertools.count()
        self.produce()
        self.cut_off: set[BrokerId] = set()
        self.consumers = [
            StandingConsumer(self.records, topic_partition) for topic_partition in self.names
        ]
        self.consume()

    def targets(self, names: Sequence[str]) -> list[BrokerId]:
        """Return the present targets, each once."""
        found = [broker for name in names for broker in self._target(name)]
        return list(dict.fromkeys(found))

    def _target(self, name: str) -> list[BrokerId]:
        brokers = list(self.cluster.brokers)
        match name.split("_"):
            case ["leader", *of] if of in ([], ["of", "partition", *of[2:]]):
                return [self.leader(self._partition(name, of[2:]))]
            case ["follower", *of] if of in ([], ["of", "partition", *of[2:]]):
                followed = self._partition(name, of[2:])
                leader = self.leader(followed)
                return [r for r in self.stage.isr(followed) if r != leader][:1]
            case ["controller"]:
                return [self.stage.controller.broker_id]
            case ["every", "other", "broker"]:
                return [b for b in brokers if b % 2]
            case ["several", "brokers"]:
                leader = self.leader(self.names[0])
                return [*[b for b in brokers if b != leader][:1], leader]
            case ["all", "brokers"]:
                return brokers
            case ["broker", number] if number.isdecimal() and int(number) in brokers:
                return [int(number)]
            case _:
                raise UnknownInCaseError(f"the target {name!r}")

    def _partition(self, target: str, number: Sequence[str]) -> TopicPartition:
        for name in self.names:
            if str(name.partition) == "".join(number or "0"):
                return name
        raise UnknownInCaseError(f"the target {target!r}: there is no such partition")

    def leader(self, topic_partition: TopicPartition) -> BrokerId:
        """Return the leader."""
        leads = self.stage.leads(topic_partition)
        assert leads is not None, f"{topic_partition} has no state"
        return leads[0]

    def produce(self) -> None:
        """Write to every partition with enough in-sync replicas."""
        for topic_partition in self.names:
            value = f"{next(self._numbers)} {RECORD}"
            if len(self.cluster.brokers) < self.min_isr:
                assert (
                    self.records.try_to_produce(topic_partition, value)
                    is Errors.NOT_ENOUGH_REPLICAS
                )
            else:
                self.records.produce(topic_partition, value)

    def consume(self) -> None:
        """Let the consumers that began before the fault read on."""
        for consumer in self.consumers:
            consumer.read()

    def delete_records(self) -> None:
        """Let logs begin above offset zero."""
        self.produce()
        for topic_partition in self.names:
            self.records.delete_before(topic_partition, 1)

    def fill(self, rate: int) -> None:
        """Write records that take some seconds to copy at ``rate`` bytes a second."""
        record = "x" * max(1, rate // BATCHES_A_SECOND)
        for number in range(THROTTLED_S * BATCHES_A_SECOND * len(self.cluster.brokers)):
            topic_partition = self.names[number % len(self.names)]
            self.records.produce(topic_partition, f"{number} {record}")

    # --- faults ---

    def stop(self, broker_id: BrokerId, mode: str) -> None:
        """End a process."""
        self.stage.shut_down(broker_id, mode)
        self.stage.settle()

    def pause(self, broker_id: BrokerId) -> None:
        """Pause a process by a signal, for longer than its session timeout."""
        broker = self.cluster.brokers[broker_id]
        self.cut_off.add(broker_id)
        broker.is_paused = True
        self.cluster.expire(broker.session.session_id)
        self.stage.settle()

    def isolate(self, broker_id: BrokerId) -> None:
        """Cut a running broker off from all others and from ZooKeeper."""
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

    def heal(self) -> None:
        """Resume paused brokers, and reconnect those that were cut off."""
        self.cluster.network.fate = usual_fate
        for broker_id in self.cut_off:
            self.cluster.in_call.discard(broker_id)
            self.cluster.brokers[broker_id].is_paused = False
        self.cut_off.clear()

    def lose_second_directory(self, broker_id: BrokerId) -> None:
        """Make a log directory unusable."""
        broker = self.cluster.brokers[broker_id]
        broker.notice_failed_directory()
        prefix = LogDirEventNotificationSequenceZNode.PATH_PREFIX
        data = LogDirEventNotificationSequenceZNode.encode(broker_id)
        assert isinstance(broker.session.multi([Create(prefix, data, sequential=True)]), Committed)
        self.stage.settle()

    def reassign(self) -> dict[BrokerId, int]:
        """Begin to move every partition by one broker; return the bytes for each broker."""
        count = len(self.cluster.brokers)
        stored = self.stage.topic(TOPIC)
        assert stored is not None
        targets: dict[TopicPartition, tuple[BrokerId, ...]] = {}
        arriving: dict[BrokerId, int] = dict.fromkeys(self.cluster.brokers, 0)
        for number, assignment in stored.partitions.items():
            target = tuple((r + 1) % count for r in assignment.replicas)
            targets[TopicPartition(TOPIC, number)] = target
            size = sum(map(len, self.records.acked[TopicPartition(TOPIC, number)]))
            for broker_id in set(target) - set(assignment.replicas):
                arriving[broker_id] += size
        self.cluster.request(AlterPartitionReassignmentsRequest.of(targets))
        return arriving

    def await_moves(self) -> None:
        """Run until all moves are done."""
        until_ms = self.cluster.now_ms + MOVE_TIMEOUT_MS
        while self._is_moving():
            assert self.cluster.now_ms < until_ms, "the reassignment never ends"
            self.stage.go_on_for(100)

    def _is_moving(self) -> bool:
        moving = self.cluster.request(ListPartitionReassignmentsRequest.of())
        assert isinstance(moving, ListPartitionReassignmentsResponse)
        return moving.topics != ()

    def throttle(self, bytes_per_second: int) -> None:
        """Throttle all replication."""
        every = {TOPIC: "*"}
        throttle(self.cluster, {"leader": every, "follower": every}, bytes_per_second)

    # --- outcomes ---

    def assert_nothing_is_lost(self) -> None:
        """Every acknowledged record is consumed, at its offset and without duplicates."""
        for topic_partition in self.names:
            assert self.records.values(topic_partition) == self.records.acked[topic_partition], (
                topic_partition
            )

    def assert_available(self) -> None:
        """Every partition is led by a reachable broker, and all reachable replicas are in sync."""
        reachable = set(self.cluster.brokers) - self.cut_off
        assert {b.broker_id for b in self.cluster.active_controllers} & reachable
        stored = self.stage.topic(TOPIC)
        assert stored is not None
        for topic_partition in self.names:
            replicas = reachable & set(stored.partitions[topic_partition.partition].replicas)
            assert self.leader(topic_partition) in reachable, (
                f"{topic_partition} is led by {self.leader(topic_partition)}"
            )
            assert set(self.stage.isr(topic_partition)) == replicas, (
                f"{topic_partition}: {self.stage.isr(topic_partition)}"
            )

    def assert_whole(self) -> None:
        """No effect of the fault is left."""
        self.stage.settle()
        assert_converged(self.cluster)

    def assert_without_directory(self, broker_id: BrokerId) -> None:
        """A broker serves no partition of its lost directory and all of the other one."""
        assert broker_id in self.cluster.brokers
        manager = self.cluster.brokers[broker_id].replica_manager
        for topic_partition in self.names:
            is_lost = topic_partition.partition % 2 == SECOND_DIRECTORY
            assert (broker_id in self.stage.isr(topic_partition)) is not is_lost
            assert self.leader(topic_partition) != broker_id or not is_lost
        for other in [b for b in self.cluster.brokers if b != broker_id]:
            self.stage.shut_down(other, "hard")
        self.stage.settle()
        for topic_partition in self.names:
            is_lost = topic_partition.partition % 2 == SECOND_DIRECTORY
            assert (manager.partitions[topic_partition].role is Role.LEADER) is not is_lost


def _number(fields: Fields, key: str, usual: int | None = None) -> int:
    value = fields.take(key) if usual is None else fields.take(key, usual)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UnknownInCaseError(f"cluster.{key} is {value!r}")
    return value


# --- the modes ------------------------------------------------------------------------------------


class Attack:
    """One fault on one group of targets, and its measurements."""

    def __init__(self, field: Field, fault: Fault, targets: Sequence[str]) -> None:
        self.field = field
        self.fault = fault
        self._targets = targets
        self.move_ms: int | None = None
        self.throttled_ms = 0.0  # the duration of the move at the rate of the throttle

    def run(self) -> None:
        """Run the fault, and check the outcome after every step."""
        attacks: Mapping[Kind, Callable[[], None]] = {
            Kind.NONE: self.field.assert_whole,
            Kind.STOP: self._stop,
            Kind.BOUNCE: self._bounce,
            Kind.PAUSE: lambda: self._lose(self.field.pause),
            Kind.CUT: lambda: self._lose(self.field.isolate),
            Kind.RESTART_ALL: self._restart_all,
            Kind.DIRECTORY: self._lose_directory,
            Kind.REASSIGN: self._reassign,
        }
        attacks[self.fault.kind]()

    def targets(self) -> list[BrokerId]:
        """Return the present targets of the fault. Raises ``UnknownInCaseError`` without any."""
        found = self.field.targets(self._targets)
        if not found:
            raise UnknownInCaseError(f"{self.fault.kind.value}: which broker?")
        return found

    def _stop(self) -> None:
        for broker_id in self.targets():
            self.field.stop(broker_id, self.fault.mode)
        self.field.assert_available()
        self.field.produce()

    def _bounce(self) -> None:
        for _ in range(self.fault.rounds):
            for broker_id in self.targets():
                self.field.stop(broker_id, self.fault.mode)
                self.field.produce()
                self.field.consume()
                self.field.stage.go_on_for(self.fault.down_ms)
                self.field.stage.start(broker_id)
                self.field.assert_whole()

    def _lose(self, lose: Callable[[BrokerId], None]) -> None:
        for broker_id in self.targets():
            lose(broker_id)
        self.field.produce()
        self.field.assert_available()
        if self.fault.down_ms:
            self.field.consume()
            self.field.stage.go_on_for(self.fault.down_ms)
            self.field.heal()
            self.field.assert_whole()

    def _restart_all(self) -> None:
        killed = self.targets()
        for broker_id in killed:
            self.field.stage.shut_down(broker_id, self.fault.mode)
        self.field.stage.go_on_for(self.fault.down_ms)
        for broker_id in killed:
            self.field.stage.start(broker_id)
        self.field.produce()
        self.field.assert_whole()

    def _lose_directory(self) -> None:
        (broker_id,) = self.targets()
        self.field.lose_second_directory(broker_id)
        self.field.produce()
        if self.fault.bounces:
            self.field.stop(broker_id, self.fault.mode)
            self.field.stage.start(broker_id)
            self.field.stage.settle()
            self.field.produce()
        self.field.assert_nothing_is_lost()
        self.field.consume()
        self.field.assert_without_directory(broker_id)

    def _reassign(self) -> None:
        rate = self.fault.bytes_per_second
        if self.fault.has_deleted_records:
            self.field.delete_records()
        if rate is not None:
            self.field.fill(rate)
            self.field.throttle(rate)
        began_ms = self.field.cluster.now_ms
        arriving = self.field.reassign()
        if rate is not None:
            self.throttled_ms = max(arriving.values()) * 1_000 / rate
        else:
            self.field.produce()
        if self.fault.bounces:
            for broker_id in self.targets():
                self.field.stage.shut_down(broker_id, self.fault.mode)
                self.field.stage.start(broker_id)
        self.field.await_moves()
        self.move_ms = self.field.cluster.now_ms - began_ms
        self.field.assert_whole()

    def assert_outcome(self, expected: Outcome) -> None:
        """Compare the outcome with the case's expectations, beyond those of all cases."""
        kind = self.fault.kind
        if expected.is_directory_given_up is not (kind is Kind.DIRECTORY):
            raise UnknownInCaseError(f"an expectation of lost directories: {kind.value}")
        if kind is not Kind.DIRECTORY:  # there it was checked before the others were stopped
            self.field.assert_nothing_is_lost()
            self.field.consume()
            if expected.is_available and kind is not Kind.NONE:
                self.field.assert_available()
        for consumer in self.field.consumers:
            assert not consumer.duplicates, consumer.duplicates
            assert not consumer.gaps, consumer.gaps
            assert not consumer.resets, f"{consumer.name}: {consumer.resets} resets"
        self._assert_time(expected)

    def _assert_time(self, expected: Outcome) -> None:
        within, shares = expected.done_within_s, (expected.least_share, expected.share_below)
        if (within, *shares) == (None, None, None):
            return
        if self.move_ms is None:
            raise UnknownInCaseError(f"a reassignment is expected: {self.fault.kind.value}")
        if shares != (None, None) and not self.throttled_ms:
            raise UnknownInCaseError("a throttled time of a move that copies nothing so slowly")
        took = f"the reassignment took {self.move_ms} ms of {self.throttled_ms:g}"
        least, below = shares
        assert within is None or self.move_ms <= within * 1_000, took
        assert least is None or self.move_ms >= least * self.throttled_ms, took
        assert below is None or self.move_ms < below * self.throttled_ms, took


def fault_mode(case: Case) -> None:
    """The fault of a case on each of its targets, each time on a new cluster."""
    cluster, targets = case.take("cluster"), case.take("targets", [])
    with case.nested("fault") as fields:
        fault = _fault(fields)
    with case.nested("expect") as fields:
        expected = _outcome(fields)
    groups = [[target] for target in targets] or [[]]
    if fault.kind in (Kind.NONE, Kind.REASSIGN) and not fault.bounces:
        groups = groups[:1]  # the fault has no target
    for group in groups:
        with MovedLog() as log:
            field = Field(log, cluster)
            field.targets(group)
            attack = Attack(field, fault, group)
            attack.run()
            attack.assert_outcome(expected)
            field.invariants.check()
