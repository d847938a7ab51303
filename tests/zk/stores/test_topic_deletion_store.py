"""The znodes of a deletion: reads, and the sequence of deletions."""

from __future__ import annotations

import itertools

import pytest

from regent.core.errors import ControllerMovedError
from regent.core.model import ReplicaAssignment
from regent.zk.client.operations import Check, Create, Delete, WatchEvent, WatchKind
from regent.zk.stores.fenced_writes import MAX_OPERATIONS, Write, write_unfenced
from regent.zk.stores.request_store import MAX_DELETION_ROUNDS, ZkRequestStore
from regent.zk.znodes import TopicZNode
from tests.support.connected_sessions import Connect
from tests.support.fake_zookeeper import (
    Call,
    FakeZooKeeper,
    FakeZooKeeperServer,
    Moment,
    lose_connection,
    once,
)

EPOCH = "/controller_epoch"
REQUESTS = "/admin/delete_topics"
T = "/brokers/topics/t"


class DeletionStore:
    """A store over a tree, and the watches that fired."""

    def __init__(self) -> None:
        self.server = FakeZooKeeperServer()
        self.server.put(EPOCH, b"7")
        self.server.put(REQUESTS)
        self.watches: list[WatchEvent] = []
        self.zookeeper = FakeZooKeeper(self.server, self.watches.append)
        self.store = ZkRequestStore(self.zookeeper)

    def put_topic(self, topic: str, partitions: int = 1, *, config: bool = True) -> int:
        """Create a topic with states and a configuration; return the zxid of its creation."""
        assignments = {p: ReplicaAssignment((1, 2)) for p in range(partitions)}
        self.server.put(TopicZNode.path(topic), TopicZNode.encode(None, assignments))
        for partition in range(partitions):
            self.server.put(f"{TopicZNode.path(topic)}/partitions/{partition}/state", b"{}")
        if config:
            self.server.put(f"/config/topics/{topic}", b"{}")
        return self.server.snapshot()[TopicZNode.path(topic)].stat.czxid

    def request_deletion(self, topic: str) -> int:
        """Request the deletion of a topic; return the zxid of the request."""
        self.server.put(f"{REQUESTS}/{topic}")
        return self.server.snapshot()[f"{REQUESTS}/{topic}"].stat.czxid

    def deleted(self) -> list[str]:
        """Return the paths that sessions deleted since the transactions were cleared."""
        return [
            operation.path
            for transaction in self.server.transactions
            for operation in transaction.operations
            if transaction.session_id and isinstance(operation, Delete)
        ]

    def left(self) -> list[str]:
        """Return the remaining nodes of topics, configurations and deletion requests."""
        roots = ("/brokers/topics/", "/config/topics/", f"{REQUESTS}/")
        return [path for path in self.server.snapshot() if path.startswith(roots)]


@pytest.fixture
def stage() -> DeletionStore:
    return DeletionStore()


# --- deletion requests ----------------------------------------------------------------------------


def test_an_absent_list_is_watched(stage: DeletionStore) -> None:
    stage.server.remove(REQUESTS)
    assert stage.store.read_topics_to_delete() == {}
    stage.server.put(REQUESTS)
    assert [watch.path for watch in stage.watches] == [REQUESTS]


def test_requests_are_read_with_their_zxids_and_watched(stage: DeletionStore) -> None:
    later, earlier = stage.request_deletion("u"), stage.request_deletion("t")
    assert stage.store.read_topics_to_delete() == {"t": earlier, "u": later}
    stage.request_deletion("v")
    assert stage.watches == [WatchEvent(WatchKind.CHILDREN, REQUESTS)]


def test_a_request_deleted_during_the_read_is_omitted(stage: DeletionStore) -> None:
    stage.request_deletion("t")
    zxid = stage.request_deletion("u")
    stage.zookeeper.hook = once(
        Moment.BEFORE, lambda: stage.server.remove(f"{REQUESTS}/t"), method="get_many"
    )
    assert stage.store.read_topics_to_delete() == {"u": zxid}


