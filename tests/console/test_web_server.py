"""Whom the console answers, and what its pages say about a cluster."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.testclient import TestClient

from regent.client.cluster_connection import Cluster, ClusterLocation
from regent.client.lag_rates import LagPaces
from regent.client.partitions import Topics
from regent.cluster.console_child import TOKEN
from regent.config.addresses import listening_socket
from regent.console import operator_actions, view_collector, web_server
from regent.console.bootstrap_source import partitions_of
from regent.console.browser_gate import FORM_TOKEN, HEADERS, BrowserGate
from regent.console.cluster_view import ClusterVerdict, grid, verdict
from regent.console.inquiries import GroupRow, LagRow
from regent.console.pages import MENU, render
from regent.console.web_server import Console, server_of
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.broker import (
    DescribeEventsRequest,
    DescribeMetadataRequest,
    DescribeMetadataResponse,
)
from regent.core.protocol.controller import DescribeControllerRequest
from regent.storage.journal_reader import read_part
from regent.testing.waits import eventually, scaled
from regent.transport.control.codec import Request, Response
from regent.transport.local_users import LocalUsers
from tests.support.fake_cluster import ADDRESS, FakeCluster, write_cluster_file

SECRET = "the-token"
BASE = "http://127.0.0.1:8080"
JOURNAL: list[dict[str, Any]] = [
    {"ts_ms": 1_795_987_600_000, "broker_id": 0, "event": "Startup", "elected": 1},
    {"ts_ms": 1_795_987_601_000, "broker_id": 0, "event": "BrokerChange", "failed": [2]},
    {"ts_ms": 1_795_987_602_000, "elected": 3},  # a damaged line
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    """Three brokers with a topic, found by a data directory with a journal."""
    with closing(FakeCluster()) as cluster:
        cluster.with_brokers(3)
        cluster.put_topic("payments", {0: (0, 1, 2), 1: (1, 2, 0)})
        write_cluster_file(tmp_path, zookeeper=ADDRESS)
        (tmp_path / "broker-0").mkdir()
        common = {"controller_epoch": 1, "event_id": 1, "cause": "", "changes": []}
        lines = [orjson.dumps({**line, **common}) for line in JOURNAL]
        (tmp_path / "broker-0" / "events.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        yield cluster


def console_of(cluster: FakeCluster, folder: Path | None, *, may_write: bool = False) -> Console:
    found = Cluster(lambda: ClusterLocation(ADDRESS, folder), cluster.open)
    return Console(found, BrowserGate(SECRET, 8080), may_write=may_write)


@pytest.fixture
def console(cluster: FakeCluster, tmp_path: Path) -> Iterator[Console]:
    """A console that only shows."""
    console = console_of(cluster, tmp_path)
    console.collector.start()
    yield console
    console.stop()


@pytest.fixture
def writing(cluster: FakeCluster, tmp_path: Path) -> Iterator[Console]:
    """A console that may change the cluster."""
    console = console_of(cluster, tmp_path, may_write=True)
    console.collector.start()
    yield console
    console.stop()


def stranger(console: Console) -> TestClient:
    """A browser without the token."""
    return TestClient(console.application, base_url=BASE, follow_redirects=False)


def browser(console: Console) -> TestClient:
    """A browser that has opened the printed address."""
    client = stranger(console)
    assert client.get("/", params={TOKEN: SECRET}).status_code == 200
    return client


# --- who is answered ------------------------------------------------------------------------------


def test_a_browser_with_the_token_gets_the_page(console: Console) -> None:
    answer = browser(console).get("/")
    assert answer.status_code == 200
    assert "Controller: broker 0, epoch 1" in answer.text


@pytest.mark.parametrize("path", ["/", "/partitions", "/live/overview", "/static/console.js"])
def test_a_browser_without_the_token_gets_nothing(console: Console, path: str) -> None:
    assert stranger(console).get(path).status_code == 403


def test_a_wrong_token_sets_no_cookie(console: Console) -> None:
    answer = stranger(console).get("/", params={TOKEN: "another"})
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_the_cookie_is_for_this_site_only_and_not_for_scripts(console: Console) -> None:
    cookie = stranger(console).get("/", params={TOKEN: SECRET}).headers["set-cookie"].lower()
    assert "samesite=strict" in cookie
    assert "httponly" in cookie
    assert SECRET not in cookie


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "10.0.0.1", "", "127.0.0.1.x"]
)
def test_a_name_that_another_site_points_at_this_machine_is_refused(
    console: Console, host: str
) -> None:
    client = browser(console)
    assert client.get("/", headers={"host": host}).status_code == 421
    assert client.get("/", params={TOKEN: SECRET}, headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost:9999", "[::1]:8080", "127.0.0.1"])
def test_loopback_is_answered_by_any_of_its_names_and_through_a_tunnel(
    console: Console, host: str
) -> None:
    gate = BrowserGate(SECRET, 8080)
    headers = {"host": host, "cookie": f"{gate.cookie_name}={gate.cookie}"}
    assert stranger(console).get("/static/console.css", headers=headers).status_code == 200


def test_every_answer_forbids_frames_and_foreign_scripts(console: Console) -> None:
    for answer in (browser(console).get("/journal"), stranger(console).get("/")):
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]


def test_no_page_has_a_script_or_a_style_of_its_own(console: Console) -> None:
    """The policy would refuse them: the page would silently lack something."""
    client = browser(console)
    for name in MENU:
        text = client.get(f"/{name}").text
        assert text.count("<script") == text.count('<script src="/static/')
        assert " style=" not in text
        assert "onclick" not in text


def answer_to_a_request(connection: socket.socket) -> bytes:
    """Return the beginning of the answer; nothing if the connection was closed instead."""
    try:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        return connection.recv(100)
    except (ConnectionResetError, BrokenPipeError):
        return b""


def test_other_users_of_this_machine_are_refused(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nobody(LocalUsers):
        def admits(self, connection: socket.socket, port_name: str) -> bool:
            return False

    monkeypatch.setattr(web_server, "local_users", lambda setting: Nobody({os.geteuid()}))
    with listening_socket("127.0.0.1", 0) as listening:
        server = server_of(console)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            with socket.create_connection(listening.getsockname(), scaled(10)) as connection:
                assert answer_to_a_request(connection) == b""
        finally:
            server.end()
            thread.join(scaled(10))
        assert not thread.is_alive()


# --- changes --------------------------------------------------------------------------------------


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The operations that were performed, instead of performing them."""
    performed: list[tuple[str, str]] = []

    def perform(cluster: Cluster, name: str, fields: Mapping[str, str]) -> str:
        performed.append((name, fields["target"]))
        return "done"

    monkeypatch.setattr(web_server, "perform", perform)
    return performed


