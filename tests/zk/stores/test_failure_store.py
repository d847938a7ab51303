"""The records of controller failures are written only if no other write came in between."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from regent.core.ports import ControllerFailure
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.znodes import ControllerFailuresZNode
from tests.support.fake_zookeeper import FakeZooKeeper, FakeZooKeeperServer, Moment, once

PATH = ControllerFailuresZNode.PATH
OLD, NEW, OTHER = (ControllerFailure(what, "e", "x", 1, 0, 1) for what in ("old", "new", "other"))


@pytest.fixture
def server() -> FakeZooKeeperServer:
    server = FakeZooKeeperServer()
    server.put("/controller_epoch")
    return server


def put(server: FakeZooKeeperServer, *failures: ControllerFailure) -> None:
    server.put(PATH, ControllerFailuresZNode.encode(failures))


def add_new(failures: Sequence[ControllerFailure]) -> Sequence[ControllerFailure]:
    return [*failures, NEW]


def change_while(
    server: FakeZooKeeperServer, written: tuple[ControllerFailure, ...]
) -> Sequence[ControllerFailure]:
    """Add a record while the node is ``written``, or removed, after the read; return all."""
    session = FakeZooKeeper(server)

    def interfere() -> None:
        if written:
            put(server, *written)
        else:
            server.remove(PATH)

    session.hook = once(Moment.BEFORE, interfere, path=PATH)
    store = ZkControllerStore(session)
    store.change_failures(add_new, epoch_zk_version=0)
    return store.read_failures()


def test_concurrently_removed_records_stay_removed(
    server: FakeZooKeeperServer,
) -> None:
    put(server, OLD)
    assert change_while(server, ()) == (NEW,)


@pytest.mark.parametrize("known", [(), (OLD,)])
def test_concurrently_written_records_stay(
    server: FakeZooKeeperServer, known: tuple[ControllerFailure, ...]
) -> None:
    if known:
        put(server, *known)
    assert change_while(server, (OLD, OTHER)) == (OLD, OTHER, NEW)
