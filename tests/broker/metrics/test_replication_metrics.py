"""What a broker tells of its replicas and their logs."""

from __future__ import annotations

import pytest
from pykka import ActorRef

import regent.broker.metrics.replication_metrics
from regent.actors.broker import Broker, LogDirectoryFailed
from regent.broker.metrics.recent import Recent
from regent.broker.metrics.replication_metrics import fetcher_metrics, replication_metrics
from regent.core.log_config import LogConfig
from regent.core.protocol.broker import DescribeMetadataRequest
from regent.core.protocol.client import ACKS_LEADER
from tests.support.memory_logs import MemoryLogs
from tests.support.record_batches import batch
from tests.support.replicas import PARTITION, alive, lead_and_follow
from tests.support.stage import Stage, actor_of, ask, replication_endpoint

MANAGER = "kafka_server_replicamanager_"
LOG_END = "kafka_log_log_logendoffset"


def told(broker: ActorRef[Broker]) -> dict[str, list[float]]:
    """The values of every metric, by its name."""
    actor = actor_of(broker)
    manager, fetchers = actor.replica_manager, actor.fetchers
    recent = Recent()
    families = [*replication_metrics(manager, recent), *fetcher_metrics(fetchers, recent)]
    return {family.name: list(family.values().values()) for family in families}


def test_a_leader_tells_of_its_isrs_and_of_its_log(stage: Stage):
    logs = MemoryLogs(defaults=LogConfig(min_insync_replicas=2))
    broker = stage.broker(1, logs=logs)
    ask(broker, lead_and_follow(1, (1, 2), isr=(1, 2)))
    actor = actor_of(broker)
    records = {PARTITION: batch(b"one", b"two")}
    actor.replica_manager.produce(ACKS_LEADER, records, 0, lambda _: None)
    metrics = told(broker)
    assert metrics[MANAGER + "leadercount"] == [1]
    assert metrics[MANAGER + "underminisrpartitioncount"] == [0]
    assert metrics[MANAGER + "atminisrpartitioncount"] == [1]
    assert metrics["kafka_cluster_partition_underminisr"] == [0]
    assert metrics[LOG_END] == [2]
    assert metrics["kafka_log_log_logstartoffset"] == [0]
    assert metrics["kafka_log_log_size"] == [len(records[PARTITION])]

    ask(broker, lead_and_follow(1, (1, 2), isr=(1,), leader_epoch=1, partition_epoch=1))
    metrics = told(broker)
    assert metrics[MANAGER + "underminisrpartitioncount"] == [1]
    assert metrics["kafka_cluster_partition_underminisr"] == [1]


def test_a_log_in_a_failed_directory_has_no_end_and_counts_as_offline(stage: Stage):
    logs = MemoryLogs()
    broker = stage.broker(1, logs=logs)
    ask(broker, lead_and_follow(1, (1, 2), isr=(1, 2)))
    logs.fail([PARTITION])
    assert told(broker)[LOG_END] == []
    broker.tell(LogDirectoryFailed())
    ask(broker, DescribeMetadataRequest())
    assert told(broker)[MANAGER + "offlinereplicacount"] == [1]


def test_a_follower_tells_what_it_fetched(stage: Stage):
    leader, follower = stage.broker(1), stage.broker(2)
    stage.replication_server(leader)
    endpoints = {1: replication_endpoint(1), 2: replication_endpoint(2)}
    for broker in (leader, follower):
        ask(broker, alive(endpoints))
        ask(broker, lead_and_follow(1, (1, 2), isr=(1, 2)))
    actor = actor_of(leader)
    records = batch(b"one", b"two")
    actor.replica_manager.produce(ACKS_LEADER, {PARTITION: records}, 0, lambda _: None)
    fetched = "kafka_server_fetcherstats_bytespersec"
    stage.wait_for(lambda: told(follower)[fetched] == [len(records)])
    assert told(follower)["kafka_server_replicafetchermanager_maxlag"] == [0]


def test_a_broker_with_very_many_partitions_tells_nothing_about_each(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(regent.broker.metrics.replication_metrics, "MAX_PARTITIONS", 0)
    broker = stage.broker(1)
    ask(broker, lead_and_follow(1, (1, 2), isr=(1, 2)))
    metrics = told(broker)
    assert metrics[MANAGER + "leadercount"] == [1]
    assert LOG_END not in metrics
    assert "kafka_cluster_partition_underminisr" not in metrics
