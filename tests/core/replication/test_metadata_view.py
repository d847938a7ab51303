from __future__ import annotations

import pytest

from regent.core.errors import Errors
from regent.core.model import BrokerId
from regent.core.protocol.control import (
    ControlHeader,
    UpdateMetadataBroker,
    UpdateMetadataEndPoint,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from regent.core.replication.metadata_cache import MetadataCache, MetadataSnapshot
from regent.core.replication.metadata_view import (
    PartitionView,
    alive_endpoints,
    endpoint_named,
    inter_broker_endpoint,
    topic_metadata,
)

PLAIN, SSL = "PLAINTEXT", "SSL"


def cluster(*alive: BrokerId, leader: BrokerId = 0, ssl: tuple[BrokerId, ...] = ()):
    """Return t-1 and t-0, led by ``leader``, replicas 0 and 1, both in sync."""
    cache = MetadataCache()
    brokers = tuple(
        UpdateMetadataBroker(
            broker_id,
            1,
            tuple(
                UpdateMetadataEndPoint(listener, f"host-{broker_id}", 9092, listener)
                for listener in (PLAIN, SSL)
                if listener == PLAIN or broker_id in ssl
            ),
            None,
            None,
            None,
        )
        for broker_id in alive
    )
    rows = tuple(
        UpdateMetadataPartition(index, 1, leader, 3, (0, 1), 5, (0, 1), ()) for index in (1, 0)
    )
    topics = (UpdateMetadataTopic("t", "t" * 22, rows),)
    cache.update(ControlHeader(0, 1, 1), UpdateMetadataRequest(topics, brokers))
    return cache.snapshot


def first(snapshot: MetadataSnapshot, listener: str = PLAIN, **flags: bool) -> PartitionView:
    return topic_metadata(snapshot, ["t"], listener, **flags)[0].partitions[0]


def test_partitions_are_listed_by_number_with_the_topic_id():
    views = topic_metadata(cluster(0, 1), ["other", "t"], PLAIN)
    assert [(view.topic, view.topic_id) for view in views] == [("t", "t" * 22)]
    assert views[0].partitions == tuple(
        PartitionView(index, Errors.NONE, 0, 3, (0, 1), (0, 1), ()) for index in (0, 1)
    )


def test_met_07_a_partition_without_a_leader_keeps_its_replicas_and_isr():
    view = first(cluster(1))
    assert view.error_code is Errors.LEADER_NOT_AVAILABLE
    assert (view.leader, view.replicas, view.isr) == (-1, (0, 1), (0, 1))


def test_met_08_old_clients_do_not_get_unavailable_replicas():
    view = first(cluster(0), error_unavailable_endpoints=True)
    assert view.error_code is Errors.REPLICA_NOT_AVAILABLE
    assert (view.leader, view.replicas, view.isr) == (0, (0,), (0,))
    assert first(cluster(0)).error_code is Errors.NONE


def test_met_10_a_leader_without_the_listener_is_not_available():
    snapshot = cluster(0, 1, ssl=(1,))
    assert first(snapshot, SSL).error_code is Errors.LEADER_NOT_AVAILABLE
    view = first(snapshot, SSL, error_unavailable_listeners=True)
    assert (view.error_code, view.leader) == (Errors.LISTENER_NOT_FOUND, -1)


def test_clients_get_the_endpoint_of_their_own_listener_only():
    endpoints = (
        UpdateMetadataEndPoint(PLAIN, "h", 9092, PLAIN),
        UpdateMetadataEndPoint("CONTROLLER", "h", 9093, PLAIN),
    )
    broker = UpdateMetadataBroker(1, 1, endpoints, None, None, None)
    snapshot = MetadataSnapshot(brokers={1: broker})
    assert alive_endpoints(snapshot, PLAIN) == [(broker, endpoints[0])]


def test_met_12_a_snapshot_does_not_change_with_the_next_update():
    cache = MetadataCache()
    before = cache.snapshot
    cache.update(ControlHeader(0, 1, 1), UpdateMetadataRequest((), ()))
    assert before == MetadataSnapshot()
    assert cache.snapshot is not before


OUTSIDE = UpdateMetadataEndPoint("OUTSIDE", "h", 1, "SSL")
INSIDE = UpdateMetadataEndPoint("INSIDE", "::1", 2, "PLAINTEXT")
BY_PROTOCOL = UpdateMetadataEndPoint("PLAINTEXT", "h", 3, "PLAINTEXT")


@pytest.mark.parametrize(
    ("endpoints", "control_endpoint", "replication_endpoint", "found"),
    [
        ((OUTSIDE, BY_PROTOCOL, INSIDE), None, None, "tcp://[::1]:2"),
        ((OUTSIDE, BY_PROTOCOL), None, None, "tcp://h:3"),
        ((OUTSIDE,), None, None, None),
        ((OUTSIDE, BY_PROTOCOL), "tcp://h:9", "tcp://h:4", "tcp://h:4"),
        ((OUTSIDE, BY_PROTOCOL), "tcp://h:9", None, None),
    ],
)
def test_other_brokers_are_found_by_the_name_and_those_of_kafka_by_the_protocol(
    endpoints: tuple[UpdateMetadataEndPoint, ...],
    control_endpoint: str | None,
    replication_endpoint: str | None,
    found: str | None,
):
    broker = UpdateMetadataBroker(1, 5, endpoints, None, control_endpoint, replication_endpoint)
    assert inter_broker_endpoint(broker, "INSIDE", "PLAINTEXT") == found
    assert endpoint_named(broker, "INSIDE") == ("tcp://[::1]:2" if INSIDE in endpoints else None)
