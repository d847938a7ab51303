"""The active controller's broker, for requests about topics: leaders are elected at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from regent.core.admin.admin_manager import AdminManager
from regent.core.admin.admin_requests import TopicPlacer
from regent.core.errors import BadDataError
from regent.core.model import BrokerInfo, EndPoint
from regent.core.protocol.control import UpdateMetadataPartition
from regent.core.protocol.topics import TopicsRequest, TopicsResponse
from regent.core.replication.metadata_cache import MetadataCache, MetadataSnapshot
from regent.transport.control.server import ControlServer, IncomingRequest
from regent.transport.control.sockets import new_context
from regent.zk import znodes
from regent.zk.client.operations import Create
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.stores.admin_store import ZkAdminStore
from tests.support.local_placer import LocalPlacer
from tests.support.world import TopicIds, live_broker


class TopicController:
    """Handles requests with a real ``AdminManager`` over ``zookeeper``."""

    def __init__(self, zookeeper: ZooKeeper, placer: TopicPlacer | None = None) -> None:
        self._admin = ZkAdminStore(zookeeper)
        self._cache = MetadataCache()
        self._manager = AdminManager(
            self._cache, self._admin.topics, TopicIds(), lambda: True, placer or LocalPlacer()
        )

    def answer(self, request: TopicsRequest) -> TopicsResponse:
        """Handle a request with the present content of ZooKeeper."""
        brokers = {
            broker_id: live_broker(broker_id, 1, rack=broker.info.rack)
            for broker_id, broker in self._admin.read_brokers().items()
            if not isinstance(broker, BadDataError)
        }
        topics = self._admin.topics.read_topics(self._admin.topics.read_topic_names())
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


@contextmanager
def brokers_of(zookeeper: ZooKeeper, count: int) -> Iterator[None]:
    """Register brokers 0, 1, … in an empty ZooKeeper; broker 0 is the controller."""
    context = new_context()
    topics = TopicController(zookeeper)

    executor = ThreadPoolExecutor(1)  # the server's own thread answers heartbeats

    def answer(incoming: IncomingRequest) -> None:
        assert isinstance(incoming.body, TopicsRequest)
        incoming.reply(topics.answer(incoming.body))

    def dispatch(incoming: IncomingRequest) -> None:
        executor.submit(answer, incoming)

    server = ControlServer(context, "tcp://127.0.0.1:0", dispatch, name="topic-controller")
    server.start()
    for path in znodes.PERSISTENT_PATHS:
        parts = path.split("/")
        for depth in range(2, len(parts) + 1):
            zookeeper.multi([Create("/".join(parts[:depth]))])
    for broker_id in range(count):
        endpoint = EndPoint("PLAINTEXT", "127.0.0.1", 9092)
        info = BrokerInfo(broker_id, (endpoint,), None, server.endpoint)
        data = znodes.BrokerIdZNode.encode(info)
        zookeeper.multi([Create(znodes.BrokerIdZNode.path(broker_id), data, ephemeral=True)])
    zookeeper.multi(
        [
            Create(znodes.ControllerZNode.PATH, znodes.ControllerZNode.encode(0, 0)),
            Create(znodes.ControllerEpochZNode.PATH, znodes.ControllerEpochZNode.encode(1)),
        ]
    )
    try:
        yield
    finally:
        executor.shutdown()
        server.stop()
        context.destroy(linger=0)
