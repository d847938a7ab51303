"""What must hold for the records of a cluster at rest without faults: S7 and S8."""

from __future__ import annotations

from collections.abc import Mapping

from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.client import ConsumerFetch, ConsumerPosition
from regent.core.replication.partition import Partition, Role
from regent.zk.client.operations import Znode
from regent.zk.znodes import DeleteTopicsTopicZNode, TopicZNode
from tests.simulation.broker import SimulatedBroker
from tests.simulation.client_requests import ConsumeRequest, ConsumeResponse
from tests.simulation.cluster import Cluster
from tests.simulation.network import AnswerBody
from tests.simulation.record_history import RecordHistory
from tests.simulation.simulated_logs import SimulatedLog
from tests.support.record_batches import Record, records_of

EVERYTHING = 2**31 - 1


def assert_logs_converged(cluster: Cluster, records: RecordHistory) -> None:
    """Check the logs of all replicas in sync; raises ``AssertionError``."""
    nodes = cluster.zookeeper.snapshot()
    for broker in cluster.brokers.values():
        for name, partition in broker.replica_manager.partitions.items():
            is_being_deleted = DeleteTopicsTopicZNode.path(name.topic) in nodes
            log = broker.disk.get(name)
            is_whole = log is not None and not _readable_damage(log)
            assert is_whole or is_being_deleted, f"broker {broker.broker_id}: {name} is damaged"
            is_stray = broker.is_of_kafka and not _is_assigned(nodes, name, broker.broker_id)
            if partition.role is Role.LEADER and not is_being_deleted and not is_stray:
                _assert_followed(cluster, broker, partition, records)
                _assert_readable(cluster, broker, name)


def _is_assigned(nodes: Mapping[str, Znode], name: TopicPartition, broker_id: BrokerId) -> bool:
    """Whether the broker is to have the replica; brokers of Kafka keep strays."""
    topic = nodes.get(TopicZNode.path(name.topic))
    partitions = {} if topic is None else TopicZNode.decode(topic.data).partitions
    assignment = partitions.get(name.partition)
    return assignment is not None and broker_id in assignment.replicas


def _readable_damage(log: SimulatedLog) -> set[int]:
    """Return the base offsets of damaged batches that can be read.

    Damage below the log start offset stays in the active segment, which is never verified.
    """
    if not log.damaged:
        return set()
    start = log.log_start_offset
    return {b.base_offset for b in log.batches if b.last_offset >= start} & log.damaged


def _assert_followed(
    cluster: Cluster, leader: SimulatedBroker, led: Partition, records: RecordHistory
) -> None:
    name = led.topic_partition
    log = leader.disk.log(name)
    where = f"{name}, led by {leader.broker_id} in epoch {led.leader_epoch}"
    is_committing = len(led.isr) >= log.config.min_insync_replicas
    assert led.high_watermark == log.log_end_offset or not is_committing, f"{where}: {led}"
    known = records.of(log)
    if known is not None and not known.is_tainted:
        known.check_leader(leader.broker_id, log, led.leader_epoch)
    for follower in led.isr:
        broker = cluster.brokers.get(follower)
        if broker is None or broker is leader:
            continue
        other, partition = broker.disk.log(name), broker.replica_manager.partitions[name]
        assert partition.high_watermark == led.high_watermark, f"{where}: {partition}"
        # A former leader may have deleted records below a start offset that others do not know.
        start = max(log.log_start_offset, other.log_start_offset)
        if known is None or not known.is_tainted:
            is_same = _batches(other, start) == _batches(log, start)
            assert is_same, f"{where}: broker {follower} has other records"


def _batches(log: SimulatedLog, start: int) -> list[bytes]:
    """Return the batches that can be read; logs may keep some below the start."""
    return [batch.data for batch in log.batches if batch.last_offset >= start]


def _assert_readable(cluster: Cluster, leader: SimulatedBroker, name: TopicPartition) -> None:
    """Committed records can be read; an answer holds records of one file."""
    log = leader.disk.log(name)
    high_watermark = leader.replica_manager.partitions[name].high_watermark
    offset, read = log.log_start_offset, list[Record]()
    while offset < high_watermark and (found := _read(cluster, leader, name, offset)):
        read += found
        offset = found[-1].offset + 1
    committed = [record for record in log.records() if record.offset < high_watermark]
    assert [r for r in read if r.offset >= log.log_start_offset] == committed


def _read(
    cluster: Cluster, leader: SimulatedBroker, name: TopicPartition, offset: int
) -> list[Record]:
    answers: list[AnswerBody] = []
    position = ConsumerPosition(offset, EVERYTHING)
    request = ConsumeRequest(ConsumerFetch({name: position}), waits=False)
    cluster.network.ask(None, leader.client_endpoint, request, answers.append)
    for _ in range(100):
        if answers:
            break
        cluster.take(cluster.steps()[0])
    (answer,) = answers
    assert isinstance(answer, ConsumeResponse)
    return records_of(answer.partitions[name].records.read())
