from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from queue import Empty
from typing import Any

import pytest

from regent.actors.coordinator import PartitionsDeleted, PartitionsKnown
from regent.actors.coordinator_log import Appended, Flush, Loaded
from regent.actors.group_coordinator import ExpireOffsets, GroupCoordinatorActor
from regent.actors.group_coordinator_log import GroupCoordinatorLog
from regent.actors.inbox import inbox_of
from regent.actors.runtime import stop_actor
from regent.core.coordinator.group.group_metadata_manager import GroupLogSettings
from regent.core.coordinator.group.group_records import OffsetKey, Record
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.coordinator import CoordinatorRequest, Question
from regent.core.protocol.groups import (
    CommitOffsets,
    FetchOffsets,
    JoinGroup,
    OffsetAndMetadata,
    SupportedProtocol,
    SyncGroup,
    VerifiedProducer,
)
from regent.core.protocol.messages.groups import JoinGroupResponse
from regent.core.replication.all_partitions import LogRead
from regent.core.replication.delayed_operation import DelayedOperation
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.replica_manager import ReplicaManager
from regent.testing.waits import eventually
from tests.support.led_groups import BROKER, OFFSETS_0, ORDERS_0, LedGroups
from tests.support.memory_logs import MemoryLogs
from tests.support.record_checks import Header, headers_of
from tests.support.stage import TIMEOUT_S


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def joining(member_id: str = "", group_id: str = "g", instance_id: str | None = None) -> JoinGroup:
    return JoinGroup(
        group_id,
        member_id,
        instance_id,
        "client",
        "/127.0.0.1",
        10_000,
        10_000,
        "consumer",
        (SupportedProtocol("range", b""),),
        requires_member_id=False,
    )


class Unknown(CoordinatorRequest[object]):
    """A request that no coordinator knows."""

    def refused(self, error: Errors) -> object:
        return error


def committing(offset: int, group_id: str = "g") -> CommitOffsets:
    return CommitOffsets(group_id, {ORDERS_0: OffsetAndMetadata(offset)})


def offsets(groups: LedGroups, group_id: str = "g") -> dict[TopicPartition, int]:
    return {tp: row.offset for tp, row in groups.positions(group_id).offsets.items()}


def test_a_new_leadership_of_the_partition_finds_members_and_positions(undo: ExitStack):
    groups = LedGroups(undo)
    joined = groups.ask(joining())
    assert joined.error_code is Errors.NONE
    member = joined.member_id
    synced = groups.ask(SyncGroup("g", 1, member, assignments={member: b"all"}))
    assert synced.assignment == b"all"
    commit = CommitOffsets("g", {ORDERS_0: OffsetAndMetadata(7)}, member, 1)
    assert groups.ask(commit) == {ORDERS_0: Errors.NONE}

    groups.lead(1, leader=2)
    assert groups.positions("g").error_code is Errors.NOT_COORDINATOR
    groups.lead(2)
    assert offsets(groups) == {ORDERS_0: 7}
    assert groups.ask(SyncGroup("g", 1, member)).assignment == b"all"


def test_members_that_wait_are_sent_away_when_the_leadership_ends(undo: ExitStack):
    groups = LedGroups(undo)
    groups.ask(joining())
    waiting = groups.send(joining())
    groups.lead(1, leader=2)
    assert waiting.get(timeout=TIMEOUT_S).error_code is Errors.NOT_COORDINATOR


def test_members_that_wait_are_sent_away_when_the_broker_stops(undo: ExitStack):
    groups = LedGroups(undo)
    groups.ask(joining())
    waiting = groups.send(joining())
    groups.positions("g")  # the request before it is handled then
    stop_actor(groups.actor, TIMEOUT_S)
    assert waiting.get(timeout=TIMEOUT_S).error_code is Errors.NOT_COORDINATOR
    assert groups.ask(joining()) == JoinGroupResponse(
        error_code=Errors.COORDINATOR_NOT_AVAILABLE, member_id=""
    )


