"""The four-letter words of a ZooKeeper server, by which it tells its own counts."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from contextlib import closing
from typing import Final, NamedTuple

from regent.core.errors import BadDataError, RegentError
from regent.zk.embedded.embedded_zookeeper import LOOPBACK

_TIMEOUT_S: Final = 30.0  # a loaded machine
_CONNECTION: Final = re.compile(r"sid=0x([0-9a-f]+),.*?(?:,lcxid=0x([0-9a-f]+)|\))")
_SUMMARY: Final = re.compile(r"(\d+) connections watching (\d+) paths\s+Total watches:(\d+)")


class WatchSummary(NamedTuple):
    """The answer to ``wchs``: the watches on data, without those on children (ZooKeeper 3.9)."""

    connections: int
    paths: int
    watches: int


class FourLetterWords:
    """Asks a server on this machine.

    ``asked``: how many words were sent; the server counts each as a packet that it received.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.asked = 0

    def mntr(self) -> Mapping[str, float]:
        """Return the counts of the server, by name."""
        return monitored(self._ask("mntr"))

    def cons(self) -> Mapping[int, int]:
        """Return the connected sessions, each with the number of its last request.

        Clients number their requests from 1 on, without pings.
        """
        return last_requests(self._ask("cons"))

    def wchs(self) -> WatchSummary:
        """Return how many connections watch how many paths."""
        return watch_summary(self._ask("wchs"))

    def _ask(self, word: str) -> str:
        self.asked += 1
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


def last_requests(answer: str) -> dict[int, int]:
    """Return the sessions in an answer to ``cons``; other connections have none."""
    return {int(session, 16): int(last or "0", 16) for session, last in _CONNECTION.findall(answer)}


def watch_summary(answer: str) -> WatchSummary:
    """Return the numbers in an answer to ``wchs``."""
    found = _SUMMARY.search(answer)
    if found is None:
        raise BadDataError(f"this is no answer to wchs: {answer[:80]!r}")
    return WatchSummary(*map(int, found.groups()))