def test_requests_are_deleted_and_the_topics_stay(stage: DeletionStore) -> None:
    stage.put_topic("t")
    stage.request_deletion("t")
    before = [path for path in stage.left() if not path.startswith(REQUESTS)]
    stage.store.delete_topic_deletions(["t", "absent"], 0)
    assert stage.left() == before


# --- sequence and size ----------------------------------------------------------------------------


def test_children_are_deleted_first_and_the_request_last(stage: DeletionStore) -> None:
    zxid = stage.put_topic("t", partitions=2)
    stage.request_deletion("t")
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
        f"{REQUESTS}/t",
    ]


def test_many_topics_are_deleted_in_one_transaction(stage: DeletionStore) -> None:
    topics = {f"t{n}": stage.put_topic(f"t{n}", partitions=5) for n in range(50)}
    for topic in topics:
        stage.request_deletion(topic)
    stage.server.transactions.clear()
    calls: list[str] = []
    stage.zookeeper.hook = lambda call: calls.append(call.method)
    assert stage.store.delete_topics(topics, 0) == topics.keys()
    assert stage.left() == []
    assert len(stage.server.transactions) == 1
    assert calls.count("multi_many") == 2, "before and after one call"
    assert len(calls) - calls.count("multi_many") < 30 * 50, "reads in bulk"


def test_a_topic_with_thousands_of_partitions_is_deleted_in_transactions_of_a_thousand(
    stage: DeletionStore,
) -> None:
    zxid = stage.put_topic("t", partitions=2_500)
    stage.request_deletion("t")
    stage.server.transactions.clear()
    assert stage.store.delete_topics({"t": zxid}, 0) == {"t"}
    assert stage.left() == []
    assert len(stage.server.transactions) == 6
    assert all(t.operations[0] == Check(EPOCH, 0) for t in stage.server.transactions)
    assert max(len(t.operations) for t in stage.server.transactions) <= MAX_OPERATIONS + 1


@pytest.mark.zookeeper
def test_a_real_zookeeper_deletes_a_topic_of_thousands_of_partitions(connect: Connect) -> None:
    client = connect().client
    parents = [EPOCH, "/admin", REQUESTS, f"{REQUESTS}/t", "/config", "/config/topics"]
    parents += ["/brokers", "/brokers/topics", T, f"{T}/partitions"]
    creates: list[Write] = [[Create(path)] for path in parents]
    for partition in range(3_000):
        path = f"{T}/partitions/{partition}"
        creates.append([Create(path), Create(f"{path}/state", b"{}")])
    write_unfenced(client, creates)
    topic = client.get(T)
    assert topic is not None
    store = ZkRequestStore(client)
    assert list(store.read_topics_to_delete()) == ["t"]
    assert store.delete_topics({"t": topic.stat.czxid}, 0) == {"t"}
    assert client.children("/brokers/topics") == client.children(REQUESTS) == []


@pytest.mark.parametrize("crash_after", range(3))
def test_a_topic_and_its_request_are_deleted_together_even_after_a_crash(
    stage: DeletionStore, crash_after: int
) -> None:
    zxid = stage.put_topic("t", partitions=1_000)
    stage.request_deletion("t")
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
    assert {T, "/config/topics/t", f"{REQUESTS}/t"} <= set(stage.left())
    stage.zookeeper.hook = None
    assert stage.store.delete_topics({"t": zxid}, 0) == {"t"}
    assert stage.left() == []


def test_a_deposed_controller_deletes_nothing(stage: DeletionStore) -> None:
    zxid = stage.put_topic("t")
    stage.request_deletion("t")
    stage.server.put(EPOCH, b"8")
    before = stage.left()
    for delete in (
        lambda: stage.store.delete_topics({"t": zxid}, 0),
        lambda: stage.store.delete_topic_deletions(["t"], 0),
    ):
        with pytest.raises(ControllerMovedError):
            delete()
    assert stage.left() == before


