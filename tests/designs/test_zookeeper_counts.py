"""What ZooKeeper counts, against requests whose number is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import pytest

from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.designs.measuring.zookeeper_counts import ZooKeeperCounts, mntr, read_counts
from regent.testing.waits import eventually
from regent.zk.client.operations import Check, Create, Delete, Operation, SetData
from regent.zk.client.zookeeper_client import ZooKeeperClient

pytestmark = [pytest.mark.nightly, pytest.mark.zookeeper]


class Activity(NamedTuple):
    """What a server did in a call."""

    requests: int
    updates: int
    znodes_read: int
    znodes_written: int
    fired: int
    watches: int  # more than before


Counted: TypeAlias = Callable[..., Activity]


def activity(before: ZooKeeperCounts, after: ZooKeeperCounts) -> Activity:
    pairs = zip(before[1:], after[1:], strict=True)
    return Activity(after.requests_since(before), *(now - was for was, now in pairs))


@pytest.fixture
def counted(zookeeper_server: EmbeddedZooKeeper) -> Counted:
    """Return what the server did in a call.

    The server counts a packet after it has sent it, so the caller names what to wait for.
    """

    def count(act: Callable[[], object], **expected: int) -> Activity:
        before = read_counts(zookeeper_server.port)
        act()

        def found() -> list[Activity]:
            seen = activity(before, read_counts(zookeeper_server.port))
            is_complete = all(getattr(seen, name) == n for name, n in expected.items())
            return [seen] if is_complete else []

        return eventually(found, f"{expected}")[0]

    return count


@pytest.fixture
def client(zookeeper_address: str):
    client = ZooKeeperClient(zookeeper_address, 1_000, on_watch=lambda _: None)
    client.start(10)
    client.multi([Create("/a", b"1"), Create("/b")])
    yield client
    client.close()


def test_reads_are_counted_as_requests_and_as_znodes(client: ZooKeeperClient, counted: Counted):
    found = counted(lambda: (client.get("/a"), client.get_many(["/a", "/b", "/gone"])), requests=2)
    assert (found.znodes_read, found.updates) == (3, 0)


def test_a_multi_is_one_request_with_many_writes(client: ZooKeeperClient, counted: Counted):
    operations: list[Operation] = [SetData("/a", b"2", 0), Create("/a/c"), Delete("/b", 0)]
    found = counted(lambda: client.multi(operations), requests=1)
    assert (found.updates, found.znodes_written) == (1, 3)


def test_refused_writes_and_checks_are_requests_that_write_nothing(
    client: ZooKeeperClient, counted: Counted
):
    found = counted(
        lambda: (client.multi([Check("/a", 0)]), client.multi([SetData("/a", b"", 9)])), requests=2
    )
    assert (found.updates, found.znodes_written) == (2, 0)


def test_watches_are_counted_when_they_are_set_and_when_they_fire(
    client: ZooKeeperClient, counted: Counted
):
    def set_both_and_fire_one() -> None:
        client.get("/a", watch=True)
        client.children("/a", watch=True)
        client.get("/a", watch=True)  # is set already
        client.multi([Create("/a/c")])

    found = counted(set_both_and_fire_one, requests=4)
    assert (found.watches + found.fired, found.fired) == (2, 1)


def test_pings_are_no_requests(
    client: ZooKeeperClient, counted: Counted, zookeeper_server: EmbeddedZooKeeper
):
    pings = mntr(zookeeper_server.port)["cnt_readlatency"] + 3
    found = counted(
        lambda: eventually(
            lambda: mntr(zookeeper_server.port)["cnt_readlatency"] >= pings, "three pings"
        )
    )
    assert found.requests == 0


def test_the_end_of_a_session_is_one_update_that_deletes_its_znodes(
    client: ZooKeeperClient, counted: Counted, zookeeper_address: str
):
    other = ZooKeeperClient(zookeeper_address, 10_000, on_watch=lambda _: None)
    other.start(10)
    other.multi([Create("/e1", b"", ephemeral=True), Create("/e2", b"", ephemeral=True)])
    found = counted(other.close, updates=1)
    assert (found.requests, found.znodes_written) == (0, 2)
