"""Fetch sessions of followers: what is listed once, and what must be repeated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.broker import FetchRequest, FetchResponse, ForgottenTopic
from regent.core.replication import fetch_session
from regent.core.replication.partition import Role
from tests.core.replication.stage import (
    LAG_MS,
    SETTINGS,
    T0,
    T1,
    T2,
    A,
    B,
    BareBroker,
    accepted,
    errors,
    fetch,
    no_answer,
    position,
    state,
)

EVERYBODY = {1: 100, 2: 100, 3: 100}
BACKOFF_MS = SETTINGS.replica_fetch_backoff_ms


class Pair:
    """Broker 1, and its follower broker 2."""

    def __init__(self) -> None:
        self.leader, self.follower = BareBroker(1), BareBroker(2)
        for broker in (self.leader, self.follower):
            broker.meet(EVERYBODY)

    def apply(self, leader_epoch: int, *partitions: TopicPartition, leader: int = 1) -> None:
        """Set the leader on both brokers."""
        for broker in (self.leader, self.follower):
            broker.apply(
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
        """Return the follower's next fetch."""
        request = self.follower.manager.fetch_request(1, self.follower.now_ms)
        assert request is not None
        return request

    def answer(self, request: FetchRequest) -> FetchResponse:
        """Return the leader's answer."""
        return self.leader.fetched(request)

    def take(self, request: FetchRequest, response: FetchResponse) -> None:
        """Let the follower handle an answer."""
        self.follower.manager.on_fetch_response(1, request, response, self.follower.now_ms)

    def fetch(self) -> tuple[FetchRequest, FetchResponse]:
        """Let the follower fetch once."""
        request = self.ask()
        response = self.answer(request)
        self.take(request, response)
        return request, response


def forgotten(request: FetchRequest) -> list[tuple[str | None, int]]:
    """Return the partitions that leave the session."""
    return [
        (topic.topic_name, index)
        for topic in request.forgotten_topics
        for index in topic.partitions
    ]


@pytest.fixture
def pair() -> Pair:
    """Three partitions in a session without changes."""
    pair = Pair()
    pair.apply(1, T0, T1, T2)
    pair.fetch()
    pair.fetch()
    return pair


def listed(request: FetchRequest | FetchResponse) -> list[TopicPartition]:
    return [topic_partition for topic_partition, _ in request.partitions()]


# --- contents of requests and answers -------------------------------------------------------------


def test_the_first_fetch_lists_all_partitions_and_the_next_none() -> None:
    pair = Pair()
    pair.apply(1, T0, T1)
    request, response = pair.fetch()
    assert listed(request) == listed(response) == [T0, T1]
    assert response.session_id != 0
    for epoch in (1, 2, 3):
        request, response = pair.fetch()
        assert (request.session_id, request.session_epoch) == (response.session_id, epoch)
        assert listed(request) == listed(response) == []


def test_partitions_of_an_earlier_topic_of_the_same_name_are_listed_with_its_id() -> None:
    """With the defect, seed 59010343: a replica copied the records of the earlier topic."""
    pair = Pair()
    pair.leader.apply({T0: state(1, 1, isr=(1, 2)), T1: state(1, 1, isr=(1, 2))}, id=A)
    pair.follower.apply({T0: state(1, 1, isr=(1, 2))}, id=A)
    pair.follower.apply({T1: state(1, 1, isr=(1, 2))}, id=B)
    request, response = pair.fetch()
    assert [(topic.topic_id, len(topic.partitions)) for topic in request.topics] == [(A, 1), (B, 1)]
    assert errors(response) == {T0: Errors.NONE, T1: Errors.INCONSISTENT_TOPIC_ID}


def test_a_session_names_all_topics_when_one_of_them_has_no_id() -> None:
    pair = Pair()
    pair.apply(1, T0)
    first, _ = pair.fetch()
    assert not first.names_topics
    for broker in (pair.leader, pair.follower):
        broker.apply({T1: state(1, 1, isr=(1, 2))}, id=None)
    second, response = pair.fetch()
    assert (second.names_topics, second.is_incremental) == (True, False)
    assert (listed(second), errors(response)[T1]) == ([T0, T1], Errors.NONE)
    third, _ = pair.fetch()
    assert (third.names_topics, third.is_incremental) == (True, True)


