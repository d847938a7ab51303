"""The four-letter words of a ZooKeeper server, by which it tells its own counts."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from contextlib import closing
from typing import Final, NamedTuple

from regent.cluster.embedded_zookeeper import LOOPBACK
from regent.core.errors import BadDataError, RegentError

_TIMEOUT_S: Final = 30.0  # a loaded machine
_CONNECTION: Final = re.compile(
    r"recved=(\d+),sent=(\d+),sid=0x([0-9a-f]+),.*?(?:,lcxid=0x([0-9a-f]+)|\))"
)
_SUMMARY: Final = re.compile(r"(\d+) connections watching (\d+) paths\s+Total watches:(\d+)")


class WatchSummary(NamedTuple):
    """The answer to ``wchs``: the watches on data, without those on children (ZooKeeper 3.9)."""

    connections: int
    paths: int
    watches: int


class SessionCounts(NamedTuple):
    """What a connected session has sent and received on its present connection.

    ``last_request`` is the number of its last request: clients count from 1 on, without pings.
    ``packets`` are those received and sent: requests, answers, watch events, and pings.
    """

    last_request: int
    packets: int


class FourLetterWords:
    """Asks a server on this machine.

    A question is a packet of the server, and its answer several: ``mntr`` counts them with those of
    clients, ``cons`` does not.
    """

    def __init__(self, port: int) -> None:
        self._port = port

    def mntr(self) -> Mapping[str, float]:
        """Return the counts of the server, by name."""
        return monitored(self._ask("mntr"))

    def cons(self) -> Mapping[int, SessionCounts]:
        """Return the connected sessions."""
        return connected_sessions(self._ask("cons"))

    def wchs(self) -> WatchSummary:
        """Return how many connections watch how many paths."""
        return watch_summary(self._ask("wchs"))

    def _ask(self, word: str) -> str:
        try:
            with closing(socket.create_connection((LOOPBACK, self._port), _TIMEOUT_S)) as sock:
                sock.sendall(word.encode())
                with sock.makefile("rb") as answer:
                    return answer.read().decode()
        except OSError as error:
            raise RegentError(f"ZooKeeper does not answer {word}: {error}") from None


def monitored(answer: str) -> dict[str, float]:
    """Return the numbers in an answer to ``mntr``, without the prefix ``zk_``."""
    found: dict[str, float] = {}
    for line in answer.splitlines():
        name, _, value = line.partition("\t")
        try:
            found[name.removeprefix("zk_")] = float(value)
        except ValueError:
            continue  # the version, the state of the server
    if "packets_received" not in found:
        raise BadDataError(f"this is no answer to mntr: {answer[:80]!r}")
    return found


def connected_sessions(answer: str) -> dict[int, SessionCounts]:
    """Return the sessions in an answer to ``cons``; other connections have none."""
    return {
        int(session, 16): SessionCounts(int(last or "0", 16), int(received) + int(sent))
        for received, sent, session, last in _CONNECTION.findall(answer)
    }


def watch_summary(answer: str) -> WatchSummary:
    """Return the numbers in an answer to ``wchs``."""
    found = _SUMMARY.search(answer)
    if found is None:
        raise BadDataError(f"this is no answer to wchs: {answer[:80]!r}")
    return WatchSummary(*map(int, found.groups()))
