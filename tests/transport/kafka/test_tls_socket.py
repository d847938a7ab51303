"""Bytes over TLS: what was refused goes out again, what TLS keeps is read, keys may change."""

from __future__ import annotations

import random
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from regent.core.errors import StorageError
from regent.core.records import MemoryRecords
from regent.testing.waits import scaled
from regent.transport.kafka.framing import SENDFILE_MIN_BYTES, TURN_BYTES
from regent.transport.kafka.tls import ServerTls
from regent.transport.kafka.tls_socket import TlsOutgoing, TlsSocket
from tests.support.certificates import Authority
from tests.transport.kafka.test_outgoing import FileRecords

WAIT_S = scaled(10.0)
CONTENT = bytes(range(256)) * 8192


@pytest.fixture(params=["TLSv1.2", "TLSv1.3"])
def ends(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[TlsSocket, ssl.SSLSocket]]:
    """The end of a listener, which sends little at a time and does not block; and its client's."""
    authority = Authority(tmp_path)
    tls = ServerTls(authority.config(ssl_enabled_protocols=request.param))
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    shaken: list[ssl.SSLSocket] = []
    thread = threading.Thread(target=lambda: shaken.append(tls.handshake(ours, WAIT_S)[0]))
    thread.start()
    client = authority.client_context().wrap_socket(theirs, server_hostname="localhost")
    thread.join(WAIT_S)
    shaken[0].setblocking(False)
    client.settimeout(WAIT_S)
    with shaken[0], client:
        yield TlsSocket(shaken[0]), client


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[BinaryIO]:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(CONTENT)
    with path.open("rb") as file:
        yield file


def drain(outgoing: TlsOutgoing, receiver: ssl.SSLSocket) -> bytes:
    """Send until nothing is left, with a receiver that is slow."""
    received, dice = bytearray(), random.Random(1)
    receiver.setblocking(False)
    while outgoing.size or outgoing.send():
        outgoing.send()
        for _ in range(dice.randint(0, 5)):
            try:
                received += receiver.recv(dice.choice([1, 100, 20_000]))
            except ssl.SSLWantReadError:
                break
    receiver.settimeout(WAIT_S)
    return bytes(received)


def test_memory_and_files_arrive_whole_and_in_order(
    ends: tuple[TlsSocket, ssl.SSLSocket], segment: BinaryIO
):
    sender, receiver = ends
    outgoing = TlsOutgoing(sender)
    expected = b""
    for number in range(100):
        outgoing.add(b"header %d" % number)
        outgoing.add(b"")
        expected += b"header %d" % number
    for position, size in [(1000, SENDFILE_MIN_BYTES), (5, 100), (0, 1_000_003)]:
        outgoing.add(FileRecords(segment, position, size))
        outgoing.add(bytearray(b"between"))
        expected += CONTENT[position : position + size] + b"between"
    outgoing.add(MemoryRecords(CONTENT[:300_001]))
    expected += CONTENT[:300_001]
    assert outgoing.size == len(expected)

    received = drain(outgoing, receiver)
    while len(received) < len(expected):
        received += receiver.recv(1 << 16)
    assert received == expected


def test_a_piece_that_was_refused_goes_out_again_with_what_was_added_meanwhile(
    ends: tuple[TlsSocket, ssl.SSLSocket],
):
    sender, receiver = ends
    outgoing = TlsOutgoing(sender)
    outgoing.add(CONTENT[:50_000])
    sent = outgoing.send()
    assert outgoing.send() == 0
    for _ in range(10):
        outgoing.add(CONTENT[:1_000])
    assert sent + outgoing.size == 60_000
    received = drain(outgoing, receiver)
    while len(received) < 60_000:
        received += receiver.recv(1 << 16)
    assert received == CONTENT[:50_000] + CONTENT[:1_000] * 10


