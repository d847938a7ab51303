"""Reads and updates of ``/admin/reassign_partitions``, and watches on states."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from regent.core.errors import BadDataError, ControllerMovedError
from regent.core.model import TopicPartition
from regent.zk.client.operations import WatchEvent, WatchKind
from regent.zk.znodes import ReassignPartitionsZNode
from tests.support.controller_parts import ControllerParts
from tests.support.fake_zookeeper import Moment, lose_connection, once
from tests.support.world import T0, T1

PATH = ReassignPartitionsZNode.PATH
WANTED = {T0: (3, 2), T1: (4, 5)}
STATE = "/brokers/topics/t/partitions/0/state"


@pytest.fixture
def parts() -> ControllerParts:
    parts = ControllerParts(brokers=())
    parts.zookeeper.put(PATH, ReassignPartitionsZNode.encode(WANTED))
    parts.watches.clear()
    return parts


def left(parts: ControllerParts) -> object:
    node = parts.zookeeper.snapshot().get(PATH)
    return None if node is None else ReassignPartitionsZNode.decode(node.data)


def remove(parts: ControllerParts, settled: Mapping[TopicPartition, tuple[int, ...]]) -> None:
    parts.store.remove_reassignments(settled, parts.context.epoch_zk_version)


def test_pending_reassignments_are_read_and_watched(parts: ControllerParts) -> None:
    assert parts.store.read_reassignments() == WANTED
    parts.zookeeper.put(PATH, b"not JSON")
    assert parts.watches == [WatchEvent(WatchKind.CHANGED, PATH)]
    assert isinstance(parts.store.read_reassignments(), BadDataError)
    parts.zookeeper.remove(PATH)
    assert parts.store.read_reassignments() is None
    parts.watches.clear()
    parts.zookeeper.put(PATH, b"")
    assert parts.watches == [WatchEvent(WatchKind.CREATED, PATH)]


def test_completed_entries_are_removed_and_the_others_stay(parts: ControllerParts) -> None:
    remove(parts, {T0: (3, 2)})
    assert left(parts) == {T1: (4, 5)}
    remove(parts, {T0: (3, 2), T1: (4, 5)})
    assert left(parts) is None
    remove(parts, {T0: (3, 2)})
    assert left(parts) is None


def test_entries_with_other_replicas_stay(parts: ControllerParts) -> None:
    before = len(parts.zookeeper.transactions)
    remove(parts, {T0: (2, 3)})
    assert left(parts) == WANTED
    assert len(parts.zookeeper.transactions) == before


@pytest.mark.parametrize("data", [b"not JSON", b'{"version":1,"partitions":[]}'])
def test_an_unusable_node_is_deleted(parts: ControllerParts, data: bytes) -> None:
    parts.zookeeper.put(PATH, data)
    remove(parts, {})
    assert left(parts) is None


def test_the_deletion_fires_the_watch_so_that_the_next_node_is_noticed(
    parts: ControllerParts,
) -> None:
    remove(parts, WANTED)
    assert parts.watches == [WatchEvent(WatchKind.DELETED, PATH)]


def test_a_concurrent_write_of_a_tool_is_kept(parts: ControllerParts) -> None:
    data = ReassignPartitionsZNode.encode({T0: (3, 2), T1: (6, 7)})
    parts.session.hook = once(Moment.BEFORE, lambda: parts.zookeeper.put(PATH, data))
    remove(parts, WANTED)
    assert left(parts) == {T1: (6, 7)}


@pytest.mark.parametrize("settled", [{T0: (3, 2)}, WANTED])
@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_a_lost_request_or_answer_changes_nothing(
    parts: ControllerParts, settled: Mapping[TopicPartition, tuple[int, ...]], moment: Moment
) -> None:
    parts.session.hook = once(moment, lose_connection)
    remove(parts, settled)
    assert left(parts) == ({T1: (4, 5)} if len(settled) == 1 else None)


def test_a_deposed_controller_removes_nothing(parts: ControllerParts) -> None:
    parts.elect_another_controller()
    with pytest.raises(ControllerMovedError):
        remove(parts, WANTED)
    assert left(parts) == WANTED


def test_states_are_watched_until_they_are_unwatched(parts: ControllerParts) -> None:
    parts.put_state(T0, 1, (1,))
    parts.store.watch_partition_states([T0, T1])
    parts.put_state(T0, 1, (1, 2))
    assert parts.watches == [WatchEvent(WatchKind.CHANGED, STATE)]
    parts.store.watch_partition_states([T0])
    parts.store.unwatch_partition_states([T0, T1])
    parts.put_state(T0, 1, (1, 2, 3))
    assert len(parts.watches) == 1


def test_no_watch_outlives_the_term(parts: ControllerParts) -> None:
    parts.put_state(T0, 1, (1,))
    parts.store.watch_partition_states([T0])
    parts.store.read_reassignments()
    parts.store.unwatch_all_but_controller()
    parts.put_state(T0, 1, (1, 2))
    parts.zookeeper.remove(PATH)
    assert parts.watches == []
