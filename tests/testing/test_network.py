"""Links between brokers and ZooKeeper that are cut; a broker is a program with its command line."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from regent.testing.network import Network
from regent.testing.waits import next_line, scaled

TIMEOUT_S = scaled(10.0)
BROKER = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
    for line in sys.stdin:
        connection.sendall(line.encode())
        print("sent", flush=True)
"""

Broker = Callable[[str], None]


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as undo:
        yield undo


@pytest.fixture
def zookeeper(undo: ExitStack) -> socket.socket:
    server = undo.enter_context(socket.create_server(("127.0.0.1", 0)))
    server.settimeout(TIMEOUT_S)
    return server


@pytest.fixture
def network(undo: ExitStack) -> Network:
    return undo.enter_context(closing(Network(2)))


@pytest.fixture
def port(network: Network, zookeeper: socket.socket) -> int:
    """The port that brokers use for ZooKeeper."""
    options = network.open(f"127.0.0.1:{zookeeper.getsockname()[1]}")
    return int(options[1].rpartition(":")[2])


@pytest.fixture
def start_broker(undo: ExitStack, port: int) -> Callable[[], Broker]:
    """Start a program that looks like broker 0; what it is given it sends to ZooKeeper."""

    def start() -> Broker:
        process = undo.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", BROKER, str(port), "broker", "--id", "0"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        undo.callback(process.kill)

        def send(line: str) -> None:
            assert process.stdin is not None
            process.stdin.write(line)
            process.stdin.flush()
            assert next_line(process, "the line is sent") == "sent\n"

        return send

    return start


def received(connection: socket.socket, count: int) -> bytes:
    connection.settimeout(TIMEOUT_S)
    data = b""
    while len(data) < count and (more := connection.recv(count - len(data))):
        data += more
    return data


def forward_for_a_client(port: int, zookeeper: socket.socket) -> None:
    """Let the proxy do what it had to do before this: it forwards for a client."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as client:
        client.sendall(b"client\n")
        connection, _ = zookeeper.accept()
        with connection:
            assert received(connection, 7) == b"client\n"


def test_a_connection_stalls_while_its_link_is_cut_and_loses_nothing(
    network: Network, port: int, zookeeper: socket.socket, start_broker: Callable[[], Broker]
) -> None:
    send = start_broker()
    send("before\n")
    connection, _ = zookeeper.accept()
    with connection:
        assert received(connection, 7) == b"before\n"
        network.cut(network.links(0, "zookeeper"))
        send("while\n")
        forward_for_a_client(port, zookeeper)
        connection.setblocking(False)
        with pytest.raises(BlockingIOError):
            connection.recv(1)
        network.restore(network.links(0, None))
        send("after\n")
        assert received(connection, 12) == b"while\nafter\n"


def test_a_cut_also_holds_for_the_next_process_of_the_broker(
    network: Network, port: int, zookeeper: socket.socket, start_broker: Callable[[], Broker]
) -> None:
    network.cut(network.links(0, None))
    start_broker()("cut off\n")
    forward_for_a_client(port, zookeeper)  # which the next connection would precede
    network.cut(network.links(1, None))
    network.restore_all()
    connection, _ = zookeeper.accept()
    with connection:
        assert received(connection, 8) == b"cut off\n"


@pytest.mark.parametrize(
    ("broker_id", "other", "problem"),
    [
        (2, None, "there is no broker 2: the cluster has brokers 0 to 1"),
        (0, 0, "broker 0 has no link to 0"),
        (0, 2, "broker 0 has no link to 2"),
        (1, "zoo", "broker 1 has no link to 'zoo': name another one of brokers 0 to 1"),
    ],
)
def test_a_link_that_does_not_exist_is_named(
    network: Network, broker_id: int, other: int | str | None, problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        network.links(broker_id, other)
