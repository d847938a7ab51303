"""``/admin/reassign_partitions`` read and written back, and states that are watched."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from regent.core.errors import BadDataError, ControllerMovedError
from regent.core.model import TopicPartition
from regent.zk.client.operations import ConnectionLossError, WatchEvent, WatchKind
from regent.zk.codecs.admin_znodes import ReassignPartitionsZNode
from tests.support.fake_zookeeper import Call, Moment
from tests.support.term import T0, T1, Office

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


def on_write(office: Office, moment: Moment, act: Callable[[], None]) -> None:
    def hook(call: Call) -> None:
        if call.method == "multi_many" and call.moment is moment:
            office.zookeeper.hook = None
            act()

    office.zookeeper.hook = hook


def lose() -> None:
    raise ConnectionLossError("lost")


def remove(office: Office, settled: Mapping[TopicPartition, tuple[int, ...]]) -> None:
    office.store.remove_reassignments(settled, office.context.epoch_zk_version)


def test_what_is_there_is_read_and_watched(office: Office) -> None:
    assert office.store.read_reassignments() == WANTED
    office.server.put(PATH, b"not JSON")
    assert office.watches == [WatchEvent(WatchKind.CHANGED, PATH)]
    assert isinstance(office.store.read_reassignments(), BadDataError)
    office.server.remove(PATH)
    assert office.store.read_reassignments() is None
    office.watches.clear()
    office.server.put(PATH, b"")
    assert office.watches == [WatchEvent(WatchKind.CREATED, PATH)]


def test_settled_entries_are_taken_out_and_the_others_stay(office: Office) -> None:
    remove(office, {T0: (3, 2)})
    assert left(office) == {T1: (4, 5)}
    remove(office, {T0: (3, 2), T1: (4, 5)})
    assert left(office) is None
    remove(office, {T0: (3, 2)})
    assert left(office) is None


def test_entries_that_ask_for_something_else_stay(office: Office) -> None:
    before = len(office.server.transactions)
    remove(office, {T0: (2, 3)})
    assert left(office) == WANTED
    assert len(office.server.transactions) == before


@pytest.mark.parametrize("data", [b"not JSON", b'{"version":1,"partitions":[]}'])
def test_a_node_nobody_can_use_is_deleted(office: Office, data: bytes) -> None:
    office.server.put(PATH, data)
    remove(office, {})
    assert left(office) is None


def test_the_deletion_is_told_so_that_the_next_node_is_looked_for(office: Office) -> None:
    remove(office, WANTED)
    assert office.watches == [WatchEvent(WatchKind.DELETED, PATH)]


def test_what_a_tool_writes_meanwhile_is_kept(office: Office) -> None:
    data = ReassignPartitionsZNode.encode({T0: (3, 2), T1: (6, 7)})
    on_write(office, Moment.BEFORE, lambda: office.server.put(PATH, data))
    remove(office, WANTED)
    assert left(office) == {T1: (6, 7)}


@pytest.mark.parametrize("settled", [{T0: (3, 2)}, WANTED])
@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_a_lost_request_or_answer_changes_nothing(
    office: Office, settled: Mapping[TopicPartition, tuple[int, ...]], moment: Moment
) -> None:
    on_write(office, moment, lose)
    remove(office, settled)
    assert left(office) == ({T1: (4, 5)} if len(settled) == 1 else None)


def test_a_deposed_controller_takes_nothing_out(office: Office) -> None:
    office.elect_another_controller()
    with pytest.raises(ControllerMovedError):
        remove(office, WANTED)
    assert left(office) == WANTED


def test_states_are_watched_until_they_are_not(office: Office) -> None:
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
