"""``--watch``, ``-o wide|yaml``, ``--no-headers``, and what the shell completes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.shell_completion import ShellComplete

from regent.cli.main import cli
from regent.cli.output import print_json
from regent.cli.watching import watched
from regent.client.log_sizes import LogDirectorySize, LogSize
from regent.core.errors import Errors, RegentError
from regent.core.model import LeaderAndIsr, ReplicaAssignment
from regent.core.protocol.broker import (
    DescribeMetadataRequest,
    DescribeMetadataResponse,
    FollowerPace,
    Traffic,
)
from regent.core.protocol.controller import (
    AnswerTimes,
    DescribeControllerRequest,
    DescribeControllerResponse,
)
from regent.core.protocol.messages.groups import ListedGroup, ListGroupsResponse
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import encoded
from tests.support.fake_cluster import FakeCluster


def test_a_watch_shows_again_until_ctrl_c_and_survives_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks: Iterator[int] = iter(range(9))

    def show() -> None:
        number = next(looks)
        if number == 1:
            raise RegentError("no answer")
        click.echo(f"look {number}")

    def sleep(_: float) -> None:
        if next(pauses) == 2:
            raise KeyboardInterrupt

    pauses = iter(range(9))
    monkeypatch.setattr("regent.cli.watching.time.sleep", sleep)
    watched(show, 2.0)
    shown = capsys.readouterr()
    assert re.findall("look .", shown.out) == ["look 0", "look 2"]
    assert shown.err == "regent: no answer\n"


@pytest.mark.parametrize("form", ["json", "yaml"])
@pytest.mark.parametrize(
    "command",
    [("status", "--watch"), ("topics", "describe", "--watch"), ("top",)],
    ids=" ".join,
)
def test_a_watch_prints_nothing_but_documents_for_programs(
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    form: str,
) -> None:
    cluster.put_topic("t", {0: ReplicaAssignment((0,))})
    looks = iter(range(9))

    def sleep(_: float) -> None:
        if next(looks) == 1:
            raise KeyboardInterrupt

    clock = SimpleNamespace(sleep=sleep, strftime=time.strftime)
    monkeypatch.setattr("regent.cli.watching.time", clock)
    shown = cluster.run(*command, "-o", form)
    if form == "yaml":
        documents = list(pytest.importorskip("yaml").safe_load_all(shown.stdout))
    else:
        documents = list(map(json.loads, shown.stdout.splitlines()))
    assert [type(document) in (dict, list) for document in documents] == [True, True]
    times = re.findall(r"(?m)^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$", shown.stderr)
    assert len(times) == 2


def complete(cluster: FakeCluster, *arguments: str) -> list[str]:
    *before, begun = arguments
    shell = ShellComplete(cli, {"obj": cluster.open}, "regent", "_REGENT_COMPLETE")
    return [item.value for item in shell.get_completions(before, begun)]


def test_the_shell_completes_topics_and_brokers(cluster: FakeCluster) -> None:
    cluster.with_brokers(2)
    cluster.put_topic("payments", {0: ReplicaAssignment((0,))})
    cluster.put_topic("orders", {0: ReplicaAssignment((0,))})
    assert complete(cluster, "topics", "describe", "pay") == ["payments"]
    assert complete(cluster, "brokers", "shutdown", "") == ["0", "1"]
    assert "describe" in complete(cluster, "topics", "des")
    cluster.is_reachable = False
    assert complete(cluster, "topics", "describe", "pay") == [], "without a cluster"


def commands(command: click.Command, name: str = "regent") -> Iterator[tuple[str, click.Command]]:
    """Every command and group that the help lists, with its full name."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            if name != "regent jobs" and not found.hidden:
                yield from commands(found, f"{name} {inner}")


COMPLETED = {"topic", "topics", "group", "groups", "broker", "broker_id", "broker_ids", "option_id"}
NEW_OR_NAMED_OTHERWISE = {
    "regent topics create": "a new name",
    "regent broker": "a new id",
}


