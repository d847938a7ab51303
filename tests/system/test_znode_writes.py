"""The writes to ZooKeeper, and their sequence, are those of Kafka.

Each scenario was compared with the transaction log of a real Kafka cluster; where later releases of
Kafka differ (topic ids, ``adding_replicas``, an election after the ISR shrank at failover), they
apply. The tests read ZooKeeper's transaction log: watches would miss writes.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from regent.config.command_line import COMMAND
from regent.testing.waits import eventually, scaled
from regent.zk.client.operations import ANY_VERSION, Delete
from tests.support.operated_cluster import ELECT, REASSIGN, OperatedCluster
from tests.support.znode_table import rows_of
from tests.support.znode_writes import (
    ID,
    MS,
    History,
    change,
    create,
    delete,
    state,
    state_path,
    topic_znode,
    written,
)

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatedCluster]:
    with OperatedCluster(tmp_path_factory.mktemp("cluster"), "controller") as cluster:
        yield cluster


def test_the_first_broker_creates_the_tree_registers_and_is_elected(cluster: OperatedCluster):
    transactions = [written(t) for t in History(cluster).everything()]
    writes = [write for transaction in transactions for write in transaction]
    election = next(w for w in writes if w.path == "/controller")
    first = election.content["brokerid"]
    assert election == create("/controller", {"version": 1, "brokerid": first, "timestamp": MS})
    assert [election, change("/controller_epoch", 1)] in transactions, "one transaction"
    assert writes.index(create("/controller_epoch", 0)) < writes.index(election)
    persistent = [
        *("/consumers", "/brokers/ids", "/brokers/topics", "/config/changes"),
        *("/admin/delete_topics", "/brokers/seqid", "/isr_change_notification"),
        *("/latest_producer_id_block", "/log_dir_event_notification"),
        *(f"/config/{kind}" for kind in ("topics", "clients", "users", "brokers", "ips")),
    ]
    created = [w.path for w in writes if w.kind == "create"]
    assert [path for path in created if path in persistent] == persistent
    registration = f"/brokers/ids/{first}"
    assert created.index(persistent[-1]) < created.index(registration)
    assert created.index(registration) < created.index("/controller")
    (content,) = [w.content for w in writes if w.path == registration and w.kind == "set"]
    endpoint = f"PLAINTEXT://{content['host']}:{content['port']}"
    ours = ["control_endpoint", "replication_endpoint", "curve_public_key"]
    ours += ["release", "control_version"]
    assert content | dict.fromkeys(ours, "") == {
        "version": 5,
        "host": "127.0.0.1",
        "port": content["port"],
        "endpoints": [endpoint],
        "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
        "jmx_port": -1,
        "features": {},
        "timestamp": MS,
        **dict.fromkeys(ours, ""),
    }


def test_a_topic_of_a_tool_gets_its_id_then_partitions_then_states(
    cluster: OperatedCluster,
):
    history, epoch = History(cluster), cluster.controller_epoch()
    cluster.create_as_tools_do("created", (0, 1, 2), (1, 2, 0))
    topic = "/brokers/topics/created"
    assert history.writes(topic, "/config/topics/created") == [
        create("/config/topics/created", {"version": 1, "config": {}}),
        create(topic, {"version": 1, "partitions": {"0": [0, 1, 2], "1": [1, 2, 0]}}),
        change(topic, topic_znode([[0, 1, 2], [1, 2, 0]])),
        create(f"{topic}/partitions", {"version": 1, "topic_id": ID}),  # empty in Kafka
        create(f"{topic}/partitions/0"),
        create(state_path("created", 0), state(0, [0, 1, 2], 0, epoch)),
        create(f"{topic}/partitions/1"),
        create(state_path("created", 1), state(1, [1, 2, 0], 0, epoch)),
    ]


def test_a_dead_follower_leaves_the_isr_and_joins_it_again_at_its_end(cluster: OperatedCluster):
    controller, dies, leads = cluster.roles()
    cluster.create_as_tools_do("followed", (leads, dies, controller))
    history, epoch = History(cluster), cluster.controller_epoch()
    cluster.stop(dies)
    cluster.await_state("followed", leads, {leads, controller})
    cluster.bring_back(dies)
    cluster.await_state("followed", leads, {0, 1, 2})
    path = state_path("followed")
    ids = f"/brokers/ids/{dies}"
    writes = history.writes(ids, path)
    assert [w for w in writes if w.kind != "set" or w.path != ids] == [
        delete(ids),
        change(path, state(leads, [leads, controller], 1, epoch)),
        create(ids),
        change(path, state(leads, [leads, controller, dies], 1, epoch)),
    ]
    assert history.writes("/isr_change_notification") == [], "the controller needs no notification"


def test_a_dead_leader_is_replaced_in_one_write(cluster: OperatedCluster):
    controller, dies, other = cluster.roles()
    cluster.create_as_tools_do("led", (dies, other, controller))
    history, epoch = History(cluster), cluster.controller_epoch()
    cluster.stop(dies)
    cluster.await_state("led", other, {other, controller})
    cluster.bring_back(dies)
    cluster.await_state("led", other, {0, 1, 2})
    path = state_path("led")
    assert history.writes(path) == [
        change(path, state(other, [other, controller], 1, epoch)),
        change(path, state(other, [other, controller, dies], 1, epoch)),
    ]


def test_after_the_death_of_the_controller_the_next_epoch_is_written(cluster: OperatedCluster):
    dies, first, second = cluster.roles()
    cluster.create_as_tools_do("led-by-the-controller", (dies, first, second))
    cluster.create_as_tools_do("followed-by-the-controller", (first, second, dies))
    history, epoch = History(cluster), cluster.controller_epoch()
    cluster.stop(dies)
    cluster.await_state("led-by-the-controller", first, {first, second})
    cluster.await_state("followed-by-the-controller", first, {first, second})
    (closed,) = [t for t in history.transactions() if t.closes_session and len(written(t)) == 2]
    assert set(written(closed)) == {delete("/controller"), delete(f"/brokers/ids/{dies}")}
    led, followed = state_path("led-by-the-controller"), state_path("followed-by-the-controller")
    writes = history.writes("/controller", "/controller_epoch", led, followed)
    elected = cluster.controller()
    assert elected in (first, second)
    assert [w for w in writes if w.path != followed] == [
        delete("/controller"),
        create("/controller", {"version": 1, "brokerid": elected, "timestamp": MS}),
        change("/controller_epoch", epoch + 1),
        change(led, state(first, [first, second], 2, epoch + 1)),
    ]
    assert [w for w in writes if w.path == followed] == [
        change(followed, state(first, [first, second], 1, epoch + 1))
    ]
    cluster.bring_back(dies)
    cluster.await_isr("led-by-the-controller", {0, 1, 2})


def test_preferred_replicas_are_elected_then_the_request_is_deleted(cluster: OperatedCluster):
    controller, dies, other = cluster.roles()
    cluster.create_as_tools_do("preferred", (dies, other, controller), (other, dies, controller))
    cluster.stop(dies)
    cluster.bring_back(dies)
    cluster.await_isr("preferred", {0, 1, 2})
    history, epoch = History(cluster), cluster.controller_epoch()
    request = {
        "version": 1,
        "partitions": [{"topic": "preferred", "partition": p} for p in (0, 1)],
    }
    cluster.write(ELECT, str(request).replace("'", '"'))
    cluster.await_gone(ELECT)
    path = state_path("preferred")
    assert history.writes(ELECT, "/brokers/topics/preferred") == [
        create(ELECT, request),
        change(path, state(dies, [other, controller, dies], 2, epoch)),
        delete(ELECT),
    ]


def test_a_replica_moves_by_way_of_both_assignments(cluster: OperatedCluster):
    cluster.create_as_tools_do("moved", (0, 1))
    history, epoch = History(cluster), cluster.controller_epoch()
    cluster.reassign("moved", (2, 1))
    topic, path = "/brokers/topics/moved", state_path("moved")
    request = {"version": 1, "partitions": [{"topic": "moved", "partition": 0, "replicas": [2, 1]}]}
    assert history.writes(REASSIGN, topic) == [
        create(REASSIGN, request),
        change(topic, topic_znode([[2, 1, 0]], {"0": [2]}, {"0": [0]})),
        change(path, state(0, [0, 1], 1, epoch)),
        change(path, state(0, [0, 1, 2], 1, epoch)),
        change(path, state(2, [0, 1, 2], 2, epoch)),
        change(path, state(2, [1, 2], 3, epoch)),
        change(topic, topic_znode([[2, 1]])),
        delete(REASSIGN),
    ]


def test_reordering_the_replicas_moves_no_leader(cluster: OperatedCluster):
    cluster.create_as_tools_do("reordered", (0, 1))
    history, epoch = History(cluster), cluster.controller_epoch()
    cluster.reassign("reordered", (1, 0))
    topic, path = "/brokers/topics/reordered", state_path("reordered")
    assert history.writes(REASSIGN, topic)[1:] == [
        change(topic, topic_znode([[1, 0]])),
        change(path, state(0, [0, 1], 1, epoch)),
        delete(REASSIGN),
    ]


@pytest.mark.parametrize("role", ["follower of the controller", "controller"])
def test_a_broker_that_shuts_down_hands_over_before_its_session_ends(
    cluster: OperatedCluster, role: str
):
    controller, first, second = cluster.roles()
    leaves, stays, other = (
        (controller, first, second) if role == "controller" else (second, first, controller)
    )
    topics = [f"{prefix}-{leaves}" for prefix in ("handed-over", "left")]
    cluster.create_as_tools_do(topics[0], (leaves, stays, other))
    cluster.create_as_tools_do(topics[1], (stays, leaves, other))
    led, followed = map(state_path, topics)
    ids = f"/brokers/ids/{leaves}"
    history, epoch = History(cluster), cluster.controller_epoch()
    cluster.stop(leaves, signal.SIGTERM)
    assert history.writes(ids, led, followed) == [
        change(led, state(stays, [stays, other], 1, epoch)),
        change(followed, state(stays, [stays, other], 1, epoch)),
        delete(ids),
    ]
    eventually(lambda: cluster.controller() not in (None, leaves), "there is another controller")
    cluster.bring_back(leaves)
    for topic in topics:
        cluster.await_state(topic, stays, {0, 1, 2})
    epoch = cluster.controller_epoch()
    assert history.writes(led)[1:] == [change(led, state(stays, [stays, other, leaves], 1, epoch))]


def test_added_partitions_are_created_and_the_topic_keeps_its_id(cluster: OperatedCluster):
    cluster.create_as_tools_do("expanded", (0, 1))
    topic = "/brokers/topics/expanded"
    before = cluster.zookeeper.get(topic)
    history, epoch = History(cluster), cluster.controller_epoch()
    cluster.rewrite(topic, '{"version":1,"partitions":{"1":[1,2],"0":[0,1]}}')
    eventually(lambda: 1 in cluster.partition_states("expanded"), "the new partition has a leader")
    assert history.writes(topic) == [
        change(topic, {"version": 1, "partitions": {"0": [0, 1], "1": [1, 2]}}),
        change(topic, topic_znode([[0, 1], [1, 2]])),
        create(f"{topic}/partitions/1"),
        create(state_path("expanded", 1), state(1, [1, 2], 0, epoch)),
    ]
    after = cluster.zookeeper.get(topic)
    assert before is not None
    assert after is not None
    assert before.data.rpartition(b"topic_id")[2] == after.data.rpartition(b"topic_id")[2]


def test_a_topics_znodes_are_deleted_children_first(cluster: OperatedCluster):
    cluster.create_as_tools_do("deleted", (0, 1))
    topic, path = "/brokers/topics/deleted", state_path("deleted")
    config, request = "/config/topics/deleted", "/admin/delete_topics/deleted"
    history, epoch = History(cluster), cluster.controller_epoch()
    cluster.write(request, "")
    cluster.await_gone(topic, request)
    assert history.writes(topic, config, request) == [
        create(request),
        change(path, state(-1, [1], 1, epoch)),
        change(path, state(-1, [1], 2, epoch)),
        delete(path),
        delete(f"{topic}/partitions/0"),
        delete(f"{topic}/partitions"),
        delete(topic),
        delete(config),
        delete(request),
    ]


def test_a_deletion_waits_for_the_broker_of_every_replica(cluster: OperatedCluster):
    controller, dies, _other = cluster.roles()
    cluster.create_as_tools_do("waiting", (controller, dies))
    topic, request = "/brokers/topics/waiting", "/admin/delete_topics/waiting"
    cluster.stop(dies)
    cluster.await_state("waiting", controller, {controller})
    history, epoch = History(cluster), cluster.controller_epoch()
    cluster.write(request, "")
    cluster.await_state("waiting", -1, {controller})
    cluster.bring_back(dies)
    cluster.await_gone(topic, request)
    ids, path = f"/brokers/ids/{dies}", state_path("waiting")
    assert [w for w in history.writes(ids, topic, request) if w != change(ids, w.content)] == [
        create(request),
        change(path, state(-1, [controller], 2, epoch)),
        create(ids),
        delete(path),
        delete(f"{topic}/partitions/0"),
        delete(f"{topic}/partitions"),
        delete(topic),
        delete(request),
    ]


def test_a_partition_waits_for_the_last_replica_that_was_in_sync(cluster: OperatedCluster):
    controller, dies, last = cluster.roles()
    cluster.create_as_tools_do("last", (dies, last))
    path, epoch = state_path("last"), cluster.controller_epoch()
    history = History(cluster)
    cluster.stop(dies)
    cluster.await_state("last", last, {last})
    cluster.stop(last)
    cluster.await_state("last", -1, {last})
    cluster.bring_back(dies)
    cluster.bring_back(last)
    cluster.await_state("last", last, {dies, last})
    assert cluster.controller() == controller
    assert history.writes(path) == [
        change(path, state(last, [last], 1, epoch)),
        change(path, state(-1, [last], 2, epoch)),
        change(path, state(last, [last], 3, epoch)),
        change(path, state(last, [last, dies], 3, epoch)),
    ]


def test_a_configuration_is_stored_before_its_notification(cluster: OperatedCluster):
    cluster.create_as_tools_do("configured", (0, 1))
    history = History(cluster)
    options = ["configured", "--set", "retention.ms=1000", "--data-dir", str(cluster.data_dir)]
    subprocess.run([*COMMAND, "topics", "config", *options], check=True, timeout=scaled(60))
    notification = cluster.zookeeper.children("/config/changes")
    assert notification
    paths = "/config/topics/configured", "/config/changes", "/brokers/topics/configured"
    assert history.writes(*paths) == [
        change("/config/topics/configured", {"version": 1, "config": {"retention.ms": "1000"}}),
        create(
            f"/config/changes/{max(notification)}",
            {"version": 2, "entity_path": "topics/configured"},
        ),
    ]


def test_a_controller_whose_znode_is_deleted_is_elected_again_with_a_new_epoch(
    cluster: OperatedCluster,
):
    history, epoch = History(cluster), cluster.controller_epoch()
    cluster.zookeeper.multi([Delete("/controller", ANY_VERSION)])
    eventually(lambda: cluster.controller_epoch() == epoch + 1, "an election")
    elected = cluster.controller()
    assert history.writes("/controller", "/controller_epoch", "/brokers/ids") == [
        delete("/controller"),
        create("/controller", {"version": 1, "brokerid": elected, "timestamp": MS}),
        change("/controller_epoch", epoch + 1),
    ]


@pytest.mark.nightly
def test_leaders_that_write_their_isrs_notify_the_controller_afterwards(tmp_path: Path):
    with OperatedCluster(tmp_path, "zookeeper") as cluster:
        controller, dies, leads = cluster.roles()
        epoch = cluster.controller_epoch()
        cluster.create_as_tools_do("old", (leads, dies, controller), (leads, dies, controller))
        cluster.stop(dies)
        cluster.await_isr("old", {leads, controller})
        history = History(cluster)
        cluster.bring_back(dies)
        cluster.await_isr("old", {0, 1, 2})
        notifications = "/isr_change_notification"
        notification = f"{notifications}/isr_change_0000000000"
        eventually(
            lambda: delete(notification) in history.writes(notifications),
            "the controller has read the notification",
        )
        partitions = [{"topic": "old", "partition": p} for p in (0, 1)]
        assert history.writes(notifications) == [
            create(notification, {"version": 1, "partitions": partitions}),
            delete(notification),
        ]
        for partition in (0, 1):
            path = state_path("old", partition)
            assert history.writes(path) == [
                change(path, state(leads, [leads, controller, dies], 1, epoch))
            ]
        writers = {w.path: t.session for t in history.transactions() for w in t.writes}
        assert writers[state_path("old")] != writers[notification], "the leader; the controller"


def test_each_path_of_the_cluster_is_a_row_of_the_table(cluster: OperatedCluster):
    paths = {write.path for t in History(cluster).everything() for write in t.writes}
    assert [path for path in sorted(paths) if not rows_of(path)] == []
    assert any(path.startswith("/regent/") for path in paths), "our own znodes too"