def form(**fields: str) -> dict[str, str]:
    return {FORM_TOKEN: BrowserGate(SECRET, 8080).form_token, "target": "1", **fields}


OURS = {"origin": BASE}


def test_a_change_is_asked_about_and_then_done(
    writing: Console, done: list[tuple[str, str]]
) -> None:
    client = browser(writing)
    question = client.get("/ask/kill", params={"target": "1"})
    assert "Kill broker 1" in question.text
    assert done == []
    assert client.post("/do/kill", data=form(), headers=OURS).status_code == 303
    assert done == [("kill", "1")]


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({"origin": "http://evil.example"}, {}),
        ({"origin": "http://127.0.0.1:9999"}, {}),
        ({"origin": "null"}, {}),
        ({}, {}),
        (OURS, {FORM_TOKEN: ""}),
        (OURS, {FORM_TOKEN: "guessed"}),
    ],
)
def test_a_form_of_another_site_is_refused(
    writing: Console,
    done: list[tuple[str, str]],
    headers: dict[str, str],
    fields: dict[str, str],
) -> None:
    answer = browser(writing).post("/do/kill", data=form(**fields), headers=headers)
    assert answer.status_code == 403
    assert done == []


def test_a_form_without_the_cookie_is_refused(
    writing: Console, done: list[tuple[str, str]]
) -> None:
    assert stranger(writing).post("/do/kill", data=form(), headers=OURS).status_code == 403
    assert done == []


def test_reading_a_page_changes_nothing(writing: Console, done: list[tuple[str, str]]) -> None:
    client = browser(writing)
    for name in operator_actions.OPERATIONS:
        assert client.get(f"/do/{name}", params=form()).status_code == 405
        assert client.head(f"/do/{name}").status_code == 405
    assert done == []


def test_a_console_that_only_shows_does_nothing(
    console: Console, done: list[tuple[str, str]]
) -> None:
    client = browser(console)
    assert client.get("/ask/kill", params={"target": "1"}).status_code == 404
    assert client.post("/do/kill", data=form(), headers=OURS).status_code == 404
    assert "/ask/" not in client.get("/").text
    assert done == []


