"""Which brokers are slow: never one of a quiet cluster, and always by name."""

from __future__ import annotations

from regent.client.slow_brokers import slow_brokers
from regent.core.errors import Errors
from regent.core.protocol.broker import DescribeMetadataResponse, FollowerPace
from regent.core.protocol.controller import AnswerTimes, DescribeControllerResponse

LIVE = (1, 2, 3)


def told(leader: int, *followers: FollowerPace) -> DescribeMetadataResponse:
    return DescribeMetadataResponse(
        Errors.NONE, leader, "RunningAsBroker", 1, 1, followers=followers
    )


def described(*rows: AnswerTimes) -> DescribeControllerResponse:
    return DescribeControllerResponse(Errors.NONE, answer_times=rows)


def test_a_quiet_cluster_has_no_slow_broker():
    quiet = {b: told(b, *(FollowerPace(f, 110, 2, 9, 0, 0) for f in LIVE if f != b)) for b in LIVE}
    assert list(slow_brokers(LIVE, described(), quiet)) == []
    assert list(slow_brokers(LIVE, None, {})) == [], "nothing is known"


def test_one_hiccup_does_not_make_a_broker_slow():
    hiccup = told(1, FollowerPace(2, 50, 2, 1_700, 2, 0))
    once = described(AnswerTimes(2, 1, 1_400, 1_400, 1))
    assert list(slow_brokers(LIVE, once, {1: hiccup})) == []


def test_a_slow_broker_is_named_with_who_waits_for_it():
    answers = {1: told(1, FollowerPace(2, 40, 3, 1_100, 12, 0), FollowerPace(3, 99, 2, 8, 0, 0))}
    found = list(slow_brokers(LIVE, described(AnswerTimes(2, 9, 700, 1_300, 4)), answers))
    assert found == [
        (
            2,
            "broker 2 answers slowly (the controller waits 1.3 s (p99); leader 1 waits 1.1 s (p99)"
            " for its next fetch)",
        )
    ]


def test_a_broker_that_leaders_wait_for_a_tenth_of_the_time_is_slow():
    answers = {1: told(1, FollowerPace(2, 60, 350, 450, 0, 0, absent_ms=21_300))}
    expected = "broker 2 answers slowly (leader 1 waited 21 s of the last minute for its fetches)"
    assert list(slow_brokers(LIVE, None, answers)) == [(2, expected)]
    seldom = {1: told(1, FollowerPace(2, 60, 3, 450, 0, 0, absent_ms=5_000))}
    assert list(slow_brokers(LIVE, None, seldom)) == []


def test_a_broker_that_stands_still_is_named_before_it_leaves_the_isr():
    silent = told(1, FollowerPace(3, 90, 2, 8, 0, 12_000))
    ((broker, message),) = slow_brokers(LIVE, None, {1: silent})
    assert broker == 3
    assert message == "broker 3 answers slowly (it has not fetched from leader 1 for 12 s)"
    assert list(slow_brokers((1, 2), None, {1: silent})) == [], "it is not registered"