def test_a_commit_that_is_not_replicated_in_time_is_answered(undo: ExitStack):
    settings = GroupLogSettings(offsets_commit_timeout_ms=1)
    groups = LedGroups(undo, log_settings=settings, isr=(BROKER, 2))
    assert groups.ask(committing(1)) == {ORDERS_0: Errors.REQUEST_TIMED_OUT}
    assert offsets(groups) == {}


def test_a_commit_waits_for_the_replicas_by_default(undo: ExitStack):
    groups = LedGroups(undo, isr=(BROKER, 2))
    answers = groups.send(committing(1))
    assert offsets(groups) == {}
    with pytest.raises(Empty):
        answers.get_nowait()


def test_requests_that_come_together_are_handled_in_their_sequence_and_fail_alone(undo: ExitStack):
    groups = LedGroups(undo)
    answers: queue.Queue[object] = queue.Queue()
    unknown: CoordinatorRequest[object] = Unknown()
    commits = [Question(committing(offset), answers.put) for offset in (1, 3, 2)]
    groups.service.ask([*commits[:2], Question(unknown, answers.put), commits[2]])
    answered = [answers.get(timeout=TIMEOUT_S) for _ in range(4)]
    assert sorted(map(str, answered)) == sorted(
        map(str, [Errors.UNKNOWN_SERVER_ERROR, *[{ORDERS_0: Errors.NONE}] * 3])
    )
    assert offsets(groups) == {ORDERS_0: 2}


def test_requests_that_come_together_and_wait_when_the_broker_stops_are_refused(undo: ExitStack):
    groups = LedGroups(undo)
    busy, may_go_on = threading.Event(), threading.Event()
    undo.callback(may_go_on.set)

    def wait(_error: Errors, _offset: int) -> None:
        busy.set()
        assert may_go_on.wait(TIMEOUT_S)

    groups.actor.tell(Appended(Errors.NONE, 7, [(0, wait)]))
    assert busy.wait(TIMEOUT_S)
    answers = [groups.send(committing(offset)) for offset in (1, 2)]
    stopping = threading.Thread(target=stop_actor, args=(groups.actor, TIMEOUT_S))
    stopping.start()
    eventually(inbox_of(groups.actor).closing.is_set, "the stop is queued", TIMEOUT_S)
    may_go_on.set()
    refused = {ORDERS_0: Errors.COORDINATOR_NOT_AVAILABLE}
    assert [answer.get(timeout=TIMEOUT_S) for answer in answers] == [refused, refused]
    stopping.join(TIMEOUT_S)


def test_requests_beyond_the_limit_of_unanswered_ones_are_refused(
    undo: ExitStack, monkeypatch: pytest.MonkeyPatch
):
    groups = LedGroups(undo, isr=(BROKER, 2))
    monkeypatch.setattr(GroupCoordinatorActor, "inbox_limit", 2)  # not of queued messages any more
    answers: list[queue.Queue[object]] = [queue.Queue() for _ in range(3)]
    groups.service.ask([Question(committing(1), answer.put) for answer in answers])
    refused = {ORDERS_0: Errors.COORDINATOR_NOT_AVAILABLE}
    assert answers[2].get(timeout=TIMEOUT_S) == refused
    assert [list(answer.queue) for answer in answers[:2]] == [[], []]


def test_a_full_inbox_refuses_only_requests(undo: ExitStack, monkeypatch: pytest.MonkeyPatch):
    """Nobody would repeat the others."""
    monkeypatch.setattr(GroupCoordinatorActor, "inbox_limit", 3)
    groups = LedGroups(undo)
    groups.ask(committing(1))
    busy, may_go_on = threading.Event(), threading.Event()
    undo.callback(may_go_on.set)

    def wait(_error: Errors, _offset: int) -> None:
        busy.set()
        assert may_go_on.wait(TIMEOUT_S)

    groups.actor.tell(Appended(Errors.NONE, 7, [(0, wait)]))
    assert busy.wait(TIMEOUT_S)
    waiting = [groups.send(FetchOffsets("g", None)) for _ in range(3)]
    refused = groups.positions("g")
    for message in (PartitionsDeleted([ORDERS_0]), PartitionsKnown(), ExpireOffsets()):
        groups.actor.tell(message)
    may_go_on.set()
    for answer in waiting:
        assert answer.get(timeout=TIMEOUT_S).error_code is Errors.NONE
    assert refused.error_code is Errors.COORDINATOR_NOT_AVAILABLE
    assert offsets(groups) == {}


