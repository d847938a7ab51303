"""Placed topics written to ZooKeeper: a fake one with failures, and a real one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import TypeAlias

import pyarrow
import pytest

import regent.client.topics
from regent.core.protocol.messages.topics import CreatableTopicConfig
from regent.core.protocol.placement import PlacementBroker, PlacementSpec, PlaceTopicsRequest
from regent.jobs.command import InputError
from regent.jobs.placement_job import placed_partitions
from regent.jobs.topic_writer import (
    TopicsExistError,
    Written,
    check_new_topics,
    placed_topics,
    write_topics,
)
from regent.testing.waits import scaled
from regent.zk import znodes
from regent.zk.client.zookeeper_client import ZooKeeperClient
from regent.zk.stores.admin_store import ZkAdminStore
from regent.zk.znodes import ConfigEntityZNode, DeleteTopicsTopicZNode
from tests.support.fake_zookeeper import FakeZooKeeper, FakeZooKeeperServer
from tests.support.topic_controller import brokers_of
from tests.support.topic_requests import setting

Placed: TypeAlias = tuple[str, dict[int, tuple[int, ...]]]

TOPICS: list[Placed] = [(f"t{n}", {0: (0, 1), 1: (1, 2)}) for n in range(10)]


CONFIG = {"t1": (setting("retention.ms", "5"),)}


@pytest.fixture
def server() -> FakeZooKeeperServer:
    return FakeZooKeeperServer()


@pytest.fixture
def admin(server: FakeZooKeeperServer) -> Iterator[ZkAdminStore]:
    with brokers_of(FakeZooKeeper(server), 3):
        yield ZkAdminStore(FakeZooKeeper(server))


def replicas(admin: ZkAdminStore, topic: str) -> dict[int, tuple[int, ...]]:
    found = admin.topics.read_topics([topic])[topic]
    assert not isinstance(found, Exception)
    return {p: assignment.replicas for p, assignment in found.partitions.items()}


def batch(topic: str, placed: Mapping[int, tuple[int, ...]]) -> pyarrow.RecordBatch:
    rows = [{"topic": topic, "partition": p, "replicas": r} for p, r in placed.items()]
    return pyarrow.RecordBatch.from_pylist(rows)


def write(
    admin: ZkAdminStore,
    topics: Iterable[Placed],
    configs: Mapping[str, tuple[CreatableTopicConfig, ...]] = {},
) -> Written:
    batches = (batch(*topic) for topic in topics)
    return write_topics(admin, placed_topics(placed_partitions(batches), configs), 10)


def content(server: FakeZooKeeperServer) -> dict[str, bytes]:
    return {path: node.data for path, node in server.snapshot().items()}


# --- writing --------------------------------------------------------------------------------------


def test_topics_are_created_as_placed_each_with_its_configuration(
    server: FakeZooKeeperServer, admin: ZkAdminStore
):
    written = write(admin, TOPICS, CONFIG)
    assert written == Written(created=10, unchanged=0, existing=())
    assert {t: replicas(admin, t) for t, _ in TOPICS} == dict(TOPICS)
    data = server.snapshot()[ConfigEntityZNode.path("topics", "t1")].data
    assert ConfigEntityZNode.decode(data) == {"retention.ms": "5"}
    written.raise_if_any_existed()


def test_a_second_run_changes_nothing(server: FakeZooKeeperServer, admin: ZkAdminStore):
    write(admin, TOPICS[:4])
    before = content(server)
    assert write(admin, TOPICS) == Written(created=6, unchanged=4, existing=())
    assert content(server).items() >= before.items()


def test_topics_that_exist_with_other_replicas_stay_and_are_reported(
    server: FakeZooKeeperServer, admin: ZkAdminStore
):
    others: list[Placed] = [(f"t{n}", {0: (0, 1), 1: (2, 1)}) for n in range(5)]
    write(admin, others)
    before = content(server)
    written = write(admin, TOPICS, CONFIG)
    assert written == Written(5, 0, ("t0", "t1", "t2", "t3", "t4"))
    assert content(server).items() >= before.items()
    with pytest.raises(TopicsExistError, match=r"^5 topics exist .*: t0, t1, t2 and 2 more$"):
        written.raise_if_any_existed()


def test_a_topic_being_deleted_does_not_count_as_created(
    server: FakeZooKeeperServer, admin: ZkAdminStore
):
    write(admin, TOPICS)
    server.put(DeleteTopicsTopicZNode.path("t7"))
    assert write(admin, TOPICS) == Written(0, 9, ("t7",))


def test_a_topic_with_an_unreadable_znode_is_reported(
    server: FakeZooKeeperServer, admin: ZkAdminStore
):
    server.put(znodes.TopicZNode.path("t1"), b"garbage")
    assert write(admin, TOPICS) == Written(9, 0, ("t1",))


@pytest.mark.parametrize("done", [3, 6])
def test_the_same_command_continues_an_interrupted_run(
    admin: ZkAdminStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    done: int,
):
    monkeypatch.setattr(regent.client.topics, "_MAX_SLICE_TOPICS", 3)

    def interrupted() -> Iterator[Placed]:
        yield from TOPICS[: done + 2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(admin, interrupted())
    assert capsys.readouterr().err == (
        f"{done} of 10 topics exist: the same command creates the others\n"
    )
    assert write(admin, TOPICS) == Written(10 - done, done, ())


def test_memory_is_bounded_for_any_number_of_topics(admin: ZkAdminStore):
    ahead = 0

    def many() -> Iterator[Placed]:
        nonlocal ahead
        for number in range(3_000):
            ahead = max(ahead, number - len(admin.topics.read_topic_names()))
            yield (f"many-{number:04}", {0: (0,)})

    assert write(admin, many()).created == 3_000
    assert ahead <= 1_001


@pytest.mark.zookeeper
def test_topics_are_created_in_a_real_zookeeper(zookeeper_address: str):
    with ExitStack() as stack:
        client = ZooKeeperClient(zookeeper_address, 6000, on_watch=lambda _: None)
        stack.enter_context(closing(client))
        client.start(timeout_s=scaled(10.0))
        stack.enter_context(brokers_of(client, 4))
        topics: list[Placed] = [(f"t{n}", {p: (p % 3, 3) for p in range(50)}) for n in range(500)]
        admin = ZkAdminStore(client)
        assert write(admin, topics[:200]).created == 200
        assert write(admin, topics) == Written(300, 200, ())
        assert replicas(admin, "t499") == topics[499][1]


# --- rows -----------------------------------------------------------------------------------------


def test_rows_become_topics_also_over_the_ends_of_batches():
    rows = [
        {"topic": topic, "partition": p, "replicas": [p, p + 1]}
        for topic, partitions in (("a", 3), ("b", 1), ("c", 4))
        for p in range(partitions)
    ]
    batches = pyarrow.Table.from_pylist(rows).to_batches(max_chunksize=2)
    found = [(t.name, len(t.assignments)) for t in placed_topics(placed_partitions(batches), {})]
    assert found == [("a", 3), ("b", 1), ("c", 4)]
    assert list(placed_topics([], {})) == []


# --- checks before the first write ----------------------------------------------------------------


def request(*specs: PlacementSpec, brokers: Sequence[int] = range(3)) -> PlaceTopicsRequest:
    hosts = tuple(PlacementBroker(b, None, 0) for b in brokers)
    return PlaceTopicsRequest(specs, hosts, "ring", "0", "batch", 0)


@pytest.mark.parametrize(
    ("wanted", "configs", "message"),
    [
        (request(PlacementSpec("t", 1, 1, 0), brokers=[0, 9]), {}, "broker 9 is not registered"),
        (request(PlacementSpec("t", 1, 1, 5)), {}, "topic t: --apply creates topics"),
        (request(PlacementSpec("a.b", 1, 1, 0)), {}, "topic a.b collides with topic a_b"),
        (
            request(PlacementSpec("x.y", 1, 1, 0), PlacementSpec("x_y", 1, 1, 0)),
            {},
            "topic x_y collides with topic x.y",
        ),
        (request(PlacementSpec("t", 200_000, 3, 0)), {}, "topic t: 200000 partitions take"),
        (
            request(PlacementSpec("t", 1, 1, 0)),
            {"t": (setting("retention.m", "5"),)},
            "topic t config retention.m is not a setting of topics; did you mean retention.ms?",
        ),
    ],
)
def test_a_topic_that_cannot_be_created_is_found_before_the_first_write(
    admin: ZkAdminStore,
    wanted: PlaceTopicsRequest,
    configs: Mapping[str, tuple[CreatableTopicConfig, ...]],
    message: str,
):
    write(admin, [("a_b", {0: (0,)})])
    with pytest.raises(InputError, match=message.replace("?", r"\?")):
        check_new_topics(admin, wanted, configs)


def test_existing_topics_pass_the_checks(admin: ZkAdminStore):
    write(admin, TOPICS)
    again = request(*(PlacementSpec(topic, 2, 2, 0) for topic, _ in TOPICS))
    check_new_topics(admin, again, CONFIG)