def test_a_turn_ends_though_the_peer_could_take_more(tmp_path: Path):
    authority = Authority(tmp_path)
    tls = ServerTls(authority.config())
    path = tmp_path / "big"
    path.write_bytes(bytes(8 << 20))
    with socket.create_server(("127.0.0.1", 0)) as server, path.open("rb") as file:

        def read() -> None:
            context = authority.client_context()
            with (
                socket.create_connection(server.getsockname(), WAIT_S) as sock,
                context.wrap_socket(sock, server_hostname="localhost") as client,
            ):
                while client.recv(1 << 20):
                    pass

        thread = threading.Thread(target=read)
        thread.start()
        accepted, _ = server.accept()
        sender, _ = tls.handshake(accepted, WAIT_S)
        with sender:
            sender.setblocking(False)
            outgoing = TlsOutgoing(TlsSocket(sender))
            outgoing.add(FileRecords(file, 0, 8 << 20))
            assert 0 < outgoing.send() < TURN_BYTES + SENDFILE_MIN_BYTES
            assert outgoing.size
        thread.join(WAIT_S)


def test_a_file_that_lost_its_records_is_an_error_and_no_endless_loop(
    ends: tuple[TlsSocket, ssl.SSLSocket], segment: BinaryIO
):
    outgoing = TlsOutgoing(ends[0])
    outgoing.add(FileRecords(segment, 1 << 30, SENDFILE_MIN_BYTES))
    with pytest.raises(StorageError):
        outgoing.send()


def test_what_does_not_fit_is_known_to_be_there(ends: tuple[TlsSocket, ssl.SSLSocket]):
    ours, client = ends
    client.sendall(CONTENT[:10_000])
    memory = memoryview(bytearray(10_000))
    more = []
    for start, end in ((0, 100), (100, 10_000)):
        assert ours.recv_into(memory[start:end]) == end - start
        more.append(ours.has_more)
    assert more == [True, False]
    assert memory == CONTENT[:10_000]
    with pytest.raises(BlockingIOError):
        ours.recv_into(memory)


def test_several_records_are_received_at_once(ends: tuple[TlsSocket, ssl.SSLSocket]):
    ours, client = ends
    for start in range(0, 3_000, 1_000):
        client.sendall(CONTENT[start : start + 1_000])
    memory = memoryview(bytearray(1 << 16))
    assert ours.recv_into(memory) == 3_000
    assert memory[:3_000] == CONTENT[:3_000]


def test_the_end_comes_after_what_was_sent(ends: tuple[TlsSocket, ssl.SSLSocket]):
    ours, client = ends
    client.sendall(b"last words")
    client.close()
    memory = memoryview(bytearray(1 << 16))
    assert ours.recv_into(memory) == 10
    assert ours.recv_into(memory) == 0


def test_who_is_closed_is_told_so(ends: tuple[TlsSocket, ssl.SSLSocket]):
    ours, client = ends
    client.suppress_ragged_eofs = False  # type: ignore[attr-defined]
    ours.close()
    assert client.recv(1) == b""
    ours.close()


def test_who_left_before_the_answer_broke_the_connection(ends: tuple[TlsSocket, ssl.SSLSocket]):
    ours, client = ends
    client.close()
    outgoing = TlsOutgoing(ours)
    outgoing.add(CONTENT)
    with pytest.raises(ConnectionError):
        outgoing.send()


def test_bytes_that_were_changed_on_the_way_are_an_error(tmp_path: Path):
    authority = Authority(tmp_path)
    tls = ServerTls(authority.config())
    ours, theirs = socket.socketpair()
    raw = theirs.dup()
    shaken: list[ssl.SSLSocket] = []
    thread = threading.Thread(target=lambda: shaken.append(tls.handshake(ours, WAIT_S)[0]))
    thread.start()
    client = authority.client_context().wrap_socket(theirs, server_hostname="localhost")
    thread.join(WAIT_S)
    shaken[0].setblocking(False)
    with shaken[0], client, raw:
        raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
        with pytest.raises(ssl.SSLError):
            TlsSocket(shaken[0]).recv_into(memoryview(bytearray(100)))


def test_a_few_bytes_of_a_large_request_wake_nobody_until_the_request_lacks_little():
    context = ssl.create_default_context()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), WAIT_S) as client,
        server.accept()[0] as accepted,
        context.wrap_socket(
            accepted, do_handshake_on_connect=False, server_hostname="localhost"
        ) as ours,
    ):
        connection = TlsSocket(ours)
        connection.expect(200_000)
        client.sendall(bytes(10_000))
        assert not select.select([connection], [], [], 0)[0]
        connection.expect(80_000)
        assert select.select([connection], [], [], WAIT_S)[0]
