"""Brokers that forward topic requests of clients to each other over ZeroMQ."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import pytest

from regent.actors.scheduler import Scheduler
from regent.broker import topic_service
from regent.broker.metrics.broker_metrics import TopicMetrics
from regent.broker.topic_service import BrokerTopicService
from regent.config.settings import Settings
from regent.config.tables.broker import BrokerConfig
from regent.config.tables.groups import GroupsConfig
from regent.config.tables.transactions import TransactionsConfig
from regent.core.errors import ApiError, Errors
from regent.core.model import BrokerId
from regent.core.protocol.control import (
    ControlHeader,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from regent.core.protocol.topics import TopicsRequest
from regent.core.quota.client_quota_manager import ControllerMutationQuotaManager
from regent.core.quota.quota_config import QuotaConfig
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.topic_validation import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from regent.transport.control.server import ControlServer
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.keys import KEYS, context_for_test, everybody_is_broker
from tests.support.stage import TIMEOUT_S, Stage
from tests.support.topic_requests import creatable, create_topics, delete_topics, errors_of
from tests.support.world import World, live_broker

SETTINGS = Settings(broker=BrokerConfig(num_partitions=2))
BROKERS = (0, 1)
ACTIVE = 1


class TwoBrokers:
    """Two brokers with topic administration over one tree; one is the active controller."""

    def __init__(self, stack: ExitStack, settings: Settings = SETTINGS) -> None:
        context = context_for_test()
        stack.callback(context.destroy, linger=0)
        self.stage = stage = stack.enter_context(Stage())
        self.world = World()
        self.caches = {broker_id: MetadataCache() for broker_id in BROKERS}
        self.brokers: dict[BrokerId, BrokerTopicService] = {}
        self.endpoints: dict[BrokerId, str] = {}
        self._epoch = 0
        for broker_id in BROKERS:
            scheduler = Scheduler(f"scheduler-{broker_id}")
            stack.callback(scheduler.shutdown)
            self.world.register(broker_id)
            topics = BrokerTopicService(context, broker_id, settings, scheduler)
            stack.callback(topics.stop)
            topics.start(
                self.caches[broker_id],
                FakeZooKeeper(self.world.zookeeper),
                lambda broker_id=broker_id: broker_id == ACTIVE,  # type: ignore[misc]
                ControllerMutationQuotaManager(QuotaConfig().controller_window),
            )
            router = topics.router(
                stage.broker(broker_id),
                stage.controller(broker_id),
                stage.journal_reader(broker_id),
            )
            server = ControlServer(
                KEYS, everybody_is_broker(broker_id), "tcp://127.0.0.1:0", router, name="control"
            )
            stack.callback(server.stop)
            server.start()
            self.brokers[broker_id], self.endpoints[broker_id] = topics, server.endpoint
        self.update_metadata()

    def update_metadata(self, *topics: str) -> None:
        """Set the topics in the metadata of every broker."""
        self._epoch += 1
        states = []
        for topic in topics:
            stored = self.world.topic(topic)
            rows = tuple(
                UpdateMetadataPartition(n, 1, 0, 0, (0,), 0, a.replicas, ())
                for n, a in stored.partitions.items()
            )
            states.append(UpdateMetadataTopic(topic, stored.topic_id, rows))
        brokers = tuple(
            live_broker(broker_id, 1, control_endpoint=endpoint)
            for broker_id, endpoint in self.endpoints.items()
        )
        request = UpdateMetadataRequest(tuple(states), brokers, is_full=True)
        for broker_id, cache in self.caches.items():
            cache.update(ControlHeader(ACTIVE, self._epoch, 1), request)
            self.brokers[broker_id].wake()

    def ask(
        self, broker_id: BrokerId, request: TopicsRequest
    ) -> queue.Queue[list[tuple[str, Errors]]]:
        answers: queue.Queue[list[tuple[str, Errors]]] = queue.Queue()
        self.brokers[broker_id].ask(request, lambda response: answers.put(errors_of(response)))
        return answers

    def await_node(self, path: str) -> None:
        self.stage.wait_for(lambda: path in self.world.zookeeper.snapshot())


@pytest.fixture
def cluster() -> Iterator[TwoBrokers]:
    with ExitStack() as stack:
        yield TwoBrokers(stack)


@pytest.mark.parametrize("asked", BROKERS)
def test_any_broker_accepts_requests(cluster: TwoBrokers, asked: BrokerId):
    at_once = create_topics((creatable("t"),), 0)
    late = cluster.ask(asked, at_once).get(timeout=TIMEOUT_S)
    assert late == [("t", Errors.REQUEST_TIMED_OUT)]
    assert sorted(cluster.world.topic("t").partitions) == [0, 1], "the configured number"
    cluster.update_metadata("t")
    deleting = cluster.ask(asked, delete_topics(("t",), 60_000))
    cluster.await_node("/admin/delete_topics/t")
    cluster.brokers[asked].wake()
    assert deleting.empty()
    cluster.update_metadata()
    assert deleting.get(timeout=TIMEOUT_S) == [("t", Errors.NONE)]


def test_a_missing_topic_is_created_without_a_placement_service(cluster: TwoBrokers):
    cluster.brokers[0].create_missing(["t"], lambda _: None)
    cluster.await_node("/brokers/topics/t")
    counted = {
        name: value
        for family in TopicMetrics(cluster.brokers[ACTIVE]).collect()
        for name, value in family.values().items()
    }
    assert counted["regent_topic_placements_total"] == 1
    assert counted["regent_topic_placement_failures_total"] == 0


def test_the_controller_creates_the_internal_topics_when_enough_brokers_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_service, "_INTERNAL_TOPICS_DELAY_MS", 1)
    settings = Settings(
        broker=BrokerConfig(internal_topics_at_start=True),
        groups=GroupsConfig(offsets_topic_num_partitions=5, offsets_topic_replication_factor=2),
        transactions=TransactionsConfig(transaction_state_log_replication_factor=3),
    )
    with ExitStack() as stack:
        cluster = TwoBrokers(stack, settings)
        cluster.await_node(f"/brokers/topics/{GROUP_METADATA_TOPIC}")
        created = cluster.world.topic(GROUP_METADATA_TOPIC).partitions
        assert [sorted(row.replicas) for row in created.values()] == [[0, 1]] * 5
        cluster.update_metadata(GROUP_METADATA_TOPIC)
        assert (
            f"/brokers/topics/{TRANSACTION_STATE_TOPIC}" not in cluster.world.zookeeper.snapshot()
        )


@pytest.mark.parametrize(
    ("topic", "warning"),
    [
        (
            GROUP_METADATA_TOPIC,
            "no coordinator for groups: topic __consumer_offsets needs 3 brokers, and 2 are live;"
            " start another broker, or set offsets_topic_replication_factor to 2",
        ),
        (
            TRANSACTION_STATE_TOPIC,
            "no coordinator for transactions: topic __transaction_state needs 3 brokers, and 2 are"
            " live; start another broker, or set transaction_state_log_replication_factor to 2",
        ),
    ],
)
def test_a_missing_coordinator_topic_is_reported_until_it_exists(
    cluster: TwoBrokers, topic: str, warning: str
) -> None:
    broker = cluster.brokers[0]
    assert not broker.coordinator_warnings()
    refused: queue.Queue[Mapping[str, ApiError]] = queue.Queue()
    broker.create_missing([topic], refused.put)
    error = refused.get(timeout=TIMEOUT_S)[topic]
    assert broker.coordinator_obstacle(topic, error) == warning
    assert broker.coordinator_warnings() == [warning]
    cluster.world.put_topic(topic, {0: (0, 1)})
    cluster.update_metadata(topic)
    assert not broker.coordinator_warnings()


def test_a_request_after_stop_gets_not_controller(cluster: TwoBrokers):
    cluster.brokers[0].stop()
    told: list[Mapping[str, ApiError]] = []
    cluster.brokers[0].create_missing(["t"], told.append)
    assert told == [{}]
    request = create_topics((creatable("t"),), 60_000)
    refused = cluster.ask(0, request).get(timeout=TIMEOUT_S)
    assert refused == [("t", Errors.NOT_CONTROLLER)]
