"""Znodes that tools write in different formats are all understood."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from time import monotonic
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer

from regent.testing.waits import eventually, scaled
from regent.zk.client.operations import ANY_VERSION, Create, Delete, Operation
from tests.support.operated_cluster import ELECT, REASSIGN, OperatedCluster
from tests.support.znode_writes import History, create, delete

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

ABSENT = 9  # a broker that is not there


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatedCluster]:
    with OperatedCluster(tmp_path_factory.mktemp("cluster"), "controller") as cluster:
        yield cluster


def znode(cluster: OperatedCluster, topic: str) -> dict[str, Any]:
    """Return the content of a topic's znode."""
    node = cluster.zookeeper.get(f"/brokers/topics/{topic}")
    assert node is not None
    content: dict[str, Any] = orjson.loads(node.data)
    return content


def await_znode(cluster: OperatedCluster, topic: str, **fields: Any) -> dict[str, Any]:
    """Wait until a topic's znode has these fields; return its content."""
    eventually(lambda: znode(cluster, topic).items() >= fields.items(), f"{topic}: {fields}")
    return znode(cluster, topic)


@pytest.mark.parametrize(
    ("tool", "data"),
    [
        ("kafka", '{"version":1,"partitions":[{"topic":"T","partition":0,"replicas":[2,1]}]}'),
        (
            "kafka-utils",
            '{"partitions": [{"partition": 0, "replicas": [2, 1], "topic": "T"}], "version": 1}',
        ),
        (
            "bubuku",
            '{"version": "1", "partitions": [{"topic": "T", "partition": 0, "replicas": [2, 1]}]}',
        ),
        (
            "log-dirs",
            '{"version":1,"partitions":[{"topic":"T","partition":0,"replicas":[2,1],'
            '"log_dirs":["any","/data/2"]}],"throttle":null}\n',
        ),
        ("no-version", '{"partitions":[{"topic":"T","partition":0,"replicas":[2,1]}]}'),
    ],
    ids=lambda value: value if value[0] != "{" else "",
)
def test_reassignments_in_the_formats_of_all_tools_are_done(
    cluster: OperatedCluster, tool: str, data: str
):
    topic = f"moved-by-{tool}"
    cluster.create_as_tools_do(topic, (0, 1))
    cluster.write(REASSIGN, data.replace('"T"', f'"{topic}"'))
    cluster.await_gone(REASSIGN)
    moved = znode(cluster, topic)
    assert (moved["partitions"], moved["adding_replicas"]) == ({"0": [2, 1]}, {})
    cluster.await_state(topic, 2, {1, 2})


def test_a_reassignment_that_only_reorders_replicas_is_done_and_can_be_elected(
    cluster: OperatedCluster,
):
    cluster.create_as_tools_do("revoked", (0, 1), (0, 2))
    rows = '{"topic":"revoked","partition":0,"replicas":[1,0]},'
    rows += '{"topic":"revoked","partition":1,"replicas":[2,0]}'
    cluster.write(REASSIGN, f'{{"version":1,"partitions":[{rows}]}}')
    cluster.await_gone(REASSIGN)
    cluster.await_state("revoked", 0, {0, 1})
    rows = '{"topic":"revoked","partition":0},{"partition":1,"topic":"revoked"}'
    cluster.write(ELECT, f'{{"version":1,"partitions":[{rows}]}}')
    cluster.await_gone(ELECT)
    assert [s.leader_and_isr.leader for s in cluster.partition_states("revoked").values()] == [1, 2]


@pytest.mark.parametrize(
    "garbage",
    ["", "not json", "[]", '{"version":1,"partitions":[]}'],
    ids=["no data", "no JSON", "no object", "no partitions"],
)
def test_a_reassignment_that_cannot_be_done_is_deleted(cluster: OperatedCluster, garbage: str):
    for path in (REASSIGN, ELECT):
        cluster.write(path, garbage)
        cluster.await_gone(path)


def test_the_valid_part_of_a_bad_reassignment_is_done(cluster: OperatedCluster):
    cluster.create_as_tools_do("planned", (0, 1))
    rows = '{"topic":"nosuch","partition":0,"replicas":[1]},'
    rows += '{"topic":"planned","partition":7,"replicas":[1]},'
    rows += '{"topic":"planned","partition":0,"replicas":[1,2]}'
    cluster.write(REASSIGN, f'{{"version":1,"partitions":[{rows}]}}')
    cluster.await_gone(REASSIGN)
    assert znode(cluster, "planned")["partitions"] == {"0": [1, 2]}


