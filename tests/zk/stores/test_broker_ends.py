"""Why a broker ended is in ZooKeeper until it registers again."""

from __future__ import annotations

from regent.zk.client.operations import Create
from regent.zk.codecs.broker_znodes import BrokerEnd
from regent.zk.stores.broker_ends import forget_end, note_end, read_ends
from regent.zk.znodes import BrokerEndZNode, BrokerIdZNode
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.world import World

FULL = BrokerEnd(1_000, "No space left on device")
ASKED = BrokerEnd(2_000, "it was shut down", was_asked=True)


def test_the_last_end_is_read_and_then_forgotten() -> None:
    session = FakeZooKeeper(World().zookeeper)
    assert read_ends(session) == {}
    assert note_end(session, 10, ASKED)
    assert note_end(session, 2, ASKED)
    assert note_end(session, 2, FULL)
    assert read_ends(session) == {2: FULL, 10: ASKED}
    forget_end(session, 2)
    forget_end(session, 2)
    assert read_ends(session) == {10: ASKED}


def test_an_old_process_does_not_speak_for_the_one_that_has_its_id_now() -> None:
    world = World()
    old, new = FakeZooKeeper(world.zookeeper), FakeZooKeeper(world.zookeeper)
    for parent in ("/brokers", "/brokers/ids"):
        new.multi([Create(parent)])
    new.multi([Create(BrokerIdZNode.path(2), b"{}", ephemeral=True)])
    assert not note_end(old, 2, FULL)
    assert note_end(new, 2, FULL)


def test_an_unreadable_end_hides_no_other() -> None:
    world = World()
    session = FakeZooKeeper(world.zookeeper)
    note_end(session, 1, FULL)
    world.put(BrokerEndZNode.path(2), b"garbage")
    assert read_ends(session) == {1: FULL}
