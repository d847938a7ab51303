"""The follower's side: whom it asks for what, and what it does with answers, late ones included."""

from __future__ import annotations

import pytest

from regent.core.errors import Errors
from regent.core.model import NO_LEADER, TopicPartition
from regent.core.protocol.broker import (
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)
from regent.core.replica_logs import EpochEndOffset
from regent.core.replication.fetch_session_handler import FIRST_BACKOFF_MS
from regent.core.replication.partition import Role
from regent.core.replication.replica_fetcher import truncation_offset
from tests.core.replication.stage import (
    FULL,
    ME,
    SETTINGS,
    T0,
    T1,
    T2,
    A,
    Broker,
    state,
)

BACKOFF_MS = SETTINGS.replica_fetch_backoff_ms


@pytest.fixture
def follower() -> Broker:
    """Follows broker 2 in t-0 and t-1 (leader epoch 5) and leads t-2."""
    broker = Broker()
    broker.meet({1: 100, 2: 100, 3: 100})
    broker.order({T0: state(2, 5), T1: state(2, 5), T2: state(ME, 5)})
    return broker


def ask(broker: Broker, leader: int = 2) -> FetchRequest:
    request = broker.manager.fetch_request(leader, broker.now_ms)
    assert request is not None
    return request


def asked(broker: Broker, leader: int = 2) -> list[TopicPartition]:
    request = broker.manager.fetch_request(leader, broker.now_ms)
    return (
        [] if request is None else [topic_partition for topic_partition, _ in request.partitions()]
    )


def answer(*rows: FetchedPartition) -> FetchResponse:
    return FetchResponse(Errors.NONE, (FetchedTopic("t", rows),))


def row(
    partition: int = 0,
    error: Errors = Errors.NONE,
    high_watermark: int = 0,
    diverging: tuple[int, int] = (-1, -1),
) -> FetchedPartition:
    return FetchedPartition(partition, error, high_watermark, 0, *diverging)


def take(broker: Broker, request: FetchRequest, response: FetchResponse, leader: int = 2) -> None:
    broker.manager.on_fetch_response(leader, request, response, broker.now_ms)


# --- whom it asks for what ------------------------------------------------------------------------


def test_every_followed_partition_is_asked_for_in_one_request(follower: Broker) -> None:
    follower.logs.ends[T1] = 7
    follower.logs.starts[T1] = 2
    follower.logs.epochs[T1] = [(4, 2)]
    request = ask(follower)
    assert (request.replica_id, request.replica_epoch, request.max_wait_ms) == (1, 100, 500)
    (topic,) = request.topics
    assert (topic.topic_name, topic.topic_id) == ("t", A)
    assert topic.partitions == (FetchPartition(0, 5, 0, -1, 0), FetchPartition(1, 5, 7, 4, 2))


def test_leaders_are_where_the_metadata_says(follower: Broker) -> None:
    assert follower.manager.leaders_to_fetch_from() == {2: "tcp://2"}
    follower.order({T1: state(3, 6)})
    assert follower.manager.leaders_to_fetch_from() == {2: "tcp://2", 3: "tcp://3"}
    assert (asked(follower, 2), asked(follower, 3)) == ([T0], [T1])


def test_a_leader_that_is_not_known_alive_is_fetched_from_when_it_is(follower: Broker) -> None:
    follower.order({T0: state(9, 6), T1: state(9, 6)})  # KAFKA-1647, 11.6
    assert follower.hosted(T0).leader_epoch == 6
    assert follower.manager.leaders_to_fetch_from() == {}
    assert asked(follower, 2) == []
    assert asked(follower, 9) == []
    follower.meet({1: 100, 9: 100})
    assert follower.manager.leaders_to_fetch_from() == {9: "tcp://9"}
    assert asked(follower, 9) == [T0, T1]


def test_a_deposed_leader_fetches_from_its_successor_even_if_it_does_not_know_it(
    follower: Broker,
) -> None:
    follower.order({T2: state(9, 6)})
    assert follower.role(T2) is Role.FOLLOWER
    assert follower.manager.leader_count == 0


def test_what_has_no_leader_is_not_fetched(follower: Broker) -> None:
    follower.order({T0: state(NO_LEADER, 6)})
    assert asked(follower) == [T1]


def test_who_leads_does_not_fetch(follower: Broker) -> None:
    follower.order({T0: state(ME, 6), T1: state(ME, 6)})
    assert follower.manager.leaders_to_fetch_from() == {}
    assert asked(follower) == []


