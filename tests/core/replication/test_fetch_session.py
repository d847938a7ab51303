"""Followers that fetch in sessions: what is not said again, and what must be heard all the same."""

from __future__ import annotations

import pytest

from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.broker import FetchRequest, FetchResponse
from regent.core.replication import fetch_session_handler
from regent.core.replication.partition import Role
from tests.core.replication.stage import LAG_MS, SETTINGS, T0, T1, T2, Broker, accepted, state

EVERYBODY = {1: 100, 2: 100, 3: 100}
BACKOFF_MS = SETTINGS.replica_fetch_backoff_ms


class Pair:
    """Broker 1, and broker 2 that follows it."""

    def __init__(self) -> None:
        self.leader, self.follower = Broker(1), Broker(2)
        for broker in (self.leader, self.follower):
            broker.meet(EVERYBODY)

    def order(self, leader_epoch: int, *partitions: TopicPartition, leader: int = 1) -> None:
        """Let both know a leader."""
        for broker in (self.leader, self.follower):
            broker.order(
                {
                    topic_partition: state(leader, leader_epoch, isr=(1, 2))
                    for topic_partition in partitions
                }
            )

    def pass_ms(self, ms: int) -> None:
        """Let time pass."""
        self.leader.now_ms += ms
        self.follower.now_ms += ms

    def ask(self) -> FetchRequest:
        """Return what the follower asks."""
        request = self.follower.manager.fetch_request(1, self.follower.now_ms)
        assert request is not None
        return request

    def answer(self, request: FetchRequest) -> FetchResponse:
        """Return what the leader answers."""
        return self.leader.fetched(request)

    def take(self, request: FetchRequest, response: FetchResponse) -> None:
        """Give the follower an answer."""
        self.follower.manager.on_fetch_response(1, request, response, self.follower.now_ms)

    def fetch(self) -> tuple[FetchRequest, FetchResponse]:
        """Let the follower fetch once."""
        request = self.ask()
        response = self.answer(request)
        self.take(request, response)
        return request, response


@pytest.fixture
def pair() -> Pair:
    """Three partitions, in a session that has nothing more to say."""
    pair = Pair()
    pair.order(1, T0, T1, T2)
    pair.fetch()
    pair.fetch()
    return pair


def listed(request: FetchRequest | FetchResponse) -> list[TopicPartition]:
    return [topic_partition for topic_partition, _ in request.partitions()]


def errors(response: FetchResponse) -> dict[TopicPartition, Errors]:
    return {topic_partition: row.error_code for topic_partition, row in response.partitions()}


# --- what is said ---------------------------------------------------------------------------------


def test_the_first_fetch_lists_everything_and_the_next_nothing() -> None:
    pair = Pair()
    pair.order(1, T0, T1)
    request, response = pair.fetch()
    assert listed(request) == listed(response) == [T0, T1]
    assert response.session_id != 0
    for epoch in (1, 2, 3):
        request, response = pair.fetch()
        assert (request.session_id, request.session_epoch) == (response.session_id, epoch)
        assert listed(request) == listed(response) == []


def test_a_fetch_lists_no_more_than_a_leader_takes_and_the_next_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch_session_handler, "MAX_LISTED", 2)
    pair = Pair()
    pair.order(1, T0, T1, T2)
    first, _ = pair.fetch()
    assert (listed(first), first.max_wait_ms) == ([T0, T1], 0)
    second, response = pair.fetch()
    assert (listed(second), listed(response)) == ([T2], [T2])
    assert second.is_incremental
    assert second.max_wait_ms > 0
    assert listed(pair.fetch()[0]) == []


def test_without_a_session_all_partitions_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_session_handler, "MAX_LISTED", 2)
    pair = Pair()
    pair.order(1, T0, T1, T2)
    pair.leader.meet({1: 100})  # whom it does not know it gives no session
    assert [listed(pair.fetch()[0]) for _ in range(3)] == [[T0, T1], [T2, T0], [T1, T2]]


