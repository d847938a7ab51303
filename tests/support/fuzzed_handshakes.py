"""Handshakes of TLS and of CURVE with random changes, and whether a changed one is the same.

A handshake is a genuine one, whose bytes from the client to the server are changed on their way. A
server must let nobody in whose bytes were changed, unless by the protocol they mean the same.
"""

from __future__ import annotations

import random
import select
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Final, NamedTuple

import zmq

from regent.config.addresses import host_of, key_of, keyed_endpoint, port_of
from regent.testing.waits import scaled
from regent.transport.control.sockets import Context, connect_to, open_socket, pieces
from tests.support.crowds import Address
from tests.support.fuzzed_logins import LAST_REQUEST, changed_bytes

QUIET_S: Final = 0.15
PATIENCE_S: Final = scaled(10.0)  # of a genuine handshake
_PLAIN: Final = (LAST_REQUEST, b"GET / HTTP/1.1\r\n\r\n", b"\x80" * 90, b"\x16\x03\x01\xff\xff")


class Handshake(NamedTuple):
    """What became of one. ``is_allowed``: by what was sent, the client may be let in."""

    is_let_in: bool
    is_allowed: bool
    is_changed: bool
    is_held: bool
    detail: str


# --- TLS ---

_RECORD: Final = struct.Struct(">BHH")
_CHANGE_CIPHER_SPEC: Final = 20
_APPLICATION: Final = 23


def same_records(one: bytes, other: bytes) -> bool:
    """Whether records mean the same: their versions count for nothing, nor does a CCS (RFC 8446).

    What comes after the records of ``one`` is after the handshake.
    """
    wanted, found = _records(one), _records(other)
    return found[: len(wanted)] == wanted


def _records(data: bytes) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    while len(data) >= _RECORD.size:
        kind, _, size = _RECORD.unpack_from(data)
        body = data[_RECORD.size : _RECORD.size + size]
        if kind != _CHANGE_CIPHER_SPEC:
            found.append((kind, body))
        data = data[_RECORD.size + size :]
    return found


class TlsTarget:
    """A port with TLS that asks for certificates; ``strangers``: contexts that it must not let in.

    With ``good`` a client is let in.
    """

    def __init__(
        self, address: Address, good: ssl.SSLContext, strangers: Sequence[ssl.SSLContext]
    ) -> None:
        self._address = address
        self._good = good
        self._strangers = strangers

    def handshake(self, chance: random.Random, *, is_genuine: bool = False) -> Handshake:
        """Connect, with a change; ask for something if the client may."""
        quiet_s = PATIENCE_S if is_genuine else QUIET_S
        with socket.create_connection(self._address, quiet_s) as sock:
            if not is_genuine and chance.randrange(12) == 0:
                data = chance.choice(_PLAIN)
                return self._say(sock, changed_bytes(data, chance))
            is_stranger = not is_genuine and chance.randrange(8) == 0
            context = chance.choice(self._strangers) if is_stranger else self._good
            at = None if is_genuine else chance.choice((0, 0, 0, 1, 1, 1, 2, None))
            return _TlsClient(sock, context, chance, at, is_allowed=not is_stranger).run()

    @staticmethod
    def _say(sock: socket.socket, data: bytes) -> Handshake:
        is_held = answer = False
        try:
            sock.sendall(data)
            while some := sock.recv(65_536):
                answer = answer or some[0] != 21  # an alert
        except TimeoutError:
            is_held = True
        except ConnectionError:
            pass
        return Handshake(answer and not is_held, False, True, is_held, repr(data[:99]))


class _TlsClient:
    """One handshake; what is sent the ``at``-th time is changed."""

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        chance: random.Random,
        at: int | None,
        *,
        is_allowed: bool,
    ) -> None:
        self._sock = sock
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_hostname="localhost")
        self._chance = chance
        self._at = at
        self._sent = 0
        self._is_allowed = is_allowed
        self._is_changed = False
        self._detail = ""

    def run(self) -> Handshake:
        """Handshake, and ask for something."""
        is_let_in = is_held = False
        with suppress(ConnectionError, ssl.SSLError):
            try:
                self._exchange(self._tls.do_handshake)
                self._exchange(lambda: self._tls.write(LAST_REQUEST))
                is_let_in = bool(self._exchange(lambda: self._tls.read(100)))
            except TimeoutError:
                is_held = True
        return Handshake(is_let_in, self._is_allowed, self._is_changed, is_held, self._detail)

    def _exchange(self, step: object) -> object:
        while True:
            try:
                result = step()  # type: ignore[operator]
            except ssl.SSLWantReadError:
                self._send()
                some = self._sock.recv(65_536)
                if not some:
                    raise ConnectionError from None
                self._received.write(some)
            else:
                self._send()
                return result

    def _send(self) -> None:
        data = self._to_send.read()
        if not data:
            return
        if self._sent == self._at:
            changed = changed_bytes(data, self._chance)
            self._is_changed = changed != data
            self._is_allowed = self._is_allowed and same_records(data, changed)
            self._detail = f"flight {self._sent}: {data.hex()} -> {changed.hex()}"[:5_000]
            data = changed
        self._sent += 1
        self._sock.sendall(data)


# --- CURVE ---

