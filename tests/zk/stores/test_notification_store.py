"""Notifications of brokers: read in bulk, watched, and deleted by who rules."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest

from regent.core.errors import ControllerMovedError, SessionExpiredError
from regent.core.model import TopicPartition
from regent.zk.client.operations import (
    Committed,
    ConnectionLossError,
    Create,
    WatchEvent,
    WatchKind,
)
from regent.zk.client.requests import RequestRefusedError
from regent.zk.codecs.admin_znodes import IsrChangeNotificationSequenceZNode as IsrChange
from regent.zk.codecs.admin_znodes import LogDirEventNotificationSequenceZNode as LogDirEvent
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.stores.notification_store import notify_log_dir_failure
from tests.support.connected_sessions import Connect
from tests.support.fake_zookeeper import Call, FakeZooKeeperServer, Moment
from tests.support.term import KeptSession

ISR_CHANGES, LOG_DIR_EVENTS = "/isr_change_notification", "/log_dir_event_notification"
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Ruler:
    """A store, its session, and the watches that fired; ``/controller_epoch`` has version 0."""

    def __init__(self) -> None:
        self.server = FakeZooKeeperServer()
        for path in ("/controller_epoch", ISR_CHANGES, LOG_DIR_EVENTS):
            self.server.put(path)
        self.watches: list[WatchEvent] = []
        self.zookeeper = KeptSession(self.server, self.watches.append)
        self.store = ZkControllerStore(self.zookeeper)

    def notify(self, prefix: str, *payloads: bytes) -> None:
        """Create a sequential node for each, as brokers do."""
        for data in payloads:
            created = self.zookeeper.multi([Create(prefix, data, sequential=True)])
            assert isinstance(created, Committed)

    def left_in(self, path: str) -> int:
        """Return how many notifications are there."""
        return sum(node.startswith(path + "/") for node in self.server.snapshot())


@pytest.fixture
def ruler() -> Ruler:
    return Ruler()


Read = Callable[[], Collection[str]]
Delete = Callable[[Collection[str], int], None]


@pytest.fixture(params=["ISR changes", "log directory events"])
def kind(ruler: Ruler, request: pytest.FixtureRequest) -> tuple[str, Read, Delete]:
    """Where notifications of a kind are, and how they are read and deleted."""
    store = ruler.store
    if request.param == "ISR changes":
        ruler.notify(IsrChange.PATH_PREFIX, *(IsrChange.encode([T0]) for _ in range(3)))
        return ISR_CHANGES, store.read_isr_changes, store.delete_isr_changes
    ruler.notify(LogDirEvent.PATH_PREFIX, *(LogDirEvent.encode(1) for _ in range(3)))
    return LOG_DIR_EVENTS, store.read_log_dir_events, store.delete_log_dir_events


def test_zk_13_isr_changes_are_read_oldest_first_with_their_repetitions(ruler: Ruler) -> None:
    assert ruler.store.read_isr_changes() == {}
    batches = ([T1, T0], [T0])
    ruler.notify(IsrChange.PATH_PREFIX, *map(IsrChange.encode, batches))
    read = ruler.store.read_isr_changes()
    assert list(read.items()) == [
        ("isr_change_0000000000", (T1, T0)),
        ("isr_change_0000000001", (T0,)),
    ]


def test_zk_14_log_directory_events_are_read_with_their_repetitions(ruler: Ruler) -> None:
    assert ruler.store.read_log_dir_events() == {}
    ruler.notify(LogDirEvent.PATH_PREFIX, *map(LogDirEvent.encode, (3, 3, 4)))
    assert list(ruler.store.read_log_dir_events().values()) == [3, 3, 4]


def test_garbage_says_nothing_in_one_line(ruler: Ruler, caplog: pytest.LogCaptureFixture) -> None:
    ruler.notify(IsrChange.PATH_PREFIX, b"", b"[]", IsrChange.encode([T0]))
    ruler.notify(LogDirEvent.PATH_PREFIX, b"{}", LogDirEvent.encode(3))
    assert list(ruler.store.read_isr_changes().values()) == [(), (), (T0,)]
    assert list(ruler.store.read_log_dir_events().values()) == [-1, 3]
    assert [message[:38] for message in caplog.messages] == [
        "2 notifications say nothing, the first",
        "1 notifications say nothing, the first",
    ]


def test_others_are_told_by_a_watch(ruler: Ruler, kind: tuple[str, Read, Delete]) -> None:
    path, read, _ = kind
    read()
    ruler.server.put(f"{path}/another")
    assert ruler.watches == [WatchEvent(WatchKind.CHILDREN, path)]
    read()
    ruler.store.unwatch_all_but_controller()
    ruler.server.put(f"{path}/one_more")
    assert len(ruler.watches) == 1


def test_one_that_vanishes_while_it_is_read_is_left_out(
    ruler: Ruler, kind: tuple[str, Read, Delete]
) -> None:
    path, read, _ = kind
    names = sorted(read())

    def hook(call: Call) -> None:
        if call.method == "get_many":
            ruler.server.remove(f"{path}/{names[1]}")

    ruler.zookeeper.hook = hook
    assert list(read()) == [names[0], names[2]]


def test_without_the_parent_there_is_nothing(ruler: Ruler, kind: tuple[str, Read, Delete]) -> None:
    path, read, delete = kind
    delete(list(read()), 0)
    ruler.server.remove(path)
    assert not read()
    ruler.watches.clear()
    ruler.server.put(path)
    assert ruler.watches == [WatchEvent(WatchKind.CREATED, path)]
    assert not read()
    ruler.server.put(f"{path}/another")
    assert ruler.watches[-1] == WatchEvent(WatchKind.CHILDREN, path)


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_exactly_those_named_are_deleted_whatever_is_lost(
    ruler: Ruler, kind: tuple[str, Read, Delete], moment: Moment
) -> None:
    def hook(call: Call) -> None:
        if call.method == "multi_many" and call.moment is moment:
            ruler.zookeeper.hook = None
            raise ConnectionLossError("lost")

    path, read, delete = kind
    first, second, third = read()
    ruler.zookeeper.hook = hook
    delete([first, second, "never_there"], 0)
    assert list(read()) == [third]
    delete([first], 0)
    delete([], 0)
    assert ruler.left_in(path) == 1


def test_thousands_are_deleted_in_a_few_transactions(ruler: Ruler) -> None:
    names = [f"isr_change_{number:010d}" for number in range(2_500)]
    for name in names:
        ruler.server.put(f"{ISR_CHANGES}/{name}")
    before = len(ruler.server.transactions)
    ruler.store.delete_isr_changes(names, 0)
    assert ruler.left_in(ISR_CHANGES) == 0
    assert len(ruler.server.transactions) - before <= 3


def test_zk_03_who_was_deposed_deletes_nothing(
    ruler: Ruler, kind: tuple[str, Read, Delete]
) -> None:
    path, read, delete = kind
    ruler.server.put("/controller_epoch", b"8")
    with pytest.raises(ControllerMovedError):
        delete(list(read()), 0)
    assert ruler.left_in(path) == 3


def test_nothing_works_when_the_session_is_over(
    ruler: Ruler, kind: tuple[str, Read, Delete]
) -> None:
    _, read, delete = kind
    ruler.zookeeper.expire()
    with pytest.raises(SessionExpiredError):
        read()
    with pytest.raises(SessionExpiredError):
        delete(["one"], 0)


def test_a_real_zookeeper_gives_and_deletes_the_same(connect: Connect) -> None:
    session = connect()
    store = ZkControllerStore(session.client)
    paths = ("/controller_epoch", ISR_CHANGES, LOG_DIR_EVENTS)
    session.client.multi([Create(path) for path in paths])
    for data in (b"garbage", LogDirEvent.encode(3)):
        session.client.multi([Create(LogDirEvent.PATH_PREFIX, data, sequential=True)])
    events = store.read_log_dir_events()
    assert events == {"log_dir_event_0000000000": -1, "log_dir_event_0000000001": 3}
    store.delete_log_dir_events(["log_dir_event_0000000000", "never_there"], 0)
    assert session.events.get(timeout=5.0) == WatchEvent(WatchKind.CHILDREN, LOG_DIR_EVENTS)
    assert list(store.read_log_dir_events().values()) == [3]
    assert store.read_isr_changes() == {}


# --- a broker's side ---


def test_a_failed_log_directory_is_notified_as_kafka_does(ruler: Ruler) -> None:
    notify_log_dir_failure(ruler.zookeeper, 3)
    node = ruler.server.snapshot()[f"{LOG_DIR_EVENTS}/log_dir_event_0000000000"]
    assert node.data == b'{"version":1,"broker":3,"event":1}'
    assert list(ruler.store.read_log_dir_events().values()) == [3]


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_a_failure_is_notified_although_the_answer_is_lost(ruler: Ruler, moment: Moment) -> None:
    def hook(call: Call) -> None:
        if call.method == "multi_many" and call.moment is moment:
            ruler.zookeeper.hook = None
            raise ConnectionLossError("lost")

    ruler.zookeeper.hook = hook
    notify_log_dir_failure(ruler.zookeeper, 3)
    assert set(ruler.store.read_log_dir_events().values()) == {3}


def test_a_failure_that_cannot_be_notified_is_raised(ruler: Ruler) -> None:
    ruler.server.remove(LOG_DIR_EVENTS)
    with pytest.raises(RequestRefusedError, match="NO_NODE"):
        notify_log_dir_failure(ruler.zookeeper, 3)
    ruler.zookeeper.expire()
    with pytest.raises(SessionExpiredError):
        notify_log_dir_failure(ruler.zookeeper, 3)
