"""``regent jobs report events``: the report equals a plain calculation."""

import contextlib
import gzip
import io
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from regent.actors.event_journal import EventJournalFile, HandledEvent
from regent.core.controller.effects import RecordChanges
from regent.core.controller.events import (
    AlterPartitionReceived,
    ControllerEvent,
    RegisterBrokerAndReelect,
)
from regent.core.protocol.controller import AlterPartitionRequest, AlterPartitionRow
from regent.jobs.report_events import main
from regent.jobs.reports.event_analysis import RESTLESS
from regent.jobs.reports.event_page import add_events
from regent.jobs.reports.event_tables import event_tables
from regent.jobs.reports.page import Page
from tests.jobs.journals import START_MS, Event, GeneratedHistory, Leadership, write_journals
from tests.support.controller_parts import Candidate, of_type
from tests.support.world import T0, World

TOP = 7
Report = dict[str, Any]
TERMS = 6
EVENTS = tuple(GeneratedHistory(11).events(TERMS, 250))


def report_on(place: Path, spark: SparkSession, *arguments: str) -> Report:
    """Run the job; return its line of JSON."""
    output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(output):
        assert main(["--journals", str(place), "-o", "json", *arguments], spark) == 0
    output.seek(0)
    [line] = output.read().splitlines()
    report: Report = json.loads(line)
    return report


