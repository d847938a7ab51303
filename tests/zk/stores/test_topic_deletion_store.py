"""The znodes of a deletion: what is read, and what is gone in which order."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from regent.core.errors import ControllerMovedError
from regent.core.model import ReplicaAssignment
from regent.zk.client.operations import (
    Check,
    ConnectionLossError,
    Create,
    Delete,
    WatchEvent,
    WatchKind,
)
from regent.zk.codecs.znodes import TopicZNode
from regent.zk.stores.fenced_writes import MAX_OPERATIONS, Write, write_unfenced
from regent.zk.stores.topic_deletion_store import MAX_ROUNDS, ZkTopicDeletionStore
from tests.support.connected_sessions import Connect
from tests.support.fake_zookeeper import Call, FakeZooKeeper, FakeZooKeeperServer, Moment

EPOCH = "/controller_epoch"
WISHES = "/admin/delete_topics"
T = "/brokers/topics/t"


class Stage:
    """A store over a tree, and the watches that fired."""

    def __init__(self) -> None:
        self.server = FakeZooKeeperServer()
        self.server.put(EPOCH, b"7")
        self.server.put(WISHES)
        self.watches: list[WatchEvent] = []
        self.zookeeper = FakeZooKeeper(self.server, self.watches.append)
        self.store = ZkTopicDeletionStore(self.zookeeper)

    def put_topic(self, topic: str, partitions: int = 1, *, config: bool = True) -> int:
        """Create a topic with states and a configuration; return the zxid of its creation."""
        assignments = {p: ReplicaAssignment((1, 2)) for p in range(partitions)}
        self.server.put(TopicZNode.path(topic), TopicZNode.encode(None, assignments))
        for partition in range(partitions):
            self.server.put(f"{TopicZNode.path(topic)}/partitions/{partition}/state", b"{}")
        if config:
            self.server.put(f"/config/topics/{topic}", b"{}")
        return self.server.snapshot()[TopicZNode.path(topic)].stat.czxid

    def wish(self, topic: str) -> int:
        """Wish a topic to be deleted; return the zxid of the wish."""
        self.server.put(f"{WISHES}/{topic}")
        return self.server.snapshot()[f"{WISHES}/{topic}"].stat.czxid

    def deleted(self) -> list[str]:
        """Return what sessions deleted since the transactions were cleared, in order."""
        return [
            operation.path
            for transaction in self.server.transactions
            for operation in transaction.operations
            if transaction.session_id and isinstance(operation, Delete)
        ]

    def left(self) -> list[str]:
        """Return the nodes of topics, their configurations and wishes that are there."""
        roots = ("/brokers/topics/", "/config/topics/", f"{WISHES}/")
        return [path for path in self.server.snapshot() if path.startswith(roots)]

    def at_write(self, act: Callable[[], None], *, times: int = 1, at: Moment) -> None:
        """Act when the store writes, so many times."""
        left = times

        def hook(call: Call) -> None:
            nonlocal left
            if call.method == "multi_many" and call.moment is at and left:
                left -= 1
                act()

        self.zookeeper.hook = hook


@pytest.fixture
def stage() -> Stage:
    return Stage()


def lose() -> None:
    raise ConnectionLossError("lost")


# --- wishes ---------------------------------------------------------------------------------------


def test_a_list_that_is_not_there_yet_is_watched_as_well(stage: Stage) -> None:
    stage.server.remove(WISHES)
    assert stage.store.read_topics_to_delete() == {}
    stage.server.put(WISHES)
    assert [watch.path for watch in stage.watches] == [WISHES]


def test_wishes_are_read_with_their_age_and_watched(stage: Stage) -> None:
    later, earlier = stage.wish("u"), stage.wish("t")
    assert stage.store.read_topics_to_delete() == {"t": earlier, "u": later}
    stage.wish("v")
    assert stage.watches == [WatchEvent(WatchKind.CHILDREN, WISHES)]


def test_a_wish_that_vanishes_while_it_is_read_is_none(stage: Stage) -> None:
    def hook(call: Call) -> None:
        if call.method == "get_many" and call.moment is Moment.BEFORE:
            stage.server.remove(f"{WISHES}/t")

    stage.wish("t")
    zxid = stage.wish("u")
    stage.zookeeper.hook = hook
    assert stage.store.read_topics_to_delete() == {"u": zxid}


def test_wishes_are_dropped_and_the_topics_stay(stage: Stage) -> None:
    stage.put_topic("t")
    stage.wish("t")
    before = [path for path in stage.left() if not path.startswith(WISHES)]
    stage.store.delete_topic_deletions(["t", "absent"], 0)
    assert stage.left() == before


# --- order and size -------------------------------------------------------------------------------


def test_children_go_first_and_the_wish_last(stage: Stage) -> None:
    zxid = stage.put_topic("t", partitions=2)
    stage.wish("t")
    stage.server.transactions.clear()
    assert stage.store.delete_topics({"t": zxid}, 0) == {"t"}
    assert stage.deleted() == [
        f"{T}/partitions/0/state",
        f"{T}/partitions/0",
        f"{T}/partitions/1/state",
        f"{T}/partitions/1",
        f"{T}/partitions",
        T,
        "/config/topics/t",
        f"{WISHES}/t",
    ]


def test_many_topics_go_in_one_transaction(stage: Stage) -> None:
    topics = {f"t{n}": stage.put_topic(f"t{n}", partitions=5) for n in range(50)}
    for topic in topics:
        stage.wish(topic)
    stage.server.transactions.clear()
    calls: list[str] = []
    stage.zookeeper.hook = lambda call: calls.append(call.method)
    assert stage.store.delete_topics(topics, 0) == topics.keys()
    assert stage.left() == []
    assert len(stage.server.transactions) == 1
    assert calls.count("multi_many") == 2, "before and after one call"
    assert len(calls) - calls.count("multi_many") < 30 * 50, "reads in bulk"


def test_a_topic_of_thousands_of_partitions_goes_in_transactions_of_a_thousand(
    stage: Stage,
) -> None:
    zxid = stage.put_topic("t", partitions=2_500)
    stage.wish("t")
    stage.server.transactions.clear()
    assert stage.store.delete_topics({"t": zxid}, 0) == {"t"}
    assert stage.left() == []
    assert len(stage.server.transactions) == 6
    assert all(t.operations[0] == Check(EPOCH, 0) for t in stage.server.transactions)
    assert max(len(t.operations) for t in stage.server.transactions) <= MAX_OPERATIONS + 1


@pytest.mark.zookeeper
def test_a_real_zookeeper_deletes_a_topic_of_thousands_of_partitions(connect: Connect) -> None:
    client = connect().client
    parents = [EPOCH, "/admin", WISHES, f"{WISHES}/t", "/config", "/config/topics"]
    parents += ["/brokers", "/brokers/topics", T, f"{T}/partitions"]
    creates: list[Write] = [[Create(path)] for path in parents]
    for partition in range(3_000):
        path = f"{T}/partitions/{partition}"
        creates.append([Create(path), Create(f"{path}/state", b"{}")])
    write_unfenced(client, creates)
    topic = client.get(T)
    assert topic is not None
    store = ZkTopicDeletionStore(client)
    assert list(store.read_topics_to_delete()) == ["t"]
    assert store.delete_topics({"t": topic.stat.czxid}, 0) == {"t"}
    assert client.children("/brokers/topics") == client.children(WISHES) == []


@pytest.mark.parametrize("crash_after", range(3))
def test_topic_and_wish_go_together_whatever_happens_in_between(
    stage: Stage, crash_after: int
) -> None:
    zxid = stage.put_topic("t", partitions=1_000)
    stage.wish("t")
    transactions = 0

    def crash(call: Call) -> None:
        nonlocal transactions
        if call.method == "multi_many" and call.moment is not Moment.AFTER:
            if transactions == crash_after:
                raise KeyboardInterrupt
            transactions += 1

    stage.zookeeper.hook = crash
    with pytest.raises(KeyboardInterrupt):
        stage.store.delete_topics({"t": zxid}, 0)
    assert {T, "/config/topics/t", f"{WISHES}/t"} <= set(stage.left())
    stage.zookeeper.hook = None
    assert stage.store.delete_topics({"t": zxid}, 0) == {"t"}
    assert stage.left() == []


def test_a_deposed_controller_deletes_nothing(stage: Stage) -> None:
    zxid = stage.put_topic("t")
    stage.wish("t")
    stage.server.put(EPOCH, b"8")
    before = stage.left()
    for delete in (
        lambda: stage.store.delete_topics({"t": zxid}, 0),
        lambda: stage.store.delete_topic_deletions(["t"], 0),
    ):
        with pytest.raises(ControllerMovedError):
            delete()
    assert stage.left() == before


# --- half of it -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "missing",
    [
        [f"{T}/partitions/0/state"],
        [f"{T}/partitions/0/state", f"{T}/partitions/0", f"{T}/partitions"],
        ["/config/topics/t"],
        [f"{WISHES}/t"],
    ],
)
def test_what_is_gone_already_is_no_matter(stage: Stage, missing: list[str]) -> None:
    zxid = stage.put_topic("t")
    stage.wish("t")
    for path in missing:
        stage.server.remove(path)
    assert stage.store.delete_topics({"t": zxid}, 0) == {"t"}
    assert stage.left() == []


def test_a_wish_for_no_topic_is_dropped(stage: Stage) -> None:
    assert stage.store.delete_topics({"t": stage.wish("t")}, 0) == {"t"}
    assert stage.left() == []


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_a_lost_answer_is_no_matter(stage: Stage, moment: Moment) -> None:
    zxid = stage.put_topic("t", partitions=3)
    stage.wish("t")
    stage.at_write(lose, at=moment)
    assert stage.store.delete_topics({"t": zxid}, 0) == {"t"}
    assert stage.left() == []


def test_a_node_created_meanwhile_goes_as_well(stage: Stage) -> None:
    zxid = stage.put_topic("t")
    stage.wish("t")
    late = f"{T}/partitions/1/state"
    stage.at_write(lambda: stage.server.put(late), at=Moment.BEFORE)
    assert stage.store.delete_topics({"t": zxid}, 0) == {"t"}
    assert stage.left() == []


def test_a_topic_written_meanwhile_goes_as_well(stage: Stage) -> None:
    zxid = stage.put_topic("t")
    stage.at_write(lambda: stage.server.put(T, b"{}"), at=Moment.BEFORE)
    assert stage.store.delete_topics({"t": zxid}, 0) == {"t"}
    assert stage.left() == []


def test_who_keeps_creating_nodes_does_not_keep_others_from_going(stage: Stage) -> None:
    topics = {topic: stage.put_topic(topic) for topic in ("t", "u")}
    stage.wish("t")
    partition = itertools.count(1)
    stage.at_write(
        lambda: stage.server.put(f"{T}/partitions/{next(partition)}"),
        times=1_000,
        at=Moment.BEFORE,
    )
    assert stage.store.delete_topics(topics, 0) == {"u"}
    assert next(partition) > MAX_ROUNDS
    assert {T, f"{T}/partitions", "/config/topics/t", f"{WISHES}/t"} <= set(stage.left())
    assert not [path for path in stage.left() if path.endswith("/u")]


# --- another topic of that name -------------------------------------------------------------------


def test_a_later_topic_of_that_name_stays_and_an_older_wish_goes(stage: Stage) -> None:
    wish = stage.wish("t")
    stage.put_topic("t")
    kept = [path for path in stage.left() if not path.startswith(WISHES)]
    assert stage.store.delete_topics({"t": wish}, 0) == {"t"}
    assert stage.left() == kept


def test_a_later_wish_for_a_later_topic_stays(stage: Stage) -> None:
    zxid = stage.put_topic("t")
    for path in reversed(stage.left()):
        stage.server.remove(path)
    stage.put_topic("t")
    stage.wish("t")
    kept = stage.left()
    assert stage.store.delete_topics({"t": zxid}, 0) == frozenset(), "the next one is to go too"
    assert stage.left() == kept


def test_a_topic_created_again_before_a_lost_answer_is_missed_stays(stage: Stage) -> None:
    def create_again() -> None:
        stage.put_topic("t")
        stage.wish("t")
        lose()

    zxid = stage.put_topic("t")
    stage.wish("t")
    stage.at_write(create_again, at=Moment.AFTER)
    assert stage.store.delete_topics({"t": zxid}, 0) == frozenset()
    assert {T, "/config/topics/t", f"{WISHES}/t"} <= set(stage.left())
    assert stage.server.snapshot()[T].stat.czxid > zxid
