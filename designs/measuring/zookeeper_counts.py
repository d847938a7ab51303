"""What a ZooKeeper server did in an interval, by its own counts.

``mntr`` has counts of reads, of writes, of znodes read and written and of watches that fired;
``cons`` has the packets of each session and the number of its last request; the transaction log has
each write with its author. Together they tell apart what one of them mixes: the server counts a
ping as a read, and a multi as one write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from regent.designs.measuring.four_letter_words import FourLetterWords, SessionCounts
from regent.designs.measuring.transaction_log import Transaction, TransactionKind

_FIRED: Final = tuple(
    f"sum_node_{event}_watch_count" for event in ("created", "deleted", "changed", "children")
)
_ATTEMPTS: Final = 10
_OF_CLIENTS: Final = (TransactionKind.CHANGE, TransactionKind.REFUSED)


@dataclass(frozen=True, slots=True)
class ZooKeeperCounts:
    """The counts of a server at one moment."""

    reads: int
    """Answers to reads since the start, pings included."""
    updates: int
    """Answers to writes, and to the opening and closing of sessions by connected clients."""
    znodes_read: int
    """Znodes whose data, children or stat were read, also several in one request; not the root."""
    znodes_written: int
    """Znodes created, set and deleted, also in multis and at the end of a session."""
    fired: int
    """Watches that fired; a watch on data and one on children of a znode are two."""
    watches: int
    """Watches that are set now, on data and on children."""
    sessions: Mapping[int, SessionCounts]
    """The connected sessions."""


@dataclass(frozen=True, slots=True)
class LoggedCounts:
    """What both the transaction log and ``mntr`` tell.

    ``transactions``: writes, refused writes, and sessions opened and closed. ``changes``: znodes
    created, set and deleted, also by the end of a session.
    """

    transactions: int
    changes: int


@dataclass(frozen=True, slots=True)
class ZooKeeperActivity:
    """What a server did between two moments in which nothing happened.

    Without pings: their number depends on how long the interval was.
    """

    read_requests: int
    """Requests of sessions that are still connected at the end and that wrote nothing."""
    znodes_read: int
    """Znodes found by these; several can be read in one request."""
    write_requests: int
    """Requests to write, also refused ones; a multi is one."""
    znodes_written: int
    """Znodes created, set and deleted by these."""
    ephemerals_deleted: int
    """Znodes that disappeared with their sessions."""
    watches_set: int
    """Watches set; one that was set already counts once, and so does one that fired since."""
    watches_fired: int
    """Watches that fired, see ``ZooKeeperCounts.fired``."""
    packets: int
    """Packets between the server and sessions that are connected at the end, watch events too."""
    pings: int
    """Pings, which are in none of the other counts."""
    by_log: LoggedCounts
    by_mntr: LoggedCounts
    """The same from two sources. ``mntr`` lacks the ends of sessions that timed out."""


def read_counts(words: FourLetterWords) -> ZooKeeperCounts:
    """Return the present counts of a server.

    The answers to two words are of the same moment if no packet came between them. So they are
    asked again if one came, but not for ever: a busy server has no such moment.
    """
    sessions = words.cons()
    for _ in range(_ATTEMPTS):
        told, earlier, sessions = words.mntr(), sessions, words.cons()
        if sessions == earlier:
            break
    return ZooKeeperCounts(
        reads=int(told["cnt_readlatency"]),
        updates=int(told["cnt_updatelatency"]),
        znodes_read=_of_all_namespaces(told, "read"),
        znodes_written=_of_all_namespaces(told, "write"),
        fired=int(sum(told[name] for name in _FIRED)),
        watches=int(told["watch_count"]),
        sessions=sessions,
    )


def activity(
    before: ZooKeeperCounts,
    after: ZooKeeperCounts,
    transactions: Iterable[Transaction],
    watches_lost: int = 0,
) -> ZooKeeperActivity:
    """Return what happened between two moments.

    ``transactions`` are those of the interval, and ``watches_lost`` the watches that disappeared
    with their connections.
    """
    logged = list(transactions)
    of_clients = [t for t in logged if t.kind in _OF_CLIENTS]
    written_by = Counter(t.session for t in of_clients)
    counted = _since(before.sessions, after.sessions)
    read_requests = sum(c.last_request - written_by[session] for session, c in counted.items())
    pings = after.reads - before.reads - read_requests
    fired = after.fired - before.fired
    return ZooKeeperActivity(
        read_requests=read_requests,
        znodes_read=after.znodes_read - before.znodes_read,
        write_requests=len(of_clients),
        znodes_written=sum(len(t.writes) for t in of_clients),
        ephemerals_deleted=sum(len(t.writes) for t in logged if t.closes_session),
        watches_set=after.watches - before.watches + fired + watches_lost,
        watches_fired=fired,
        packets=sum(c.packets for c in counted.values()) - 2 * pings,
        pings=pings,
        by_log=LoggedCounts(len(logged), sum(len(t.writes) for t in logged)),
        by_mntr=LoggedCounts(
            after.updates - before.updates, after.znodes_written - before.znodes_written
        ),
    )


def _since(
    before: Mapping[int, SessionCounts], after: Mapping[int, SessionCounts]
) -> dict[int, SessionCounts]:
    """Return what each connected session did; a new connection counts from 0 on."""
    found: dict[int, SessionCounts] = {}
    for session, last in after.items():
        first = before.get(session, SessionCounts(0, 0))
        if last.packets < first.packets:
            first = SessionCounts(0, 0)
        found[session] = SessionCounts(
            last.last_request - first.last_request, last.packets - first.packets
        )
    return found


def _of_all_namespaces(told: Mapping[str, float], kind: str) -> int:
    """Return the sum over the top-level znodes below which there was a read or a write."""
    suffix = f"_{kind}_per_namespace"
    return int(sum(n for name, n in told.items() if _is_count(name) and name.endswith(suffix)))


def _is_count(name: str) -> bool:
    return name.startswith("cnt_")
