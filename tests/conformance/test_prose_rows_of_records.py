"""Rows of the table about records that are only prose; each test is named after its row."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from regent.client.move_throttle import (
    FOLLOWER_REPLICAS,
    LEADER_REPLICAS,
    throttled_brokers,
    throttled_replicas,
)
from regent.client.moves import Move
from regent.core.errors import Errors
from regent.core.log_config import LogConfig
from regent.core.model import EPOCH_DURING_DELETE, NO_EPOCH, TopicPartition
from regent.core.protocol.control import (
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaTopic,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.partition import Role
from regent.core.replication.replica_manager import ReplicaManager
from regent.storage.log_manager import LogManager
from tests.conformance.record_clients import RecordClient, throttle
from tests.core.replication.record_stage import RecordBroker
from tests.core.replication.stage import HEADER, T0, A, leader_and_isr, state
from tests.simulation.client_requests import DeleteRecordsRequest
from tests.simulation.cluster import Cluster
from tests.support.record_batches import batch, values_of

FOO, BAZ = TopicPartition("foo", 0), TopicPartition("baz", 2)
CHECKPOINT_MS = 6_000


# --- high watermarks ------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Cluster:
    """Two brokers with one partition, led by broker 0."""
    cluster = Cluster(2)
    cluster.run_until_quiet()
    cluster.put_topic("foo", {0: (0, 1)})
    cluster.run_until_quiet()
    return cluster


def checkpointed(cluster: Cluster) -> list[int]:
    return [cluster.disks[b].checkpointed_high_watermark(FOO) for b in (0, 1)]


def produce(cluster: Cluster, *values: str) -> RecordClient:
    client = RecordClient(cluster)
    for value in values:
        client.produce(FOO, value)
    cluster.run_until_quiet()
    return client


def test_rec_01_both_replicas_checkpoint_the_high_watermark(pair: Cluster):
    produce(pair, "one", "two")
    assert checkpointed(pair) == [2, 2]


def test_rec_03_the_high_watermark_is_kept_while_both_are_stopped(pair: Cluster):
    produce(pair, "one", "two")
    for broker_id in (0, 1):
        pair.shut_down(broker_id)
        pair.run_until_quiet()
    for broker_id in (1, 0):
        pair.start(broker_id)
        pair.run_until_quiet()
        assert checkpointed(pair) == [2, 2]
    stored = pair.state(FOO)
    assert stored is not None
    assert stored.leader_and_isr.isr == (1, 0)
    client = produce(pair, "three", "four")
    assert checkpointed(pair) == [4, 4]
    assert client.values(FOO) == ["one", "two", "three", "four"]


def test_rec_04_a_stopping_broker_checkpoints_the_high_watermark(pair: Cluster):
    client = RecordClient(pair)
    for number in range(20):
        client.produce(FOO, f"{number}")
    pair.time.advance(1_000)  # before the next checkpoint
    for broker_id in (0, 1):
        pair.shut_down(broker_id)
        pair.run_until_quiet()
    assert checkpointed(pair) == [20, 20]


# --- moves ----------------------------------------------------------------------------------------


def reassign(cluster: Cluster, targets: Mapping[TopicPartition, tuple[int, ...]]) -> None:
    cluster.request(AlterPartitionReassignmentsRequest.of(targets))


def is_moving(cluster: Cluster) -> bool:
    answer = cluster.request(ListPartitionReassignmentsRequest.of())
    assert isinstance(answer, ListPartitionReassignmentsResponse)
    return bool(answer.topics)


def pass_time(cluster: Cluster, ms: int) -> None:
    until_ms = cluster.now_ms + ms
    while cluster.now_ms < until_ms:
        steps = cluster.steps()
        if steps:
            cluster.take(steps[0])
        else:
            cluster.time.advance(100)


def test_ra_05_a_move_keeps_the_high_watermark():
    cluster = Cluster(4)
    cluster.run_until_quiet()
    cluster.put_topic("foo", {0: (0, 1, 2)})
    cluster.run_until_quiet()
    produce(cluster, *(f"{number}" for number in range(123)))
    request = DeleteRecordsRequest(FOO, 123)
    endpoint = cluster.brokers[0].client_endpoint
    cluster.network.ask(None, endpoint, request, lambda answer: None)
    cluster.run_until_quiet()
    reassign(cluster, {FOO: (3, 1, 2)})
    cluster.run_until_quiet()
    moved = cluster.brokers[3].replica_manager.partitions[FOO]
    assert (moved.role, moved.high_watermark) == (Role.LEADER, 123)
    assert cluster.disks[3].log(FOO).log_start_offset == 123


def test_ra_06_moves_are_throttled_until_the_throttle_is_removed():
    cluster = Cluster(4)
    cluster.run_until_quiet()
    current = {FOO: (0, 1, 2), BAZ: (0, 2, 1)}
    targets = {FOO: (3, 1, 2), BAZ: (3, 2, 1)}
    cluster.rewrite_topic("foo", {0: current[FOO]})
    cluster.rewrite_topic("baz", dict.fromkeys(range(3), current[BAZ]))
    cluster.run_until_quiet()
    client = RecordClient(cluster)
    for number in range(10):
        for topic_partition in current:
            client.produce(topic_partition, f"{number}")
    moves = [Move(p, tuple(current[p]), tuple(targets[p])) for p in current]
    assert throttled_brokers(moves) == {0, 1, 2, 3}
    lists = throttled_replicas(moves).items()
    named = {
        side: {topic: ",".join(of_topic[name]) for topic, of_topic in lists}
        for side, name in (("leader", LEADER_REPLICAS), ("follower", FOLLOWER_REPLICAS))
    }
    assert named["follower"] == {"foo": "0:3", "baz": "2:3"}
    throttle(cluster, named, bytes_per_second=1)
    reassign(cluster, targets)
    pass_time(cluster, 30_000)
    assert is_moving(cluster)
    for topic_partition in current:
        client.produce(topic_partition, "in-sync replicas are not throttled")
    throttle(cluster, {side: dict.fromkeys(topics, "") for side, topics in named.items()}, 1)
    cluster.run_until_quiet()
    assert not is_moving(cluster)
    assert all(
        client.values(topic_partition) == client.acked[topic_partition]
        for topic_partition in current
    )


@pytest.mark.parametrize("bounces", [False, True])
def test_sys_06_a_throttled_move_takes_its_time(bounces: bool):
    rate, size, count = 4_000_000, 800_000, 20
    cluster = Cluster(3)
    cluster.run_until_quiet()
    cluster.put_topic("foo", {0: (0, 1)})
    cluster.run_until_quiet()
    client = RecordClient(cluster)
    for number in range(count):
        client.produce(FOO, f"{number}".ljust(size))
    throttle(cluster, {"leader": {"foo": "*"}, "follower": {"foo": "*"}}, rate)
    reassign(cluster, {FOO: (1, 2)})
    began_ms = cluster.now_ms
    if bounces:
        cluster.shut_down(1)
        pass_time(cluster, 500)
        cluster.start(1)
    while is_moving(cluster):
        pass_time(cluster, 100)
    assert cluster.now_ms - began_ms >= 0.9 * count * size * 1_000 / rate
    cluster.run_until_quiet()
    assert client.values(FOO) == client.acked[FOO]


# --- logs on disk ---------------------------------------------------------------------------------


def lead(logs: LogManager, *partitions: int) -> ReplicaManager:
    """Return a broker that leads partitions of topic t alone."""
    manager = ReplicaManager(1, logs, MetadataCache())
    manager.broker_epoch = HEADER.broker_epoch
    row = state(1, 1, isr=(1,), replicas=(1,), is_new=True)
    rows = {TopicPartition("t", number): row for number in partitions}
    manager.handle(HEADER, leader_and_isr(rows), 0)
    return manager


def append(manager: ReplicaManager, topic_partition: TopicPartition, value: bytes) -> Errors:
    found: list[Errors] = []
    manager.produce(
        1,
        {topic_partition: batch(value)},
        0,
        lambda outcomes: found.append(outcomes[topic_partition].error_code),
    )
    (error,) = found
    return error


def test_rec_05_a_restarted_broker_has_old_and_new_records(tmp_path: Path):
    threads = set(threading.enumerate())
    for value in (b"old", b"new"):
        logs = LogManager([tmp_path], 1)
        logs.open()
        assert append(lead(logs, 0), T0, value) is Errors.NONE
        logs.close(is_clean=True)
    points = (tmp_path / "recovery-point-offset-checkpoint").read_text()
    assert points == "0\n1\nt 0 2\n"
    logs = LogManager([tmp_path], 1)
    logs.open()
    log = logs.get(T0)
    assert log is not None
    read = log.read(0, 2**20, log.log_end_offset, at_least_one=True).read()
    assert values_of(read) == [b"old", b"new"]
    logs.close(is_clean=True)
    assert set(threading.enumerate()) == threads


def test_ldf_01_a_producer_gets_an_error_when_the_log_rolls_in_a_failed_directory(tmp_path: Path):
    directories = [tmp_path / name for name in ("one", "two", "three")]
    logs = LogManager(directories, 1, defaults=LogConfig(segment_bytes=200))
    logs.open()
    manager = lead(logs, *range(12))
    (home,) = [path for path in directories if (path / "t-0").exists()]
    others = [n for n in range(12) if not (home / f"t-{n}").exists()]
    assert len(others) == 8
    home.rename(tmp_path / "gone")
    home.write_text("no directory")
    errors = [append(manager, T0, b"x" * 100) for _ in range(10)]
    refusals = {Errors.KAFKA_STORAGE_ERROR, Errors.NOT_LEADER_OR_FOLLOWER}
    assert errors[-1] in refusals
    assert set(errors) - {Errors.NONE} <= refusals
    for number in others:
        for _ in range(5):
            assert append(manager, TopicPartition("t", number), b"x" * 100) is Errors.NONE
    logs.close(is_clean=True)


def test_del_13_the_checkpoints_of_a_topic_are_deleted_with_it(tmp_path: Path):
    """There is no log cleaner, so no checkpoint of it: this covers all other checkpoints."""
    logs = LogManager([tmp_path], 1)
    logs.open()
    logs.configure({"t": LogConfig(cleanup_policy="compact,delete")})
    manager = lead(logs, 0, 1)
    for number in (0, 1):
        assert append(manager, TopicPartition("t", number), b"x") is Errors.NONE
    manager.delete_records({T0: 1}, 0, lambda outcomes: None)

    def noted() -> set[str]:
        manager.checkpoint_high_watermarks()
        logs.checkpoint_recovery_points()
        logs.checkpoint_log_start_offsets()
        return {
            line.rpartition(" ")[0]
            for path in tmp_path.glob("*-checkpoint")
            for line in path.read_text().splitlines()[2:]
        }

    assert noted() == {"t 0", "t 1"}
    stop = StopReplicaPartition(0, EPOCH_DURING_DELETE, delete_partition=True)
    manager.handle(HEADER, StopReplicaRequest((StopReplicaTopic("t", A, (stop,)),)), 0)
    assert noted() == {"t 1"}
    logs.close(is_clean=True)


# --- stopping replicas ----------------------------------------------------------------------------


@pytest.fixture
def leader() -> RecordBroker:
    """Leads a partition that is in the metadata, with a follower that does not fetch."""
    leader = RecordBroker(1)
    leader.apply(1, 1)
    row = UpdateMetadataPartition(0, 7, 1, 1, (1, 2), 3, (1, 2), ())
    topic = UpdateMetadataTopic(T0.topic, A, (row,))
    alive = tuple(leader.cache.snapshot.brokers.values())
    leader.manager.handle(HEADER, UpdateMetadataRequest((topic,), alive), 0)
    return leader


def stop(broker: RecordBroker, leader_epoch: int, *, delete: bool) -> None:
    row = StopReplicaPartition(0, leader_epoch, delete)
    broker.manager.handle(HEADER, StopReplicaRequest((StopReplicaTopic("t", A, (row,)),)), 0)


def test_fen_14_waiting_clients_get_an_answer_when_the_replica_is_deleted(leader: RecordBroker):
    produced = leader.produce(b"x")
    consumed = leader.consume({T0: 0})
    assert produced.is_waiting
    assert consumed.is_waiting
    stop(leader, EPOCH_DURING_DELETE, delete=True)
    assert produced.answer[T0].error_code is Errors.NOT_LEADER_OR_FOLLOWER
    assert consumed.answer[T0].error_code is Errors.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("leader_epoch", [1, NO_EPOCH, EPOCH_DURING_DELETE])
def test_fen_15_a_leader_resigns_when_its_replica_is_deleted_and_only_then(
    leader: RecordBroker, leader_epoch: int
):
    """The coordinator is the partition's leader: it has nothing else to resign from."""
    stop(leader, leader_epoch, delete=False)
    assert leader.hosted().role is Role.LEADER
    assert leader.produce(b"x", acks=1).answer[T0].error_code is Errors.NONE
    stop(leader, leader_epoch, delete=True)
    assert T0 not in leader.manager.partitions
    assert leader.produce(b"x", acks=1).answer[T0].error_code is Errors.NOT_LEADER_OR_FOLLOWER
