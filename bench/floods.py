"""What floods of strangers and of a stolen key cost an innocent producer.

A `regent cluster` of three brokers, as it is by default. One producer sends ``--rate`` records a
second, acks=all, three replicas, to six partitions. It is measured alone, and during each flood, in
turn. Times are in milliseconds, from ``produce`` to the acknowledgement. Beside it somebody
connects ten times a second, to one broker after the other, and asks for its versions:
``connect_p99_ms``.

``spin``                   two processes that only compute: they take processor time as any flood
                           does, and disturb nobody else
``elsewhere``              another user connects without end to as many ports of its own: what the
                           kernel costs, without a broker
``connections``            another user (``nobody``; only root can start it) connects to every port
                           of every broker as often as it can, and sends some bytes
``silent``                 it holds as many connections to every port as it gets
``send_requests``          the owner of a stolen key of broker 1 sends requests to the control port
                           of broker 0 as fast as it can, over 16 connections, and reads no answer
``prove_again_and_again``  it connects and proves the key as often as it can

Floods have a low priority (``nice 10``), because attackers have processors of their own.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

import click
import msgpack
import zmq

from bench.clients import TIMEOUT_S
from bench.frame import benchmark
from bench.latency import measure
from bench.result import Case, percentiles
from bench.topics import topic_of
from regent.config.addresses import keyed_endpoint
from regent.config.threads import NamedThread
from regent.core.protocol.api import ApiKey
from regent.testing.regent_cluster import RegentCluster
from regent.transport.control.client import RequestError
from regent.transport.control.key_files import BROKER_SECRET, read_secret
from regent.transport.control.sockets import connect_to, new_context, open_socket
from regent.transport.kafka.broker_connection import BrokerConnection

PARTITIONS: Final = 6
RECORD_BYTES: Final = 100
CONNECTIONS: Final = 16
_BETWEEN_NEWCOMERS_S: Final = 0.1
_NEWCOMER_TIMEOUT_MS: Final = 5_000
_PORTS: Final = ("port", "replication_port", "control_port", "metrics_port")

_SPIN: Final = "while True: pass"
# Another user may not read this file, so these are given as text.
_CONNECT: Final = """\
import itertools, socket, sys
for port in itertools.cycle(map(int, sys.argv[1:])):
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as peer:
            peer.sendall(bytes(200))
    except OSError:
        pass
"""
_CONNECT_ELSEWHERE: Final = (
    """\