def test_the_shell_completes_every_name_of_a_topic_a_group_and_a_broker() -> None:
    lacking = [
        f"{name} {parameter.name}"
        for name, command in commands(cli)
        for parameter in command.params
        if (
            parameter.name in COMPLETED
            or (
                isinstance(parameter, click.Argument)
                and parameter.name in ("name", "names", "more_names")
                and name.split()[1:2] in (["topics"], ["groups"])
            )
        )
        and parameter._custom_shell_complete is None
        and name not in NEW_OR_NAMED_OTHERWISE
    ]
    assert lacking == []


def test_the_shell_completes_groups(cluster: FakeCluster) -> None:
    async def list_groups(request: KafkaRequest) -> KafkaAnswer:
        rows = tuple(
            ListedGroup(group_id=group, protocol_type="consumer") for group in ("billing", "audit")
        )
        answer = ListGroupsResponse(error_code=Errors.NONE, groups=rows)
        return (encoded(answer, request.api_version, is_flexible=True),)

    api = KafkaApi(KafkaApiKey.LIST_GROUPS, 4, 4, list_groups)
    cluster.add_broker(0, port=cluster.listen(more=[api]))
    assert complete(cluster, "groups", "describe", "") == ["audit", "billing"]
    assert complete(cluster, "groups", "describe", "audit", "b") == ["billing"]
    assert complete(cluster, "consume", "t", "--group", "a") == ["audit"]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("doctro", "doctor"),
        ("topics lst", "list"),
        ("brokers lits", "list"),
        ("acls ad", "add"),
        ("profile us", "use"),
    ],
)
def test_an_unknown_command_is_told_what_is_meant(
    cluster: FakeCluster, words: str, meant: str
) -> None:
    result = cluster.run(*words.split())
    assert result.exit_code == 2
    assert f"did you mean {meant}" in result.stderr


def test_an_unknown_command_that_is_like_no_other_is_only_unknown(cluster: FakeCluster) -> None:
    assert "did you mean" not in cluster.run("xyzzy").stderr


def test_h_is_help(cluster: FakeCluster) -> None:
    assert cluster.run("topics", "describe", "-h").stdout.startswith("Usage: ")


@pytest.fixture
def paced(cluster: FakeCluster) -> FakeCluster:
    traffic = iter(range(100))

    def told(_: object) -> DescribeMetadataResponse:
        pace, number = FollowerPace(1, 100, 2, 9, 0, 0, 3), next(traffic)
        return DescribeMetadataResponse(
            *(Errors.NONE, 0, "RunningAsBroker", 0, 1),
            followers=(pace,),
            traffic=Traffic(number, 1_000 * number, 0),
        )

    cluster.answers[DescribeMetadataRequest] = told
    cluster.answers[DescribeControllerRequest] = lambda _: DescribeControllerResponse(
        Errors.NONE, answer_times=(AnswerTimes(1, 4, 5, 40),)
    )
    cluster.with_brokers(2)
    cluster.put_topic("t", {0: ReplicaAssignment((0, 1))}, leaders={0: LeaderAndIsr(0, (0, 1))})
    return cluster


def test_a_wide_list_of_brokers_has_their_pace(paced: FakeCluster) -> None:
    header, _, row = paced.run("brokers", "list", "-o", "wide").stdout.splitlines()
    columns = dict(zip(header.split(), row.split(), strict=True))
    assert (columns["ID"], columns["LEADS"], columns["REPLICAS"]) == ("1", "0", "1")
    assert (columns["ANSWER-P50"], columns["ANSWER-P99"]) == ("5", "40")
    assert (columns["FETCH-P50"], columns["FETCH-P99"]) == ("2", "9")
    assert columns["FREE-BYTES"] == "-", "its Kafka port does not tell"