@pytest.mark.parametrize("delete", [False, True])
def test_what_is_stopped_is_not_fetched_until_it_is_ordered_anew(
    follower: Broker, delete: bool
) -> None:
    follower.stop(T0, 5, delete=delete)
    assert asked(follower) == [T1]
    follower.order({T0: state(2, 6)})
    assert asked(follower) == [T1, T0]


def test_what_is_set_aside_or_offline_is_not_fetched(follower: Broker) -> None:
    follower.logs.offline.add(T0)
    follower.order({T0: state(2, 6)}, type=FULL)
    assert asked(follower) == []


def test_a_failed_deletion_is_not_fetched(follower: Broker) -> None:
    follower.logs.failing.add(T0)
    follower.stop(T0, 5, delete=True)
    assert asked(follower) == [T1]


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        Errors.NOT_LEADER_OR_FOLLOWER,
        Errors.UNKNOWN_LEADER_EPOCH,
        Errors.UNKNOWN_TOPIC_OR_PARTITION,
        Errors.KAFKA_STORAGE_ERROR,
        Errors.INCONSISTENT_TOPIC_ID,
        Errors.OFFSET_OUT_OF_RANGE,
    ],
)
def test_what_failed_waits_a_while_and_the_others_do_not(follower: Broker, error: Errors) -> None:
    take(follower, ask(follower), answer(row(0, error), row(1)))
    assert asked(follower) == [T1]
    follower.now_ms += FIRST_BACKOFF_MS - 1
    assert asked(follower) == [T1]
    follower.now_ms += 1
    assert asked(follower) == [T0, T1]


def test_what_fails_again_and_again_waits_for_longer_each_time(follower: Broker) -> None:
    waits = []
    for _ in range(8):
        take(follower, ask(follower), answer(row(0, Errors.UNKNOWN_LEADER_EPOCH), row(1)))
        delay_ms = follower.manager.fetch_delay_ms(2, follower.now_ms)
        assert delay_ms is not None
        waits.append(delay_ms)
        follower.now_ms += delay_ms
    assert waits == [20, 40, 80, 160, 320, 640, BACKOFF_MS, BACKOFF_MS]
    take(follower, ask(follower), answer(row(0), row(1)))
    assert follower.manager.fetch_delay_ms(2, follower.now_ms) is None
    take(follower, ask(follower), answer(row(0, Errors.UNKNOWN_LEADER_EPOCH)))
    assert follower.manager.fetch_delay_ms(2, follower.now_ms) == FIRST_BACKOFF_MS


def test_a_leader_does_not_hold_its_answer_while_something_waits_to_be_asked(
    follower: Broker,
) -> None:
    before = ask(follower)
    take(follower, before, answer(row(0, Errors.UNKNOWN_LEADER_EPOCH), row(1)))
    request = ask(follower)
    assert before.max_wait_ms == SETTINGS.replica_fetch_wait_max_ms
    assert request.max_wait_ms == FIRST_BACKOFF_MS


def test_a_fenced_follower_waits_for_its_next_orders(follower: Broker) -> None:
    take(follower, ask(follower), answer(row(0, Errors.FENCED_LEADER_EPOCH), row(1)))
    follower.now_ms += 10 * BACKOFF_MS
    assert asked(follower) == [T1]
    assert follower.role(T0) is Role.FOLLOWER
    follower.order({T0: state(2, 6)})
    assert asked(follower) == [T1, T0]


def test_new_orders_end_the_wait(follower: Broker) -> None:
    take(follower, ask(follower), answer(row(0, Errors.UNKNOWN_LEADER_EPOCH), row(1)))
    follower.order({T0: state(3, 6)})
    assert asked(follower, 3) == [T0]


@pytest.mark.parametrize(
    "response", [FetchResponse(Errors.STALE_BROKER_EPOCH), FetchResponse(Errors.NONE)]
)
def test_without_an_answer_everything_waits(follower: Broker, response: FetchResponse) -> None:
    take(follower, ask(follower), response)
    assert follower.manager.fetch_request(2, follower.now_ms) is None
    follower.now_ms += BACKOFF_MS
    assert asked(follower) == [T0, T1]


