"""Suspect replicas: what a broker finds lost after a log directory was replaced."""

from __future__ import annotations

import pytest

from regent.core.errors import Errors
from regent.core.model import EPOCH_DURING_DELETE, NO_LEADER, TopicPartition
from regent.core.protocol.control import (
    ControlHeader,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
    LeaderAndIsrType,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaTopic,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.partition import Role
from regent.core.replication.replica_manager import ReplicaManager
from regent.core.replication.suspect_replicas import SuspectTracker
from tests.core.replication.record_stage import RecordBroker
from tests.core.replication.stage import T0, A, stop_replica
from tests.support.memory_logs import MemoryLogs

ME, OTHER = 2, 3
BOTH = (ME, OTHER)
NAME = TopicPartition("t", 0)


def row(
    leader: int, isr: tuple[int, ...], leader_epoch: int, *, is_new: bool = False
) -> LeaderAndIsrPartition:
    return LeaderAndIsrPartition(
        0, 1, leader, leader_epoch, isr, leader_epoch, BOTH, (), (), is_new, 0
    )


def found_lost(*rows: LeaderAndIsrPartition) -> tuple[SuspectTracker, MemoryLogs]:
    """Send a broker with a new directory a FULL request, one part for each row."""
    logs = MemoryLogs()
    logs.is_new = True
    tracker = SuspectTracker(ME, logs)
    for part, state in enumerate(rows):
        topics = (LeaderAndIsrTopic("t", None, (state._replace(partition_index=part),)),)
        request = LeaderAndIsrRequest(LeaderAndIsrType.FULL, topics, (), part, len(rows))
        lost = tracker.gather_lost(request)
    tracker.on_lost(lost)
    assert logs.knows_all
    return tracker, logs


def test_a_lost_log_outside_the_isr_is_suspect_if_it_may_be_eligible() -> None:
    _, logs = found_lost(row(NO_LEADER, (OTHER,), 2), row(NO_LEADER, BOTH, 2))
    assert logs.suspect == {NAME, TopicPartition("t", 1)}


@pytest.mark.parametrize(("later_epoch", "is_given_up"), [(5, True), (6, False)])
def test_a_replica_that_refused_to_lead_is_given_up_although_it_follows_by_now(
    later_epoch: int, *, is_given_up: bool
) -> None:
    tracker = SuspectTracker(ME, MemoryLogs())
    tracker.on_answer(NAME, row(ME, BOTH, 1), Errors.CORRUPT_MESSAGE, 5)
    tracker.on_answer(NAME, row(OTHER, BOTH, 2), Errors.NONE, later_epoch)
    tracker.on_stop(NAME)
    assert tracker.take_given_up() is is_given_up, "a later controller does not know of it"
    assert not tracker.take_given_up()


def test_a_new_replica_is_not_suspect() -> None:
    _, logs = found_lost(row(OTHER, (OTHER,), 2, is_new=True))
    assert not logs.suspect


def test_a_log_created_again_before_the_list_is_complete_is_suspect() -> None:
    logs = MemoryLogs()
    logs.is_new = True
    manager = ReplicaManager(ME, logs, MetadataCache())
    manager.broker_epoch = 7
    topics = (LeaderAndIsrTopic("t", "id", (row(OTHER, BOTH, 2),)),)
    request = LeaderAndIsrRequest(LeaderAndIsrType.INCREMENTAL, topics, ())
    manager.handle(ControlHeader(OTHER, 1, 7), request, 0)
    assert logs.get(NAME) is not None
    assert logs.suspects().end_of(NAME) is not None
    assert not logs.knows_all


def test_a_lost_replica_is_sound_when_it_is_in_the_isr_again() -> None:
    tracker, logs = found_lost(row(OTHER, (OTHER,), 2), row(OTHER, (OTHER,), 2))
    tracker.on_leadership(NAME, row(OTHER, BOTH, 2))
    assert NAME in logs.suspect, "this epoch began without it in the ISR"
    tracker.on_leadership(NAME, row(OTHER, BOTH, 3))
    assert logs.suspect == {TopicPartition("t", 1)}


def test_a_suspect_replica_of_a_deleted_topic_does_not_make_its_successor_suspect() -> None:
    logs = MemoryLogs()
    logs.is_new = True
    manager = ReplicaManager(ME, logs, MetadataCache())
    manager.broker_epoch = 7

    def apply(topic_id: str, state: LeaderAndIsrPartition) -> None:
        topics = (LeaderAndIsrTopic("t", topic_id, (state,)),)
        request = LeaderAndIsrRequest(LeaderAndIsrType.INCREMENTAL, topics, ())
        manager.handle(ControlHeader(OTHER, 1, 7), request, 0)

    apply("former", row(OTHER, (OTHER,), 9))
    assert logs.suspect == {NAME}
    deletion = StopReplicaPartition(0, EPOCH_DURING_DELETE, delete_partition=True)
    topics = (StopReplicaTopic("t", "former", (deletion,)),)
    manager.handle(ControlHeader(OTHER, 1, 7), StopReplicaRequest(topics), 0)
    assert not logs.suspect

    apply("present", row(OTHER, (OTHER,), 1))
    assert logs.suspect == {NAME}, "a log is missing and is not new"
    apply("present", row(OTHER, BOTH, 2))
    assert not logs.suspect, "it is in sync again"


@pytest.mark.parametrize(
    ("later_isr", "is_whole"), [(BOTH, True), ((OTHER,), False)], ids=["in the ISR", "outside"]
)
def test_a_log_created_outside_the_isr_comes_back_with_its_topic_if_it_was_in_a_later_isr(
    later_isr: tuple[int, ...], *, is_whole: bool
) -> None:
    """With the defect, simulation seed 8000036: an empty log led in the place of a damaged one."""
    logs = MemoryLogs()
    manager = ReplicaManager(ME, logs, MetadataCache())
    manager.broker_epoch = 7
    header = ControlHeader(OTHER, 1, 7)
    topics = (LeaderAndIsrTopic("t", A, (row(OTHER, (OTHER,), 1),)),)
    full = LeaderAndIsrRequest(LeaderAndIsrType.FULL, topics, ())
    manager.handle(header, full, 0)
    known = UpdateMetadataPartition(0, 1, OTHER, 1, later_isr, 2, BOTH, ())
    metadata = UpdateMetadataRequest((UpdateMetadataTopic("t", A, (known,)),), ())
    manager.handle(header, metadata, 0)
    manager.handle(header, stop_replica(T0, EPOCH_DURING_DELETE, delete=True), 0)
    assert logs.deleted.hold(T0, A) is is_whole


def restarted(*values: bytes, last_epoch: int) -> RecordBroker:
    """Return a restarted broker with records of several epochs, which lost some of them."""
    before = RecordBroker()
    for leader_epoch, value in enumerate(values, start=last_epoch + 1 - len(values)):
        before.apply(1, leader_epoch, isr=(1,))
        before.produce(value, acks=1)
    if not values:
        before.apply(2, last_epoch)
    before.logs.suspect.add(T0)
    return RecordBroker(logs=before.logs)


def test_a_suspect_leader_does_not_lead_in_an_epoch_of_its_log() -> None:
    broker = restarted(b"0", b"1", last_epoch=5)
    for leader_epoch in (4, 5):
        assert broker.apply(1, leader_epoch) == {T0: Errors.CORRUPT_MESSAGE}
        assert T0 not in broker.manager.partitions
    assert broker.logs.is_suspect(T0)
    assert broker.apply(1, 6) == {T0: Errors.NONE}
    assert not broker.logs.is_suspect(T0)


def stopped(broker: RecordBroker, *, delete: bool = False) -> bool:
    """Stop the replica; return whether it was given up although it could serve."""
    broker.handle(stop_replica(T0, 5, delete=delete))
    given_up = broker.manager.take_given_up()
    assert not broker.manager.take_given_up()
    return given_up


def test_a_replica_that_is_stopped_because_it_refused_to_lead_could_serve() -> None:
    broker = restarted(b"0", b"1", last_epoch=5)
    broker.apply(1, 5)
    assert stopped(broker)
    assert not stopped(broker), "once for each refusal"
    broker.apply(1, 5)
    broker.apply(2, 6)
    assert stopped(broker), "a request that was sent before the refusal was read"


def test_a_deleted_replica_and_one_of_a_broker_that_shuts_down_are_not_given_up() -> None:
    broker = restarted(b"0", b"1", last_epoch=5)
    broker.apply(1, 5)
    broker.manager.begin_shutdown()
    assert not stopped(broker)
    assert not stopped(broker, delete=True)


@pytest.mark.parametrize("values", [(), (b"0",)], ids=["empty", "short"])
def test_a_suspect_log_does_not_know_all_its_epochs_so_the_controller_must_send_no_leader(
    values: tuple[bytes, ...],
) -> None:
    """A whole epoch may be lost with its record in the log: the broker is sent "no leader"."""
    broker = restarted(*values, last_epoch=4)
    assert broker.apply(NO_LEADER, 5) == {T0: Errors.NONE}
    assert broker.hosted().role is Role.NONE
    assert broker.logs.is_suspect(T0)
    assert broker.apply(1, 5) == {T0: Errors.STALE_CONTROLLER_EPOCH}
    assert broker.apply(2, 6) == {T0: Errors.NONE}
    assert broker.hosted().role is Role.FOLLOWER
    assert restarted(*values, last_epoch=4).apply(1, 5) == {T0: Errors.NONE}, (
        "it does not know the lost epoch"
    )
