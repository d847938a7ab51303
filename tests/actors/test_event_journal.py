"""The event journal: one JSON line for each event, also after disk failures."""

from __future__ import annotations

import json
import logging
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regent.actors import event_journal
from regent.actors.event_journal import EventJournal, EventJournalFile, HandledEvent, cause_of
from regent.core.controller import events
from regent.core.controller.effects import (
    BrokersFailed,
    BrokersStarted,
    ControllerElected,
    ControllerResigned,
    PartitionChanged,
    PartitionCreated,
    RecordChanges,
)
from regent.core.controller.events import ControllerEvent
from regent.core.errors import Errors
from regent.core.model import LeaderAndIsr, LeaderIsrAndControllerEpoch, TopicPartition
from regent.core.protocol.control import (
    ControlHeader,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrType,
    UpdateMetadataResponse,
)
from regent.core.protocol.controller import (
    AlterPartitionRequest,
    NoteOperationRequest,
)
from regent.core.protocol.messages.partitions import (
    ElectionType,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)

HEADER = ControlHeader(0, 1, 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


@pytest.fixture
def journal(path: Path) -> Iterator[EventJournalFile]:
    journal = EventJournalFile(path, broker_id=3)
    yield journal
    journal.close()


def record(
    journal: EventJournal,
    event: ControllerEvent | None = None,
    *,
    now_ms: int = 1000,
    changes: RecordChanges | None = None,
    event_id: int = 1,
) -> None:
    handled = HandledEvent(event or events.Startup(), 7, now_ms, 0.12345, 2.0, changes, event_id)
    journal.record(handled)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_line_has_the_event_its_time_and_its_cause(journal: EventJournalFile, path: Path) -> None:
    changes = RecordChanges(7, ("t: new topic",), total=1)
    record(journal, events.BrokerChange(), changes=changes)
    assert lines(path) == [
        {
            "ts_ms": 1000,
            "broker_id": 3,
            "controller_epoch": 7,
            "event_id": 1,
            "event": "BrokerChange",
            "cause": "/brokers/ids",
            "queue_ms": 0.123,
            "handling_ms": 2.0,
            "change_count": 1,
            "changes": ["t: new topic"],
        }
    ]


def test_changes_are_typed_fields_and_sentences(journal: EventJournalFile, path: Path) -> None:
    before = LeaderIsrAndControllerEpoch(LeaderAndIsr(1, (1, 2)), 6)
    changes = (
        ControllerResigned(3, 6),
        ControllerElected(3, 7),
        BrokersStarted((4,)),
        BrokersFailed((1,)),
        PartitionChanged(TopicPartition("t", 0), before, LeaderAndIsr(2, (2,), 1)),
        BrokersStarted((5, 6)),
        PartitionCreated(TopicPartition("u", 3), LeaderAndIsr(2, (2, 4))),
    )
    record(journal, changes=RecordChanges(7, changes, total=107))
    [line] = lines(path)
    t0 = {"topic": "t", "partition": 0, "leader_before": 1, "isr_before": [1, 2]}
    assert (
        line.items()
        >= {
            "change_count": 107,
            "resigned": 6,
            "elected": 7,
            "started": [4, 5, 6],
            "failed": [1],
            "partitions": [
                t0 | {"leader": 2, "isr": [2], "leader_epoch": 1},
                {"topic": "u", "partition": 3, "leader": 2, "isr": [2, 4], "leader_epoch": 0},
            ],
            "changes": [*map(str, changes), "and 100 more"],
        }.items()
    )


@pytest.mark.parametrize(
    ("event", "subject"),
    [
        (events.BrokerModifications(4), {"broker": 4}),
        (events.ChannelOverflowed(4, HEADER), {"broker": 4}),
        (events.AlterPartitionReceived(1, AlterPartitionRequest(4, 5, ())), {"broker": 4}),
        (events.PartitionModifications("t"), {"topic": "t"}),
        (events.TopicUncleanLeaderElectionEnable("t"), {"topic": "t"}),
        (
            events.PartitionReassignmentIsrChange(TopicPartition("t", 1)),
            {"topic": "t", "partition": 1},
        ),
        (events.TopicChange(), {}),
    ],
)
def test_a_line_has_the_broker_topic_or_partition_of_its_event(
    journal: EventJournalFile, path: Path, event: ControllerEvent, subject: dict[str, object]
) -> None:
    record(journal, event)
    [line] = lines(path)
    names = line.keys() & {"broker", "topic", "partition"}
    assert {name: line[name] for name in names} == subject


def test_a_response_has_its_duration(journal: EventJournalFile, path: Path) -> None:
    done = UpdateMetadataResponse(Errors.NONE)
    record(journal, events.UpdateMetadataResponseReceived(4, HEADER, done, answered_ms=12.34567))
    assert lines(path)[0]["answered_ms"] == 12.346


@pytest.mark.parametrize(
    ("event", "trigger"),
    [
        (events.AutoPreferredReplicaLeaderElection(7), "AutoTriggered"),
        (events.PreferredReplicaElection(), "ZkTriggered"),
        (
            events.ReplicaLeaderElection(1, ElectLeadersRequest.of(ElectionType.PREFERRED)),
            "AdminClientTriggered",
        ),
    ],
)
def test_an_election_has_its_trigger(
    journal: EventJournalFile, path: Path, event: ControllerEvent, trigger: str
) -> None:
    record(journal, event)
    assert lines(path)[0]["trigger"] == trigger


def test_events_are_numbered_and_readable_at_once(journal: EventJournalFile, path: Path) -> None:
    for number in (1, 2, 3):
        record(journal, now_ms=number, event_id=number)
        assert [line["event_id"] for line in lines(path)] == list(range(1, number + 1))
    assert lines(path)[0]["changes"] == []


def test_a_large_change_is_shortened_with_a_count(journal: EventJournalFile, path: Path) -> None:
    record(journal, changes=RecordChanges(7, ("one", "two"), total=10_000))
    assert lines(path)[0]["changes"] == ["one", "two", "and 9998 more"]


def test_a_journal_is_continued_after_a_restart(journal: EventJournalFile, path: Path) -> None:
    record(journal)
    journal.close()
    again = EventJournalFile(path, broker_id=3)
    record(again)
    again.close()
    assert [line["event_id"] for line in lines(path)] == [1, 1]


def test_a_journal_that_ends_with_a_part_of_a_line_is_continued_on_the_next_line(
    journal: EventJournalFile, path: Path
) -> None:
    path.write_bytes(b'{"ts_ms":1')  # the machine stopped
    record(journal, event_id=2)
    record(journal, event_id=3)
    torn, *rest = path.read_bytes().splitlines()
    assert torn == b'{"ts_ms":1'
    assert [json.loads(line)["event_id"] for line in rest] == [2, 3]


def test_a_line_that_fits_in_part_is_lost_alone_and_reported(
    journal: EventJournalFile, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record(journal, event_id=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, hard))
    try:
        record(journal, event_id=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    record(journal, event_id=3)
    first, torn, last = path.read_bytes().splitlines()
    assert len(torn) == 10
    assert [json.loads(line)["event_id"] for line in (first, last)] == [1, 3]
    assert "cannot record events: File too large" in caplog.text


def test_a_journal_may_be_closed_twice_or_before_it_is_written(
    journal: EventJournalFile, path: Path
) -> None:
    journal.close()
    journal.close()
    assert not path.exists()


def test_a_full_file_is_replaced_and_the_previous_one_kept(
    journal: EventJournalFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(journal, now_ms=0)
    monkeypatch.setattr(event_journal, "MAX_BYTES", 2 * path.stat().st_size)
    for number in range(1, 7):
        record(journal, now_ms=number)
    earlier = path.with_name("events.jsonl.1")
    assert [line["ts_ms"] for line in lines(earlier)] == [4, 5]
    assert [line["ts_ms"] for line in lines(path)] == [6]
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name, earlier.name]


def test_a_disk_failure_loses_lines_and_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "missing" / "events.jsonl"
    journal = EventJournalFile(path, broker_id=3)
    with caplog.at_level(logging.ERROR):
        record(journal)
        record(journal)
    assert [r.getMessage() for r in caplog.records] == [
        f"{path}: cannot record events: No such file or directory"
    ]
    path.parent.mkdir()
    record(journal, event_id=3)
    journal.close()
    assert [line["event_id"] for line in lines(path)] == [3]


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        (events.Startup(), "broker started"),
        (events.ControllerChange(), "/controller written"),
        (events.Reelect(), "/controller deleted"),
        (events.Expire(), "end of the session"),
        (events.RegisterBrokerAndReelect(), "new session"),
        (events.SuspectReplicasChanged(), "list of suspect replicas"),
        (events.AdvertisedListenersChanged(()), "advertised.listeners"),
        (events.Resign("a defect"), "unexpected error"),
        (events.StandAgain(), "timer"),
        (events.BrokerChange(), "/brokers/ids"),
        (events.BrokerModifications(4), "/brokers/ids/4"),
        (events.TopicChange(), "/brokers/topics"),
        (events.PartitionModifications("t"), "/brokers/topics/t"),
        (events.ControlledShutdown(1, 4, 5), "request of broker 4"),
        (events.ListPartitionReassignments(1, ListPartitionReassignmentsRequest.of()), "request"),
        (
            events.LeaderAndIsrResponseReceived(
                4,
                HEADER,
                LeaderAndIsrRequest(LeaderAndIsrType.INCREMENTAL, (), ()),
                LeaderAndIsrResponse(Errors.NONE),
            ),
            "answer of broker 4",
        ),
        (
            events.UpdateMetadataResponseReceived(4, HEADER, UpdateMetadataResponse(Errors.NONE)),
            "answer of broker 4",
        ),
        (events.ChannelOverflowed(4, HEADER), "channel of broker 4 is full"),
        (events.BrokerUnusable(4, HEADER, "it is too old"), "broker 4 takes no requests"),
        (events.ControlRequestFailed(4, HEADER), "error of broker 4"),
        (
            events.OperationNoted(1, NoteOperationRequest("somebody", "did it")),
            "somebody at the console",
        ),
        (events.TopicDeletion(), "/admin/delete_topics"),
        (events.ZkPartitionReassignment(), "/admin/reassign_partitions"),
        (events.PreferredReplicaElection(), "/admin/preferred_replica_election"),
        (events.PartitionReassignmentIsrChange(TopicPartition("t", 0)), "state of t-0"),
        (events.TopicUncleanLeaderElectionEnable("t"), "/config/topics/t"),
        (events.AutoPreferredReplicaLeaderElection(1), "timer"),
        (events.AlterPartitionReceived(1, AlterPartitionRequest(4, 5, ())), "request of broker 4"),
        (events.ControlledShutdownAbandoned(4, 5, 6), "broker 4 did not stop"),
    ],
)
def test_causes(event: ControllerEvent, cause: str) -> None:
    assert cause_of(event) == cause
