"""Followers: which leaders they fetch from, and how they handle answers, including late ones."""

from __future__ import annotations

from dataclasses import replace

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
from regent.core.replication.fetch_session import FIRST_BACKOFF_MS
from regent.core.replication.partition import Role
from regent.core.replication.replica_fetcher import truncation_offset
from regent.core.replication.replication_settings import ReplicationSettings
from tests.core.replication.stage import (
    FULL,
    ME,
    SETTINGS,
    T0,
    T1,
    T2,
    A,
    BareBroker,
    state,
)
from tests.support.replicas import hosted_as

BACKOFF_MS = SETTINGS.replica_fetch_backoff_ms


@pytest.fixture
def follower() -> BareBroker:
    """Follows broker 2 in t-0 and t-1 (leader epoch 5) and leads t-2."""
    broker = BareBroker()
    broker.meet({1: 100, 2: 100, 3: 100})
    broker.apply({T0: state(2, 5), T1: state(2, 5), T2: state(ME, 5)})
    return broker


def ask(broker: BareBroker, leader: int = 2) -> FetchRequest:
    request = broker.manager.fetch_request(leader, broker.now_ms)
    assert request is not None
    return request


def asked(broker: BareBroker, leader: int = 2) -> list[TopicPartition]:
    request = broker.manager.fetch_request(leader, broker.now_ms)
    return (
        [] if request is None else [topic_partition for topic_partition, _ in request.partitions()]
    )


def answer(*rows: FetchedPartition) -> FetchResponse:
    return FetchResponse(Errors.NONE, (FetchedTopic("t", rows),) if rows else ())


def row(
    partition: int = 0,
    error: Errors = Errors.NONE,
    high_watermark: int = 0,
    diverging: tuple[int, int] = (-1, -1),
) -> FetchedPartition:
    return FetchedPartition(partition, error, high_watermark, 0, *diverging)


def take(
    broker: BareBroker, request: FetchRequest, response: FetchResponse, leader: int = 2
) -> None:
    broker.manager.on_fetch_response(leader, request, response, broker.now_ms)


# --- targets of fetches ---------------------------------------------------------------------------


def test_all_partitions_with_one_leader_are_in_one_fetch(follower: BareBroker) -> None:
    follower.logs.ends[T1] = 7
    follower.logs.starts[T1] = 2
    follower.logs.epochs[T1] = [(4, 2)]
    request = ask(follower)
    assert (request.replica_id, request.replica_epoch, request.max_wait_ms) == (1, 100, 500)
    (topic,) = request.topics
    assert (topic.topic_name, topic.topic_id) == ("t", A)
    assert topic.partitions == (FetchPartition(0, 5, 0, -1, 0), FetchPartition(1, 5, 7, 4, 2))


def test_leader_addresses_come_from_the_metadata(follower: BareBroker) -> None:
    assert follower.manager.leaders_to_fetch_from() == {2: "tcp://2"}
    follower.apply({T1: state(3, 6)})
    assert follower.manager.leaders_to_fetch_from() == {2: "tcp://2", 3: "tcp://3"}
    assert (asked(follower, 2), asked(follower, 3)) == ([T0], [T1])


def test_an_offline_leader_is_fetched_from_when_it_is_live(follower: BareBroker) -> None:
    follower.apply({T0: state(9, 6), T1: state(9, 6)})  # KAFKA-1647, 11.6
    assert follower.hosted(T0).leader_epoch == 6
    assert follower.manager.leaders_to_fetch_from() == {}
    assert asked(follower, 2) == []
    assert asked(follower, 9) == []
    follower.meet({1: 100, 9: 100})
    assert follower.manager.leaders_to_fetch_from() == {9: "tcp://9"}
    assert asked(follower, 9) == [T0, T1]


def test_a_deposed_leader_follows_its_successor_even_if_that_is_not_live(
    follower: BareBroker,
) -> None:
    follower.apply({T2: state(9, 6)})
    assert follower.role(T2) is Role.FOLLOWER
    assert hosted_as(Role.LEADER, follower.manager) == 0


def test_a_partition_without_a_leader_is_not_fetched(follower: BareBroker) -> None:
    follower.apply({T0: state(NO_LEADER, 6)})
    assert asked(follower) == [T1]


def test_a_leader_does_not_fetch(follower: BareBroker) -> None:
    follower.apply({T0: state(ME, 6), T1: state(ME, 6)})
    assert follower.manager.leaders_to_fetch_from() == {}
    assert asked(follower) == []


