"""What ended controllers is written on condition that nobody else has written or removed it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from regent.core.ports import ControllerFailure
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.stores.failure_store import ControllerFailuresZNode
from tests.support.fake_zookeeper import Call, FakeZooKeeper, FakeZooKeeperServer, Moment

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
    """Add one while the node is ``written``, or removed, after it was read; return all."""
    session = FakeZooKeeper(server)

    def interfere(call: Call) -> None:
        if PATH in call.paths and call.method.startswith("multi") and call.moment is Moment.BEFORE:
            session.hook = None
            if written:
                put(server, *written)
            else:
                server.remove(PATH)

    session.hook = interfere
    store = ZkControllerStore(session)
    store.change_failures(add_new, epoch_zk_version=0)
    return store.read_failures()


def test_records_that_somebody_removed_meanwhile_do_not_come_back(
    server: FakeZooKeeperServer,
) -> None:
    put(server, OLD)
    assert change_while(server, ()) == (NEW,)


@pytest.mark.parametrize("known", [(), (OLD,)])
def test_what_another_wrote_meanwhile_stays(
    server: FakeZooKeeperServer, known: tuple[ControllerFailure, ...]
) -> None:
    if known:
        put(server, *known)
    assert change_while(server, (OLD, OTHER)) == (OLD, OTHER, NEW)
