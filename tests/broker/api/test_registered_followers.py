"""A listener for clients and brokers serves only followers that are registered brokers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kafka.protocol.consumer import FetchRequest

from regent.broker.api.fetch import fetch_apis
from regent.broker.api.offsets import offset_apis
from regent.broker.api.registered_followers import RegisteredFollowers
from regent.core.errors import Errors
from regent.core.model import UNKNOWN_BROKER_EPOCH, TopicPartition
from regent.core.protocol.client import OffsetQuery
from regent.core.replication.metadata_cache import MetadataCache
from tests.broker.api.canned_replicas import EXECUTOR, CannedReplicas, cached
from tests.broker.api.test_offsets import list_offsets, partitions
from tests.transport.kafka.wire import ask

EPOCH = 5  # of broker 2, the only one


def of_this_project() -> MetadataCache:
    """Return the metadata with the control port of broker 2."""
    cache = cached()
    broker = replace(cache.snapshot.brokers[2], control_endpoint="tcp://broker:1")
    cache.snapshot = replace(cache.snapshot, brokers={2: broker})
    return cache


@pytest.mark.parametrize(
    ("replica_id", "epoch", "expected"),
    [
        (2, EPOCH, None),
        (2, EPOCH - 1, Errors.STALE_BROKER_EPOCH),
        (2, EPOCH + 1, Errors.STALE_BROKER_EPOCH),
        (2, 2**62, Errors.STALE_BROKER_EPOCH),
        (2, UNKNOWN_BROKER_EPOCH, Errors.CLUSTER_AUTHORIZATION_FAILED),
        (1, EPOCH, Errors.CLUSTER_AUTHORIZATION_FAILED),
        (2**31 - 1, EPOCH, Errors.CLUSTER_AUTHORIZATION_FAILED),
    ],
)
def test_a_follower_is_a_registered_broker_with_its_current_epoch(
    replica_id: int, epoch: int, expected: Errors | None
):
    assert RegisteredFollowers(of_this_project()).refusal(replica_id, epoch) is expected


@pytest.mark.parametrize(
    ("known", "epoch", "expected"),
    [
        (EPOCH, EPOCH, None),
        (EPOCH, UNKNOWN_BROKER_EPOCH, None),  # Kafka before 3.5 does not send it
        (EPOCH, EPOCH - 1, Errors.STALE_BROKER_EPOCH),
        (UNKNOWN_BROKER_EPOCH, EPOCH, None),  # a controller of Kafka does not tell it
        (UNKNOWN_BROKER_EPOCH, UNKNOWN_BROKER_EPOCH, None),
    ],
)
def test_a_broker_of_kafka_is_believed_where_kafka_has_no_epochs(
    known: int, epoch: int, expected: Errors | None
):
    cache = cached()
    broker = replace(cache.snapshot.brokers[2], broker_epoch=known)
    cache.snapshot = replace(cache.snapshot, brokers={2: broker})
    assert RegisteredFollowers(cache).refusal(2, epoch) is expected
    assert RegisteredFollowers(cache).refusal(3, epoch) is Errors.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("version", range(12, 18))
@pytest.mark.parametrize(("replica_id", "epoch"), [(1, EPOCH), (2, EPOCH + 1), (2, -1)])
def test_the_position_of_a_stranger_never_reaches_the_replicas(
    version: int, replica_id: int, epoch: int
):
    replicas = CannedReplicas()
    state = FetchRequest.ReplicaState(replica_id=replica_id, replica_epoch=epoch)
    request = FetchRequest(
        replica_id=replica_id, replica_state=state, session_epoch=0, topics=[], max_wait_ms=1
    )
    apis = fetch_apis(
        replicas, cached(), EXECUTOR, registered=RegisteredFollowers(of_this_project())
    )
    answer = ask(apis, request, version)
    assert answer.error_code in (
        Errors.CLUSTER_AUTHORIZATION_FAILED,
        Errors.STALE_BROKER_EPOCH,
    )
    assert replicas.consumer_fetch is None


@pytest.mark.parametrize("replica_id", [1, 2])
def test_the_offsets_of_a_partition_are_for_its_replicas(replica_id: int):
    query = {TopicPartition("orders", 0): OffsetQuery(-1)}
    apis = offset_apis(CannedReplicas(), EXECUTOR, registered=RegisteredFollowers(cached()))
    (row,) = partitions(ask(apis, list_offsets(query, replica_id=replica_id), 9))
    assert row.error_code == Errors.CLUSTER_AUTHORIZATION_FAILED
