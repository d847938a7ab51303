"""What is at a port of a JVM, by its answers to a client without a secret."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from regent.client.doctor.spark_ports import SparkPort, spark_port
from regent.testing.waits import scaled

REQUEST = 7  # the number of the request
REFUSAL, RESPONSE = (struct.pack(">qbqi", 25, kind, REQUEST, 4) + b"text" for kind in (5, 4))


@contextmanager
def server(answer: bytes | None) -> Iterator[int]:
    """A server with the same answer for everybody; None: it waits for more."""
    waiting = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                waiting.append(connection)
                connection.recv(4096)
                if answer is not None:
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(scaled(10.0))
            for connection in waiting:
                connection.close()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"!xAuthentication error: unexpected command.\n", SparkPort.PY4J),
        (b"", SparkPort.UNKNOWN),
        (REFUSAL, SparkPort.RPC),
        (RESPONSE, SparkPort.OPEN),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n<h1>Bad Message 400</h1>", SparkPort.UNKNOWN),
        (b"HTTP", SparkPort.UNKNOWN),
        (None, SparkPort.UNKNOWN),
    ],
)
def test_only_a_refusal_of_spark_is_a_port_with_a_secret(answer: bytes | None, expected: SparkPort):
    with server(answer) as port:
        assert spark_port(port, scaled(0.3)) is expected