def test_programs_get_of_brokers_what_a_wide_list_shows(
    paced: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LogDirectorySize(1, "/d", False, 100, 40, (LogSize("t", 0, 7, False),))
    monkeypatch.setattr("regent.client.overview.read_log_dirs", lambda _: {1: [disk]})
    first, second = paced.json("brokers", "list")
    assert (first["log_dirs"], first["free_bytes"], first["leads"]) == (None, None, 1)
    assert second["log_dirs"] == [
        {"path": "/d", "is_offline": False, "total_bytes": 100, "free_bytes": 40, "log_bytes": 7}
    ]
    told = {name: second[name] for name in ("answer_p50_ms", "answer_p99_ms", "fetch_p50_ms")}
    assert told == {"answer_p50_ms": 5, "answer_p99_ms": 40, "fetch_p50_ms": 2}
    rest = {"fetch_p99_ms", "fetch_age_ms", "isr_shrinks", "catching_up", "log_bytes", "replicas"}
    assert rest <= second.keys()


def test_top_shows_all_once(paced: FakeCluster) -> None:
    first, second = paced.json("top", "--once")["brokers"]
    assert (first["id"], first["leads"], second["fetch_p99_ms"]) == (0, 1, 9)
    assert first["bytes_in"] > 0
    shown = paced.run("top", "--once").stdout
    assert re.search(r"^controller +broker 0 \(epoch 1\)$", shown, re.MULTILINE)


def test_top_shows_the_last_failovers_with_who_ended_and_when_clients_knew(
    local: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regent.cli.top._GROUP_TIMEOUT_MS", 50)  # no broker has groups
    at_ms = 1_795_987_600_000
    told = {"broker": 2, "answered_ms": 20.0, "event_id": 2}
    rows = [
        {"ts_ms": at_ms, "event": "Startup", "broker_id": 0, "controller_epoch": 1, "elected": 1},
        {
            "ts_ms": at_ms + 5_000,
            "event": "Reelect",
            "broker_id": 1,
            "elected": 2,
            "handling_ms": 100.0,
        },
        {"ts_ms": at_ms + 5_150, "event": "UpdateMetadataResponseReceived", "broker_id": 1, **told},
    ]
    common = {"controller_epoch": 2, "event_id": 1, "changes": []}
    folder = tmp_path / "broker-1"
    folder.mkdir()
    lines = [json.dumps({**common, **row}) for row in rows]
    (folder / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))

    (failover,) = local.json("top", "--once")["failovers"]

    assert failover == {
        "at_ms": at_ms + 5_000,
        "what": "controller 0 was lost, broker 1 took over",
        "broker_ids": [0],
        "controller_id": 1,
        "clients_knew_after_ms": 150,
    }
    shown = local.run("top", "--once").stdout
    assert re.search(r"^FAILOVER +WHAT +CLIENTS-KNEW-AFTER$", shown, re.MULTILINE)
    assert "took over" in shown
    assert "150 ms" in shown


def test_tables_without_headers_and_yaml(cluster: FakeCluster) -> None:
    cluster.add_broker(7)
    (line,) = cluster.run("brokers", "list", "--no-headers").stdout.splitlines()
    assert line.startswith("7 ")
    shown = cluster.run("brokers", "list", "-o", "yaml").stdout
    assert shown.startswith("- id: 7\n  broker_epoch: ")
    assert '\n  host: "127.0.0.1"\n' in shown
    assert "\n  rack: null\n" in shown


def test_yaml_has_the_values_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    yaml = pytest.importorskip("yaml")
    value = {"a": [1, {"b": "x: y", "no": []}, [[2], {}]], "0": None, "c": {"d": 'q"\n'}}
    context = click.Context(click.Command("x"))
    context.meta["regent.output.form"] = "yaml"
    with context:
        print_json(value)
    assert yaml.safe_load(capsys.readouterr().out) == json.loads(json.dumps(value))
