"""What a ZooKeeper server did, by its own counts: its answers to ``mntr`` and ``cons``."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from contextlib import closing
from typing import Final, NamedTuple

from regent.cluster.embedded_zookeeper import LOOPBACK
from regent.core.errors import RegentError

_TIMEOUT_S: Final = 30.0  # a loaded machine
_FIRED: Final = re.compile(r"sum_node_\w+_watch_count")
_REQUESTS: Final = re.compile(r"sid=0x([0-9a-f]+),.*?lcxid=0x([0-9a-f]+)")

FOUR_LETTER_WORDS = "srvr,mntr,cons"
"""The questions that the measured servers answer."""


class ZooKeeperCounts(NamedTuple):
    """The counts of a server at one moment, since its start."""

    requests: Mapping[int, int]
    """Of each connected session, the number of its last request. Pings have no number."""
    updates: int
    """Answers to writes, and to the opening and closing of sessions; a multi is one."""
    znodes_read: int
    """Znodes whose data, children or stat were read, also several in one request; not the root."""
    znodes_written: int
    """Znodes created, set and deleted, also in multis and at the end of a session."""
    fired: int
    """Watches that fired; a watch on data and one on children of a znode are two."""
    watches: int
    """Watches that are set now, on data and on children."""

    def requests_since(self, before: ZooKeeperCounts) -> int:
        """Return how many requests the sessions sent that are connected now."""
        return sum(last - before.requests.get(s, 0) for s, last in self.requests.items())


def read_counts(port: int) -> ZooKeeperCounts:
    """Return the present counts of a server on this machine; raises ``RegentError``."""
    told = mntr(port)
    return ZooKeeperCounts(
        {int(s, 16): int(last, 16) for s, last in _REQUESTS.findall(_ask(port, "cons"))},
        int(told["cnt_updatelatency"]),
        _of_all_namespaces(told, "read"),
        znodes_written(told),
        int(sum(count for name, count in told.items() if _FIRED.fullmatch(name))),
        int(told["watch_count"]),
    )


def mntr(port: int) -> dict[str, float]:
    """Return the numbers that a server tells, by name, without the prefix ``zk_``."""
    lines = (line.partition("\t") for line in _ask(port, "mntr").splitlines())
    return {
        name.removeprefix("zk_"): float(value)
        for name, _, value in lines
        if value.replace(".", "", 1).isdecimal()
    }


def znodes_written(told: Mapping[str, float]) -> int:
    """Return ``ZooKeeperCounts.znodes_written`` of an answer to ``mntr``."""
    return _of_all_namespaces(told, "write")


def _of_all_namespaces(told: Mapping[str, float], kind: str) -> int:
    """Return the sum over the top-level znodes below which there was a read or a write."""
    name_of_one = re.compile(rf"cnt_.*_{kind}_per_namespace")
    return int(sum(count for name, count in told.items() if name_of_one.fullmatch(name)))


def _ask(port: int, word: str) -> str:
    try:
        with closing(socket.create_connection((LOOPBACK, port), _TIMEOUT_S)) as connected:
            connected.sendall(word.encode())
            return connected.makefile("rb").read().decode()
    except OSError as error:
        raise RegentError(f"ZooKeeper does not answer {word}: {error}") from None
