"""The console of a large cluster: the real console and controller, with stub brokers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from typing import Any, Final
from urllib.parse import urlsplit

import click

from bench.control_plane import TIMEOUT_S, ControlPlane, replicas_by_broker
from bench.frame import benchmark
from bench.partition_znodes import topic_sizes, write_topics
from bench.processes import cpu_seconds
from bench.result import Case
from bench.told import Leaders

_ROW: Final = "grid-"


@benchmark()
@click.option("--topic-size", type=click.IntRange(1), default=20, show_default=True)
@click.option("--partitions", "counts", type=int, multiple=True, default=(20_000,))
def console(counts: tuple[int, ...], topic_size: int) -> Iterator[Case]:
    """Open the console, and let a broker crash that leads a third of all partitions.

    The console is a process of its own, and finds the cluster by its ZooKeeper.

    ``overview_s``   from the request for the first page of a console that nobody has opened yet
                     until all of it has come; ``overview_again_s``: a second time
    ``grid_s``       the same of the page with a cell for each partition, and ``grid_bytes``
    ``named_s``      from the end of the session of the crashed broker until the open overview was
                     sent the sentence that it is missing
    ``grey_s``       from then until the open grid was sent partitions without a leader, or their
                     new leaders if it shows them first
    ``led_s``        from then until the open grid was sent a live leader of every partition
    ``told_s``       of it until the last stub had been told of the leaders by the controller
    ``sent_bytes``   what the grid was sent in this time
    ``cpu_s``        processor time of the console from the crash until then
    """
    for partitions in counts:
        sizes = topic_sizes(partitions, topic_size)
        with ControlPlane(partitions, 3) as plane:
            write_topics(plane.client, sizes, plane.broker_ids, with_states=True)
            plane.start_candidate().await_ready()
            plane.await_election(0)
            plane.await_told(lambda broker: Leaders(0, 0))
            plane.await_idle()
            with _opened(plane.server.address) as browser:
                yield Case({"partitions": partitions}, _figures(plane, sizes, browser))


class _Browser:
    """A console's process, and requests to it."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process = process
        self._connections = ExitStack()
        self._cookie = ""
        self._host = urlsplit(address).netloc
        answer, _ = self.get(address.partition(self._host)[2])
        self._cookie = (answer.getheader("set-cookie") or "").partition(";")[0]

    def open(self, path: str) -> HTTPResponse:
        """Send a request; return the beginning of the answer."""
        connection = HTTPConnection(self._host, timeout=TIMEOUT_S)
        self._connections.callback(connection.close)
        connection.request("GET", path, headers={"Cookie": self._cookie})
        return self._connections.enter_context(connection.getresponse())

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()

    def get(self, path: str) -> tuple[HTTPResponse, bytes]:
        """Return a whole answer."""
        answer = self.open(path)
        return answer, answer.read()

    def timed(self, path: str) -> tuple[float, int]:
        """Return how long a page takes, and its bytes."""
        began = time.monotonic()
        answer, body = self.get(path)
        assert answer.status == 200, body
        return round(time.monotonic() - began, 3), len(body)


@contextmanager
def _opened(zookeeper: str) -> Iterator[_Browser]:
    command = [sys.executable, "-m", "regent", "console", "--port", "0", "--zookeeper", zookeeper]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready: "), f"the console did not start: {line}"
            with closing(_Browser(process, line.removeprefix("ready: ").strip())) as browser:
                yield browser
        finally:
            process.terminate()


def _messages(answer: HTTPResponse) -> Iterator[tuple[Mapping[str, str], int]]:
    """Yield the parts of each message of an open page, and its bytes."""
    while line := answer.readline():
        if line.startswith(b"data: "):
            content: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
            yield content["parts"], len(line)


def _figures(
    plane: ControlPlane, sizes: Mapping[str, int], browser: _Browser
) -> dict[str, float | int]:
    overview_s, _ = browser.timed("/")
    overview_again_s, _ = browser.timed("/")
    grid_s, grid_bytes = browser.timed("/partitions")
    overview = _messages(browser.open("/live/overview"))
    cells: dict[str, str] = {}
    grid = _messages(browser.open("/live/partitions"))
    next(overview)
    cells.update(next(grid)[0])
    plane.stubs.forget()
    crashed = plane.broker_ids[0]
    cpu = cpu_seconds(browser.process.pid)
    began = plane.stubs.crash(crashed)
    named = next(time.monotonic() for parts, _ in overview if "verdict" in parts)
    grey = led = 0.0
    sent_bytes = 0
    for parts, size in grid:
        cells.update(parts)
        sent_bytes += size
        shown = "".join(row for part, row in cells.items() if part.startswith(_ROW))
        grey = grey or ("~" in shown or "-" in shown) * time.monotonic()
        if str(crashed) not in shown and "~" not in shown and "-" not in shown:
            led = time.monotonic()
            break
    cpu = cpu_seconds(browser.process.pid) - cpu
    orphans = replicas_by_broker(sizes, plane.broker_ids, leader=crashed)
    told = plane.await_told(lambda b: Leaders(orphans[b], orphans[crashed], 3, gone=0))
    return {
        "overview_s": overview_s,
        "overview_again_s": overview_again_s,
        "grid_s": grid_s,
        "grid_bytes": grid_bytes,
        "named_s": round(named - began, 3),
        "grey_s": round((grey or led) - began, 3),
        "led_s": round(led - began, 3),
        "told_s": round(max(each.at or 0.0 for each in told.values()) - began, 3),
        "sent_bytes": sent_bytes,
        "cpu_s": round(cpu, 2),
    }