def test_a_move_to_an_absent_broker_is_pending_until_another_plan_replaces_it(
    cluster: OperatedCluster,
):
    cluster.create_as_tools_do("stuck", (0, 1))
    row = f'{{"topic":"stuck","partition":0,"replicas":[{ABSENT},1]}}'
    cluster.write(REASSIGN, f'{{"version":1,"partitions":[{row}]}}')
    await_znode(cluster, "stuck", adding_replicas={"0": [ABSENT]}, removing_replicas={"0": [0]})
    assert cluster.zookeeper.get(REASSIGN) is not None, "tools must refuse to begin another one"
    cluster.rewrite(
        REASSIGN, '{"version":1,"partitions":[{"topic":"stuck","partition":0,"replicas":[0,1]}]}'
    )
    cluster.await_gone(REASSIGN)
    await_znode(cluster, "stuck", partitions={"0": [0, 1]}, adding_replicas={})


def test_the_znode_may_be_removed_by_hand_and_written_again(cluster: OperatedCluster):
    cluster.create_as_tools_do("removed", (0, 1))
    row = f'{{"topic":"removed","partition":0,"replicas":[{ABSENT},1]}}'
    cluster.write(REASSIGN, f'{{"version":1,"partitions":[{row}]}}')
    await_znode(cluster, "removed", adding_replicas={"0": [ABSENT]})
    cluster.zookeeper.multi([Delete(REASSIGN, ANY_VERSION)])
    cluster.reassign("removed", (1, 0))
    await_znode(cluster, "removed", partitions={"0": [1, 0]}, adding_replicas={})


@pytest.mark.parametrize(
    ("version", "rest"),
    [
        (1, ""),
        (2, ',"adding_replicas":{},"removing_replicas":{}'),
        (3, ',"adding_replicas":{},"removing_replicas":{}'),
    ],
)
def test_a_topic_without_an_id_gets_one(cluster: OperatedCluster, version: int, rest: str):
    topic = f"of-version-{version}"
    data = f'{{"version":{version},"partitions":{{"0":[1, 2]}}{rest}}}'
    cluster.write(f"/brokers/topics/{topic}", data)
    cluster.await_state(topic, 1, {1, 2})
    assert len(znode(cluster, topic)["topic_id"]) == 22


def test_a_rewrite_without_id_and_moves_loses_no_id_and_no_move(cluster: OperatedCluster):
    cluster.create_as_tools_do("rewritten", (0, 1), (1, 2))
    row = f'{{"topic":"rewritten","partition":0,"replicas":[{ABSENT},1]}}'
    cluster.write(REASSIGN, f'{{"version":1,"partitions":[{row}]}}')
    before = await_znode(cluster, "rewritten", adding_replicas={"0": [ABSENT]})
    grown = {"0": [ABSENT, 1, 0], "1": [1, 2], "2": [2, 0]}
    cluster.rewrite(
        "/brokers/topics/rewritten", orjson.dumps({"version": 1, "partitions": grown}).decode()
    )
    await_znode(cluster, "rewritten", **{**before, "partitions": grown})
    eventually(lambda: 2 in cluster.partition_states("rewritten"), "the new partition has a leader")
    cluster.rewrite(
        REASSIGN, '{"version":1,"partitions":[{"topic":"rewritten","partition":0,"replicas":[1]}]}'
    )
    cluster.await_gone(REASSIGN)


@pytest.mark.parametrize(
    "change",
    [
        '{"version":2,"entity_path":"topics/TOPIC"}',
        '{"version":1,"entity_type":"topics","entity_name":"TOPIC"}',
    ],
    ids=["version 2", "version 1"],
)
def test_configuration_changes_of_both_versions_are_applied(cluster: OperatedCluster, change: str):
    _controller, dies, last = cluster.roles()
    topic = f"unclean-{len(change)}"
    cluster.create_as_tools_do(topic, (dies, last))
    cluster.stop(dies)
    cluster.await_state(topic, last, {last})
    cluster.stop(last)
    cluster.await_state(topic, -1, {last})
    cluster.bring_back(dies)
    without_version = '{"config": {"unclean.leader.election.enable": "true"}}'
    cluster.rewrite(f"/config/topics/{topic}", without_version)
    for data in ("garbage", '{"version":3}', change.replace("TOPIC", topic)):
        cluster.write("/config/changes/config_change_", data)
    cluster.await_state(topic, dies, {dies})
    cluster.bring_back(last)
    cluster.await_state(topic, dies, {dies, last})


