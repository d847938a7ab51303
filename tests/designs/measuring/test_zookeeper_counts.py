"""What ZooKeeper counts, against requests whose number is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.designs.measuring.four_letter_words import FourLetterWords
from regent.designs.measuring.transaction_log import ZooKeeperLog
from regent.designs.measuring.zookeeper_counts import (
    LoggedCounts,
    ZooKeeperActivity,
    activity,
    read_counts,
)
from regent.testing.waits import eventually
from regent.zk.client.operations import Check, Create, Delete, Operation, SetData
from regent.zk.client.zookeeper_client import ZooKeeperClient

Counted: TypeAlias = Callable[..., ZooKeeperActivity]

pytestmark = [pytest.mark.nightly, pytest.mark.zookeeper]


@pytest.fixture
def counted(zookeeper_server: EmbeddedZooKeeper):
    """Return what the server did in a call.

    The server counts a packet after it has sent it, so the caller names the number to wait for.
    """
    words = FourLetterWords(zookeeper_server.port)
    log = ZooKeeperLog(zookeeper_server.transaction_log)

    def count(act: Callable[[], object], packets: int = 0) -> ZooKeeperActivity:
        log.read_new()
        before = read_counts(words)
        act()
        logged = log.read_new()

        def found() -> list[ZooKeeperActivity]:
            seen = activity(before, read_counts(words), logged)
            return [seen] if seen.packets == packets else []

        return eventually(found, f"{packets} packets")[0]

    return count


@pytest.fixture
def client(zookeeper_address: str):
    client = ZooKeeperClient(zookeeper_address, 1_000, on_watch=lambda _: None)
    client.start(10)
    client.multi([Create("/a", b"1"), Create("/b")])
    yield client
    client.close()


def test_reads_are_counted_as_requests_and_as_znodes(client: ZooKeeperClient, counted: Counted):
    found = counted(lambda: (client.get("/a"), client.get_many(["/a", "/b", "/gone"])), 4)
    assert (found.read_requests, found.znodes_read, found.write_requests) == (2, 3, 0)


def test_a_multi_is_one_request_with_many_writes(client: ZooKeeperClient, counted: Counted):
    operations: list[Operation] = [SetData("/a", b"2", 0), Create("/a/c"), Delete("/b", 0)]
    found = counted(lambda: client.multi(operations), 2)
    assert (found.write_requests, found.znodes_written, found.read_requests) == (1, 3, 0)


def test_refused_writes_and_checks_are_requests_that_write_nothing(
    client: ZooKeeperClient, counted: Counted
):
    found = counted(
        lambda: (client.multi([Check("/a", 0)]), client.multi([SetData("/a", b"", 9)])), 4
    )
    assert (found.write_requests, found.znodes_written) == (2, 0)


def test_watches_are_counted_when_they_are_set_and_when_they_fire(
    client: ZooKeeperClient, counted: Counted
):
    def set_both_and_fire_one() -> None:
        client.get("/a", watch=True)
        client.children("/a", watch=True)
        client.get("/a", watch=True)  # is set already
        client.multi([Create("/a/c")])

    found = counted(set_both_and_fire_one, 2 * 4 + 1)  # and the event
    assert (found.watches_set, found.watches_fired) == (2, 1)


def test_pings_are_distinguished_from_reads(
    client: ZooKeeperClient, counted: Counted, zookeeper_server: EmbeddedZooKeeper
):
    words = FourLetterWords(zookeeper_server.port)
    reads = read_counts(words).reads
    found = counted(
        lambda: eventually(lambda: read_counts(words).reads >= reads + 3, "three pings")
    )
    assert found.pings >= 3
    assert found.read_requests == 0


def test_znodes_that_go_with_their_session_are_no_requests(
    client: ZooKeeperClient, counted: Counted, zookeeper_address: str
):
    other = ZooKeeperClient(zookeeper_address, 10_000, on_watch=lambda _: None)
    other.start(10)
    other.multi([Create("/e1", b"", ephemeral=True), Create("/e2", b"", ephemeral=True)])
    found = counted(other.close)
    assert (found.ephemerals_deleted, found.znodes_written, found.write_requests) == (2, 0, 0)


def test_mntr_and_the_log_agree_about_writes(client: ZooKeeperClient, counted: Counted):
    def write() -> None:
        for number in range(20):
            client.multi([SetData("/a", b"%d" % number, number), Create(f"/b/{number}")])

    found = counted(write, 40)
    assert found.by_log == found.by_mntr == LoggedCounts(transactions=20, changes=40)
