"""``groups`` without a cluster; tests/system/test_consumer_groups.py has one."""

from __future__ import annotations

import io
import socket
from collections.abc import Collection
from typing import Any, cast

import pytest
from confluent_kafka.admin import OffsetSpec

from regent.cli import group_admin, groups_describe, groups_reset
from regent.cli.group_admin import EARLIEST, LATEST, Group, GroupError, GroupMember
from regent.client.cluster_connection import Cluster
from regent.core.model import TopicPartition
from tests.support.fake_cluster import FakeCluster, failing

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)

NOTHING: dict[str, Any] = {
    "to_earliest": False,
    "to_latest": False,
    "to_offset": None,
    "shift_by": None,
    "ago_ms": None,
    "since_ms": None,
    "to_current": False,
    "plan": None,
}
"""No target of ``groups reset-offsets``."""

COMMANDS = [
    ("list",),
    ("describe", "g"),
    ("reset-offsets", "g", "--all-topics", "--to-latest"),
    ("delete", "g"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_broker_there_is_an_error(cluster: FakeCluster, command: tuple[str, ...]) -> None:
    assert failing(cluster.run("groups", *command)) == "no broker is registered"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_broker_that_does_not_answer_is_a_failure(
    cluster: FakeCluster, command: tuple[str, ...]
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        cluster.add_broker(0, port=silent.getsockname()[1])
        line = failing(cluster.run("groups", *command, "--timeout-ms", "50"))
    assert "no answer within 0.05 s (" in line
    assert "): there is no controller; topic __consumer_offsets does not exist" in line
    assert line.endswith("; no broker answers") is ("g" in command)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("describe", "g", "--members", "--state"), "only one of --members and --state goes"),
        (("delete",), "which group? Give a name"),
        (("reset-offsets", "--to-latest"), "which group? Give a name"),
        (("reset-offsets", "g", "--group", "g"), "the group is named twice"),
        (("reset-offsets", "g", "--all-topics"), "one of these is needed: --to-earliest, "),
        (
            ("reset-offsets", "g", "--to-latest", "--shift-by", "-1"),
            "only one of these is needed: --to-earliest, ",
        ),
        (("reset-offsets", "g", "--to-offset", "-1"), "-1 is not in the range"),
        (("reset-offsets", "g", "--by-duration", "1"), "'1' is not a duration such as PT1H"),
        (("reset-offsets", "g", "--to-datetime", "soon"), "'soon' is not a time such as"),
        (("reset-offsets", "g", "--execute", "--dry-run"), "do not go together"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    cluster: FakeCluster, arguments: tuple[str, ...], problem: str
) -> None:
    result = cluster.run("groups", *arguments)
    assert result.exit_code == 2
    assert problem in result.stderr


@pytest.mark.parametrize("command", ["describe", "delete", "reset-offsets"])
def test_an_empty_name_is_refused(cluster: FakeCluster, command: str) -> None:
    options = ("--all-topics", "--to-latest") if command == "reset-offsets" else ()
    assert failing(cluster.run("groups", command, "", *options)) == "group '' is empty"


class Offsets:
    """The offsets of three partitions; a record of time 100 is at offset 7 of each."""

    def __init__(self, start: int | None, end: int | None, of_time: int | None = 7) -> None:
        self._found = {"EARLIEST": start, "LATEST": end}
        self._of_time = of_time

    def offsets(
        self, partitions: Collection[TopicPartition], spec: OffsetSpec
    ) -> dict[TopicPartition, int | None]:
        if spec is EARLIEST or spec is LATEST:
            found = self._found["EARLIEST" if spec is EARLIEST else "LATEST"]
        else:
            found = self._of_time if spec._value <= 100 else -1
        return dict.fromkeys(partitions, found)


@pytest.mark.parametrize(
    ("options", "offset", "said"),
    [
        ({"to_earliest": True}, 2, ""),
        ({"to_latest": True}, 12, ""),
        ({"to_offset": 0}, 2, "partition t-0 has no offset 0: 2 instead\n"),
        ({"to_offset": 13}, 12, "partition t-0 has no offset 13: 12 instead\n"),
        ({"to_offset": 3}, 3, ""),
        ({"shift_by": -3}, 6, ""),
        ({"shift_by": -9}, 2, "partition t-0 has no offset 0: 2 instead\n"),
        ({"since_ms": 100}, 7, ""),
        ({"since_ms": 101}, 12, ""),
        ({"to_current": True}, 9, ""),
        ({"plan": io.BytesIO(b"t,0,5\n")}, 5, ""),
        ({"plan": io.BytesIO(b"t,0,99\n")}, 12, "partition t-0 has no offset 99: 12 instead\n"),
    ],
)
def test_new_offsets_are_inside_of_the_log(
    options: dict[str, Any], offset: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = groups_reset._target("g", **{**NOTHING, **options})
    offsets = groups_reset._new_offsets(Offsets(2, 12), [T0], {T0: 9}, target)
    assert offsets == {T0: offset}
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("options", "offsets", "problem"),
    [
        ({"shift_by": 1}, Offsets(0, 5), "partition t-1 has no committed offset to shift"),
        ({"to_latest": True}, Offsets(0, None), "partition t-1: its leader does not tell its"),
        ({"since_ms": 9}, Offsets(0, 5, None), "partition t-1: its leader does not tell its"),
    ],
)
def test_an_offset_that_cannot_be_known_is_an_error(
    options: dict[str, Any], offsets: Offsets, problem: str
) -> None:
    target = groups_reset._target("g", **{**NOTHING, **options})
    with pytest.raises(GroupError, match=problem):
        groups_reset._new_offsets(offsets, [T1], {T0: 9}, target)


def test_a_time_without_a_zone_is_in_utc() -> None:
    assert groups_reset._moment(None, None, "2026-01-31T00:00:00") == 1_769_817_600_000
    assert groups_reset._moment(None, None, "2026-01-31T00:00:00Z") == 1_769_817_600_000
    assert groups_reset._moment(None, None, "2026-01-31T01:00:00.001+01:00") == 1_769_817_600_001


def group(*members: GroupMember) -> Group:
    return Group("g", "Stable", 0, "127.0.0.1:9092", "range", members)


def member(name: str, *partitions: TopicPartition) -> GroupMember:
    return GroupMember(name, None, "client", "/127.0.0.1", partitions)


def test_offsets_are_those_that_are_committed_or_assigned() -> None:
    first, idle = member("first", T0, T1), member("idle")
    rows = groups_describe._offsets_of(
        group(first, idle), {T1: 5, U0: 9}, {T0: 3, T1: 12, U0: None}
    )
    assert [(row.topic_partition, row.current_offset, row.lag, row.member) for row in rows] == [
        (T0, None, None, first),
        (T1, 5, 7, first),
        (U0, 9, None, None),
        (None, None, None, idle),
    ]


def test_offsets_beyond_the_end_have_no_lag() -> None:
    (row,) = groups_describe._offsets_of(group(), {T0: 9}, {T0: 5})
    assert row.lag == 0


def test_an_assignment_is_shown_by_topic() -> None:
    reader = member("m", T0, T1, U0)
    row = groups_describe._member_row(group(reader), reader)
    assert row == ("g", "m", "/127.0.0.1", "client", 3, ["t(0,1)", "u(0)"])


# --- files of offsets -----------------------------------------------------------------------------


def offsets_file(text: str) -> io.BytesIO:
    stream = io.BytesIO(text.encode())
    stream.name = "offsets.csv"
    return stream


def test_a_partition_without_a_position_goes_to_the_end_of_its_log() -> None:
    """As in Kafka's tool."""
    target = groups_reset._target("g", **{**NOTHING, "to_current": True})
    assert groups_reset._new_offsets(Offsets(2, 12), [T1], {T0: 9}, target) == {T1: 12}


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ("t,0,5\nt,1,0\n", {T0: 5, T1: 0}),
        ('"t",0,5\r\n\r\n"t", 1, 7\r\n', {T0: 5, T1: 7}),  # Kafka's tool quotes long names
        ("\ufefft,0,5", {T0: 5}),
        ("other,t,0,1\ng,t,0,5\n", {T0: 5}),  # of several groups
    ],
)
def test_kafkas_files_of_offsets_are_read(text: str, offsets: dict[object, int]) -> None:
    assert groups_reset.read_offsets_file(offsets_file(text), "g") == offsets


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "offsets.csv has no offsets of group g"),
        ("other,t,0,1", "offsets.csv has no offsets of group g"),
        ("t,0,5\nt,0", "offsets.csv: line 2 must be TOPIC,PARTITION,OFFSET or GROUP,"),
        ("TOPIC,PARTITION,OFFSET\n", "offsets.csv: line 1 must be"),
        ("t,0,-1", "offsets.csv: line 1 must be"),
        ("t,0,5,x,y", "offsets.csv: line 1 must be"),
        ("t,0,5\nt,0,6", "offsets.csv: line 2 names partition t-0 again"),
        ('t,0,"5', "offsets.csv is not CSV"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(text: str, problem: str) -> None:
    with pytest.raises(GroupError, match=problem):
        groups_reset.read_offsets_file(offsets_file(text), "g")


def test_exported_offsets_are_read_again(capsys: pytest.CaptureFixture[str]) -> None:
    offsets = {T0: 5, T1: 2**62}
    groups_reset.print_offsets(offsets)
    assert groups_reset.read_offsets_file(offsets_file(capsys.readouterr().out), "g") == offsets


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--to-current", "--export", "-o", "json", "--all-topics"), "--export prints CSV"),
        (("--to-current", "--to-latest"), "only one of these is needed"),
    ],
)
def test_export_and_current_offsets_are_checked(
    cluster: FakeCluster, arguments: tuple[str, ...], problem: str
) -> None:
    result = cluster.run("groups", "reset-offsets", "g", *arguments)
    assert result.exit_code == 2
    assert problem in result.stderr


def test_librdkafka_is_asked_to_wait_an_hour_at_most(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_broker = {"bootstrap.servers": "", "test.mock.num.brokers": 1, "log_level": 0}
    monkeypatch.setattr(group_admin, "client_settings", lambda _: one_broker)
    admin = group_admin.GroupAdmin(cast("Cluster", cluster), 2**31 - 1)
    assert list(admin.offsets({T0}, group_admin.LATEST)) == [T0]
