"""What TLS costs a listener: its processor time for the bytes that it sends and receives.

The listener is a process of its own, and this process is its only client. It sends from a file, as
to consumers, and receives requests of a megabyte, as from producers. ``cpu_s_per_gb`` is its
processor time for 10^9 bytes, ``mb_per_s`` is limited by the client too. ``handshake_ms`` is the
processor time of a new connection. The key is of the curve P-256.
"""

from __future__ import annotations

import multiprocessing
import socket
import ssl
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO, Final

import click
import trustme

from bench.frame import benchmark
from bench.result import Case
from regent.config.private_files import write_private
from regent.config.tables.tls import TlsConfig
from regent.core.records import FileRange
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.listener import KafkaListener
from regent.transport.kafka.tls import ServerTls

PIECE_BYTES: Final = 1_000_000
HANDSHAKES: Final = 200
_VERSION: Final = 1
_HEADER: Final = struct.Struct(">ihhih")


@dataclass
class _FileRecords:
    """Records in a file, as a log has them."""

    file: BinaryIO
    size: int = PIECE_BYTES

    @property
    def file_range(self) -> FileRange:
        return FileRange(self.file, 0)

    def read(self) -> bytes:
        raise AssertionError("large records are not read as a whole")


@benchmark()
@click.option("--megabytes", type=click.IntRange(1), default=500, show_default=True)
def tls(megabytes: int) -> Iterator[Case]:
    """Measure each direction without and with TLS, in turn."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        context = _certificates(folder)
        for is_encrypted in (False, True):
            with _listener(folder, is_encrypted) as (port, cpu_s):
                for direction in ("send", "receive"):
                    with _connected(port, context if is_encrypted else None) as client:
                        _ask(client, direction, 20)  # warm up
                        before, began = cpu_s(), time.monotonic()
                        _ask(client, direction, megabytes)
                        elapsed, used = time.monotonic() - began, cpu_s() - before
                    figures: dict[str, Any] = {
                        "cpu_s_per_gb": round(used / megabytes * 1000, 3),
                        "mb_per_s": round(megabytes / elapsed),
                    }
                    yield Case({"tls": is_encrypted, "direction": direction}, figures)
                if is_encrypted:
                    before = cpu_s()
                    for _ in range(HANDSHAKES):
                        with _connected(port, context) as client:
                            _ask(client, "receive", 0)
                    used_ms = (cpu_s() - before) * 1000 / HANDSHAKES
                    yield Case(
                        {"tls": True, "direction": "connect"}, {"handshake_ms": round(used_ms, 2)}
                    )


def _certificates(folder: Path) -> ssl.SSLContext:
    """Write the files of a listener; return what its client has."""
    ca = trustme.CA(key_type=trustme.KeyType.ECDSA)
    issued = ca.issue_cert("localhost", key_type=trustme.KeyType.ECDSA)
    write_private(folder / "keys.pem", issued.private_key_and_cert_chain_pem.bytes().decode())
    context = ssl.create_default_context()
    ca.configure_trust(context)
    return context


@contextmanager
def _listener(folder: Path, is_encrypted: bool) -> Iterator[tuple[int, Any]]:
    """Start a listener; yield its port, and what returns the processor time of its process."""
    ours, theirs = multiprocessing.Pipe()
    arguments = (theirs, str(folder / "keys.pem") if is_encrypted else None)
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=arguments)
    process.start()

    def cpu_s() -> float:
        ours.send("cpu")
        used: float = ours.recv()
        return used

    try:
        yield ours.recv(), cpu_s
    finally:
        ours.send("end")
        process.join()


def _serve(pipe: Connection, keys: str | None) -> None:
    """Run a listener, in its own process, until it is told to end."""
    with tempfile.TemporaryFile() as file:
        file.write(bytes(PIECE_BYTES))
        file.flush()

        async def fetch(_: KafkaRequest) -> KafkaAnswer:
            return (b"header", _FileRecords(file))

        async def produce(_: KafkaRequest) -> KafkaAnswer:
            return (b"done",)

        listener = KafkaListener(
            "127.0.0.1",
            0,
            [
                KafkaApi(KafkaApiKey.METADATA, 0, _VERSION, fetch),
                KafkaApi(KafkaApiKey.PRODUCE, 0, _VERSION, produce),
            ],
            tls=None if keys is None else ServerTls(TlsConfig(ssl_keystore_location=keys)),
        )
        listener.start()
        pipe.send(listener.port)
        while pipe.recv() == "cpu":
            pipe.send(time.process_time())
        listener.close()


@contextmanager
def _connected(port: int, context: ssl.SSLContext | None) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port)) as sock:
        if context is None:
            yield sock
        else:
            with context.wrap_socket(sock, server_hostname="localhost") as encrypted:
                yield encrypted


def _ask(client: socket.socket, direction: str, megabytes: int) -> None:
    """Let the listener send or receive so much; two requests are always under way."""
    is_received = direction == "receive"
    key = KafkaApiKey.PRODUCE if is_received else KafkaApiKey.METADATA
    body = bytes(PIECE_BYTES if is_received else 0)
    request = _HEADER.pack(_HEADER.size - 4 + len(body), key, _VERSION, 1, 0) + body
    memory = memoryview(bytearray(2 * PIECE_BYTES))
    for number in range(megabytes + 1):
        if number < megabytes:
            client.sendall(request)
        if number:
            _receive(client, memory[:4])
            (size,) = struct.unpack_from(">i", memory)
            _receive(client, memory[:size])


def _receive(client: socket.socket, memory: memoryview) -> None:
    received = 0
    while received < len(memory):
        count = client.recv_into(memory[received:])
        if not count:
            raise ConnectionError("the listener closed the connection")
        received += count