def test_who_asks_for_no_session_gets_none(pair: Pair) -> None:
    assert pair.answer(FetchRequest(2, 100)).session_id == 0
    assert pair.fetch()[1].error_code is Errors.NONE, "nor does it end the one there is"


def test_who_is_not_known_alive_gets_no_session_and_says_everything_again() -> None:
    pair = Pair()
    pair.order(1, T0)
    pair.leader.meet({1: 100})
    for _ in range(2):
        request, response = pair.fetch()
        assert (listed(request), response.session_id) == ([T0], 0)
    pair.leader.meet(EVERYBODY)
    pair.fetch()
    assert listed(pair.fetch()[0]) == []


def test_a_position_that_changed_is_listed(pair: Pair) -> None:
    pair.follower.logs.ends[T1] = 8
    pair.follower.logs.epochs[T1] = [(0, 0)]
    pair.order(2, T1)
    pair.leader.logs.epochs[T1] = [(0, 0), (2, 5)]
    request, response = pair.fetch()
    assert listed(request) == listed(response) == [T1], "the leader's log ends its epoch earlier"
    assert pair.follower.logs.ends[T1] == 5
    request, response = pair.fetch()
    assert [row.fetch_offset for _, row in request.partitions()] == [5]


def test_what_is_followed_no_longer_is_forgotten(pair: Pair) -> None:
    pair.follower.stop(T1, 1, delete=True)
    request, response = pair.fetch()
    assert list(request.forgotten()) == [T1]
    assert listed(request) == listed(response) == []
    assert list(pair.fetch()[0].forgotten()) == []
    pair.leader.order({T1: state(1, 2)})
    assert listed(pair.fetch()[1]) == [], "it is not told of what it forgot"


def test_a_new_high_watermark_is_told_once(pair: Pair) -> None:
    pair.leader.order({T0: state(1, 2, isr=(1, 2, 3), replicas=(1, 2, 3))})
    pair.follower.order({T0: state(1, 2, isr=(1, 2, 3), replicas=(1, 2, 3))})
    pair.leader.logs.ends[T0] = pair.follower.logs.ends[T0] = 9
    assert listed(pair.fetch()[0]) == [T0]
    assert listed(pair.fetch()[1]) == []
    pair.leader.fetched_by(3, 9, leader_epoch=2)
    _, response = pair.fetch()
    assert [
        (topic_partition, row.high_watermark) for topic_partition, row in response.partitions()
    ] == [(T0, 9)]
    assert pair.follower.hosted(T0).high_watermark == 9
    assert listed(pair.fetch()[1]) == []


def test_a_high_watermark_is_told_again_when_the_answer_finds_a_later_leader_epoch(
    pair: Pair,
) -> None:
    for broker in (pair.leader, pair.follower):
        broker.order({T0: state(1, 2, isr=(1, 2, 3), replicas=(1, 2, 3))})
        broker.logs.ends[T0] = 9
    pair.fetch()
    pair.leader.fetched_by(3, 9, leader_epoch=2)
    request = pair.ask()
    response = pair.answer(request)
    assert [row.high_watermark for _, row in response.partitions()] == [9]
    for broker in (pair.leader, pair.follower):
        broker.order({T0: state(1, 3, isr=(1, 2, 3), replicas=(1, 2, 3))})
    pair.take(request, response)
    assert pair.follower.hosted(T0).high_watermark == 0
    pair.fetch()
    assert pair.follower.hosted(T0).high_watermark == 9


# --- leaders that are none any more ---------------------------------------------------------------


def test_a_leader_that_was_deposed_says_so_unasked_and_once(pair: Pair) -> None:
    pair.leader.order({T1: state(3, 2)})
    request, response = pair.fetch()
    assert listed(request) == []
    assert errors(response) == {T1: Errors.FENCED_LEADER_EPOCH}
    request, response = pair.fetch()
    assert list(request.forgotten()) == [T1]
    assert listed(response) == []