def test_positions_in_deleted_topics_are_forgotten(undo: ExitStack):
    groups = LedGroups(undo)
    groups.ask(committing(1))
    groups.actor.tell(PartitionsDeleted([ORDERS_0]))
    assert offsets(groups) == {}
    groups.lead(1, leader=2)
    groups.lead(2)
    assert offsets(groups) == {}


# --- the log --------------------------------------------------------------------------------------


class LogDesk:
    """A log whose messages the test takes."""

    def __init__(self, groups: LedGroups, settings: GroupLogSettings | None = None) -> None:
        self.messages: list[Flush | Appended | Loaded] = []
        self._has_new = threading.Event()
        self.groups = groups
        self.log = GroupCoordinatorLog(groups.manager, settings or GroupLogSettings(), self._take)

    def _take(self, message: Flush | Appended | Loaded) -> None:
        self.messages.append(message)
        self._has_new.set()

    def append(self, *values: int, term: int = 0, producer_id: int | None = None) -> list[int]:
        """Append positions, one call for each; return the offsets of their records."""
        offsets: list[int] = []

        def respond(error: Errors, offset: int) -> None:
            assert error is Errors.NONE, error.name
            offsets.append(offset)

        producer = None if producer_id is None else VerifiedProducer(producer_id, 0)
        for value in values:
            record = Record(OffsetKey(f"g{value}", ORDERS_0), OffsetAndMetadata(value))
            self.log.append(0, term, [record], respond, producer=producer)
        self.log.flush()
        for message in self.messages:
            if isinstance(message, Appended):
                for position, answer in message.responds:
                    answer(message.error_code, message.base_offset + position)
        return offsets

    def headers(self) -> list[Header]:
        """Return the headers of the batches in the log."""
        batches = self.groups.logs.log(OFFSETS_0).batches
        return [header for batch in batches for _, header in headers_of(batch.data)]

    def load(self) -> dict[str, int]:
        """Read the partition; return the position of each group."""
        self._has_new.clear()
        self.log.load(0, 0)
        assert self._has_new.wait(TIMEOUT_S)
        loaded = self.messages[-1]
        assert isinstance(loaded, Loaded)
        assert loaded.content is not None
        return {
            group_id: group.committed[ORDERS_0].value.offset
            for group_id, group in loaded.content.items()
        }


def test_appends_that_wait_together_share_a_batch(undo: ExitStack):
    desk = LogDesk(LedGroups(undo))
    assert desk.append(1, 2, 3) == [0, 1, 2]
    (batch,) = desk.headers()
    assert batch.record_count == 3
    assert desk.messages[0] == Flush()
    assert desk.load() == {"g1": 1, "g2": 2, "g3": 3}


def test_a_commit_after_a_tombstone_comes_after_it_in_the_log(undo: ExitStack):
    desk, key = LogDesk(LedGroups(undo)), OffsetKey("g1", ORDERS_0)
    first, last = Record(key, OffsetAndMetadata(1)), Record(key, OffsetAndMetadata(2))
    desk.log.append(0, 0, [first], lambda *_: None)
    desk.log.append(0, 0, [Record(key, None)], lambda *_: None, acks=0)  # an expiration does so
    desk.log.append(0, 0, [last], lambda *_: None)
    desk.log.flush()
    assert desk.load() == {"g1": 2}


