"""The whole tree of a cluster is read, and written into an empty one."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from regent.core.errors import BadDataError
from regent.zk.client.operations import ConflictError, ConnectionLossError, Create
from regent.zk.codecs.admin_znodes import ProducerIdBlock
from regent.zk.codecs.topic_znodes import random_uuid
from regent.zk.stores.tree_acls import levels
from regent.zk.stores.tree_store import (
    SKIPPED_PRODUCER_IDS,
    TreeInUseError,
    ZkTreeStore,
    check_tree,
)
from regent.zk.znodes import ClusterIdZNode, ProducerIdBlockZNode
from tests.support.fake_zookeeper import Call, FakeZooKeeper, FakeZooKeeperServer, Moment

CLUSTER_ID = ClusterIdZNode.encode(random_uuid())
KEPT = {
    "/cluster": b"",
    "/cluster/id": CLUSTER_ID,
    "/controller_epoch": b"17",
    "/brokers/topics/t": b'{"version":1}',
    "/brokers/topics/t/partitions": b"",
    "/brokers/topics/t/partitions/0": b"",
    "/brokers/topics/t/partitions/0/state": b"{}",
    "/config/topics/t": b'{"version":1,"config":{}}',
    "/admin/delete_topics/t": b"",
    "/consumers/old": b"\xff\x00",
    "/regent": b"",
    "/regent/controller_terms": b"",
}
LEFT_OUT = {
    "/zookeeper": b"",
    "/zookeeper/quota": b"",
    "/regent/progress_mark": b"",
    "/config/changes/config_change_0000000003": b"{}",
    "/isr_change_notification/isr_change_0000000004": b"{}",
    "/kafka-acl-changes": b"",
    "/kafka-acl-changes/acl_changes_0000000000": b"{}",
}
EPHEMERAL = ("/controller", "/brokers/ids/1", "/regent/controller_terms/a-17")


@pytest.fixture
def full(server: FakeZooKeeperServer) -> FakeZooKeeper:
    """A session of a broker, in a tree with znodes of every kind."""
    for path, data in {**KEPT, **LEFT_OUT}.items():
        server.put(path, data)
    block = ProducerIdBlockZNode.encode(ProducerIdBlock(1, 5_000, 5_999))
    server.put(ProducerIdBlockZNode.PATH, block)
    session = FakeZooKeeper(server)
    session.multi([Create(path, b"{}", ephemeral=True) for path in EPHEMERAL])
    return session


def restored(zookeeper: FakeZooKeeper) -> Mapping[str, bytes]:
    """Return the data of all znodes."""
    paths = [path for level in levels(zookeeper) for path in level]
    nodes = zip(paths, zookeeper.get_many(paths), strict=True)
    return {path: node.data for path, node in nodes if node is not None and path != "/"}


def document_of(zookeeper: FakeZooKeeper) -> Mapping[str, bytes]:
    """Return what a file has after it was written and read."""
    return check_tree(json.loads(json.dumps(ZkTreeStore(zookeeper).read())))


def test_all_but_what_belongs_to_processes_is_there_again(full: FakeZooKeeper) -> None:
    empty = FakeZooKeeper(FakeZooKeeperServer())
    document = document_of(full)
    assert ZkTreeStore(empty).write(document) == len(document)
    found = restored(empty)
    assert KEPT.items() <= found.items()
    assert "/kafka-acl-changes" in found
    gone = {*LEFT_OUT, *EPHEMERAL} - {"/kafka-acl-changes"}
    assert not gone & found.keys()


def test_producer_ids_that_were_given_out_since_the_backup_are_not_given_out_again(
    full: FakeZooKeeper,
) -> None:
    block = ProducerIdBlockZNode.decode(document_of(full)[ProducerIdBlockZNode.PATH])
    assert block is not None
    assert block.last_producer_id == 5_999 + SKIPPED_PRODUCER_IDS


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/brokers/ids/1", "brokers are registered here: 1: stop them"),
        ("/controller", "there is a cluster here already \\(/controller\\)"),
        ("/cluster/id", "there is a cluster here already \\(/cluster/id\\)"),
        ("/brokers/topics/t", "/brokers/topics/t exists with other data"),
    ],
)
def test_a_tree_in_use_is_refused_and_not_changed(
    full: FakeZooKeeper, path: str, told: str
) -> None:
    document = document_of(full)
    used = FakeZooKeeperServer()
    used.put(path, b"{}")
    before = restored(FakeZooKeeper(used))
    with pytest.raises(TreeInUseError, match=told):
        ZkTreeStore(FakeZooKeeper(used)).write(document)
    assert restored(FakeZooKeeper(used)) == before


def test_an_interrupted_restore_is_repeated(full: FakeZooKeeper) -> None:
    document = document_of(full)
    server = FakeZooKeeperServer()

    def lose(call: Call) -> None:
        is_write = call.method.startswith("multi")
        if is_write and call.moment is Moment.AFTER and "/brokers/topics/t" in call.paths:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        ZkTreeStore(FakeZooKeeper(server, hook=lose)).write(document)
    assert "/cluster/id" not in restored(FakeZooKeeper(server)), "it is the mark of a whole tree"
    rest = ZkTreeStore(FakeZooKeeper(server)).write(document)
    assert 0 < rest < len(document)
    assert restored(FakeZooKeeper(server)) == document


def test_a_lost_answer_does_not_stop_a_restore(full: FakeZooKeeper) -> None:
    document, lost = document_of(full), list[str]()

    def lose(call: Call) -> None:
        if call.moment is Moment.AFTER and call.method.startswith("multi") and not lost:
            lost.append(call.method)
            raise ConnectionLossError

    server = FakeZooKeeperServer()
    ZkTreeStore(FakeZooKeeper(server, hook=lose)).write(document)
    assert lost
    assert restored(FakeZooKeeper(server)) == document


def test_a_broker_that_starts_meanwhile_is_noticed(full: FakeZooKeeper) -> None:
    server = FakeZooKeeperServer()

    def start(call: Call) -> None:
        if call.moment is Moment.BEFORE and "/cluster/id" in call.paths and "multi" in call.method:
            server.put("/cluster/id", b"another")

    with pytest.raises(ConflictError, match="/cluster/id cannot be written: NODE_EXISTS"):
        ZkTreeStore(FakeZooKeeper(server, hook=start)).write(document_of(full))


def test_what_others_have_below_the_same_root_is_left_alone(
    full: FakeZooKeeper, server: FakeZooKeeperServer
) -> None:
    own = document_of(full)
    block = ProducerIdBlockZNode.encode(ProducerIdBlock(1, 5_000, 5_999))
    others = {f"/other{ProducerIdBlockZNode.PATH}": block, "/other/cluster/id": b"x", "/app": b"1"}
    for path, data in others.items():
        server.put(path, data)
    server.deny("/app")
    document = document_of(full)
    assert document == own
    shared = FakeZooKeeperServer()
    shared.put("/app", b"2")
    shared.deny("/app")
    tree = ZkTreeStore(full).read()
    of_all = check_tree({**tree, "tree": {"/app": "1", **tree["tree"]}})
    assert ZkTreeStore(FakeZooKeeper(shared)).write(of_all) == len(document)


def test_a_znode_that_cannot_be_read_is_not_left_out(
    full: FakeZooKeeper, server: FakeZooKeeperServer
) -> None:
    server.deny("/brokers/topics/t")
    with pytest.raises(BadDataError, match="/brokers/topics/t"):
        ZkTreeStore(full).read()


@pytest.mark.parametrize(
    ("tree", "told"),
    [
        ({}, "it has no /cluster/id"),
        ({"/cluster/id": "x"}, "/cluster/id has no parent"),
        ({"cluster": ""}, "cluster has no parent"),
        ({"/cluster": "", "/cluster/id": "x"}, "not JSON"),
        ({"/a": 5}, "/a must be a text"),
        ({"/a": {"base64": "-"}}, "/a must be a text"),
    ],
)
def test_a_wrong_document_is_refused(tree: Mapping[str, object], told: str) -> None:
    with pytest.raises(BadDataError, match=told):
        check_tree({"version": 1, "tree": tree})
