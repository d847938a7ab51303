"""Notifications of brokers: bulk reads, watches, and deletion by the active controller."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest

from regent.core.errors import ControllerMovedError, SessionExpiredError
from regent.core.model import TopicPartition
from regent.testing.waits import scaled
from regent.zk.client.operations import Committed, Create, WatchEvent, WatchKind
from regent.zk.client.requests import RequestRefusedError
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.stores.request_store import notify_log_dir_failure
from regent.zk.znodes import IsrChangeNotificationSequenceZNode as IsrChange
from regent.zk.znodes import LogDirEventNotificationSequenceZNode as LogDirEvent
from tests.support.connected_sessions import Connect
from tests.support.fake_zookeeper import FakeZooKeeperServer, Moment, lose_connection, once
from tests.support.world import KeptSession

ISR_CHANGES, LOG_DIR_EVENTS = "/isr_change_notification", "/log_dir_event_notification"
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class WatchedStore:
    """A store, its session, and the watches that fired; ``/controller_epoch`` has version 0."""

    def __init__(self) -> None:
        self.server = FakeZooKeeperServer()
        for path in ("/controller_epoch", ISR_CHANGES, LOG_DIR_EVENTS):
            self.server.put(path)
        self.watches: list[WatchEvent] = []
        self.zookeeper = KeptSession(self.server, self.watches.append)
        self.store = ZkControllerStore(self.zookeeper)

    def notify(self, prefix: str, *payloads: bytes) -> None:
        """Create a sequential node for each payload, as brokers do."""
        for data in payloads:
            created = self.zookeeper.multi([Create(prefix, data, sequential=True)])
            assert isinstance(created, Committed)

    def left_in(self, path: str) -> int:
        """Return the number of notifications."""
        return sum(node.startswith(path + "/") for node in self.server.snapshot())


@pytest.fixture
def controller() -> WatchedStore:
    return WatchedStore()


Read = Callable[[], Collection[str]]
Delete = Callable[[Collection[str], int], None]


@pytest.fixture(params=["ISR changes", "log directory events"])
def kind(controller: WatchedStore, request: pytest.FixtureRequest) -> tuple[str, Read, Delete]:
    """Path, read and delete function of a kind of notifications."""
    store = controller.store
    if request.param == "ISR changes":
        controller.notify(IsrChange.PATH_PREFIX, *(IsrChange.encode([T0]) for _ in range(3)))
        return ISR_CHANGES, store.read_isr_changes, store.delete_isr_changes
    controller.notify(LogDirEvent.PATH_PREFIX, *(LogDirEvent.encode(1) for _ in range(3)))
    return LOG_DIR_EVENTS, store.read_log_dir_events, store.delete_log_dir_events


def test_zk_13_isr_changes_are_read_oldest_first_with_their_repetitions(
    controller: WatchedStore,
) -> None:
    assert controller.store.read_isr_changes() == {}
    batches = ([T1, T0], [T0])
    controller.notify(IsrChange.PATH_PREFIX, *map(IsrChange.encode, batches))
    read = controller.store.read_isr_changes()
    assert list(read.items()) == [
        ("isr_change_0000000000", (T1, T0)),
        ("isr_change_0000000001", (T0,)),
    ]


def test_zk_14_log_directory_events_are_read_with_their_repetitions(
    controller: WatchedStore,
) -> None:
    assert controller.store.read_log_dir_events() == {}
    controller.notify(LogDirEvent.PATH_PREFIX, *map(LogDirEvent.encode, (3, 3, 4)))
    assert list(controller.store.read_log_dir_events().values()) == [3, 3, 4]


def test_unreadable_notifications_are_one_log_line(
    controller: WatchedStore, caplog: pytest.LogCaptureFixture
) -> None:
    controller.notify(IsrChange.PATH_PREFIX, b"", b"[]", IsrChange.encode([T0]))
    controller.notify(LogDirEvent.PATH_PREFIX, b"{}", LogDirEvent.encode(3))
    assert list(controller.store.read_isr_changes().values()) == [(), (), (T0,)]
    assert list(controller.store.read_log_dir_events().values()) == [-1, 3]
    assert [message.split(": ")[0] for message in caplog.messages] == [
        "2 notifications cannot be decoded, the first",
        "1 notifications cannot be decoded, the first",
    ]


def test_new_notifications_fire_a_watch(
    controller: WatchedStore, kind: tuple[str, Read, Delete]
) -> None:
    path, read, _ = kind
    read()
    controller.server.put(f"{path}/another")
    assert controller.watches == [WatchEvent(WatchKind.CHILDREN, path)]
    read()
    controller.store.unwatch_all_but_controller()
    controller.server.put(f"{path}/one_more")
    assert len(controller.watches) == 1


def test_a_notification_deleted_during_the_read_is_omitted(
    controller: WatchedStore, kind: tuple[str, Read, Delete]
) -> None:
    path, read, _ = kind
    names = sorted(read())

    controller.zookeeper.hook = once(
        Moment.BEFORE, lambda: controller.server.remove(f"{path}/{names[1]}"), method="get_many"
    )
    assert list(read()) == [names[0], names[2]]


def test_without_the_parent_there_are_no_notifications(
    controller: WatchedStore, kind: tuple[str, Read, Delete]
) -> None:
    path, read, delete = kind
    delete(list(read()), 0)
    controller.server.remove(path)
    assert not read()
    controller.watches.clear()
    controller.server.put(path)
    assert controller.watches == [WatchEvent(WatchKind.CREATED, path)]
    assert not read()
    controller.server.put(f"{path}/another")
    assert controller.watches[-1] == WatchEvent(WatchKind.CHILDREN, path)


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_only_the_given_notifications_are_deleted_after_a_lost_request_or_answer(
    controller: WatchedStore, kind: tuple[str, Read, Delete], moment: Moment
) -> None:
    path, read, delete = kind
    first, second, third = read()
    controller.zookeeper.hook = once(moment, lose_connection)
    delete([first, second, "never_there"], 0)
    assert list(read()) == [third]
    delete([first], 0)
    delete([], 0)
    assert controller.left_in(path) == 1


def test_thousands_are_deleted_in_a_few_transactions(controller: WatchedStore) -> None:
    names = [f"isr_change_{number:010d}" for number in range(2_500)]
    for name in names:
        controller.server.put(f"{ISR_CHANGES}/{name}")
    before = len(controller.server.transactions)
    controller.store.delete_isr_changes(names, 0)
    assert controller.left_in(ISR_CHANGES) == 0
    assert len(controller.server.transactions) - before <= 3


def test_zk_03_a_deposed_controller_deletes_nothing(
    controller: WatchedStore, kind: tuple[str, Read, Delete]
) -> None:
    path, read, delete = kind
    controller.server.put("/controller_epoch", b"8")
    with pytest.raises(ControllerMovedError):
        delete(list(read()), 0)
    assert controller.left_in(path) == 3


def test_all_calls_fail_after_the_session(
    controller: WatchedStore, kind: tuple[str, Read, Delete]
) -> None:
    _, read, delete = kind
    controller.zookeeper.expire()
    with pytest.raises(SessionExpiredError):
        read()
    with pytest.raises(SessionExpiredError):
        delete(["one"], 0)


def test_a_real_zookeeper_behaves_the_same(connect: Connect) -> None:
    session = connect()
    store = ZkControllerStore(session.client)
    paths = ("/controller_epoch", ISR_CHANGES, LOG_DIR_EVENTS)
    session.client.multi([Create(path) for path in paths])
    for data in (b"garbage", LogDirEvent.encode(3)):
        session.client.multi([Create(LogDirEvent.PATH_PREFIX, data, sequential=True)])
    events = store.read_log_dir_events()
    assert events == {"log_dir_event_0000000000": -1, "log_dir_event_0000000001": 3}
    store.delete_log_dir_events(["log_dir_event_0000000000", "never_there"], 0)
    assert session.events.get(timeout=scaled(5.0)) == WatchEvent(WatchKind.CHILDREN, LOG_DIR_EVENTS)
    assert list(store.read_log_dir_events().values()) == [3]
    assert store.read_isr_changes() == {}


# --- notifications of brokers ---


def test_a_failed_log_directory_is_notified_in_kafkas_format(controller: WatchedStore) -> None:
    notify_log_dir_failure(controller.zookeeper, 3)
    node = controller.server.snapshot()[f"{LOG_DIR_EVENTS}/log_dir_event_0000000000"]
    assert node.data == b'{"version":1,"broker":3,"event":1}'
    assert list(controller.store.read_log_dir_events().values()) == [3]


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_a_failure_is_notified_although_the_answer_is_lost(
    controller: WatchedStore, moment: Moment
) -> None:
    controller.zookeeper.hook = once(moment, lose_connection)
    notify_log_dir_failure(controller.zookeeper, 3)
    assert set(controller.store.read_log_dir_events().values()) == {3}


def test_a_failure_that_cannot_be_notified_is_raised(controller: WatchedStore) -> None:
    controller.server.remove(LOG_DIR_EVENTS)
    with pytest.raises(RequestRefusedError, match="NO_NODE"):
        notify_log_dir_failure(controller.zookeeper, 3)
    controller.zookeeper.expire()
    with pytest.raises(SessionExpiredError):
        notify_log_dir_failure(controller.zookeeper, 3)