def test_a_long_form_is_refused(writing: Console, done: list[tuple[str, str]]) -> None:
    answer = browser(writing).post("/do/kill", data=form(more="x" * 20_000), headers=OURS)
    assert answer.status_code == 413
    assert done == []


def test_what_fails_is_told(writing: Console, tmp_path: Path) -> None:
    answer = browser(writing).post("/do/kill", data=form(target="7"), headers=OURS)
    assert answer.status_code == 409
    assert "broker 7 was not started on this machine" in answer.text
    (line,) = (tmp_path / operator_actions.CHANGES_FILE).read_text().splitlines()
    written = json.loads(line)
    assert written["operation"] == "kill"
    assert written["user"]
    assert "failed" in written["result"]


# --- pages ----------------------------------------------------------------------------------------


def test_the_overview_shows_the_brokers_and_a_failover_of_the_journal(console: Console) -> None:
    client = browser(console)
    text = client.get("/").text
    assert "broker 2 died" in text
    assert text.count('<div class="lane">') == 3
    assert "epoch 1" in client.get("/failover", params={"key": "1-1"}).text


def test_brokers_of_other_machines_are_asked_for_their_journals(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    """With ``--zookeeper`` alone there is no file of a journal."""

    def journal(request: Request) -> Response | Errors | None:
        if isinstance(request, DescribeEventsRequest):
            return read_part(tmp_path / "broker-0", 7, request)
        return cluster.lead(request)

    cluster.add_broker(7, control_endpoint=cluster.serve(journal))
    console = console_of(cluster, None)
    console.collector.start()
    try:
        client = browser(console)
        eventually(lambda: "broker 2 died" in client.get("/").text, "it is told", scaled(10))
        assert "No journal" not in client.get("/journal").text
    finally:
        console.stop()


def test_the_grid_has_a_cell_for_each_partition(console: Console) -> None:
    text = browser(console).get("/partitions").text
    assert '<div id="grid" role="grid" aria-label="Partitions by topic">payments ~~</div>' in text


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/topic?name=absent",
        "/partition?topic=payments&partition=7",
        "/partition?topic=payments&partition=x",
        "/failover?key=9-9",
        "/live/nothing",
        "/static/../pages.py",
    ],
)
def test_what_does_not_exist_is_not_found(console: Console, path: str) -> None:
    assert browser(console).get(path).status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "/topic?name=payments",
        "/partition?topic=payments&partition=0",
        "/records?topic=payments&partition=0",
    ],
)
def test_what_is_not_read_yet_is_not_called_absent(
    cluster: FakeCluster, console: Console, path: str
) -> None:
    cluster.is_reachable = False
    answer = browser(console).get(path)
    assert answer.status_code == 503
    assert "not known yet" in answer.text


def test_a_thread_of_the_collector_that_fails_says_so_and_goes_on(
    cluster: FakeCluster, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_collector, "_RETRY_S", 0.1)

    def fail(*_: Any) -> Any:
        raise LookupError("a fault of ours")

    with console.collector.watched():
        with monkeypatch.context() as faulty:
            faulty.setattr(view_collector, "_rows", fail)
            told = "the console failed: LookupError: a fault of ours"
            eventually(lambda: console.collector.view.problem == told, "it is told")
        eventually(lambda: not console.collector.view.problem, "it goes on")


def test_a_cluster_that_is_away_is_a_problem_on_the_page(
    cluster: FakeCluster, console: Console
) -> None:
    cluster.is_reachable = False
    client = browser(console)
    assert "no ZooKeeper answers" in client.get("/").text


def test_a_controller_that_does_not_answer_is_a_problem_until_it_answers(
    cluster: FakeCluster, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_collector, "_ASK_CONTROLLER_S", 0.2)
    monkeypatch.setattr(view_collector, "_SLOW_S", 0.1)
    for number in range(2):
        cluster.put_state(TopicPartition("payments", number), 1, (0, 1, 2))

    def said() -> str:
        return verdict(console.collector.current()).sentence

    with console.collector.watched():
        eventually(lambda: said().startswith("All is well"), "it is well")
        cluster.answers[DescribeControllerRequest] = lambda _: None
        silent = "The controller does not answer"
        eventually(lambda: said().startswith(silent), "its silence is told")
        del cluster.answers[DescribeControllerRequest]
        eventually(lambda: said().startswith("All is well"), "it is well again")