_GREETING: Final = 64
_FREE: Final = {*range(1, 9), 10, 11, *range(32, _GREETING), *range(74, 146)}
"""Bytes that a peer may choose: padding of the greeting and of HELLO, newer versions, the role."""
_SIGNATURE_END: Final = 9  # only its last bit counts for ZeroMQ
_MEANING: Final = 7  # of the flags of a frame; the other bits are reserved
_LONG: Final = 2
_MAX_RECORDED: Final = 2_000


def same_stream(one: bytes, other: bytes) -> bool:
    """Whether two streams of ZMTP mean the same up to the end of ``one``, which has a request."""
    if len(one) > len(other):
        return False
    meanings = dict.fromkeys(_frame_starts(one), _MEANING) | {_SIGNATURE_END: 1}
    return all(
        a == b or at in _FREE or (at in meanings and not (a ^ b) & meanings[at])
        for at, (a, b) in enumerate(zip(one, other, strict=False))
    )


def _frame_starts(stream: bytes) -> list[int]:
    starts, at = [], _GREETING
    while at + 9 < len(stream):
        starts.append(at)
        is_long = stream[at] & _LONG
        size = int.from_bytes(stream[at + 1 : at + 9], "big") if is_long else stream[at + 1]
        at += size + (9 if is_long else 2)
    return starts


class CurveTarget:
    """A control port, a context with a key that it knows, and a request that it answers."""

    def __init__(self, endpoint: str, context: Context, request: Sequence[bytes]) -> None:
        self._endpoint = endpoint
        self._address = host_of(endpoint), port_of(endpoint)
        self._context = context
        self._request = request
        self._recorded = b""

    def handshake(self, chance: random.Random, *, is_genuine: bool = False) -> Handshake:
        """Connect and ask, with a change; or send a recording of another connection, changed."""
        if is_genuine or not self._recorded or chance.randrange(4) == 0:
            return self._in_the_middle(chance, is_genuine=is_genuine)
        return self._replayed(chance)

    def _replayed(self, chance: random.Random) -> Handshake:
        cut = chance.choice((64, 266, len(self._recorded)))  # greeting, HELLO, everything
        data = changed_bytes(self._recorded[:cut], chance)
        answers = b""
        is_held = False
        with socket.create_connection(self._address, QUIET_S) as sock:
            try:
                sock.sendall(data)
                while some := sock.recv(65_536):
                    answers += some
            except TimeoutError:
                is_held = True
            except ConnectionError:
                pass
        is_let_in = b"\x05READY" in answers  # it would be the answer to an INITIATE
        return Handshake(is_let_in, False, True, is_held, f"replayed {data.hex()}"[:5_000])

    def _in_the_middle(self, chance: random.Random, *, is_genuine: bool) -> Handshake:
        with ExitStack() as stack:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            listener.settimeout(5)
            dealer = open_socket(self._context, zmq.DEALER)
            stack.callback(dealer.close, 0)
            dealer.setsockopt(zmq.RECONNECT_IVL, -1)
            here = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
            connect_to(dealer, keyed_endpoint(here, key_of(self._endpoint)))
            client = stack.enter_context(listener.accept()[0])
            server = stack.enter_context(socket.create_connection(self._address, scaled(5.0)))
            relay = _Relay(client, server, dealer, self._request)
            if not is_genuine and self._recorded:
                relay.change_at = chance.randrange(len(self._recorded))
            result = relay.run(chance, PATIENCE_S if is_genuine else QUIET_S)
        if is_genuine:
            self._recorded = bytes(relay.original[:_MAX_RECORDED])
        return result


class _Relay:
    """Between a client and a server; ``change_at``: where a change begins, None: nowhere."""

    def __init__(
        self,
        client: socket.socket,
        server: socket.socket,
        dealer: zmq.Socket[bytes],
        request: Sequence[bytes],
    ) -> None:
        self._client = client
        self._server = server
        self._dealer = dealer
        self._request = request
        self.change_at: int | None = None
        self.original, self._sent = bytearray(), bytearray()
        self._is_changed = self._has_asked = False

    def run(self, chance: random.Random, quiet_s: float) -> Handshake:
        """Relay until there is an answer, or an end, or a quiet time."""
        is_let_in = is_held = False
        quiet_at = time.monotonic() + quiet_s
        with suppress(ConnectionError):
            while not is_let_in and not is_held:
                self._ask()
                ready, _, _ = select.select([self._client, self._server], [], [], 0.002)
                is_let_in = bool(self._dealer.poll(0, zmq.POLLIN))
                if not all(self._pass_on(end, chance) for end in ready):
                    break
                quiet_at = time.monotonic() + quiet_s if ready else quiet_at
                is_held = time.monotonic() > quiet_at
        same = same_stream(bytes(self.original), bytes(self._sent))
        detail = f"at {self.change_at}: {self.original.hex()} -> {self._sent.hex()}"
        return Handshake(is_let_in, same, self._is_changed, is_held, detail[:5_000])

    def _ask(self) -> None:
        if not self._has_asked and self._dealer.poll(0, zmq.POLLOUT):
            self._has_asked = True
            self._dealer.send_multipart(list(pieces(self._request)))

    def _pass_on(self, end: socket.socket, chance: random.Random) -> bool:
        data = end.recv(65_536)
        if end is self._server:
            self._client.sendall(data)
            return bool(data)
        begin, at = len(self.original), self.change_at
        self.original += data
        if at is not None and begin <= at < begin + len(data):
            at -= begin
            changed = data[:at] + changed_bytes(data[at:], chance)
            self._is_changed = changed != data
            data = changed
        self._sent += data
        self._server.sendall(data)
        return bool(data)
