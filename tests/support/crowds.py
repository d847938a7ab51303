"""Sends changed logins to a broker, many at once, and a genuine one."""

from __future__ import annotations

import random
import selectors
import socket
import struct
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from regent.testing.waits import scaled
from tests.support.fuzzed_logins import (
    LAST,
    LAST_REQUEST,
    Conversation,
    Issuer,
    Login,
    Outcome,
    conversation,
)
from tests.support.sasl_users import NAME

Address: TypeAlias = tuple[str, int]
_SOURCES: Final = tuple(f"127.0.0.{number}" for number in range(2, 32))
_HELD_S: Final = 0.4  # nothing has come from any of them for so long
CLOSED_WITHIN_S: Final = 30.0
AT_ONCE: Final = 120


class _Talk:
    """A conversation on a connection. ``answer`` is what has come since the last message."""

    def __init__(self, sock: socket.socket, started: Conversation) -> None:
        self.sock = sock
        self._started = started
        self._next = next(started)
        self._answer = b""
        self.outcome: Outcome | None = None

    def send(self) -> None:
        """Send the next message."""
        self._answer = b""
        with suppress(ConnectionError):
            self.sock.sendall(self._next)

    def receive(self) -> bool:
        """Receive; return whether the conversation has gone on."""
        try:
            some = self.sock.recv(65_536)
        except ConnectionError:
            some = b""
        self._answer += some
        size = int.from_bytes(self._answer[:4], "big")
        if some and (len(self._answer) < 4 or len(self._answer) < 4 + size):
            return False
        try:
            self._next = self._started.send(self._answer[4:] if some else None)
        except StopIteration as end:
            self.outcome = end.value
        return True


def log_in(address: Address, issuer: Issuer, mechanism: str = "SCRAM-SHA-256") -> None:
    """Log in and ask for something; raises ``OSError``."""
    login = Login(mechanism, issuer, random.Random(1), NAME.encode(), "none")
    with socket.create_connection(address, scaled(CLOSED_WITHIN_S)) as sock:
        frames = login.frames()
        frame = next(frames)
        with suppress(StopIteration):
            while True:
                sock.sendall(frame)
                frame = frames.send(_received(sock))
        sock.sendall(LAST_REQUEST)
        if _received(sock)[:4] != struct.pack(">i", LAST):
            raise ConnectionError("a request after the login is not answered")


def _received(sock: socket.socket) -> bytes:
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        some = sock.recv(65_536)
        if not some:
            raise ConnectionError("a genuine login is refused")
        data += some
    return data[4:]


class Crowd:
    """Has many conversations at once.

    ``held``: connections whose server waits for more before anybody has logged in.
    """

    def __init__(self, address: Address, max_held: int = 12) -> None:
        self._address = address
        self._max_held = max_held
        self.held: list[socket.socket] = []
        self.seen: Counter[str] = Counter()

    def talk(self, issuer: Issuer, chance: random.Random) -> list[Outcome]:
        """Have ``AT_ONCE`` conversations; return the outcomes of those that were not held."""
        logins = chance.choice((1, 1, 2))
        conversations = [conversation(issuer, chance, logins) for _ in range(AT_ONCE)]
        max_held = self._max_held if logins == 1 else 0
        going: list[_Talk] = []
        outcomes: list[Outcome] = []
        for number, started in enumerate(conversations):
            source = _SOURCES[number % len(_SOURCES)], 0
            sock = socket.create_connection(self._address, scaled(CLOSED_WITHIN_S), source)
            going.append(_Talk(sock, started))
        while going:
            going = self._round(going, max_held)
            for talk in going:
                if talk.outcome is not None:
                    outcomes.append(talk.outcome)
                    talk.sock.close()
            going = [talk for talk in going if talk.outcome is None]
        return outcomes

    def _round(self, going: Sequence[_Talk], max_held: int) -> list[_Talk]:
        """Send a message of each; return those that were answered before a quiet time."""
        done: list[_Talk] = []
        with selectors.DefaultSelector() as selector:
            for talk in going:
                talk.send()
                selector.register(talk.sock, selectors.EVENT_READ, talk)
            while selector.get_map() and (ready := selector.select(_HELD_S)):
                for key, _ in ready:
                    if key.data.receive():
                        done.append(key.data)
                        selector.unregister(key.fileobj)
            for key in list(selector.get_map().values()):
                self._hold(key.data.sock, max_held)
        return done

    def _hold(self, sock: socket.socket, max_held: int) -> None:
        self.seen["held"] += 1
        if len(self.held) < max_held:
            self.held.append(sock)
        else:
            sock.close()

    def await_closed(self) -> None:
        """Wait until the server has closed what it held, or answers late.

        Raises ``TimeoutError``.
        """
        for sock in self.held:
            sock.settimeout(CLOSED_WITHIN_S)
            with suppress(ConnectionError):
                self.seen["late" if sock.recv(65_536) else "closed"] += 1
            sock.close()
        self.held.clear()