def test_a_session_does_not_change_how_topics_are_named(pair: Pair) -> None:
    request = pair.ask()
    response = pair.answer(replace(request, names_topics=True))
    assert response.error_code is Errors.FETCH_SESSION_TOPIC_ID_ERROR
    pair.take(request, response)
    assert listed(pair.fetch()[0]) == [T0, T1, T2]


def test_partitions_of_a_topic_that_only_the_session_knows_can_be_forgotten(pair: Pair) -> None:
    assert pair.leader.manager.fetch_sessions == (1, 3, 0)
    forgotten_topics = (ForgottenTopic(None, (0, 2), A), ForgottenTopic(None, (1,), B))
    pair.answer(replace(pair.ask(), forgotten_topics=forgotten_topics))
    assert pair.leader.manager.fetch_sessions == (1, 1, 0)


def test_a_fetch_lists_at_most_as_many_partitions_as_the_leader_accepts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch_session, "MAX_LISTED", 2)
    pair = Pair()
    pair.apply(1, T0, T1, T2)
    first, _ = pair.fetch()
    assert (listed(first), first.max_wait_ms) == ([T0, T1], 0)
    second, response = pair.fetch()
    assert (listed(second), listed(response)) == ([T2], [T2])
    assert second.is_incremental
    assert second.max_wait_ms > 0
    assert listed(pair.fetch()[0]) == []


def test_without_a_session_all_partitions_are_listed_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch_session, "MAX_LISTED", 2)
    pair = Pair()
    pair.apply(1, T0, T1, T2)
    pair.leader.meet({1: 100})  # an unknown follower gets no session
    assert [listed(pair.fetch()[0]) for _ in range(3)] == [[T0, T1], [T2, T0], [T1, T2]]


def test_a_fetch_without_a_session_id_gets_no_session(pair: Pair) -> None:
    assert pair.answer(FetchRequest(2, 100)).session_id == 0
    assert pair.fetch()[1].error_code is Errors.NONE, "the present session continues"


def test_an_unknown_follower_gets_no_session_and_lists_all_partitions_again() -> None:
    pair = Pair()
    pair.apply(1, T0)
    pair.leader.meet({1: 100})
    for _ in range(2):
        request, response = pair.fetch()
        assert (listed(request), response.session_id) == ([T0], 0)
    pair.leader.meet(EVERYBODY)
    pair.fetch()
    assert listed(pair.fetch()[0]) == []


def test_a_changed_fetch_offset_is_listed(pair: Pair) -> None:
    pair.follower.logs.ends[T1] = 8
    pair.follower.logs.epochs[T1] = [(0, 0)]
    pair.apply(2, T1)
    pair.leader.logs.epochs[T1] = [(0, 0), (2, 5)]
    request, response = pair.fetch()
    assert listed(request) == listed(response) == [T1], "the leader's log ends its epoch earlier"
    assert pair.follower.logs.ends[T1] == 5
    request, response = pair.fetch()
    assert [row.fetch_offset for _, row in request.partitions()] == [5]


def test_a_partition_that_is_no_longer_followed_is_forgotten(pair: Pair) -> None:
    pair.follower.stop(T1, 1, delete=True)
    request, response = pair.fetch()
    assert forgotten(request) == [T1]
    assert listed(request) == listed(response) == []
    assert forgotten(pair.fetch()[0]) == []
    pair.leader.apply({T1: state(1, 2)})
    assert listed(pair.fetch()[1]) == [], "a forgotten partition is not returned"


def test_a_new_high_watermark_is_returned_once(pair: Pair) -> None:
    pair.leader.apply({T0: state(1, 2, isr=(1, 2, 3), replicas=(1, 2, 3))})
    pair.follower.apply({T0: state(1, 2, isr=(1, 2, 3), replicas=(1, 2, 3))})
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


def test_a_high_watermark_is_returned_again_after_an_answer_of_an_earlier_epoch(
    pair: Pair,
) -> None:
    for broker in (pair.leader, pair.follower):
        broker.apply({T0: state(1, 2, isr=(1, 2, 3), replicas=(1, 2, 3))})
        broker.logs.ends[T0] = 9
    pair.fetch()
    pair.leader.fetched_by(3, 9, leader_epoch=2)
    request = pair.ask()
    response = pair.answer(request)
    assert [row.high_watermark for _, row in response.partitions()] == [9]
    for broker in (pair.leader, pair.follower):
        broker.apply({T0: state(1, 3, isr=(1, 2, 3), replicas=(1, 2, 3))})
    pair.take(request, response)
    assert pair.follower.hosted(T0).high_watermark == 0
    pair.fetch()
    assert pair.follower.hosted(T0).high_watermark == 9


