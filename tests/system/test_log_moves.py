"""Replicas move between the log directories of real brokers, under load and through a crash."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from regent.client.move_throttle import write_log_dirs_throttle
from regent.core.model import TopicPartition
from regent.core.setting import LONG_MAX
from regent.testing.waits import eventually
from regent.zk.stores.config_store import ZkConfigStore
from tests.support.breakable_cluster import BROKERS, BreakableCluster
from tests.support.histories import check, summary
from tests.support.load import Load

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    from kafka import KafkaAdminClient
    from kafka.errors import NoError

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

PARTITIONS = 4
SLOW = 60_000  # bytes a second: less than is appended


def move_all(
    cluster: BreakableCluster, partitions: Sequence[TopicPartition]
) -> dict[tuple[TopicPartition, int], Path]:
    """Ask for the move of every replica to the other directory; return where they shall be."""
    targets = {}
    for partition in partitions:
        for broker_id in BROKERS:
            source = cluster.log_of(partition, broker_id).parent
            (other,) = set(cluster.log_directories(broker_id)) - {source}
            targets[partition, broker_id] = other
    wanted = {(*partition, broker): str(path) for (partition, broker), path in targets.items()}
    with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)) as admin:
        outcomes = admin.alter_replica_log_dirs(wanted)
    assert set(outcomes.values()) == {NoError}, outcomes
    return targets


def are_there(targets: dict[tuple[TopicPartition, int], Path]) -> bool:
    return all((path / str(partition)).is_dir() for (partition, _), path in targets.items())


@pytest.mark.parametrize("is_killed", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_acknowledged_records_survive_moves(cluster: BreakableCluster, is_killed: bool):
    topic = f"moved-{uuid.uuid4().hex[:8]}"
    partitions = cluster.create_safe_topic(topic, PARTITIONS)
    with Load(cluster.bootstrap_servers, partitions) as load:
        load.await_progress(2_000)
        if is_killed:
            write_log_dirs_throttle(ZkConfigStore(cluster.zookeeper), BROKERS, SLOW)
        targets = move_all(cluster, partitions)
        if is_killed:
            cluster.kill(*BROKERS)
            assert any(any(path.glob(f"{topic}*-future")) for path in targets.values())
            for broker_id in BROKERS:
                cluster.revive(broker_id)
            write_log_dirs_throttle(ZkConfigStore(cluster.zookeeper), BROKERS, LONG_MAX)
        eventually(lambda: are_there(targets), "every log is in its new directory")
        load.await_progress()
        load.stop_producers()
        logs = cluster.agreed_logs(partitions)
        load.finish_consumers({p: len(next(iter(logs[p].values()))) for p in partitions})
    broken = summary(check(load.history, logs))
    assert not broken, broken
