"""The pages of a cluster with 20,000 partitions: they are small, and only changes are sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import orjson
import pytest

from regent.client.cluster_connection import Cluster, ClusterLocation, open_session
from regent.client.partitions import DescribedPartition
from regent.config.addresses import listening_socket
from regent.console import pages, web_server
from regent.console.browser_gate import BrowserGate
from regent.console.cluster_view import BrokerRow, ClusterView, PartitionTable
from regent.console.inquiries import Answers, BrokerQuestions
from regent.console.view_collector import ViewCollector
from regent.console.web_server import Console, server_of
from regent.core.model import (
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    ReplicaAssignment,
    TopicPartition,
)
from regent.testing.waits import scaled

TOPICS, SIZE, BROKERS = 1_000, 20, (0, 1, 2)


def view_of(live: tuple[int, ...], led_by: tuple[int, ...]) -> ClusterView:
    """The cluster while these brokers live; those in ``led_by`` lead and are in sync."""
    partitions = []
    for topic in range(TOPICS):
        for number in range(SIZE):
            replicas = tuple((number + j) % 3 for j in range(3))
            isr = tuple(r for r in replicas if r in led_by)
            state = LeaderIsrAndControllerEpoch(LeaderAndIsr(isr[0], isr, 1, 1), 1)
            at = TopicPartition(f"topic-{topic:04}", number)
            partitions.append(DescribedPartition(at, None, ReplicaAssignment(replicas), state))
    now_ms = time.time() * 1000
    table = PartitionTable.of(partitions, (), dict.fromkeys(live), now_ms)
    rows = tuple(BrokerRow(broker_id, broker_id in live) for broker_id in BROKERS)
    return ClusterView(
        now_ms, "zk:2181", controller_id=0, controller_epoch=1, brokers=rows, table=table
    )


class Snapshot(ViewCollector):
    """A collector that collects nothing: the test shows it what there is."""

    def current(self, partitions_s: float = 0.0) -> ClusterView:
        return self.view

    def show(self, view: ClusterView) -> None:
        self.view = view
        self._on_change()


class OpenConsole:
    """A console that is served, and a browser that has its cookie."""

    def __init__(self, console: Console, gate: BrowserGate, port: int) -> None:
        assert isinstance(console.collector, Snapshot)
        self.collector = console.collector
        self._gate = gate
        self._port = port
        self._connections = ExitStack()

    def get(self, path: str) -> HTTPResponse:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=scaled(10))
        self._connections.callback(connection.close)
        connection.request("GET", path, headers={"Cookie": self._cookie})
        return self._connections.enter_context(connection.getresponse())

    def close(self) -> None:
        self._connections.close()

    @property
    def _cookie(self) -> str:
        return f"{self._gate.cookie_name}={self._gate.cookie}"


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenConsole]:
    """A console that shows a healthy cluster."""
    monkeypatch.setattr(web_server, "ViewCollector", Snapshot)
    with listening_socket("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        gate = BrowserGate("token", port)
        cluster = Cluster(lambda: ClusterLocation("127.0.0.1:1", None), open_session)
        console = Console(cluster, gate)
        server = server_of(console)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        opened = OpenConsole(console, gate, port)
        opened.collector.show(view_of(BROKERS, BROKERS))
        try:
            yield opened
        finally:
            opened.close()
            server.end()
            thread.join(scaled(10))


def message(answer: HTTPResponse) -> tuple[dict[str, Any], int]:
    """The next message of an open page, and its bytes."""
    while not (line := answer.readline()).startswith(b"data: "):
        pass
    return orjson.loads(line.removeprefix(b"data: ")), len(line)


def test_the_first_pages_are_small_and_cost_little(console: OpenConsole) -> None:
    began = time.process_time()
    overview, grid = console.get("/").read(), console.get("/partitions").read()
    assert time.process_time() - began < 1.0
    assert len(overview) < 10_000
    assert len(grid) < 50_000
    assert b"topic-0999 " in grid


def test_a_failover_of_all_partitions_is_one_small_message(console: OpenConsole) -> None:
    grey = view_of((0, 1), BROKERS)
    led = view_of((0, 1), (0, 1))
    page = console.get("/live/partitions")
    first, _ = message(page)
    assert first["is_whole"]
    assert first["parts"]["grid-topic-0000"].startswith("012012")

    began = time.process_time()
    console.collector.show(grey)
    said, size = message(page)
    assert said["parts"]["grid-topic-0000"].startswith("01-01-")
    console.collector.show(led)
    said, again = message(page)
    assert said["parts"]["grid-topic-0999"].startswith("aba")
    assert time.process_time() - began < 0.4
    assert max(size, again) < 60_000


def test_only_rows_that_have_changed_are_sent(console: OpenConsole) -> None:
    page = console.get("/live/partitions")
    message(page)
    view = console.collector.view
    (first, *others) = view.table.partitions
    state = LeaderIsrAndControllerEpoch(LeaderAndIsr(1, (1,), 2, 2), 1)
    led_by_1 = replace(first, state=state)
    changed = PartitionTable.of([led_by_1, *others[:-SIZE]], (), dict.fromkeys(BROKERS), 1.0)
    console.collector.show(replace(view, table=changed))
    said, size = message(page)
    rows = {part for part in said["parts"] if part.startswith("grid-")}
    assert rows == {"grid-topic-0000"}
    assert said["gone"] == ["grid-topic-0999"]
    assert size < 2_000


def test_a_thousand_topics_have_pages_and_a_filter(
    console: OpenConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    class Questions(BrokerQuestions):
        def __init__(self, cluster: Cluster, known: object = None) -> None:
            """Ask nobody."""

        def sizes(self, topics: Mapping[str, object]) -> Answers[Any]:
            asked.append(len(topics))
            return Answers({})

    monkeypatch.setattr(pages, "BrokerQuestions", Questions)
    first, last, beyond, some = (
        console.get(f"/topics?{query}").read().decode()
        for query in ("", "page=5", "page=99", "text=PIC-099")
    )
    assert "page 1 of 5" in first
    assert "topic-0199" in first
    assert "topic-0200" not in first
    assert "topic-0999" in last
    assert last == beyond
    assert "10 topics with PIC-099 in the name" in some
    assert asked == [200, 200, 200, 10]
    assert max(map(len, (first, last))) < 60_000