def test_an_append_that_was_decided_in_an_earlier_leadership_is_refused(undo: ExitStack):
    groups = LedGroups(undo)
    groups.lead(1, leader=2)
    groups.lead(2)
    with pytest.raises(AssertionError, match="NOT_LEADER_OR_FOLLOWER"):
        LogDesk(groups).append(1, term=0)
    assert LogDesk(groups).append(1, term=2) == [0]


def test_a_leadership_that_continues_in_a_later_epoch_is_the_same(undo: ExitStack):
    groups = LedGroups(undo)
    groups.lead(5)
    assert LogDesk(groups).append(1, term=0) == [0]


@pytest.mark.parametrize("codec", range(5))
def test_compressed_records_are_read_again(codec: int, undo: ExitStack):
    settings = GroupLogSettings(offsets_topic_compression_codec=codec)
    desk = LogDesk(LedGroups(undo), settings)
    desk.append(1, 2)
    (batch,) = desk.headers()
    assert batch.attributes & 7 == codec
    assert desk.load() == {"g1": 1, "g2": 2}


class CountingManager(ReplicaManager):
    """Counts reads."""

    reads = 0

    def read_in_term(
        self, topic_partition: TopicPartition, term: int, offset: int, max_bytes: int
    ) -> LogRead:
        self.reads += 1
        return super().read_in_term(topic_partition, term, offset, max_bytes)


@pytest.mark.parametrize(("offsets_load_buffer_size", "reads"), [(1, 4), (5_242_880, 2)])
def test_a_partition_is_read_in_pieces(offsets_load_buffer_size: int, reads: int, undo: ExitStack):
    def manager(logs: MemoryLogs, cache: MetadataCache) -> ReplicaManager:
        return CountingManager(BROKER, logs, cache, lock=threading.RLock())

    groups = LedGroups(undo, manager=manager)
    desk = LogDesk(groups, GroupLogSettings(offsets_load_buffer_size=offsets_load_buffer_size))
    for value in (1, 2, 3):
        desk.append(value)
    assert isinstance(groups.manager, CountingManager)
    groups.manager.reads = 0
    assert desk.load() == {"g1": 1, "g2": 2, "g3": 3}
    assert groups.manager.reads == reads


def test_a_partition_that_is_not_led_is_not_loaded(undo: ExitStack):
    groups = LedGroups(undo)
    groups.lead(1, leader=2)
    desk = LogDesk(groups)
    with pytest.raises(AssertionError):
        desk.load()
    assert desk.messages == [Loaded(0, 0, None)]


def test_a_partition_counts_as_not_read_if_no_thread_can_be_started(
    undo: ExitStack, monkeypatch: pytest.MonkeyPatch
):
    """Then it is read again after some time."""
    desk = LogDesk(LedGroups(undo))

    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        desk.log.load(0, 0)
    assert desk.messages == [Loaded(0, 0, None)]
    assert desk.load() == {}


def test_an_append_that_fails_does_not_take_others_with_it(undo: ExitStack):
    class FailsOnce(ReplicaManager):
        """The first append fails."""

        def append_in_term(self, *args: Any, **kwargs: Any) -> DelayedOperation | None:
            if next(appends):
                return super().append_in_term(*args, **kwargs)
            raise ValueError("a defect")

    appends = itertools.count()
    desk = LogDesk(LedGroups(undo, manager=lambda *parts: FailsOnce(BROKER, *parts)))
    desk.log.append(0, 0, [Record(OffsetKey("g", ORDERS_0), None)], lambda *_: None, acks=0)
    with pytest.raises(ValueError, match="a defect"):
        desk.append(1)
    assert [header.record_count for header in desk.headers()] == [1]


def test_a_request_that_fails_does_not_take_others_with_it(undo: ExitStack):
    groups = LedGroups(undo)
    answers: queue.Queue[int] = queue.Queue()

    def fail(error: Errors, offset: int) -> None:
        raise ValueError("a defect")

    groups.actor.tell(
        Appended(Errors.NONE, 7, [(0, fail), (1, lambda _error, offset: answers.put(offset))])
    )
    assert answers.get(timeout=TIMEOUT_S) == 8