@pytest.fixture(scope="module")
def report(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The report of a cluster of four brokers with the history EVENTS."""
    place = tmp_path_factory.mktemp("journals")
    write_journals(place, EVENTS)
    torn = place / "broker-2" / "events.jsonl"
    torn.write_text(torn.read_text(encoding="utf-8") + '{"ts_ms":17', encoding="utf-8")
    out = place / "table"
    found = report_on(place, spark, "--top", str(TOP), "--out", str(out))
    assert sorted(path.name for path in out.glob("controller_epoch=*"))[:2] == [
        "controller_epoch=0",
        "controller_epoch=1",
    ]
    assert not list(place.glob("*.part"))
    return found


def percentiles(values: Iterable[float]) -> dict[str, Any]:
    ordered = sorted(values)
    shares = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))
    found = {name: ordered[ceil(len(ordered) * share) - 1] for name, share in shares}
    return {name: pytest.approx(value, rel=0.001) for name, value in found.items()}


def leaderships() -> list[Leadership]:
    """Return the leaderships named in the journals, in their sequence."""
    ordered = sorted(EVENTS, key=lambda event: (event.controller_epoch, event.event_id))
    return [led for event in ordered for led in event.named]


def name(led: Leadership) -> tuple[str, int]:
    return led.topic, led.partition


def left_isr(led: Leadership) -> list[int]:
    return [b for b in led.before.isr if b not in led.isr] if led.before else []


def joined_isr(led: Leadership) -> list[int]:
    return [b for b in led.isr if b not in led.before.isr] if led.before else []


@pytest.mark.spark
def test_the_report_counts_events_brokers_and_time(report: Report):
    assert report["events"] == len(EVENTS)
    assert report["first_ms"] == EVENTS[0].ts_ms
    assert report["last_ms"] == EVENTS[-1].ts_ms
    assert report["brokers"] == sorted({event.broker_id for event in EVENTS})
    assert report["unnamed_changes"] == sum(event.unnamed for event in EVENTS) > 0
    assert [Path(path).parent.name for path in report["unreadable_lines"]] == ["broker-2"]
    assert list(report["unreadable_lines"].values()) == [1]


@pytest.mark.spark
def test_latencies_are_percentiles_of_each_kind_of_event(report: Report):
    kinds = Counter(event.event for event in EVENTS)
    assert [(row["event"], row["count"]) for row in report["latencies"]] == sorted(
        kinds.items(), key=lambda kind: (-kind[1], kind[0])
    )
    for row in report["latencies"]:
        of_kind = [event for event in EVENTS if event.event == row["event"]]
        assert row["handling_ms"] == percentiles(event.handling_ms for event in of_kind)
        assert row["queue_ms"] == percentiles(event.queue_ms for event in of_kind)


def expected_term(epoch: int) -> dict[str, Any]:
    events = [event for event in EVENTS if event.controller_epoch == epoch]
    [won] = [event for event in events if event.typed.get("elected") == epoch]
    ends = {event.typed["resigned"]: event.ts_ms for event in EVENTS if "resigned" in event.typed}
    noticed_ms = won.ts_ms - won.queue_ms
    answered = first_answers(events)
    return {
        "controller_epoch": epoch,
        "broker_id": won.broker_id,
        "trigger": won.event,
        "elected_ms": won.ts_ms,
        "takeover_ms": won.handling_ms,
        "vacant_ms": pytest.approx(won.ts_ms - min(noticed_ms, ends[epoch - 1]), abs=0.01)
        if epoch - 1 in ends
        else None,
        "vacant_at_most_ms": pytest.approx(won.ts_ms - last_handled_ms(epoch - 1), abs=0.01)
        if epoch > 1 and epoch - 1 not in ends
        else None,
        "brokers_updated": len(answered),
        "failover_ms": pytest.approx(max(answered.values()) - won.ts_ms + won.queue_ms, abs=0.01)
        if epoch > 1  # the cluster starts: there was no controller before
        else None,
        "changes": len(won.leaderships),
        "events": len(events),
        "resigned_ms": ends.get(epoch),
        "has_failed": epoch not in ends and epoch < TERMS,
        "missed_ms": pytest.approx(noticed_by_the_next_ms(epoch), abs=0.01)
        if epoch not in ends and epoch < TERMS
        else None,
    }


def last_handled_ms(epoch: int) -> float:
    return max(e.ts_ms + e.handling_ms for e in EVENTS if e.controller_epoch == epoch)


def noticed_by_the_next_ms(epoch: int) -> float:
    [won] = [event for event in EVENTS if event.typed.get("elected") == epoch + 1]
    return max(won.ts_ms - won.queue_ms, last_handled_ms(epoch))


def first_answers(events: Sequence[Event]) -> dict[int, float]:
    """Return when each broker that was up all the time answered its first LeaderAndIsr."""
    answered: dict[int, float] = {}
    started: dict[int, int] = {}
    for event in events:
        for broker_id in event.typed.get("started", ()):
            started.setdefault(broker_id, event.ts_ms)
        if event.event == "LeaderAndIsrResponseReceived" and event.broker is not None:
            broker_id = event.broker
            arrived = event.ts_ms - event.queue_ms
            answered[broker_id] = min(arrived, answered.get(broker_id, arrived))
    return {b: ms for b, ms in answered.items() if b not in started or started[b] > ms}


@pytest.mark.spark
def test_each_term_has_the_times_of_its_failover(report: Report):
    assert [row["controller_epoch"] for row in report["terms"]] == [1, 2, 3, 4, 5, 6]
    for row in report["terms"]:
        expected = expected_term(row["controller_epoch"])
        assert {name: row[name] for name in expected} == expected


@pytest.mark.spark
def test_leader_churn_is_counted_from_the_named_changes(report: Report):
    changes: Counter[tuple[str, int]] = Counter()
    leaderless: Counter[tuple[str, int]] = Counter()
    epochs: dict[tuple[str, int], list[int]] = {}
    for led in leaderships():
        epochs.setdefault(name(led), []).append(led.leader_epoch)
        if led.before and led.leader != led.before.leader:
            changes[name(led)] += 1
            leaderless[name(led)] += led.leader == -1
    expected = [
        (-count, min(epochs[led]) - max(epochs[led]), *led, leaderless[led])
        for led, count in changes.items()
    ]
    assert [
        (-row["leader_changes"], -row["leader_epochs"], row["topic"], row["partition"], lost)
        for row in report["leader_churn"]
        for lost in [row["times_leaderless"]]
    ] == sorted(expected)[:TOP]


@pytest.mark.spark
def test_isr_flapping_is_counted_from_the_named_changes(report: Report):
    shrinks = Counter(name(led) for led in leaderships() if left_isr(led))
    expands = Counter(name(led) for led in leaderships() if joined_isr(led))
    expected = sorted((-shrinks[led], -expands[led], *led) for led in shrinks | expands)
    assert [
        (-row["isr_shrinks"], -row["isr_expands"], row["topic"], row["partition"])
        for row in report["isr_flapping"]
    ] == expected[:TOP]
    assert report["restless_isrs"] == sum(count >= RESTLESS for count in shrinks.values())


@pytest.mark.spark
def test_all_partitions_that_were_without_a_leader_are_counted_and_the_worst_come_first(
    report: Report,
):
    lost = Counter(name(led) for led in leaderships() if led.before and led.leader == -1)
    assert report["leaderless_partitions"] == len(lost) > TOP
    worst = [row["times_leaderless"] for row in report["leaderless"]]
    assert worst == sorted(lost.values(), reverse=True)[:TOP]


@pytest.mark.spark
def test_the_rows_of_brokers_count_their_events(report: Report):
    rows = {row["broker_id"]: row for row in report["slowest_brokers"]}
    waited: dict[int, list[float]] = {broker_id: [] for broker_id in rows}
    for epoch in range(2, TERMS + 1):
        events = [event for event in EVENTS if event.controller_epoch == epoch]
        [won] = [event for event in events if event.typed.get("elected") == epoch]
        for broker_id, ms in first_answers(events).items():
            waited[broker_id].append(max(0.0, ms - won.ts_ms - won.handling_ms))
    for broker_id, row in rows.items():
        said = [event.sentences for event in EVENTS]
        causes = Counter(event.cause for event in EVENTS)
        assert row["answers"] == causes[f"answer of broker {broker_id}"]
        assert row["isr_proposals"] == causes[f"request of broker {broker_id}"]
        assert row["troubles"] == causes[f"channel of broker {broker_id} is full"]
        assert row["failed"] == said.count([f"brokers [{broker_id}]: failed"])
        assert row["started"] == said.count([f"brokers [{broker_id}]: started"])
        assert row["isr_left"] == sum(broker_id in left_isr(led) for led in leaderships())
        assert row["isr_joined"] == sum(broker_id in joined_isr(led) for led in leaderships())
        assert row["events"] == sum(event.broker_id == broker_id for event in EVENTS)
        assert row["failovers"] == len(waited[broker_id])
        assert row["updated_after_ms"] == percentiles(waited[broker_id])
        answers = [e for e in EVENTS if e.cause == f"answer of broker {broker_id}"]
        assert row["answered_ms"] == percentiles(e.answered_ms for e in answers if e.answered_ms)
    slowness = [row["answered_ms"]["p95"] for row in rows.values()]
    assert slowness == sorted(slowness, reverse=True)


@pytest.mark.spark
def test_events_are_counted_in_buckets_and_minutes(report: Report):
    bucket_ms = report["bucket_ms"]
    for rows, length_ms in ((report["over_time"], bucket_ms), (report["busiest_minutes"], 60_000)):
        buckets: dict[int, list[Event]] = {}
        for event in EVENTS:
            buckets.setdefault(event.ts_ms // length_ms * length_ms, []).append(event)
        for row in rows:
            events = buckets[row["start_ms"]]
            assert row["events"] == len(events)
            assert row["changes"] == sum(len(e.sentences) + len(e.leaderships) for e in events)
            assert row["handling_ms"] == pytest.approx(sum(e.handling_ms for e in events), abs=0.01)
            waits = [event.queue_ms for event in events]
            assert row.get("queue_ms", percentiles(waits)) == percentiles(waits)
            assert row.get("longest_wait_ms", max(waits)) == max(waits)
    assert len(report["over_time"]) <= 120
    assert sum(row["events"] for row in report["over_time"]) == len(EVENTS)
    counts = [row["events"] for row in report["busiest_minutes"]]
    assert counts == sorted(counts, reverse=True)


@pytest.mark.spark
def test_the_slowest_events_come_first(report: Report):
    slowest = sorted(EVENTS, key=lambda event: -event.handling_ms)[:TOP]
    assert [(row["ts_ms"], row["event"], row["cause"]) for row in report["slowest_events"]] == [
        (event.ts_ms, event.event, event.cause) for event in slowest
    ]


@pytest.mark.spark
def test_the_report_is_shown_as_tables_and_as_one_page(report: Report, tmp_path: Path):
    churn = event_tables(report)[3]
    top = report["leader_churn"][0]
    assert churn.rows[0][:2] == [f"{top['topic']}-{top['partition']}", top["leader_changes"]]
    page = tmp_path / "events.html"
    drawn = Page("Events")
    add_events(drawn, report)
    drawn.write(page)
    document = page.read_text()
    assert document.count("<figure>") == 4
    assert "LeaderAndIsrResponseReceived" in document
    assert f"only counts the others, here {report['unnamed_changes']:,} of" in document
    assert ", in UTC, by" in document
    assert "http://" not in document.replace("http://www.w3.org", "")


@pytest.mark.spark
def test_a_broker_that_was_never_the_controller_has_tables_and_a_page(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    [first, *_] = followers = [event for event in EVENTS if not event.controller_epoch]
    write_journals(tmp_path, followers)
    arguments = ["--data-dir", str(tmp_path), "--html", str(tmp_path / "page.html")]
    assert main(arguments, spark) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["events", str(len(followers))] in lines
    assert [first.event, str(len(followers))] in [line[:2] for line in lines]
    page = (tmp_path / "page.html").read_text()
    assert page.count("<figure>") == 1
    assert "No event waited longer than " in page


# --- a real controller ----------------------------------------------------------------------------


class Witness:
    """A controller on a fake ZooKeeper, and the journal of what it handles."""

    def __init__(self, journal: EventJournalFile) -> None:
        self.world = World()
        self._candidate = Candidate(self.world, 0)
        self._journal = journal

    def handle(self, event: ControllerEvent | None = None) -> None:
        """Handle and record an event, and all events that it triggered."""
        if event is not None:
            self._candidate.inbox.append(event)
        while self._candidate.inbox:
            event = self._candidate.inbox.popleft()
            changes = of_type(self._candidate.handle(event), RecordChanges)
            context = self._candidate.controller.context
            change = changes[0] if changes else None
            handled = (event, context.epoch, START_MS, 1.0, 2.0, change, context.event_id)
            self._journal.record(HandledEvent(*handled))

    def propose(self, leader: int, broker_epoch: int, partition_epoch: int, isr: list[int]) -> None:
        """Let the leader of T0 propose an ISR, in leader epoch 0."""
        row = AlterPartitionRow(*T0, None, 0, tuple(isr), (-1,) * len(isr), 0, partition_epoch)
        request = AlterPartitionRequest(leader, broker_epoch, (row,))
        self.handle(AlterPartitionReceived(1, request))


def run_a_term(witness: Witness) -> None:
    """Create t-0 and t-1; broker 0 leaves the ISR of t-0 and returns; finally 1 dies."""
    witness.handle(RegisterBrokerAndReelect())
    broker_epochs = {b: witness.world.register(b).broker_epoch for b in (1, 2)}
    witness.handle()
    witness.world.put_topic("t", {0: (1, 2, 0), 1: (2, 1)})
    witness.handle()
    witness.propose(1, broker_epochs[1], 0, [1, 2])
    witness.propose(1, broker_epochs[1], 1, [1, 2, 0])
    witness.world.unregister(1)
    witness.handle()


@pytest.mark.spark
def test_the_journal_of_a_real_controller_is_read(spark: SparkSession, tmp_path: Path):
    journal = EventJournalFile(tmp_path / "events.jsonl", 0)
    with contextlib.closing(journal):
        run_a_term(Witness(journal))
    report = report_on(tmp_path, spark)
    [term] = report["terms"]
    assert (term["controller_epoch"], term["broker_id"]) == (1, 0)
    assert (term["trigger"], term["resigned_ms"]) == ("RegisterBrokerAndReelect", None)
    assert report["leader_churn"] == [
        {
            "topic": "t",
            "partition": 0,
            "leader_changes": 1,
            "times_leaderless": 0,
            "leader_epochs": 1,
        }
    ]
    flapping = {row["partition"]: row for row in report["isr_flapping"]}
    assert (flapping[0]["isr_shrinks"], flapping[0]["isr_expands"]) == (2, 1)
    assert (flapping[1]["isr_shrinks"], flapping[1]["isr_expands"]) == (1, 0)
    brokers = {row["broker_id"]: row for row in report["slowest_brokers"]}
    assert (brokers[1]["isr_left"], brokers[1]["started"], brokers[1]["failed"]) == (2, 1, 1)
    assert (brokers[0]["isr_left"], brokers[0]["isr_joined"], brokers[0]["terms"]) == (1, 1, 1)


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.spark
def test_a_period_without_events_is_an_error_and_leaves_no_files(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_journals(tmp_path / "cluster", EVENTS[:5])
    until = datetime.fromtimestamp(EVENTS[0].ts_ms / 1000 - 60, UTC).isoformat()
    out = tmp_path / "out"
    arguments = ["--data-dir", str(tmp_path / "cluster"), "--until", until, "--out", str(out)]
    assert main(arguments, spark) == 1
    assert "no events of that time in" in capsys.readouterr().err
    for journal in tmp_path.rglob("events.jsonl*"):
        journal.write_bytes(b"?")
    assert main(["--data-dir", str(tmp_path / "cluster")], spark) == 1
    assert "no line of an event in" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["cluster"]


@pytest.mark.spark
def test_a_compressed_journal_that_ends_too_early_is_named(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_journals(tmp_path / "cluster", EVENTS[:5])
    journal = next((tmp_path / "cluster").rglob("events.jsonl"))
    cut = tmp_path / "cut journal.jsonl.gz"
    cut.write_bytes(gzip.compress(journal.read_bytes())[:-12])
    assert main(["--journals", str(cut), "--out", str(tmp_path / "out")], spark) == 1
    said = capsys.readouterr().err
    assert "journal.jsonl.gz cannot be read: java.io.EOFException: Unexpected end" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data-dir", "/nowhere"], "no events.jsonl in /nowhere"),
        (["--journals", "/nowhere"], "no events.jsonl in /nowhere"),
        (["--since", "yesterday"], "'yesterday' is not a time such as"),
        (["--since", "2026-01-02", "--until", "2026-01-01"], "--since must be before --until"),
        (["--out", "."], "choose a new directory"),
        (["--top", "0"], "0 is not in the range"),
        (["--html", "."], "is a directory"),
        (["--what"], "No such option"),
    ],
)
def test_wrong_arguments_are_one_line_and_status_2_before_spark_starts(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_journals(tmp_path, EVENTS[:5])
    assert main(["--data-dir", str(tmp_path), *arguments]) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1
    assert not output.out
