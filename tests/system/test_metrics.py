"""Metrics of the brokers of a real cluster, with Kafka's names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

KAFKA_NAMES = [
    "kafka_controller_KafkaController_ControllerState",
    "kafka_controller_KafkaController_OfflinePartitionsCount",
    "kafka_controller_KafkaController_PreferredReplicaImbalanceCount",
    "kafka_controller_KafkaController_GlobalTopicCount",
    "kafka_controller_KafkaController_GlobalPartitionCount",
    "kafka_controller_KafkaController_TopicsToDeleteCount",
    "kafka_controller_KafkaController_ReplicasToDeleteCount",
    "kafka_controller_KafkaController_TopicsIneligibleToDeleteCount",
    "kafka_controller_KafkaController_ReplicasIneligibleToDeleteCount",
    "kafka_controller_KafkaController_ActiveBrokerCount",
    "kafka_controller_ControllerStats_UncleanLeaderElectionsPerSec_total",
    "kafka_controller_ControllerStats_LeaderElectionRateAndTimeMs_count",
    "kafka_controller_ControllerStats_PartitionReassignmentRateAndTimeMs_sum",
    "kafka_controller_ControllerEventManager_EventQueueSize",
    "kafka_controller_ControllerEventManager_EventQueueTimeMs_count",
    "kafka_controller_ControllerChannelManager_TotalQueueSize",
    "kafka_server_SessionExpireListener_ZooKeeperExpiresPerSec_total",
    "kafka_server_ZooKeeperClientMetrics_ZooKeeperRequestLatencyMs_count",
    "kafka_server_ReplicaManager_UnderReplicatedPartitions",
    "kafka_server_ReplicaManager_UnderMinIsrPartitionCount",
    "kafka_server_ReplicaManager_AtMinIsrPartitionCount",
    "kafka_server_ReplicaManager_IsrShrinksPerSec_total",
    "kafka_server_ReplicaFetcherManager_MaxLag",
    "kafka_server_BrokerTopicMetrics_MessagesInPerSec_total",
    "kafka_log_LogManager_OfflineLogDirectoryCount",
    "kafka_server_ReplicaFetcherManager_DeadThreadCount",
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RegentCluster]:
    with RegentCluster(tmp_path, "--no-placement-service") as cluster:
        yield cluster


def test_every_broker_has_kafkas_metrics_and_one_is_the_active_controller(
    cluster: RegentCluster,
) -> None:
    cluster.create_topic("payments", 3)
    cluster.await_agreement([0, 1, 2], "payments")
    reported = {broker_id: cluster.metrics(broker_id) for broker_id in (0, 1, 2)}
    for metrics in reported.values():
        assert [name for name in KAFKA_NAMES if name not in metrics] == []
    active_controller = "kafka_controller_KafkaController_ActiveControllerCount"
    assert [b for b, metrics in reported.items() if metrics[active_controller] == 1] == [
        cluster.controller()
    ]
    leaders = "kafka_server_ReplicaManager_LeaderCount"
    assert sum(metrics[leaders] for metrics in reported.values()) == 3
    in_sync = 'kafka_cluster_Partition_InSyncReplicasCount{partition="0",topic="payments"}'
    assert [m[in_sync] for m in reported.values() if in_sync in m] == [3.0]
    ends = 'kafka_log_Log_LogEndOffset{partition="0",topic="payments"}'
    assert [metrics[ends] for metrics in reported.values()] == [0.0, 0.0, 0.0]
    fetches = "kafka_server_FetcherStats_RequestsPerSec_total"
    eventually(
        lambda: sum(v for k, v in cluster.metrics(0).items() if k.startswith(fetches)) > 0,
        "it follows a leader",
    )
