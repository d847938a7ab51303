from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pytest

from regent.core.errors import StorageError
from regent.core.records import FileRange, MemoryRecords
from regent.testing.waits import scaled
from regent.transport.kafka.framing import SENDFILE_MIN_BYTES, Outgoing


@dataclass
class FileRecords:
    """Records in a file; reading them is for small ones."""

    file: BinaryIO
    position: int
    size: int

    @property
    def file_range(self) -> FileRange:
        return FileRange(self.file, self.position)

    def read(self) -> bytes:
        assert self.size < SENDFILE_MIN_BYTES
        self.file.seek(self.position)
        return self.file.read(self.size)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A socket that sends little at a time, and the one that receives."""
    sender, receiver = socket.socketpair()
    with sender, receiver:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sender.setblocking(False)
        receiver.setblocking(False)
        yield sender, receiver


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[BinaryIO]:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(bytes(range(256)) * 2048)
    with path.open("rb") as file:
        yield file


def drain(outgoing: Outgoing, receiver: socket.socket) -> bytes:
    """Send until nothing is left; what could not be sent at once is sent later."""
    received = bytearray()
    while outgoing.size:
        outgoing.send()
        received += receiver.recv(1 << 20)
    return bytes(received)


def test_files_and_memory_go_out_in_the_order_they_were_added(
    ends: tuple[socket.socket, socket.socket], segment: BinaryIO
):
    sender, receiver = ends
    outgoing = Outgoing(sender)
    content = bytes(range(256)) * 2048
    expected = b""
    for number in range(100):
        outgoing.add(b"header %d" % number)
        outgoing.add(b"")
        expected += b"header %d" % number
    for position, size in [(1000, SENDFILE_MIN_BYTES), (5, 100), (0, 300_000)]:
        outgoing.add(FileRecords(segment, position, size))
        outgoing.add(bytearray(b"between"))
        expected += content[position : position + size] + b"between"
    outgoing.add(MemoryRecords(content))
    expected += content

    assert drain(outgoing, receiver) == expected


def test_a_turn_ends_though_the_peer_could_take_more(tmp_path: Path):
    path = tmp_path / "big"
    path.write_bytes(bytes(8 << 20))
    server = socket.create_server(("127.0.0.1", 0))
    with server, path.open("rb") as file:
        sender = socket.create_connection(server.getsockname(), scaled(5))
        receiver, _ = server.accept()
        with sender, receiver:
            sender.setblocking(False)
            outgoing = Outgoing(sender)
            outgoing.add(FileRecords(file, 0, 8 << 20))
            assert 0 < outgoing.send() < 8 << 20
            assert outgoing.size


def test_a_file_that_lost_its_records_is_an_error_and_no_endless_loop(
    ends: tuple[socket.socket, socket.socket], segment: BinaryIO
):
    outgoing = Outgoing(ends[0])
    outgoing.add(FileRecords(segment, 1 << 30, SENDFILE_MIN_BYTES))
    with pytest.raises(StorageError):
        outgoing.send()


def test_a_peer_that_left_is_an_os_error(ends: tuple[socket.socket, socket.socket]):
    sender, receiver = ends
    receiver.close()
    outgoing = Outgoing(sender)
    outgoing.add(b"too late")
    with pytest.raises(OSError, match="Broken pipe"):
        outgoing.send()
