"""``events``: merged journals, torn lines, ``--follow``."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from regent.cli.main import cli
from regent.client.cluster_connection import Cluster, ClusterLocation
from regent.client.journals import JournalReader, Journals
from regent.config.command_line import COMMAND
from regent.core.errors import Errors
from regent.core.protocol.broker import DescribeEventsRequest
from regent.storage.journal_reader import read_part
from regent.testing.waits import next_line, scaled
from regent.transport.control.codec import Request, Response
from tests.support.fake_cluster import ADDRESS, Answer, FakeCluster, failing


def event(ts_ms: int, broker_id: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        "ts_ms": ts_ms,
        "broker_id": broker_id,
        "controller_epoch": 1,
        "event_id": ts_ms,
        "event": "TopicChange",
        "cause": "/brokers/topics",
        "queue_ms": 0.5,
        "handling_ms": 1.25,
        "changes": [],
    } | fields


def append(data_dir: Path, broker_id: int, *events: dict[str, Any], torn: str = "") -> Path:
    directory = data_dir / f"broker-{broker_id}"
    directory.mkdir(exist_ok=True)
    path = directory / "events.jsonl"
    with path.open("a") as journal:
        journal.writelines(json.dumps(e) + "\n" for e in events)
        journal.write(torn)
    return path


def events(data_dir: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["events", "--data-dir", str(data_dir), *arguments])


def printed(result: Result) -> list[int]:
    """Return the timestamps of a JSON output."""
    assert result.exit_code == 0
    return [json.loads(line)["ts_ms"] for line in result.stdout.splitlines()]


def test_the_journals_of_all_brokers_are_merged_by_time(tmp_path: Path) -> None:
    append(tmp_path, 0, event(1), event(4), event(5))
    append(tmp_path, 1, event(2, 1), event(6, 1))
    append(tmp_path, 2, event(3, 2))
    shutil.copytree(tmp_path / "broker-1", tmp_path / "broker-1.bak")

    assert printed(events(tmp_path, "-o", "json")) == [1, 2, 3, 4, 5, 6]
    assert printed(events(tmp_path, "-o", "json", "--broker", "1")) == [2, 6]


def test_json_lines_are_printed_unchanged(tmp_path: Path) -> None:
    path = append(tmp_path, 0, event(1, extra={"x": 1}), event(2))

    assert events(tmp_path, "-o", "json").stdout == path.read_text()


def test_a_table_has_a_row_for_each_event(tmp_path: Path) -> None:
    moment = 1_700_000_000_123
    append(tmp_path, 0, event(moment, event_id=17, changes=["t-0: leader 0", "and 3 more"]))
    append(tmp_path, 1, {"ts_ms": 1_700_000_000_124})

    header, first, change, more, second = events(tmp_path).stdout.splitlines()

    assert header.split() == [
        *("TIME-UTC", "BROKER", "ID", "EVENT", "CAUSE", "QUEUE-MS", "HANDLING-MS")
    ]
    assert first.split()[1].endswith(".123")
    assert first.split()[2:8] == ["0", "1-17", "TopicChange", "/brokers/topics", "0.5", "1.25"]
    assert (change, more) == ("    t-0: leader 0", "    and 3 more")
    assert second.split()[2:] == ["-"] * 6


def test_a_time_that_is_shown_can_be_given_back_whatever_the_zone_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path, 0, event(1_700_000_000_123), event(1_700_000_000_124))
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        last = events(tmp_path).stdout.splitlines()[-1]
        given_back = events(tmp_path, "-o", "json", "--since", last[:23])
    finally:
        monkeypatch.undo()
        time.tzset()
    assert last.startswith("2023-11-14 22:13:20.124 ")
    assert printed(given_back) == [1_700_000_000_124]


def test_the_table_omits_answers_without_changes_by_default(tmp_path: Path) -> None:
    answer = "UpdateMetadataResponseReceived"
    append(tmp_path, 0, event(1, event=answer), event(2, event=answer, changes=["t-0 is offline"]))

    assert len(events(tmp_path).stdout.splitlines()) == 3
    assert len(events(tmp_path, "--all").stdout.splitlines()) == 4
    assert printed(events(tmp_path, "-o", "json")) == [1, 2]


def test_only_the_last_events_are_shown(tmp_path: Path) -> None:
    answer = event(3, event="UpdateMetadataResponseReceived")
    append(tmp_path, 0, event(1), event(4))
    append(tmp_path, 1, event(2, 1), answer)

    assert printed(events(tmp_path, "-o", "json", "--tail", "2")) == [3, 4]
    table = events(tmp_path, "--tail", "2").stdout.splitlines()
    assert [line.split()[2] for line in table[1:]] == ["1", "0"]


def test_events_can_be_limited_by_time(tmp_path: Path) -> None:
    append(tmp_path, 0, event(999), event(1000), event(1001))

    since = ("-o", "json", "--since")
    assert printed(events(tmp_path, *since, "1970-01-01T00:00:01Z")) == [1000, 1001]
    assert printed(events(tmp_path, *since, "1d")) == []
    assert "is not a time such as" in events(tmp_path, "--since", "noon").stderr


def test_an_incomplete_last_line_is_omitted(tmp_path: Path) -> None:
    append(tmp_path, 0, event(1), torn='{"ts_ms": 2, "bro')

    result = events(tmp_path, "-o", "json")

    assert printed(result) == [1]
    assert result.stderr == ""


def test_lines_torn_by_a_crash_are_omitted_and_counted(tmp_path: Path) -> None:
    append(tmp_path, 0, event(1), torn='{"ts_ms": 2, "bro')
    append(tmp_path, 0, event(3), event(4), torn="[]\n\nnull\n")
    append(tmp_path, 0, event(5))

    result = events(tmp_path, "-o", "json")

    assert printed(result) == [1, 4, 5]
    assert result.stderr == "4 unreadable lines left out\n"


def test_the_rotated_file_comes_first(tmp_path: Path) -> None:
    path = append(tmp_path, 0, event(1))
    path.rename(path.with_name("events.jsonl.1"))
    append(tmp_path, 0, event(2))

    assert printed(events(tmp_path, "-o", "json")) == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "whose"), [((), "any broker"), (("--broker", "7"), "broker 7")]
)
def test_no_journal_is_a_failure(tmp_path: Path, arguments: tuple[str, ...], whose: str) -> None:
    if whose == "broker 7":
        append(tmp_path, 0, event(1))

    result = events(tmp_path, *arguments)

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"regent: no events.jsonl of {whose} in {tmp_path}")


def test_following_a_directory_that_does_not_exist_is_a_failure(tmp_path: Path) -> None:
    assert events(tmp_path / "nowhere", "--follow").exit_code == 1


# --- reading new lines ----------------------------------------------------------------------------


def reader_of(directory: Path) -> JournalReader:
    return JournalReader(lambda request: read_part(directory, 0, request))


def read(reader: JournalReader) -> list[int]:
    return [event.ts_ms for event in reader.read()]


def test_reading_continues_where_it_stopped(tmp_path: Path) -> None:
    path = append(tmp_path, 0, event(1), torn='{"ts_')
    reader = reader_of(path.parent)

    assert read(reader) == [1]
    assert read(reader) == []
    with path.open("a") as journal:
        journal.write('ms": 2}\n')
    assert read(reader) == [2]
    assert reader.unreadable == 0


def test_a_rotated_journal_is_read_to_its_end_before_the_next(tmp_path: Path) -> None:
    path = append(tmp_path, 0, event(1))
    reader = reader_of(path.parent)
    assert read(reader) == [1]

    append(tmp_path, 0, event(2))
    path.rename(path.with_name("events.jsonl.1"))
    append(tmp_path, 0, event(3))

    assert read(reader) == [2, 3]
    append(tmp_path, 0, event(4))
    assert read(reader) == [4]


def test_a_deleted_journal_is_awaited(tmp_path: Path) -> None:
    path = append(tmp_path, 0, event(1))
    reader = reader_of(path.parent)
    assert read(reader) == [1]

    path.unlink()
    assert read(reader) == []
    append(tmp_path, 0, event(2))
    assert read(reader) == [2]


# --- journals of other machines -------------------------------------------------------------------


def reading(directory: Path, broker_id: int, error: Errors | None = None) -> Answer:
    """Answer as a broker whose journal is in a folder."""

    def answer(request: Request) -> Response | Errors:
        assert isinstance(request, DescribeEventsRequest)
        small = replace(request, max_bytes=0)  # the least that a broker reads: several parts
        return error or read_part(directory / f"broker-{broker_id}", broker_id, small)

    return answer


@pytest.fixture
def far(cluster: FakeCluster, tmp_path: Path) -> Path:
    """The folder of the journals of brokers 0 and 1, which are asked for them."""
    for broker_id in (0, 1):
        endpoint = cluster.serve(reading(tmp_path, broker_id))
        cluster.add_broker(broker_id, control_endpoint=endpoint)
    return tmp_path


def test_brokers_read_their_journals_for_other_machines(cluster: FakeCluster, far: Path) -> None:
    append(far, 0, *(event(n, padding="x" * 500) for n in range(1, 100, 2)))
    append(far, 1, *(event(n, 1) for n in range(2, 101, 2)))
    where = ("events", "--zookeeper", ADDRESS, "-o", "json")

    assert printed(cluster.run(*where)) == list(range(1, 101))
    assert printed(cluster.run(*where, "--tail", "3")) == [98, 99, 100]
    assert printed(cluster.run(*where, "--broker", "1", "--tail", "2")) == [98, 100]
    assert printed(cluster.run(*where, "--since", "1970-01-01T00:00:00.099Z")) == [99, 100]


def test_a_journal_that_cannot_be_read_is_named(cluster: FakeCluster, far: Path) -> None:
    append(far, 0, event(1))
    cluster.add_broker(3, control_endpoint=cluster.serve(lambda _: Errors.UNSUPPORTED_VERSION))
    cluster.add_broker(4, control_endpoint=None)

    result = cluster.run("events", "--zookeeper", ADDRESS, "-o", "json")

    assert printed(result) == [1]
    third, fourth = sorted(result.stderr.splitlines())
    assert third.startswith("the journal of broker 3 cannot be read: ")
    assert "UNSUPPORTED_VERSION" in third
    assert fourth == (
        "the journal of broker 4 cannot be read: it is a broker of Kafka, which keeps none"
    )


def test_new_events_of_brokers_follow_the_last_ones(cluster: FakeCluster, far: Path) -> None:
    """What --follow does: no event is lost or repeated between two looks."""
    append(far, 0, *(event(n) for n in range(1, 2_001)))
    located = Cluster(lambda: ClusterLocation(ADDRESS, None), cluster.open)
    with closing(Journals(located, None, None, 0, print)) as journals:
        assert journals.look() == 2
        assert [e.ts_ms for e in journals.last(2, lambda _: True)] == [1_999, 2_000]
        assert list(journals.new()) == []
        append(far, 1, event(2_002, 1))  # its first
        append(far, 0, event(2_001))
        assert [e.ts_ms for e in journals.new()] == [2_001, 2_002]
        assert list(journals.new()) == []


def test_a_journal_that_is_found_later_begins_with_the_command(
    cluster: FakeCluster, far: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no part in the last events; a broker that was silent then has none either."""
    monkeypatch.setattr("regent.client.journals._LOOK_AGAIN_S", 0.0)
    append(far, 0, event(1_000))
    append(far, 1, *(event(n, 1) for n in range(500)))
    cluster.unregister(1)
    located = Cluster(lambda: ClusterLocation(ADDRESS, None), cluster.open)
    with closing(Journals(located, None, None, 0, print)) as journals:
        assert journals.look() == 1
        assert [e.ts_ms for e in journals.last(2, lambda _: True)] == [1_000]
        journals.begin_others_at(2_000)
        append(far, 1, event(2_001, 1))
        cluster.add_broker(1, control_endpoint=cluster.serve(reading(far, 1)))
        assert journals.look() == 2
        assert [e.ts_ms for e in journals.new()] == [2_001]
        append(far, 1, event(1_900, 1))  # its clock was set back
        assert [e.ts_ms for e in journals.new()] == [1_900]