def test_what_the_leader_deleted_is_told_waits_and_is_listed_again(pair: Pair) -> None:
    pair.leader.stop(T1, 1, delete=True)
    assert errors(pair.fetch()[1]) == {T1: Errors.UNKNOWN_TOPIC_OR_PARTITION}
    assert list(pair.fetch()[0].forgotten()) == [T1]
    pair.pass_ms(BACKOFF_MS)
    request, response = pair.fetch()
    assert listed(request) == [T1]
    assert errors(response) == {T1: Errors.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_new_leader_epoch_of_the_same_leader_fences_the_silent_follower(pair: Pair) -> None:
    pair.leader.order({T1: state(1, 2)})
    assert errors(pair.fetch()[1]) == {T1: Errors.FENCED_LEADER_EPOCH}
    pair.follower.order({T1: state(1, 2)})
    request, response = pair.fetch()
    assert listed(request) == [T1]
    assert errors(response) == {T1: Errors.NONE}


def test_a_follower_that_knows_a_newer_epoch_is_told_that_the_leader_does_not(pair: Pair) -> None:
    pair.follower.order({T1: state(1, 2)})
    assert errors(pair.fetch()[1]) == {T1: Errors.UNKNOWN_LEADER_EPOCH}


def test_an_error_that_is_out_of_date_is_not_the_last_word(pair: Pair) -> None:
    pair.leader.order({T1: state(1, 2)})
    request = pair.ask()
    response = pair.answer(request)
    pair.follower.order({T1: state(1, 2)})
    pair.take(request, response)
    assert listed(pair.fetch()[0]) == [T1]
    assert pair.follower.role(T1) is Role.FOLLOWER


# --- lost, late and repeated ----------------------------------------------------------------------


def test_after_a_fetch_without_an_answer_everything_is_listed(pair: Pair) -> None:
    lost = pair.ask()
    assert (listed(lost), lost.session_epoch) == ([], 2)
    request = pair.ask()
    assert (listed(request), request.session_epoch) == ([T0, T1, T2], 0)
    pair.take(request, pair.answer(request))
    assert listed(pair.fetch()[0]) == []


def test_an_error_whose_answer_was_lost_is_told_again(pair: Pair) -> None:
    pair.leader.order({T1: state(3, 2)})
    assert errors(pair.answer(pair.ask())) == {T1: Errors.FENCED_LEADER_EPOCH}
    assert errors(pair.fetch()[1])[T1] is Errors.FENCED_LEADER_EPOCH


def test_a_repeated_fetch_is_refused_and_the_session_goes_on(pair: Pair) -> None:
    request, _ = pair.fetch()
    assert pair.answer(request) == FetchResponse(Errors.INVALID_FETCH_SESSION_EPOCH)
    assert pair.fetch()[1].error_code is Errors.NONE


def test_a_late_fetch_that_began_a_session_ends_the_newer_one(pair: Pair) -> None:
    pair.ask()  # is lost
    full = pair.ask()
    pair.take(full, pair.answer(full))
    pair.answer(full)  # arrives once more
    request, response = pair.fetch()
    assert response.error_code is Errors.FETCH_SESSION_ID_NOT_FOUND
    request, response = pair.fetch()
    assert (listed(request), response.error_code) == ([T0, T1, T2], Errors.NONE)


def test_the_answer_to_an_earlier_fetch_is_none_to_the_last(pair: Pair) -> None:
    early = pair.ask()
    response = pair.answer(early)
    pair.ask()
    pair.take(early, response)
    assert pair.ask().session_epoch == 0


def test_a_leader_that_started_again_knows_no_session(pair: Pair) -> None:
    pair.leader = Broker(1)
    pair.leader.meet(EVERYBODY)
    pair.leader.order(
        {topic_partition: state(1, 1, isr=(1, 2)) for topic_partition in (T0, T1, T2)}
    )
    assert pair.fetch()[1].error_code is Errors.FETCH_SESSION_ID_NOT_FOUND
    request, response = pair.fetch()
    assert listed(request) == listed(response) == [T0, T1, T2]


def test_a_follower_that_registered_anew_begins_a_new_session(pair: Pair) -> None:
    pair.follower.manager.broker_epoch = 101
    assert pair.fetch()[1].error_code is Errors.FETCH_SESSION_ID_NOT_FOUND
    request, _ = pair.fetch()
    assert listed(request) == [T0, T1, T2]
    assert {p.followers[2].broker_epoch for p in pair.leader.manager.partitions.values()} == {101}


def test_an_earlier_life_does_not_continue_a_session(pair: Pair) -> None:
    pair.leader.meet({1: 100, 2: 101})
    assert pair.fetch()[1].error_code is Errors.STALE_BROKER_EPOCH


def test_when_a_fetch_is_refused_everything_waits(pair: Pair) -> None:
    pair.take(pair.ask(), FetchResponse(Errors.BROKER_NOT_AVAILABLE))
    assert pair.follower.manager.fetch_request(1, pair.follower.now_ms) is None
    pair.pass_ms(BACKOFF_MS)
    assert listed(pair.ask()) == [T0, T1, T2]


# --- the ISR --------------------------------------------------------------------------------------


def test_silent_fetches_keep_a_follower_in_the_isr_when_records_come(pair: Pair) -> None:
    pair.pass_ms(10 * LAG_MS)
    pair.fetch()
    pair.leader.logs.ends[T0] = 5
    pair.pass_ms(LAG_MS)
    pair.leader.manager.shrink_isrs(pair.leader.now_ms)
    assert pair.leader.proposals() == [], "it had everything a lag limit ago"
    pair.pass_ms(1)
    pair.leader.manager.shrink_isrs(pair.leader.now_ms)
    assert [row.new_isr for row in pair.leader.proposals()] == [(1,)]


def test_what_is_forgotten_or_fails_is_not_caught_up_by_further_fetches(pair: Pair) -> None:
    pair.follower.stop(T0, 1, delete=True)
    pair.follower.order({T1: state(1, 2)})
    pair.fetch()
    pair.pass_ms(2 * LAG_MS)
    pair.fetch()
    followers = {
        topic_partition: p.followers[2]
        for topic_partition, p in pair.leader.manager.partitions.items()
    }
    assert {topic_partition: f.caught_up_ms() for topic_partition, f in followers.items()} == {
        T0: 0,
        T1: 0,
        T2: 2 * LAG_MS,
    }


def test_a_follower_that_stands_at_the_end_joins_the_isr_without_being_listed() -> None:
    pair = Pair()
    pair.leader.meet({1: 100, 2: 99})  # its registration has not been heard of yet
    for broker in (pair.leader, pair.follower):
        broker.order({T0: state(1, 1, isr=(1,))})
    pair.fetch()
    assert pair.leader.proposals() == []
    pair.leader.meet(EVERYBODY)
    request, _ = pair.fetch()
    assert listed(request) == []
    assert [row.new_isr for row in pair.leader.proposals()] == [(1, 2)]


def test_a_follower_that_was_shrunk_away_comes_back_without_being_listed(pair: Pair) -> None:
    pair.leader.logs.ends[T0] = 5
    pair.pass_ms(LAG_MS + 1)
    pair.leader.manager.shrink_isrs(pair.leader.now_ms)
    proposed = pair.leader.send()
    pair.leader.logs.ends[T0] = 0
    pair.leader.answer(proposed, *map(accepted, proposed.partitions))
    request, _ = pair.fetch()
    assert listed(request) == []
    assert [row.new_isr for row in pair.leader.proposals()] == [(1, 2)]