def test_the_top_line_has_what_status_warns_of_until_it_is_mended(
    cluster: FakeCluster, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_collector, "_TROUBLES_S", 0.1)
    for number in range(2):
        cluster.put_state(TopicPartition("payments", number), 1, (0, 1, 2))

    def warn(_: Request) -> Response:
        warnings = ("/data is 96 % full: free some of it",)
        return DescribeMetadataResponse(Errors.NONE, 0, "RunningAsBroker", 0, 1, warnings=warnings)

    cluster.answers[DescribeMetadataRequest] = warn

    def said() -> ClusterVerdict:
        return verdict(console.collector.current())

    with console.collector.watched():
        eventually(lambda: "96 % full" in said().sentence, "the full disk is told")
        status = cluster.run("status", "--zookeeper", ADDRESS, "-o", "json").stdout
        warned = json.loads(status)["warnings"]
        assert said().level == "warning"
        assert said().sentence.lower().startswith(warned[0].lower())
        del cluster.answers[DescribeMetadataRequest]
        eventually(lambda: said().sentence.startswith("All is well"), "it is mended")


def test_names_that_others_choose_are_escaped() -> None:
    evil = "<script>alert(1)</script>"
    rows = (LagRow(TopicPartition("t", 0), 1, 2, evil),)
    group = GroupRow(evil, evil, 0, (evil,), rows)
    groups = [(group, group.lags(LagPaces()))]
    html = render("groups.html", groups=groups, problems=[evil], may_write=True)
    assert "<script" not in html
    assert "&lt;script&gt;" in html


def test_the_grid_follows_leaders_that_change_after_the_end_of_a_broker(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No journal tells of it, and the next reading in its turn is ten minutes away."""
    monkeypatch.setattr(view_collector, "_SLOW_S", 600.0)
    monkeypatch.setattr(view_collector, "_UNSETTLED_S", 1.0)
    reads: list[float] = []

    def counted(source: Any, topics: Sequence[str]) -> Topics:
        reads.append(time.monotonic())
        return partitions_of(source, topics)

    monkeypatch.setattr(view_collector, "partitions_of", counted)
    collector = console_of(cluster, None).collector
    collector.start()

    def first_cell() -> str:
        return grid(collector.view).get("payments", " ")[0]

    try:
        with collector.watched():
            eventually(
                lambda: bool(reads) and time.monotonic() - reads[-1] > 0.5, "it rests", scaled(30)
            )
            before = len(reads)
            cluster.unregister(2)
            eventually(lambda: len(reads) > before, "it reads soon", scaled(10))
            cluster.put_state(TopicPartition("payments", 0), 1, (1,))
            eventually(lambda: first_cell() == "b", "it reads on", scaled(10))
    finally:
        collector.close()


def test_nothing_is_asked_of_the_cluster_while_nobody_looks(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regent.console.view_collector._IDLE_S", 0.0)
    calls: list[str] = []
    cluster.hook = lambda call: calls.append(str(call))
    console = console_of(cluster, tmp_path)
    console.collector.start()
    try:
        assert calls == []
        with console.collector.watched():
            eventually(lambda: len(calls) > 3, "a page is collected for", scaled(10))
        eventually(lambda: not console.collector.has_sessions, "it rests", scaled(10))
        calls.clear()
        assert threading.Event().wait(0.5) is False
        assert calls == []
    finally:
        console.stop()


def test_partitions_get_their_new_leaders_although_a_whole_reading_is_slow(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only those that the broker led are read again; a reading that goes on is given up."""
    payments = [TopicPartition("payments", number) for number in (0, 1)]
    for partition in payments:
        cluster.put_state(partition, 2, (0, 1, 2))
    is_slow, has_begun = threading.Event(), threading.Event()

    def slow(source: Any, topics: Sequence[str]) -> Topics:
        found = partitions_of(source, topics)
        if is_slow.is_set():
            has_begun.set()
            ended.wait(scaled(30))
        return found

    ended = threading.Event()
    monkeypatch.setattr(view_collector, "partitions_of", slow)
    collector = console_of(cluster, None).collector
    collector.start()
    try:
        with collector.watched():
            eventually(lambda: grid(collector.view).get("payments") == "22", "read", scaled(10))
            is_slow.set()
            collector.refresh()
            assert has_begun.wait(scaled(10))
            cluster.unregister(2)
            eventually(lambda: grid(collector.view)["payments"] == "--", "grey", scaled(10))
            for partition in payments:
                cluster.put_state(partition, 1, (0, 1))
            eventually(lambda: grid(collector.view)["payments"] == "bb", "led", scaled(3))
    finally:
        is_slow.clear()
        ended.set()
        collector.close()
