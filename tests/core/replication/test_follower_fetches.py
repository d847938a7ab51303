"""Answers of a leader to fetches of followers."""

from __future__ import annotations

import pytest

from regent.core.errors import Errors
from regent.core.model import NO_LEADER, UNKNOWN_BROKER_EPOCH, TopicPartition
from regent.core.protocol.broker import FetchedPartition, FetchPartition, FetchRequest
from regent.core.protocol.control import (
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from regent.core.records import NO_RECORDS, Records
from tests.core.replication.numbered_logs import NumberedLog
from tests.core.replication.stage import (
    T0,
    T1,
    A,
    B,
    BareBroker,
    fetch,
    leader_and_isr,
    no_answer,
    position,
    state,
)


@pytest.fixture
def leader() -> BareBroker:
    """Leads t-0 in leader epoch 5: epoch 2 from 0, 4 from 6, 5 from 10, log end 12."""
    broker = BareBroker()
    broker.meet({1: 100, 2: 100})
    broker.logs.epochs[T0] = [(2, 0), (4, 6)]
    broker.logs.ends[T0] = 10
    broker.apply({T0: state(leader_epoch=5)})
    broker.logs.ends[T0] = 12
    return broker


def ask(
    broker: BareBroker, row: FetchPartition, *, replica: int = 2, id: str = A
) -> FetchedPartition:
    response = broker.fetched(fetch(replica, row, id=id))
    ((topic_partition, answer),) = response.partitions()
    assert topic_partition == TopicPartition("t", row.partition_index)
    return answer


def leo(broker: BareBroker) -> int:
    """Return the log end of broker 2 as the leader knows it."""
    return broker.hosted().followers[2].log_end_offset


@pytest.mark.parametrize(
    ("leader_epoch", "error"),
    [
        (4, Errors.FENCED_LEADER_EPOCH),
        (5, Errors.NONE),
        (6, Errors.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_the_leader_epochs_must_be_equal(
    leader: BareBroker, leader_epoch: int, error: Errors
) -> None:
    assert ask(leader, position(leader_epoch, 12)).error_code is error
    assert leo(leader) == (12 if error is Errors.NONE else -1)


@pytest.mark.parametrize("named", [2, NO_LEADER])
def test_a_broker_that_is_not_the_leader_checks_the_epoch_first(
    leader: BareBroker, named: int
) -> None:
    leader.apply({T0: state(named, leader_epoch=6)})
    assert ask(leader, position(5, 0)).error_code is Errors.FENCED_LEADER_EPOCH
    assert ask(leader, position(6, 0)).error_code is Errors.NOT_LEADER_OR_FOLLOWER
    assert ask(leader, position(7, 0)).error_code is Errors.UNKNOWN_LEADER_EPOCH


def test_a_known_partition_that_is_not_hosted_has_another_error_than_an_unknown_one(
    leader: BareBroker,
) -> None:
    row = position(0, 0, partition=1)
    assert ask(leader, row).error_code is Errors.UNKNOWN_TOPIC_OR_PARTITION
    known = UpdateMetadataPartition(1, 7, 2, 0, (2,), 0, (2,), ())
    leader.handle(UpdateMetadataRequest((UpdateMetadataTopic("t", A, (known,)),), ()))
    assert ask(leader, row).error_code is Errors.NOT_LEADER_OR_FOLLOWER


def test_a_broker_without_the_full_metadata_calls_no_partition_unknown() -> None:
    broker = BareBroker(is_told=False)
    broker.meet({1: 100, 2: 100})
    broker.apply({T0: state(leader_epoch=5)})
    assert ask(broker, position(5, 0)).error_code is Errors.NONE
    unknown = position(0, 0, partition=1)
    assert ask(broker, unknown).error_code is Errors.NOT_LEADER_OR_FOLLOWER
    broker.handle(UpdateMetadataRequest((), (), lists_all=True))
    assert ask(broker, unknown).error_code is Errors.UNKNOWN_TOPIC_OR_PARTITION


def test_a_failed_directory_is_a_storage_error(leader: BareBroker) -> None:
    leader.logs.offline.add(T0)
    leader.apply({T0: state(leader_epoch=6)})
    assert ask(leader, position(5, 0)).error_code is Errors.KAFKA_STORAGE_ERROR


def test_a_follower_that_is_not_assigned_gets_unknown_leader_epoch(
    leader: BareBroker,
) -> None:  # KAFKA-13837
    assert ask(leader, position(5, 0), replica=9).error_code is Errors.UNKNOWN_LEADER_EPOCH
    assert 9 not in leader.hosted().followers


def test_a_fetch_of_an_earlier_topic_of_the_same_name_is_refused(leader: BareBroker) -> None:
    answer = ask(leader, position(5, 12), id=B)
    assert answer.error_code is Errors.INCONSISTENT_TOPIC_ID
    assert leo(leader) == -1


@pytest.mark.parametrize(
    ("last_fetched_epoch", "offset", "diverging"),
    [
        (5, 12, None),
        (5, 11, None),
        (2, 6, None),
        (2, 8, (2, 6)),  # the leader's epoch 2 ended at 6
        (3, 6, (2, 6)),  # the leader never had an epoch 3
        (4, 11, (4, 10)),
        (1, 1, (1, 0)),
    ],
)
def test_a_diverging_log_gets_the_diverging_epoch_and_its_end(
    leader: BareBroker, last_fetched_epoch: int, offset: int, diverging: tuple[int, int] | None
) -> None:
    answer = ask(leader, position(5, offset, last_fetched_epoch))
    assert answer.error_code is Errors.NONE
    assert (answer.diverging_epoch, answer.diverging_end_offset) == (diverging or (-1, -1))
    assert leo(leader) == (-1 if diverging else offset), "KAFKA-13141"


@pytest.mark.parametrize(
    ("last_fetched_epoch", "offset"), [(-1, 13), (-1, 2), (2, 2), (1, 2), (7, 12)]
)
def test_an_offset_outside_the_leaders_log_is_out_of_range(
    leader: BareBroker, last_fetched_epoch: int, offset: int
) -> None:
    leader.logs.starts[T0] = 3
    answer = ask(leader, position(5, offset, last_fetched_epoch))
    assert answer.error_code is Errors.OFFSET_OUT_OF_RANGE
    assert leo(leader) == -1


def test_a_fetch_that_retention_overtakes_is_out_of_range(
    leader: BareBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower would have a hole in the middle of a segment."""

    def overtaken(*_: object, **__: object) -> Records:
        leader.logs.starts[T0] = 11
        return NO_RECORDS

    monkeypatch.setattr(NumberedLog, "read", overtaken)
    answer = ask(leader, position(5, 10, -1))
    assert answer.error_code is Errors.OFFSET_OUT_OF_RANGE
    assert answer.log_start_offset == 11


def test_each_partition_has_its_own_error(leader: BareBroker) -> None:
    leader.handle(leader_and_isr({T1: state(2)}))
    rows = (position(5, 12), position(0, 0, partition=1), position(0, 0, partition=2))
    response = leader.fetched(fetch(2, *rows))
    assert [
        (topic_partition.partition, answer.error_code)
        for topic_partition, answer in response.partitions()
    ] == [
        (0, Errors.NONE),
        (1, Errors.NOT_LEADER_OR_FOLLOWER),
        (2, Errors.UNKNOWN_TOPIC_OR_PARTITION),
    ]


def test_an_empty_fetch_has_an_empty_answer(leader: BareBroker) -> None:
    assert leader.fetched(FetchRequest(2)).error_code is Errors.NONE


# --- broker epoch of the follower -----------------------------------------------------------------


def test_an_earlier_broker_epoch_is_refused_after_a_fetch_of_a_newer_one(
    leader: BareBroker,
) -> None:  # KIP-903
    leader.fetched_by(2, 3, replica_epoch=150, leader_epoch=5)
    late = fetch(2, position(5, 12), replica_epoch=100)
    assert no_answer(leader.fetched(late)) is Errors.STALE_BROKER_EPOCH
    assert leo(leader) == 3
    assert leader.hosted().followers[2].broker_epoch == 150


def test_an_earlier_broker_epoch_is_refused_at_every_fetch(leader: BareBroker) -> None:
    leader.fetched_by(2, 3, replica_epoch=150, leader_epoch=5)
    late = fetch(2, position(5, 12), replica_epoch=120)
    for _ in range(2):
        assert no_answer(leader.fetched(late)) is Errors.STALE_BROKER_EPOCH
    assert leo(leader) == 3


def test_an_earlier_broker_epoch_is_refused_after_a_newer_registration(
    leader: BareBroker,
) -> None:
    leader.meet({2: 200})
    late = fetch(2, position(5, 12), replica_epoch=100)
    assert no_answer(leader.fetched(late)) is Errors.STALE_BROKER_EPOCH
    assert leo(leader) == -1
    assert leader.fetched_by(2, 12, replica_epoch=201, leader_epoch=5).error_code is Errors.NONE


def test_broker_epochs_of_unknown_brokers_are_not_remembered(leader: BareBroker) -> None:
    for replica in range(1000, 1100):
        leader.fetched(fetch(replica, position(5, 12), replica_epoch=7))
    leader.fetched(fetch(2, position(5, 12), replica_epoch=100))
    assert leader.manager._fetches._fetching_epochs == {2: 100}


def test_an_unknown_broker_epoch_is_not_checked(leader: BareBroker) -> None:
    answer = leader.fetched_by(2, 12, replica_epoch=UNKNOWN_BROKER_EPOCH, leader_epoch=5)
    assert answer.error_code is Errors.NONE
    assert leo(leader) == 12


def test_a_fetch_of_an_earlier_topic_is_refused_before_the_leader_epoch_is_checked(
    leader: BareBroker,
) -> None:
    leader.apply({T0: state(2, leader_epoch=6)})
    assert ask(leader, position(0, 0), id=B).error_code is Errors.INCONSISTENT_TOPIC_ID