# --- partly deleted topics ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "missing",
    [
        [f"{T}/partitions/0/state"],
        [f"{T}/partitions/0/state", f"{T}/partitions/0", f"{T}/partitions"],
        ["/config/topics/t"],
        [f"{REQUESTS}/t"],
    ],
)
def test_already_deleted_nodes_are_skipped(stage: DeletionStore, missing: list[str]) -> None:
    zxid = stage.put_topic("t")
    stage.request_deletion("t")
    for path in missing:
        stage.server.remove(path)
    assert stage.store.delete_topics({"t": zxid}, 0) == {"t"}
    assert stage.left() == []


def test_a_request_for_an_unknown_topic_is_deleted(stage: DeletionStore) -> None:
    assert stage.store.delete_topics({"t": stage.request_deletion("t")}, 0) == {"t"}
    assert stage.left() == []


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_a_deletion_succeeds_after_a_lost_request_or_answer(
    stage: DeletionStore, moment: Moment
) -> None:
    zxid = stage.put_topic("t", partitions=3)
    stage.request_deletion("t")
    stage.zookeeper.hook = once(moment, lose_connection)
    assert stage.store.delete_topics({"t": zxid}, 0) == {"t"}
    assert stage.left() == []


def test_a_concurrently_created_node_is_deleted_too(stage: DeletionStore) -> None:
    zxid = stage.put_topic("t")
    stage.request_deletion("t")
    late = f"{T}/partitions/1/state"
    stage.zookeeper.hook = once(Moment.BEFORE, lambda: stage.server.put(late))
    assert stage.store.delete_topics({"t": zxid}, 0) == {"t"}
    assert stage.left() == []


def test_a_concurrently_written_topic_is_deleted_too(stage: DeletionStore) -> None:
    zxid = stage.put_topic("t")
    stage.zookeeper.hook = once(Moment.BEFORE, lambda: stage.server.put(T, b"{}"))
    assert stage.store.delete_topics({"t": zxid}, 0) == {"t"}
    assert stage.left() == []


def test_a_topic_that_keeps_getting_nodes_does_not_delay_others(stage: DeletionStore) -> None:
    topics = {topic: stage.put_topic(topic) for topic in ("t", "u")}
    stage.request_deletion("t")
    partition = itertools.count(1)
    stage.zookeeper.hook = once(
        Moment.BEFORE,
        lambda: stage.server.put(f"{T}/partitions/{next(partition)}"),
        times=1_000,
    )
    assert stage.store.delete_topics(topics, 0) == {"u"}
    assert next(partition) > MAX_DELETION_ROUNDS
    assert {T, f"{T}/partitions", "/config/topics/t", f"{REQUESTS}/t"} <= set(stage.left())
    assert not [path for path in stage.left() if path.endswith("/u")]


# --- another topic with the same name -------------------------------------------------------------


def test_a_later_topic_with_the_name_stays_and_an_older_request_is_deleted(
    stage: DeletionStore,
) -> None:
    request_deletion = stage.request_deletion("t")
    stage.put_topic("t")
    kept = [path for path in stage.left() if not path.startswith(REQUESTS)]
    assert stage.store.delete_topics({"t": request_deletion}, 0) == {"t"}
    assert stage.left() == kept


def test_a_later_request_for_a_later_topic_stays(stage: DeletionStore) -> None:
    zxid = stage.put_topic("t")
    for path in reversed(stage.left()):
        stage.server.remove(path)
    stage.put_topic("t")
    stage.request_deletion("t")
    kept = stage.left()
    assert stage.store.delete_topics({"t": zxid}, 0) == frozenset(), (
        "the next one is to be deleted too"
    )
    assert stage.left() == kept


def test_a_topic_created_again_after_a_lost_answer_stays(stage: DeletionStore) -> None:
    def create_again() -> None:
        stage.put_topic("t")
        stage.request_deletion("t")
        lose_connection()

    zxid = stage.put_topic("t")
    stage.request_deletion("t")
    stage.zookeeper.hook = once(Moment.AFTER, create_again)
    assert stage.store.delete_topics({"t": zxid}, 0) == frozenset()
    assert {T, "/config/topics/t", f"{REQUESTS}/t"} <= set(stage.left())
    assert stage.server.snapshot()[T].stat.czxid > zxid
