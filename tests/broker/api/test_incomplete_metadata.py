"""What a broker that has just started answers, before it is told of all topics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kafka.protocol.admin import (
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeProducersRequest,
)
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
)
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from regent.broker.api import first_metadata
from regent.broker.api.configs import ConfigView, config_apis
from regent.broker.api.coordinator_requests import CoordinatorRequests
from regent.broker.api.describe_cluster import describe_cluster_apis
from regent.broker.api.describe_producers import describe_producers_apis
from regent.broker.api.find_coordinator import find_coordinator_apis
from regent.broker.api.group_offsets import group_offset_apis
from regent.broker.api.metadata import metadata_apis
from regent.broker.api.old_clients import ZooKeeperOffsets
from regent.core.coordinator.partition_for import CoordinatorPartitions, partition_for
from regent.core.errors import Errors
from regent.core.protocol.control import (
    ControlHeader,
    UpdateMetadataBroker,
    UpdateMetadataEndPoint,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.replica_manager import ReplicaManager
from regent.testing.waits import scaled
from regent.transport.kafka.api import KafkaApi, UnansweredRequestError
from regent.zk.stores.consumer_offsets import ZkConsumerOffsets
from tests.broker.api.canned_replicas import EXECUTOR
from tests.broker.api.test_configs import SETTINGS
from tests.support.creations import Creations, explain
from tests.support.fake_zookeeper import FakeZooKeeper, FakeZooKeeperServer
from tests.support.memory_logs import MemoryLogs
from tests.transport.kafka.wire import ask, read, request_of, whole

TOPIC = "__consumer_offsets"
ENDPOINT = UpdateMetadataEndPoint("PLAINTEXT", "host", 9092, "PLAINTEXT")
BROKERS = (UpdateMetadataBroker(1, 1, (ENDPOINT,), None, None, None),)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_metadata, "PATIENCE_S", 0.01)


@pytest.fixture
def cache() -> MetadataCache:
    """Return the cache of a broker that heard of two elections: t-1 and a partition of groups."""
    cache = MetadataCache()
    number = partition_for("mine", 50)
    hear(cache, topic("t", 1), topic(TOPIC, number, coordinated=50))
    return cache


def topic(name: str, *numbers: int, coordinated: int = 0) -> UpdateMetadataTopic:
    rows = tuple(UpdateMetadataPartition(n, 1, 1, 0, (1,), 0, (1,), ()) for n in numbers)
    return UpdateMetadataTopic(name, None, rows, coordinated)


def hear(
    cache: MetadataCache,
    *topics: UpdateMetadataTopic,
    brokers: tuple[UpdateMetadataBroker, ...] = BROKERS,
    lists_all: bool = False,
) -> None:
    request = UpdateMetadataRequest(topics, brokers, lists_all=lists_all)
    cache.update(ControlHeader(1, 1, 1), request)


class Nobody:
    """A coordinator that must not be asked."""

    def ask(self, questions: Any) -> None:
        raise AssertionError(f"asked: {questions}")


def metadata(cache: MetadataCache, creations: Creations | None = None) -> Sequence[KafkaApi]:
    return metadata_apis(cache, lambda: "a-cluster", creations)


def asking(*names: str) -> MetadataRequest:
    rows = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=rows, allow_auto_topic_creation=True)


ALL_TOPICS = MetadataRequest(topics=None)


@pytest.mark.parametrize("version", range(1, 13))
def test_every_topic_is_asked_for_again_and_none_is_created(cache: MetadataCache, version: int):
    creations = Creations()
    answer = ask(metadata(cache, creations), asking("t", "u", "no name"), version)
    assert [(t.name, t.error_code, t.partitions) for t in answer.topics] == [
        ("t", Errors.LEADER_NOT_AVAILABLE, []),
        ("u", Errors.LEADER_NOT_AVAILABLE, []),
        ("no name", Errors.INVALID_TOPIC_EXCEPTION, []),
    ]
    assert [broker.node_id for broker in answer.brokers] == [1]
    assert creations.wanted == []


def test_a_list_of_all_topics_is_not_answered_in_part(cache: MetadataCache):
    with pytest.raises(UnansweredRequestError):
        ask(metadata(cache), ALL_TOPICS, 9)


@pytest.mark.parametrize(
    "request_", [asking("t"), ALL_TOPICS, DescribeClusterRequest(endpoint_type=1)]
)
def test_nothing_is_answered_before_any_broker_is_known(request_: ApiMessage):
    cache = MetadataCache()
    cluster = describe_cluster_apis(cache, lambda: "a-cluster")
    with pytest.raises(UnansweredRequestError):
        ask([*metadata(cache), *cluster], request_, 1)


def test_a_waiting_caller_is_answered_when_the_list_arrives(
    cache: MetadataCache, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(first_metadata, "PATIENCE_S", 60)
    (api,) = metadata(cache)

    async def run() -> Any:
        body = ALL_TOPICS.encode(version=9)
        waiting = [asyncio.ensure_future(_answer(api, body)) for _ in range(2)]
        await asyncio.sleep(0)
        with ThreadPoolExecutor(1) as executor:
            executor.submit(hear, cache, topic("t", 0, 1), lists_all=True).result(scaled(20))
        return await asyncio.gather(*waiting)

    for body in asyncio.run(run()):
        names = {t.name: len(t.partitions) for t in read(MetadataRequest, 9, body).topics}
        assert names == {"t": 2, TOPIC: 1}


async def _answer(api: KafkaApi, body: bytes) -> bytes:
    return whole(await api.handle(request_of(api.key, 9, body)))


def test_the_address_of_a_known_coordinator_is_returned_and_no_topic_is_created(
    cache: MetadataCache,
):
    creations = Creations()
    groups = CoordinatorPartitions(TOPIC, cache, 50)
    ids = CoordinatorPartitions("__transaction_state", cache, 50)
    apis = find_coordinator_apis(groups, cache, creations, explain, ids)
    for key_type, key, error in (
        (0, "mine", Errors.NONE),
        (0, "another", Errors.COORDINATOR_NOT_AVAILABLE),
        (1, "mine", Errors.COORDINATOR_NOT_AVAILABLE),
    ):
        assert ask(apis, FindCoordinatorRequest(key=key, key_type=key_type), 3).error_code == error
    assert creations.wanted == []


def test_positions_of_an_unknown_partition_are_kept_by_their_client(cache: MetadataCache):
    zookeeper = ZkConsumerOffsets(FakeZooKeeper(FakeZooKeeperServer()))
    apis = group_offset_apis(
        CoordinatorRequests(Nobody()), cache, ZooKeeperOffsets(zookeeper, EXECUTOR, 10)
    )
    row = OffsetCommitRequest.OffsetCommitRequestTopic
    position = row.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    commit = OffsetCommitRequest(group_id="g", topics=[row(name="t", partitions=[position])])
    (answered,) = ask(apis, commit, 7).topics
    assert answered.partitions[0].error_code == Errors.COORDINATOR_NOT_AVAILABLE
    gone = OffsetDeleteRequest.OffsetDeleteRequestTopic
    delete = OffsetDeleteRequest(
        group_id="g",
        topics=[gone(name="t", partitions=[gone.OffsetDeleteRequestPartition(partition_index=0)])],
    )
    assert ask(apis, delete, 0).error_code == Errors.COORDINATOR_NOT_AVAILABLE


def test_an_unknown_topic_has_errors_after_which_tools_try_again(cache: MetadataCache):
    view = ConfigView(1, cache, SETTINGS, lambda entities: {})
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=2, resource_name="u", configuration_keys=None
    )
    (described,) = ask(
        config_apis(view, EXECUTOR), DescribeConfigsRequest(resources=[resource]), 2
    ).results
    assert described.error_code == Errors.REQUEST_TIMED_OUT
    assert "try again" in described.error_message
    replicas = ReplicaManager(1, MemoryLogs(), cache)
    wanted = DescribeProducersRequest.TopicRequest(name="u", partition_indexes=[0])
    apis = describe_producers_apis(replicas, cache, EXECUTOR)
    (topics,) = ask(apis, DescribeProducersRequest(topics=[wanted]), 0).topics
    assert topics.partitions[0].error_code == Errors.NOT_LEADER_OR_FOLLOWER
