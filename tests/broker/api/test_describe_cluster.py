from __future__ import annotations

from collections.abc import Sequence

import pytest
from kafka.protocol.admin import DescribeClusterRequest

from regent.broker.api.describe_cluster import describe_cluster_apis
from regent.core.errors import Errors
from regent.core.protocol.control import (
    ControlHeader,
    UpdateMetadataBroker,
    UpdateMetadataEndPoint,
    UpdateMetadataRequest,
)
from regent.core.replication.metadata_cache import MetadataCache
from regent.transport.kafka.api import KafkaApi
from tests.transport.kafka.wire import ask

VERSIONS = range(2)
CLUSTER_OPERATIONS = {5, 7, 8, 9, 10, 11, 12}


def broker(broker_id: int, listener: str = "PLAINTEXT") -> UpdateMetadataBroker:
    endpoint = UpdateMetadataEndPoint(listener, f"host-{broker_id}", 9092 + broker_id, "PLAINTEXT")
    return UpdateMetadataBroker(broker_id, 1, (endpoint,), f"rack-{broker_id}", None, None)


def apis(controller: int = 2) -> Sequence[KafkaApi]:
    cache = MetadataCache()
    brokers = (broker(2), broker(1), broker(9, "INTERNAL"))
    cache.update(
        ControlHeader(controller, 1, 1), UpdateMetadataRequest((), brokers, lists_all=True)
    )
    return describe_cluster_apis(cache, lambda: "a-cluster")


def asking(endpoint_type: int = 1, *, operations: bool = False) -> DescribeClusterRequest:
    return DescribeClusterRequest(
        include_cluster_authorized_operations=operations, endpoint_type=endpoint_type
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_describes_the_cluster(version: int):
    answer = ask(apis(), asking(), version)

    assert (answer.error_code, answer.error_message, answer.endpoint_type) == (0, None, 1)
    assert (answer.cluster_id, answer.controller_id) == ("a-cluster", 2)
    assert [(b.broker_id, b.host, b.port, b.rack) for b in answer.brokers] == [
        (1, "host-1", 9093, "rack-1"),
        (2, "host-2", 9094, "rack-2"),
    ]
    assert answer.authorized_operations is None


@pytest.mark.parametrize("version", VERSIONS)
def test_authorized_operations_are_returned_on_request(version: int):
    answer = ask(apis(), asking(operations=True), version)
    assert set(answer.authorized_operations) == CLUSTER_OPERATIONS


def test_a_controller_that_is_not_among_the_brokers_is_not_named():
    assert ask(apis(controller=9), asking(), 1).controller_id == -1


@pytest.mark.parametrize(
    ("endpoint_type", "error"),
    [
        (2, Errors.MISMATCHED_ENDPOINT_TYPE),
        (0, Errors.UNSUPPORTED_ENDPOINT_TYPE),
        (3, Errors.UNSUPPORTED_ENDPOINT_TYPE),
    ],
)
def test_other_endpoints_than_brokers_are_refused(endpoint_type: int, error: Errors):
    answer = ask(apis(), asking(endpoint_type), 1)
    assert answer.error_code == error
    assert "endpoint" in answer.error_message
    assert not answer.brokers