def test_without_any_journal_the_command_fails(cluster: FakeCluster) -> None:
    where = ("events", "--zookeeper", ADDRESS, "--broker", "7")
    assert "no broker 7 is registered" in failing(cluster.run(*where))


def test_a_number_of_events_that_no_list_can_have_is_a_usage_error(tmp_path: Path) -> None:
    append(tmp_path, 0, event(1))
    assert events(tmp_path, "--tail", "9" * 20).exit_code == 2


def test_what_another_machine_tells_does_not_control_the_terminal(
    cluster: FakeCluster, far: Path
) -> None:
    append(far, 0, event(1, event="\x1b[2J", changes=["\x9b31m"]))
    shown = cluster.run("events", "--zookeeper", ADDRESS).stdout
    assert "?[2J" in shown
    assert "    ?31m" in shown
    assert "\x1b" not in shown


# --- internal topics ------------------------------------------------------------------------------


def test_internal_topics_are_shown_on_request(tmp_path: Path) -> None:
    internal = ["__consumer_offsets-1: leader 0", "__transaction_state-12: created, leader 1"]
    append(
        tmp_path,
        0,
        event(1, changes=internal),
        event(2, changes=[*internal, "my__consumer_offsets-1: leader 2"]),
        event(3, topic="__consumer_offsets"),
        event(4, changes=["t-0: leader 0"]),
    )

    assert [line.split(maxsplit=2)[0] for line in events(tmp_path).stdout.splitlines()[2:4]] == [
        "my__consumer_offsets-1:",
        "and",
    ]
    assert events(tmp_path).stdout.count("TopicChange") == 2
    assert events(tmp_path, "--internal").stdout.count("TopicChange") == 4
    assert events(tmp_path, "--internal").stdout.count("__consumer_offsets-1: leader 0") == 2
    assert printed(events(tmp_path, "-o", "json")) == [1, 2, 3, 4]


