"""Reads and updates of ``/admin/reassign_partitions``, and watches on states."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from regent.core.errors import BadDataError, ControllerMovedError
from regent.core.model import TopicPartition
from regent.zk.client.operations import WatchEvent, WatchKind
from regent.zk.codecs.admin_znodes import ReassignPartitionsZNode
from tests.support.fake_zookeeper import Moment
from tests.support.term import T0, T1, Office
from tests.support.zookeeper_hooks import lose_connection, once

PATH = ReassignPartitionsZNode.PATH
WANTED = {T0: (3, 2), T1: (4, 5)}
STATE = "/brokers/topics/t/partitions/0/state"


@pytest.fixture
def office() -> Office:
    office = Office(brokers=())
    office.server.put(PATH, ReassignPartitionsZNode.encode(WANTED))
    office.watches.clear()
    return office


def left(office: Office) -> object:
    node = office.server.snapshot().get(PATH)
    return None if node is None else ReassignPartitionsZNode.decode(node.data)


def remove(office: Office, settled: Mapping[TopicPartition, tuple[int, ...]]) -> None:
    office.store.remove_reassignments(settled, office.context.epoch_zk_version)


def test_pending_reassignments_are_read_and_watched(office: Office) -> None:
    assert office.store.read_reassignments() == WANTED
    office.server.put(PATH, b"not JSON")
    assert office.watches == [WatchEvent(WatchKind.CHANGED, PATH)]
    assert isinstance(office.store.read_reassignments(), BadDataError)
    office.server.remove(PATH)
    assert office.store.read_reassignments() is None
    office.watches.clear()
    office.server.put(PATH, b"")
    assert office.watches == [WatchEvent(WatchKind.CREATED, PATH)]


def test_completed_entries_are_removed_and_the_others_stay(office: Office) -> None:
    remove(office, {T0: (3, 2)})
    assert left(office) == {T1: (4, 5)}
    remove(office, {T0: (3, 2), T1: (4, 5)})
    assert left(office) is None
    remove(office, {T0: (3, 2)})
    assert left(office) is None


def test_entries_with_other_replicas_stay(office: Office) -> None:
    before = len(office.server.transactions)
    remove(office, {T0: (2, 3)})
    assert left(office) == WANTED
    assert len(office.server.transactions) == before


@pytest.mark.parametrize("data", [b"not JSON", b'{"version":1,"partitions":[]}'])
def test_an_unusable_node_is_deleted(office: Office, data: bytes) -> None:
    office.server.put(PATH, data)
    remove(office, {})
    assert left(office) is None


def test_the_deletion_fires_the_watch_so_that_the_next_node_is_noticed(office: Office) -> None:
    remove(office, WANTED)
    assert office.watches == [WatchEvent(WatchKind.DELETED, PATH)]


def test_a_concurrent_write_of_a_tool_is_kept(office: Office) -> None:
    data = ReassignPartitionsZNode.encode({T0: (3, 2), T1: (6, 7)})
    office.zookeeper.hook = once(Moment.BEFORE, lambda: office.server.put(PATH, data))
    remove(office, WANTED)
    assert left(office) == {T1: (6, 7)}


@pytest.mark.parametrize("settled", [{T0: (3, 2)}, WANTED])
@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_a_lost_request_or_answer_changes_nothing(
    office: Office, settled: Mapping[TopicPartition, tuple[int, ...]], moment: Moment
) -> None:
    office.zookeeper.hook = once(moment, lose_connection)
    remove(office, settled)
    assert left(office) == ({T1: (4, 5)} if len(settled) == 1 else None)


def test_a_deposed_controller_removes_nothing(office: Office) -> None:
    office.elect_another_controller()
    with pytest.raises(ControllerMovedError):
        remove(office, WANTED)
    assert left(office) == WANTED


def test_states_are_watched_until_they_are_unwatched(office: Office) -> None:
    office.put_state(T0, 1, (1,))
    office.store.watch_partition_states([T0, T1])
    office.put_state(T0, 1, (1, 2))
    assert office.watches == [WatchEvent(WatchKind.CHANGED, STATE)]
    office.store.watch_partition_states([T0])
    office.store.unwatch_partition_states([T0, T1])
    office.put_state(T0, 1, (1, 2, 3))
    assert len(office.watches) == 1


def test_no_watch_outlives_the_term(office: Office) -> None:
    office.put_state(T0, 1, (1,))
    office.store.watch_partition_states([T0])
    office.store.read_reassignments()
    office.store.unwatch_all_but_controller()
    office.put_state(T0, 1, (1, 2))
    office.server.remove(PATH)
    assert office.watches == []