@pytest.mark.parametrize("delete", [False, True])
def test_a_stopped_replica_is_not_fetched_until_the_next_leader_and_isr(
    follower: BareBroker, delete: bool
) -> None:
    follower.stop(T0, 5, delete=delete)
    assert asked(follower) == [T1]
    follower.apply({T0: state(2, 6)})
    assert asked(follower) == [T1, T0]


def test_a_stray_or_offline_replica_is_not_fetched(follower: BareBroker) -> None:
    follower.logs.offline.add(T0)
    follower.apply({T0: state(2, 6)}, type=FULL)
    assert asked(follower) == []


def test_a_replica_whose_deletion_failed_is_not_fetched(follower: BareBroker) -> None:
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
def test_a_failed_partition_waits_and_the_others_do_not(
    follower: BareBroker, error: Errors
) -> None:
    take(follower, ask(follower), answer(row(0, error), row(1)))
    assert asked(follower) == [T1]
    follower.now_ms += FIRST_BACKOFF_MS - 1
    assert asked(follower) == [T1]
    follower.now_ms += 1
    assert asked(follower) == [T0, T1]


def test_repeated_failures_wait_longer_each_time(follower: BareBroker) -> None:
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


def test_a_fetch_does_not_wait_at_the_leader_while_a_partition_is_in_its_pause(
    follower: BareBroker,
) -> None:
    before = ask(follower)
    take(follower, before, answer(row(0, Errors.UNKNOWN_LEADER_EPOCH), row(1)))
    request = ask(follower)
    assert before.max_wait_ms == SETTINGS.replica_fetch_wait_max_ms
    assert request.max_wait_ms == FIRST_BACKOFF_MS


def test_a_follower_without_news_waits_longer_at_its_leader(follower: BareBroker) -> None:
    wait_ms = SETTINGS.replica_fetch_wait_max_ms
    take(follower, ask(follower), replace(answer(row(0), row(1)), session_id=7))
    waits = []
    for response in (answer(row(0, high_watermark=3)), answer(), answer()):
        request = ask(follower)
        waits.append(request.max_wait_ms)
        take(follower, request, replace(response, session_id=7))
    assert waits == [wait_ms, wait_ms, 2 * wait_ms]
    follower.apply({T2: state(2, 6)})
    assert ask(follower).max_wait_ms == wait_ms, "it says something"


def test_the_longer_wait_does_not_make_a_follower_seem_to_lag() -> None:
    for lag_ms, idle_ms in ((30_000, 1_000), (1_500, 750), (500, 500)):
        assert ReplicationSettings(replica_lag_time_max_ms=lag_ms).idle_fetch_wait_ms == idle_ms


def test_a_fetch_is_outdated_until_the_next_one_lists_what_has_changed(
    follower: BareBroker,
) -> None:
    request = ask(follower)
    assert not follower.manager.outdated_fetches()
    follower.apply({T2: state(2, 6)})
    assert follower.manager.outdated_fetches() == {2}
    take(follower, request, answer(row(0), row(1)))
    ask(follower)
    assert not follower.manager.outdated_fetches()


def test_a_fenced_follower_waits_for_the_next_leader_and_isr(follower: BareBroker) -> None:
    take(follower, ask(follower), answer(row(0, Errors.FENCED_LEADER_EPOCH), row(1)))
    follower.now_ms += 10 * BACKOFF_MS
    assert asked(follower) == [T1]
    assert follower.role(T0) is Role.FOLLOWER
    follower.apply({T0: state(2, 6)})
    assert asked(follower) == [T1, T0]


def test_a_new_leader_and_isr_ends_the_pause(follower: BareBroker) -> None:
    take(follower, ask(follower), answer(row(0, Errors.UNKNOWN_LEADER_EPOCH), row(1)))
    follower.apply({T0: state(3, 6)})
    assert asked(follower, 3) == [T0]


@pytest.mark.parametrize(
    "response", [FetchResponse(Errors.STALE_BROKER_EPOCH), FetchResponse(Errors.NONE)]
)
def test_after_a_lost_answer_all_partitions_wait(
    follower: BareBroker, response: FetchResponse
) -> None:
    take(follower, ask(follower), response)
    assert follower.manager.fetch_request(2, follower.now_ms) is None
    follower.now_ms += BACKOFF_MS
    assert asked(follower) == [T0, T1]


def test_a_broker_that_shuts_down_does_not_fetch_what_it_led(follower: BareBroker) -> None:
    follower.manager.begin_shutdown()
    follower.apply({T2: state(3, 6, isr=(2, 3)), T1: state(3, 6, isr=(ME, 3))})
    assert asked(follower, 3) == [T1], "an ISR that has this broker waits for its fetches"
    assert asked(follower) == [T0]
    assert follower.role(T2) is Role.FOLLOWER