# --- a real process -------------------------------------------------------------------------------


@contextmanager
def started(
    data_dir: Path, *arguments: str, stdout: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[bytes]]:
    command = [*COMMAND, "events", "--data-dir", str(data_dir), *arguments]
    with subprocess.Popen(command, bufsize=0, stdout=stdout, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def shown_by(process: subprocess.Popen[bytes], count: int) -> list[int]:
    lines = (next_line(process, "an event") for _ in range(count))
    return [json.loads(line)["ts_ms"] for line in lines]


def test_following_shows_new_events_until_ctrl_c(tmp_path: Path) -> None:
    append(tmp_path, 0, event(1))
    with started(tmp_path, "-o", "json", "--follow") as process:
        assert shown_by(process, 1) == [1]
        now_ms = time.time_ns() // 1_000_000
        append(tmp_path, 3, event(2), event(now_ms))  # a new broker
        assert shown_by(process, 1) == [now_ms]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=scaled(10))
    assert (process.returncode, out) == (0, b"")
    assert err.decode() == (
        "the last 10 events, then new ones; --tail N or --since TIME shows more\n"
    )


@pytest.mark.parametrize(
    ("arguments", "first"),
    [((), 21), (("--tail", "3"), 28), (("--since", "1970-01-01T00:00:00.006+00:00"), 6)],
)
def test_following_begins_near_the_end_or_as_requested(
    tmp_path: Path, arguments: tuple[str, ...], first: int
) -> None:
    append(tmp_path, 0, *(event(n) for n in range(1, 31)))
    with started(tmp_path, "-o", "json", "--follow", *arguments) as process:
        shown = shown_by(process, 31 - first)
        append(tmp_path, 0, event(31))
        shown += shown_by(process, 1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=scaled(10))
    assert shown == list(range(first, 32))


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    append(tmp_path, 0, *(event(n) for n in range(20_000)))
    read_end, write_end = os.pipe()
    with started(tmp_path, stdout=write_end) as process:
        os.close(write_end)
        assert os.read(read_end, 10)
        os.close(read_end)
        _, err = process.communicate(timeout=scaled(10))
    assert (process.returncode, err) == (0, b"")
