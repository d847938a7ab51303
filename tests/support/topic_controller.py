"""Brokers that answer requests about topics on their Kafka ports: leaders are elected at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

from regent.broker.api.configs import ConfigAlterations, alter_config_apis
from regent.broker.api.topics import topic_apis
from regent.broker.broker_settings import broker_settings
from regent.config.settings import KAFKA_SETTINGS, Settings
from regent.core.admin.admin_manager import AdminManager
from regent.core.admin.admin_requests import (
    RespondToClient,
    RespondToCreation,
    TopicPlacer,
    refuse,
)
from regent.core.admin.config_alterations import BrokerConfigManager
from regent.core.admin.config_descriptions import BrokerSettings
from regent.core.errors import BadDataError, Errors
from regent.core.model import BrokerInfo, EndPoint
from regent.core.protocol.control import UpdateMetadataPartition
from regent.core.protocol.envelope import ForwardedClient, Requester
from regent.core.protocol.topics import TopicsRequest, TopicsResponse
from regent.core.replication.metadata_cache import MetadataCache, MetadataSnapshot
from regent.transport.kafka.api import KafkaApi, UnansweredRequestError
from regent.transport.kafka.listener import KafkaListener
from regent.zk import znodes
from regent.zk.client.operations import Create
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.stores.admin_store import ZkAdminStore
from tests.support.local_placer import LocalPlacer
from tests.support.world import TopicIds, live_broker

AnswerAboutTopics: TypeAlias = Callable[[TopicsRequest], TopicsResponse | Errors | None]
"""The answer to a request; None: the connection is closed."""


class TopicController:
    """Handles requests with a real ``AdminManager`` over ``zookeeper``."""

    def __init__(self, zookeeper: ZooKeeper, placer: TopicPlacer | None = None) -> None:
        self.admin = ZkAdminStore(zookeeper)
        self._cache = MetadataCache()
        self._manager = AdminManager(
            self._cache, self.admin.topics, TopicIds(), lambda: True, placer or LocalPlacer()
        )

    def answer(self, request: TopicsRequest) -> TopicsResponse:
        """Handle a request with the present content of ZooKeeper."""
        brokers = {
            broker_id: live_broker(broker_id, 1, rack=broker.info.rack)
            for broker_id, broker in self.admin.read_brokers().items()
            if not isinstance(broker, BadDataError)
        }
        topics = self.admin.topics.read_topics(self.admin.topics.read_topic_names())
        rows = {
            topic: {
                number: UpdateMetadataPartition(
                    number,
                    1,
                    assignment.replicas[0],
                    0,
                    assignment.replicas,
                    0,
                    assignment.replicas,
                    (),
                )
                for number, assignment in found.partitions.items()
            }
            for topic, found in topics.items()
            if not isinstance(found, BadDataError)
        }
        self._cache.snapshot = MetadataSnapshot(0, 1, brokers, rows)
        return self._manager.decide(request)


class KafkaPort:
    """The Kafka port of a broker, for requests about topics; answers on the listener's thread."""

    def __init__(
        self, answer: AnswerAboutTopics, admin: ZkAdminStore, more: Sequence[KafkaApi] = ()
    ) -> None:
        self._answer = answer
        self._executor = ThreadPoolExecutor(1)
        settings = broker_settings(Settings(), 0)
        brokers = BrokerConfigManager(admin.configs, KAFKA_SETTINGS, {}, lambda _: None)
        apis = [
            *topic_apis(self, lambda: BrokerSettings(settings, {}, {}), self._executor),
            *alter_config_apis(ConfigAlterations(0, self, brokers, self._executor)),
            *more,
        ]
        self._listener = KafkaListener("127.0.0.1", 0, apis)
        self._listener.start()
        self.port = self._listener.port

    def ask(
        self,
        request: TopicsRequest,
        respond: RespondToClient,
        requester: Requester | None = None,
        client: ForwardedClient | None = None,
    ) -> None:
        """See ``TopicService.ask``."""
        del requester, client
        answer = self._answer(request)
        if answer is None:
            raise UnansweredRequestError("the answer is lost")
        if isinstance(answer, Errors):
            answer = refuse(request, answer, f"the answer is {answer.name}")
        respond(answer)

    def create_missing(self, topics: Collection[str], respond: RespondToCreation) -> None:
        """See ``TopicService.create_missing``."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop listening."""
        self._listener.close(0.1)
        self._executor.shutdown()


@contextmanager
def brokers_of(zookeeper: ZooKeeper, count: int) -> Iterator[None]:
    """Register brokers 0, 1, … in an empty ZooKeeper; all have the same Kafka port."""
    topics = TopicController(zookeeper)
    with ExitStack() as stack:
        port = KafkaPort(topics.answer, topics.admin)
        stack.callback(port.close)
        for path in znodes.PERSISTENT_PATHS:
            parts = path.split("/")
            for depth in range(2, len(parts) + 1):
                zookeeper.multi([Create("/".join(parts[:depth]))])
        for broker_id in range(count):
            endpoint = EndPoint("PLAINTEXT", "127.0.0.1", port.port)
            info = BrokerInfo(broker_id, (endpoint,), None, "tcp://127.0.0.1:1")
            data = znodes.BrokerIdZNode.encode(info)
            zookeeper.multi([Create(znodes.BrokerIdZNode.path(broker_id), data, ephemeral=True)])
        zookeeper.multi(
            [
                Create(znodes.ControllerZNode.PATH, znodes.ControllerZNode.encode(0, 0)),
                Create(znodes.ControllerEpochZNode.PATH, znodes.ControllerEpochZNode.encode(1)),
            ]
        )
        yield