# --- lost leaderships -----------------------------------------------------------------------------


def test_a_deposed_leader_returns_an_error_once_without_a_request(pair: Pair) -> None:
    pair.leader.apply({T1: state(3, 2)})
    request, response = pair.fetch()
    assert listed(request) == []
    assert errors(response) == {T1: Errors.FENCED_LEADER_EPOCH}
    request, response = pair.fetch()
    assert forgotten(request) == [T1]
    assert listed(response) == []


def test_a_partition_deleted_by_the_leader_waits_and_is_listed_again(pair: Pair) -> None:
    pair.leader.stop(T1, 1, delete=True)
    assert errors(pair.fetch()[1]) == {T1: Errors.UNKNOWN_TOPIC_OR_PARTITION}
    assert forgotten(pair.fetch()[0]) == [T1]
    pair.pass_ms(BACKOFF_MS)
    request, response = pair.fetch()
    assert listed(request) == [T1]
    assert errors(response) == {T1: Errors.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_new_leader_epoch_fences_a_follower_that_lists_nothing(pair: Pair) -> None:
    pair.leader.apply({T1: state(1, 2)})
    assert errors(pair.fetch()[1]) == {T1: Errors.FENCED_LEADER_EPOCH}
    pair.follower.apply({T1: state(1, 2)})
    request, response = pair.fetch()
    assert listed(request) == [T1]
    assert errors(response) == {T1: Errors.NONE}


def test_a_follower_with_a_newer_epoch_gets_unknown_leader_epoch(pair: Pair) -> None:
    pair.follower.apply({T1: state(1, 2)})
    assert errors(pair.fetch()[1]) == {T1: Errors.UNKNOWN_LEADER_EPOCH}


def test_an_outdated_error_is_ignored(pair: Pair) -> None:
    pair.leader.apply({T1: state(1, 2)})
    request = pair.ask()
    response = pair.answer(request)
    pair.follower.apply({T1: state(1, 2)})
    pair.take(request, response)
    assert listed(pair.fetch()[0]) == [T1]
    assert pair.follower.role(T1) is Role.FOLLOWER


# --- lost, late and repeated ----------------------------------------------------------------------


def test_after_a_lost_answer_all_partitions_are_listed(pair: Pair) -> None:
    lost = pair.ask()
    assert (listed(lost), lost.session_epoch) == ([], 2)
    request = pair.ask()
    assert (listed(request), request.session_epoch) == ([T0, T1, T2], 0)
    pair.take(request, pair.answer(request))
    assert listed(pair.fetch()[0]) == []


def test_an_error_in_a_lost_answer_is_returned_again(pair: Pair) -> None:
    pair.leader.apply({T1: state(3, 2)})
    assert errors(pair.answer(pair.ask())) == {T1: Errors.FENCED_LEADER_EPOCH}
    assert errors(pair.fetch()[1])[T1] is Errors.FENCED_LEADER_EPOCH


def test_a_duplicate_fetch_is_refused_and_the_session_continues(pair: Pair) -> None:
    request, _ = pair.fetch()
    assert pair.answer(request) == FetchResponse(Errors.INVALID_FETCH_SESSION_EPOCH)
    assert pair.fetch()[1].error_code is Errors.NONE


def test_a_late_fetch_that_starts_a_session_ends_the_newer_one(pair: Pair) -> None:
    pair.ask()  # is lost
    full = pair.ask()
    pair.take(full, pair.answer(full))
    pair.answer(full)  # arrives once more
    request, response = pair.fetch()
    assert response.error_code is Errors.FETCH_SESSION_ID_NOT_FOUND
    request, response = pair.fetch()
    assert (listed(request), response.error_code) == ([T0, T1, T2], Errors.NONE)


def test_an_answer_to_an_earlier_fetch_is_ignored(pair: Pair) -> None:
    early = pair.ask()
    response = pair.answer(early)
    pair.ask()
    pair.take(early, response)
    assert pair.ask().session_epoch == 0


def test_a_restarted_leader_knows_no_session(pair: Pair) -> None:
    pair.leader = BareBroker(1)
    pair.leader.meet(EVERYBODY)
    pair.leader.apply(
        {topic_partition: state(1, 1, isr=(1, 2)) for topic_partition in (T0, T1, T2)}
    )
    assert pair.fetch()[1].error_code is Errors.FETCH_SESSION_ID_NOT_FOUND
    request, response = pair.fetch()
    assert listed(request) == listed(response) == [T0, T1, T2]


def test_a_follower_that_registered_again_starts_a_new_session(pair: Pair) -> None:
    pair.follower.manager.broker_epoch = 101
    assert pair.fetch()[1].error_code is Errors.FETCH_SESSION_ID_NOT_FOUND
    request, _ = pair.fetch()
    assert listed(request) == [T0, T1, T2]
    assert {p.followers[2].broker_epoch for p in pair.leader.manager.partitions.values()} == {101}


def test_an_earlier_broker_epoch_does_not_continue_a_session(pair: Pair) -> None:
    pair.leader.meet({1: 100, 2: 101})
    assert pair.fetch()[1].error_code is Errors.STALE_BROKER_EPOCH


def test_after_a_refused_fetch_all_partitions_wait(pair: Pair) -> None:
    pair.take(pair.ask(), FetchResponse(Errors.BROKER_NOT_AVAILABLE))
    assert pair.follower.manager.fetch_request(1, pair.follower.now_ms) is None
    pair.pass_ms(BACKOFF_MS)
    assert listed(pair.ask()) == [T0, T1, T2]


# --- the ISR --------------------------------------------------------------------------------------


def test_empty_fetches_keep_a_follower_in_the_isr_when_records_arrive(pair: Pair) -> None:
    pair.pass_ms(10 * LAG_MS)
    pair.fetch()
    pair.leader.logs.ends[T0] = 5
    pair.pass_ms(LAG_MS)
    pair.leader.manager.shrink_isrs(pair.leader.now_ms)
    assert pair.leader.proposals() == [], "it was at the log end one lag limit ago"
    pair.pass_ms(1)
    pair.leader.manager.shrink_isrs(pair.leader.now_ms)
    assert [row.new_isr for row in pair.leader.proposals()] == [(1,)]


def test_forgotten_and_failed_partitions_are_not_caught_up_by_empty_fetches(pair: Pair) -> None:
    pair.follower.stop(T0, 1, delete=True)
    pair.follower.apply({T1: state(1, 2)})
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


def test_a_follower_at_the_log_end_joins_the_isr_without_being_listed() -> None:
    pair = Pair()
    pair.leader.meet({1: 100, 2: 99})  # the leader does not know its registration yet
    for broker in (pair.leader, pair.follower):
        broker.apply({T0: state(1, 1, isr=(1,))})
    pair.fetch()
    assert pair.leader.proposals() == []
    pair.leader.meet(EVERYBODY)
    request, _ = pair.fetch()
    assert listed(request) == []
    assert [row.new_isr for row in pair.leader.proposals()] == [(1, 2)]


def test_a_follower_removed_from_the_isr_returns_without_being_listed(pair: Pair) -> None:
    pair.leader.logs.ends[T0] = 5
    pair.pass_ms(LAG_MS + 1)
    pair.leader.manager.shrink_isrs(pair.leader.now_ms)
    proposed = pair.leader.send()
    pair.leader.logs.ends[T0] = 0
    pair.leader.answer(proposed, *map(accepted, proposed.partitions))
    request, _ = pair.fetch()
    assert listed(request) == []
    assert [row.new_isr for row in pair.leader.proposals()] == [(1, 2)]


def test_a_session_of_a_follower_that_is_gone_is_forgotten(pair: Pair) -> None:
    """When another one begins: a broker that was removed for good would keep its session."""
    other = BareBroker(3)
    other.meet(EVERYBODY)
    for broker in (pair.leader, other):
        broker.apply({T0: state(1, 2, isr=(1, 2, 3), replicas=(1, 2, 3))})
    pair.leader.meet({1: 100, 3: 100})
    request = other.manager.fetch_request(1, 0)
    assert request is not None
    pair.leader.fetched(request)
    assert pair.leader.manager.fetch_sessions == (1, 1, 0)


# --- the threads of a follower of Kafka -----------------------------------------------------------


def full_fetch(*partitions: int, former: int = 0) -> FetchRequest:
    """Return a fetch of broker 2 that begins a session."""
    request = fetch(2, *(position(1, 0, partition=partition) for partition in partitions))
    return replace(request, session_id=former, session_epoch=0)


def next_fetch(session_id: int, epoch: int = 1) -> FetchRequest:
    """Return a fetch of broker 2 that lists nothing."""
    return replace(fetch(2), topics=(), session_id=session_id, session_epoch=epoch)


@pytest.fixture
def leader() -> BareBroker:
    """Broker 1 leads t-0, t-1 and t-2; broker 2 has not fetched yet."""
    leader = BareBroker(1)
    leader.meet(EVERYBODY)
    leader.apply({partition: state(1, 1, isr=(1, 2)) for partition in (T0, T1, T2)})
    return leader


def test_each_thread_of_a_follower_has_a_session(leader: BareBroker) -> None:
    """With one for both, each full fetch ended that of the other, which then sent a full one."""
    ids = [leader.fetched(full_fetch(0, 2)).session_id, leader.fetched(full_fetch(1)).session_id]
    answers: list[FetchResponse] = []
    for id in ids:
        assert leader.manager.fetch(next_fetch(id), leader.now_ms, answers.append) is not None
    assert answers == []  # they wait
    assert leader.manager.fetch_sessions == (2, 3, 0)
    leader.now_ms += LAG_MS + 1
    for id in ids:
        assert leader.fetched(next_fetch(id, 2)).error_code is Errors.NONE
    leader.manager.shrink_isrs(leader.now_ms)
    assert leader.proposals() == []


@pytest.mark.parametrize("is_named", [False, True])
def test_a_session_ends_when_its_thread_begins_another(leader: BareBroker, is_named: bool) -> None:
    """Also if the thread does not know it, since its answer was lost, or the broker was killed."""
    former = leader.fetched(full_fetch(0, 2)).session_id
    other = leader.fetched(full_fetch(1)).session_id
    again = full_fetch(*(() if is_named else (2, 3)), former=former if is_named else 0)
    new = leader.fetched(again).session_id
    assert no_answer(leader.fetched(next_fetch(former))) is Errors.FETCH_SESSION_ID_NOT_FOUND
    for kept in (other, new):
        assert leader.fetched(next_fetch(kept)).error_code is Errors.NONE


def test_a_fetch_without_a_session_ends_no_other(leader: BareBroker) -> None:
    session_id = leader.fetched(full_fetch(0)).session_id
    leader.fetched(replace(full_fetch(0), session_epoch=-1))
    assert leader.fetched(next_fetch(session_id)).error_code is Errors.NONE


def test_nobody_uses_or_ends_the_session_of_another_follower(leader: BareBroker) -> None:
    session_id = leader.fetched(full_fetch(0)).session_id
    answer = leader.fetched(replace(next_fetch(session_id), replica_id=3))
    assert no_answer(answer) is Errors.FETCH_SESSION_ID_NOT_FOUND
    leader.fetched(replace(full_fetch(0, former=session_id), replica_id=3))
    assert leader.fetched(next_fetch(session_id)).error_code is Errors.NONE


def test_a_follower_with_too_many_sessions_loses_the_one_not_used_for_longest(
    leader: BareBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_session, "MAX_SESSIONS", 2)
    first, second = (leader.fetched(full_fetch(partition)).session_id for partition in (0, 1))
    leader.now_ms += 1
    leader.fetched(next_fetch(first))
    third = leader.fetched(full_fetch(2)).session_id
    assert no_answer(leader.fetched(next_fetch(second))) is Errors.FETCH_SESSION_ID_NOT_FOUND
    assert leader.fetched(next_fetch(first, 2)).error_code is Errors.NONE
    assert leader.fetched(next_fetch(third)).error_code is Errors.NONE
    assert leader.manager.fetch_sessions == (2, 2, 1)


def test_a_partition_that_moved_to_another_thread_stays_in_sync(leader: BareBroker) -> None:
    """``num.replica.fetchers`` was changed: the former thread forgets it after the other began."""
    former = leader.fetched(full_fetch(0)).session_id
    other = leader.fetched(full_fetch(1, 2)).session_id
    leader.fetched(replace(next_fetch(other), topics=full_fetch(0).topics))
    forgotten_topics = (ForgottenTopic("t", (0,), A),)
    leader.fetched(replace(next_fetch(former), forgotten_topics=forgotten_topics))
    leader.now_ms += LAG_MS + 1
    leader.fetched(next_fetch(other, 2))
    leader.manager.shrink_isrs(leader.now_ms)
    assert leader.proposals() == []