MEBIBYTE = 1024 * 1024


def throttle(cluster: OperatedCluster, topic: str, source: int, target: int, rate: int) -> None:
    """Throttle the move of partition 0, in bytes a second, as Kafka's tools do."""
    setting = "{}.replication.throttled.{}".format
    rates = {setting(side, "rate"): str(rate) for side in ("leader", "follower")}
    replicas = {
        setting("leader", "replicas"): f"0:{source}",
        setting("follower", "replicas"): f"0:{target}",
    }
    for broker_id in (source, target):
        configure(cluster, f"brokers/{broker_id}", rates)
    configure(cluster, f"topics/{topic}", replicas)


def configure(cluster: OperatedCluster, entity: str, config: dict[str, str]) -> None:
    """Replace a configuration, then notify the brokers."""
    path, data = f"/config/{entity}", orjson.dumps({"version": 1, "config": config}).decode()
    if cluster.zookeeper.get(path) is None:
        cluster.write(path, data)
    else:
        cluster.rewrite(path, data)
    cluster.zookeeper.multi([change(entity)])


def change(entity: str) -> Operation:
    """The write that notifies brokers of a changed configuration."""
    data = orjson.dumps({"version": 2, "entity_path": entity})
    return Create("/config/changes/config_change_", data, sequential=True)


@pytest.mark.nightly
def test_a_move_is_throttled_from_its_first_byte_on(cluster: OperatedCluster):
    _controller, source, target = cluster.roles()
    cluster.create_as_tools_do("throttled", (source,))
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "compression.type": "none"}
    )
    for _ in range(40):
        producer.produce("throttled", bytes(MEBIBYTE // 10), partition=0)
    assert producer.flush(scaled(20)) == 0
    # The throttle and the controller's request wait at brokers that are paused. The request could
    # be applied at once; the throttle is found only after many other changes are read.
    for broker_id in (source, target):
        cluster.signal(broker_id, signal.SIGSTOP)
    try:
        cluster.zookeeper.multi([change(f"topics/other-{n}") for n in range(4_000)])
        throttle(cluster, "throttled", source, target, MEBIBYTE)
        cluster.write(
            REASSIGN,
            f'{{"version":1,"partitions":[{{"topic":"throttled","partition":0,'
            f'"replicas":[{source},{target}]}}]}}',
        )
        eventually(
            lambda: cluster.partition_states("throttled")[0].leader_and_isr.leader_epoch == 1,
            "the controller has begun the move",
        )
    finally:
        for broker_id in (source, target):
            cluster.signal(broker_id, signal.SIGCONT)
    started = monotonic()
    cluster.await_state("throttled", source, {source, target})
    elapsed_s = monotonic() - started
    assert elapsed_s > 2, f"4 MiB took {elapsed_s:.1f} s at a MiB a second"
    cluster.await_gone(REASSIGN)
    for broker_id in (source, target):
        configure(cluster, f"brokers/{broker_id}", {})


def test_a_request_to_delete_an_unknown_topic_is_removed(cluster: OperatedCluster):
    history, request = History(cluster), "/admin/delete_topics/ghost"
    cluster.write(request, "")
    cluster.await_gone(request)
    assert history.writes("/admin", "/brokers/topics/ghost") == [create(request), delete(request)]


def test_a_topic_that_cannot_be_read_can_be_deleted(cluster: OperatedCluster):
    cluster.write("/brokers/topics/weird", "not json")
    cluster.write("/admin/delete_topics/weird", "")
    cluster.await_gone("/brokers/topics/weird", "/admin/delete_topics/weird")


def test_a_topic_removed_by_hand_may_be_created_again(cluster: OperatedCluster):
    cluster.create_as_tools_do("by-hand", (0, 1, 2))
    cluster.await_agreement([0, 1, 2], "by-hand")
    root = "/brokers/topics/by-hand"
    below = ["/partitions/0/state", "/partitions/0", "/partitions", ""]
    cluster.zookeeper.multi([Delete(root + path, ANY_VERSION) for path in below])
    cluster.zookeeper.multi([Delete("/config/topics/by-hand", ANY_VERSION)])
    cluster.create_as_tools_do("by-hand", (2, 1, 0))
    cluster.await_state("by-hand", 2, {0, 1, 2})
    cluster.await_agreement([0, 1, 2], "by-hand")