# --- late answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [Errors.FENCED_LEADER_EPOCH, Errors.NOT_LEADER_OR_FOLLOWER, Errors.NONE]
)
@pytest.mark.parametrize("leader", [2, 3])
def test_an_answer_of_an_earlier_leader_epoch_does_nothing(
    follower: Broker, error: Errors, leader: int
) -> None:
    request = ask(follower)
    follower.logs.ends[T0] = 8
    follower.order({T0: state(leader, 6)})
    late = row(0, error, high_watermark=4, diverging=(3, 2))
    take(follower, request, answer(late))
    assert T0 in asked(follower, leader)
    assert follower.logs.ends[T0] == 8
    assert follower.hosted(T0).high_watermark == 0


def test_an_answer_to_an_earlier_offset_does_nothing(follower: Broker) -> None:
    follower.logs.ends[T0] = 8
    request = ask(follower)
    follower.logs.ends[T0] = 6
    take(follower, request, answer(row(0, high_watermark=5, diverging=(3, 2)), row(1)))
    assert follower.logs.ends[T0] == 6
    assert follower.hosted(T0).high_watermark == 0


def test_an_answer_for_what_is_gone_or_led_by_now_does_nothing(follower: Broker) -> None:
    request = ask(follower)
    follower.stop(T0, 5, delete=True)
    follower.order({T1: state(ME, 6)})
    take(follower, request, answer(row(0, high_watermark=4), row(1, Errors.FENCED_LEADER_EPOCH)))
    assert (follower.role(T0), follower.role(T1)) == (None, Role.LEADER)


# --- high watermark and truncation ----------------------------------------------------------------


@pytest.mark.parametrize(("leaders", "expected"), [(3, 3), (20, 8), (1, 2)])
def test_the_leaders_high_watermark_holds_as_far_as_the_log_goes(
    follower: Broker, leaders: int, expected: int
) -> None:
    follower.logs.starts[T0], follower.logs.ends[T0] = 2, 8
    take(follower, ask(follower), answer(row(0, high_watermark=leaders), row(1)))
    assert follower.hosted(T0).high_watermark == expected


def test_a_log_that_left_the_leaders_is_cut_where_they_agree(follower: Broker) -> None:
    follower.logs.ends[T0] = 8
    follower.logs.epochs[T0] = [(2, 0), (4, 6)]
    take(follower, ask(follower), answer(row(0, high_watermark=7, diverging=(3, 5)), row(1)))
    assert follower.logs.ends[T0] == 6, "epoch 3 is unknown here: ask again with epoch 2"
    assert follower.hosted(T0).high_watermark == 0, "what is left may not be the leader's either"
    request = ask(follower)
    assert request.topics[0].partitions[0] == FetchPartition(0, 5, 6, 2, 0)
    take(follower, request, answer(row(0, high_watermark=5, diverging=(2, 5)), row(1)))
    assert follower.logs.ends[T0] == 5


def test_what_was_cut_off_is_not_committed(follower: Broker) -> None:  # KAFKA-9491
    follower.logs.ends[T0] = 8
    take(follower, ask(follower), answer(row(0, high_watermark=7), row(1)))
    follower.logs.ends[T0] = 9
    take(follower, ask(follower), answer(row(0, high_watermark=7, diverging=(3, 5)), row(1)))
    assert (follower.logs.ends[T0], follower.hosted(T0).high_watermark) == (5, 5)


@pytest.mark.parametrize(
    ("leaders", "own", "expected"),
    [
        ((2, 5), (-1, -1), 5),
        ((2, 9), (-1, -1), 8),
        ((3, 5), (2, 6), 6),
        ((3, 5), (2, 9), 8),
        ((3, 5), (3, 6), 5),
        ((3, 7), (3, 6), 6),
        ((3, 20), (3, 20), 8),
    ],
)
def test_a_log_is_cut_to_what_both_may_have(
    leaders: tuple[int, int], own: tuple[int, int], expected: int
) -> None:
    assert truncation_offset(EpochEndOffset(*leaders), EpochEndOffset(*own), 8) == expected


def test_a_log_that_cannot_be_cut_is_out_of_service(follower: Broker) -> None:
    follower.logs.ends[T0] = 8
    follower.logs.unwritable.add(T0)
    take(follower, ask(follower), answer(row(0, diverging=(2, 5)), row(1)))
    assert follower.role(T0) is Role.OFFLINE
    assert asked(follower) == [T1]
    assert follower.manager.offline_replica_count == 1