import itertools, os, selectors, socket, sys
listening = [socket.create_server(("127.0.0.1", 0), backlog=1024) for _ in sys.argv[1:]]
end_of_parent, parent = os.pipe()
if os.fork() == 0:
    os.close(parent)
    selector = selectors.DefaultSelector()
    for one in (end_of_parent, *listening):
        selector.register(one, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj == end_of_parent:
                os._exit(0)
            key.fileobj.accept()[0].close()
sys.argv[1:] = [one.getsockname()[1] for one in listening]
"""
    + _CONNECT
)
_HOLD: Final = """\
import itertools, socket, sys, time
held = []
for port in itertools.cycle(map(int, sys.argv[1:])):
    try:
        held.append(socket.create_connection(("127.0.0.1", port), 1))
    except OSError:
        time.sleep(0.01)
    if len(held) > 800:
        held.pop(0).close()
"""


@benchmark()
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True)
@click.option("--rate", type=click.FloatRange(1), default=100.0, show_default=True)
def floods(rounds: int, seconds: float, rate: float) -> Iterator[Case]:
    """Measure the producer alone and during each flood in turn."""
    with ExitStack() as stack:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "data"
        cluster = stack.enter_context(RegentCluster(data, "--no-placement-service"))
        servers = cluster.bootstrap_servers
        topic = stack.enter_context(topic_of(servers, PARTITIONS))
        for flood in _floods(cluster, data) * rounds:
            with flood.running(), _newcomers(servers.split(",")) as waits_ms:
                figures = measure(
                    servers, topic, PARTITIONS, RECORD_BYTES, rate, seconds.__gt__, {"acks": "all"}
                )
            connects = percentiles(waits_ms, connect_p50_ms=0.5, connect_p99_ms=0.99)
            yield Case({"flood": flood.name}, {**figures, **connects})


@contextmanager
def _newcomers(servers: Sequence[str]) -> Iterator[list[float]]:
    """Connect again and again for the block; yield how long each waited for an answer (ms)."""
    waits_ms: list[float] = []
    is_over = threading.Event()

    def connect() -> None:
        for server in itertools.cycle(servers):
            if is_over.wait(_BETWEEN_NEWCOMERS_S):
                return
            began = time.monotonic()
            connection = BrokerConnection(
                f"tcp://{server}", client_id="newcomer", connect_timeout_ms=_NEWCOMER_TIMEOUT_MS
            )
            with closing(connection), suppress(RequestError):
                connection.versions(timeout_ms=_NEWCOMER_TIMEOUT_MS)
            waits_ms.append((time.monotonic() - began) * 1_000)

    thread = NamedThread(connect, "newcomers")
    thread.start()
    try:
        yield waits_ms
    finally:
        is_over.set()
        thread.join(TIMEOUT_S)


class _Flood(NamedTuple):
    name: str
    program: Sequence[str] = ()
    processes: int = 1
    user: str | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let its processes run for the block; raises ``AssertionError`` if one ends before."""
        with ExitStack() as stack:
            for _ in range(self.processes if self.program else 0):
                stack.enter_context(self._process())
            yield

    @contextmanager
    def _process(self) -> Iterator[None]:
        command = ["nice", "-n", "10", *self.program]
        process = subprocess.Popen(command, user=self.user, stderr=subprocess.PIPE, text=True)
        try:
            yield
            assert process.poll() is None, f"{self.name} has ended: {process.communicate()[1]}"
        finally:
            process.kill()
            process.communicate(timeout=TIMEOUT_S)


def _floods(cluster: RegentCluster, data: Path) -> list[_Flood]:
    ports = [str(broker[port]) for broker in cluster.description["brokers"] for port in _PORTS]
    of_all_users = shutil.which("python3", path=os.defpath) or "python3"
    found = [_Flood("none"), _Flood("spin", [of_all_users, "-c", _SPIN], processes=2)]
    if os.geteuid() == 0:
        texts = {"elsewhere": _CONNECT_ELSEWHERE, "connections": _CONNECT, "silent": _HOLD}
        for name, text in texts.items():
            found.append(_Flood(name, [of_all_users, "-c", text, *ports], user="nobody"))
    folders = [data / f"broker-{broker_id}" / BROKER_SECRET for broker_id in (0, 1)]
    control_port = cluster.description["brokers"][0]["control_port"]
    endpoint = keyed_endpoint(f"tcp://127.0.0.1:{control_port}", read_secret(folders[0]).public)
    for flood in (send_requests, prove_again_and_again):
        call = f"from bench.floods import *; {flood.__name__}({str(folders[1])!r}, {endpoint!r})"
        found.append(_Flood(flood.__name__, [sys.executable, "-c", call]))
    return found


# --- what the owner of a key does ---


def send_requests(secret: str, endpoint: str) -> NoReturn:
    """Send requests without reading an answer."""
    context = new_context(read_secret(Path(secret)))
    header = msgpack.packb([1, ApiKey.DESCRIBE_METADATA, 0, 1, "flood", None, None, None])
    peers = [open_socket(context, zmq.DEALER) for _ in range(CONNECTIONS)]
    for peer in peers:
        connect_to(peer, endpoint)
    while True:
        for peer in peers:
            with suppress(zmq.Again):
                peer.send_multipart((b"", header, b"\x80"), zmq.NOBLOCK)


def prove_again_and_again(secret: str, endpoint: str) -> NoReturn:
    """Connect, prove the key, and leave."""
    context = new_context(read_secret(Path(secret)))
    while True:
        peer = open_socket(context, zmq.DEALER)
        connect_to(peer, endpoint)
        peer.poll(100, zmq.POLLOUT)  # it is connected
        peer.close()