# --- late answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [Errors.FENCED_LEADER_EPOCH, Errors.NOT_LEADER_OR_FOLLOWER, Errors.NONE]
)
@pytest.mark.parametrize("leader", [2, 3])
def test_an_answer_of_an_earlier_leader_epoch_is_ignored(
    follower: BareBroker, error: Errors, leader: int
) -> None:
    request = ask(follower)
    follower.logs.ends[T0] = 8
    follower.apply({T0: state(leader, 6)})
    late = row(0, error, high_watermark=4, diverging=(3, 2))
    take(follower, request, answer(late))
    assert T0 in asked(follower, leader)
    assert follower.logs.ends[T0] == 8
    assert follower.hosted(T0).high_watermark == 0


def test_an_answer_to_an_earlier_offset_is_ignored(follower: BareBroker) -> None:
    follower.logs.ends[T0] = 8
    request = ask(follower)
    follower.logs.ends[T0] = 6
    take(follower, request, answer(row(0, high_watermark=5, diverging=(3, 2)), row(1)))
    assert follower.logs.ends[T0] == 6
    assert follower.hosted(T0).high_watermark == 0


def test_an_answer_for_a_partition_deleted_or_led_meanwhile_is_ignored(
    follower: BareBroker,
) -> None:
    request = ask(follower)
    follower.stop(T0, 5, delete=True)
    follower.apply({T1: state(ME, 6)})
    take(follower, request, answer(row(0, high_watermark=4), row(1, Errors.FENCED_LEADER_EPOCH)))
    assert (follower.role(T0), follower.role(T1)) == (None, Role.LEADER)


# --- high watermark and truncation ----------------------------------------------------------------


@pytest.mark.parametrize(("leaders", "expected"), [(3, 3), (20, 8), (1, 2)])
def test_the_leaders_high_watermark_is_used_up_to_the_log_end(
    follower: BareBroker, leaders: int, expected: int
) -> None:
    follower.logs.starts[T0], follower.logs.ends[T0] = 2, 8
    take(follower, ask(follower), answer(row(0, high_watermark=leaders), row(1)))
    assert follower.hosted(T0).high_watermark == expected


def test_a_diverging_log_is_truncated_to_the_common_end(follower: BareBroker) -> None:
    follower.logs.ends[T0] = 8
    follower.logs.epochs[T0] = [(2, 0), (4, 6)]
    take(follower, ask(follower), answer(row(0, high_watermark=7, diverging=(3, 5)), row(1)))
    assert follower.logs.ends[T0] == 6, "epoch 3 is unknown here: ask again with epoch 2"
    assert follower.hosted(T0).high_watermark == 0, (
        "the remaining records may differ from the leader's"
    )
    request = ask(follower)
    assert request.topics[0].partitions[0] == FetchPartition(0, 5, 6, 2, 0)
    take(follower, request, answer(row(0, high_watermark=5, diverging=(2, 5)), row(1)))
    assert follower.logs.ends[T0] == 5


def test_truncated_records_are_not_committed(follower: BareBroker) -> None:  # KAFKA-9491
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
def test_a_log_is_truncated_to_the_smaller_end_of_the_epoch(
    leaders: tuple[int, int], own: tuple[int, int], expected: int
) -> None:
    assert truncation_offset(EpochEndOffset(*leaders), EpochEndOffset(*own), 8) == expected


def test_a_log_that_cannot_be_truncated_goes_offline(follower: BareBroker) -> None:
    follower.logs.ends[T0] = 8
    follower.logs.unwritable.add(T0)
    take(follower, ask(follower), answer(row(0, diverging=(2, 5)), row(1)))
    assert follower.role(T0) is Role.OFFLINE
    assert asked(follower) == [T1]
    assert hosted_as(Role.OFFLINE, follower.manager) == 1


def test_an_error_that_lasts_is_logged_once_in_ten_seconds(
    follower: BareBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for follower.now_ms in range(0, 20_000, BACKOFF_MS):
        take(follower, ask(follower), answer(row(error=Errors.UNKNOWN_TOPIC_ID)))
    lines = [line for line in caplog.messages if "Error in fetch" in line]
    assert len(lines) == 2


def test_a_broker_that_may_not_follow_is_told_what_its_user_needs(
    follower: BareBroker, caplog: pytest.LogCaptureFixture
) -> None:
    for follower.now_ms in range(0, 10_000, BACKOFF_MS):
        denied = [row(number, error=Errors.CLUSTER_AUTHORIZATION_FAILED) for number in (0, 1)]
        take(follower, ask(follower), answer(*denied))
    (line,) = caplog.messages
    assert "needs the ACL ClusterAction on the cluster" in line
    assert "If this broker is not registered now, it follows when it is again" in line
