"""A broker's Kafka port with everything behind it, in one process; the test is its controller."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack
from typing import Any

from regent.actors.request_channel import RequestChannel
from regent.actors.scheduler import Scheduler
from regent.actors.transaction_markers import PartitionMarkers
from regent.broker.broker_settings import StartedBroker
from regent.broker.group_service import BrokerGroupService
from regent.broker.kafka_endpoint import KafkaEndpoint, OwnController, Served
from regent.broker.topic_service import BrokerTopicService
from regent.broker.transaction_service import BrokerTransactionService
from regent.config.settings import Settings
from regent.core.model import EndPoint
from regent.core.protocol.control import UpdateMetadataBroker, UpdateMetadataEndPoint
from regent.core.quota.quota_managers import QuotaManagers
from regent.core.replica_logs import ReplicaLogs
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.replica_alter_log_dirs_manager import ReplicaAlterLogDirsManager
from regent.core.replication.replica_manager import ReplicaManager
from regent.core.security.acl_cache import AclCache
from regent.core.security.authorizer import (
    ALLOW_ALL,
    AclAuthorizer,
    Authorizer,
    AuthorizerSettings,
)
from regent.core.topic_validation import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from regent.storage.log_manager import LogManager
from regent.transport.control.server import ControlServer
from regent.transport.kafka.metrics import Closed
from regent.zk.codecs.topic_znodes import encode_topic_id
from regent.zk.stores.acl_store import ZkAclStore
from regent.zk.stores.producer_ids import ZkProducerIds
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.free_ports import on_free_ports
from tests.support.keys import KEYS, context_for_test, everybody_is_broker
from tests.support.led_partitions import lead
from tests.support.stage import Stage

BROKER = 0
LISTENER = "PLAINTEXT"


class ServedEndpoint:
    """Broker 0, the only one and the controller; it leads partition 0 of ``topic``.

    It coordinates all groups and transactions. ``stack`` closes its resources.
    """

    def __init__(
        self,
        stack: ExitStack,
        logs: ReplicaLogs,
        settings: Settings,
        topic: str = "t",
        authorizer: Authorizer = ALLOW_ALL,
        controller: OwnController | None = None,
        *,
        admits_clients: bool = True,
    ) -> None:
        context = context_for_test()
        stack.callback(context.destroy, linger=0)
        self.world = stage = stack.enter_context(Stage())
        zookeeper = FakeZooKeeper(stage.zookeeper)
        scheduler = Scheduler("scheduler")
        stack.callback(scheduler.shutdown)
        cache = MetadataCache()
        self.replica_manager = ReplicaManager(BROKER, logs, cache, lock=threading.RLock())
        groups = BrokerGroupService(settings, cache)
        groups.start(self.replica_manager, scheduler)
        stack.callback(groups.stop)
        transactions = BrokerTransactionService(BROKER, settings, cache, _no_channel)
        transactions.start(
            self.replica_manager,
            scheduler,
            target=PartitionMarkers(self.replica_manager, scheduler, timeout_ms=1_000),
            groups=groups.coordinator,
            take_block=ZkProducerIds(zookeeper, BROKER).take_block,
        )
        stack.callback(transactions.stop)
        topics = BrokerTopicService(context, BROKER, settings, scheduler)
        stack.callback(topics.stop)
        self.topics = topics
        self.quotas = quotas = QuotaManagers(settings.quotas)
        topics.start(cache, zookeeper, lambda: True, quotas.controller_mutation, authorizer)
        router = topics.router(
            stage.broker(BROKER), stage.controller(BROKER), stage.journal_reader(BROKER)
        )
        control = ControlServer(
            KEYS, everybody_is_broker(BROKER), "tcp://127.0.0.1:0", router, name="control"
        )
        stack.callback(control.stop)
        control.start()
        self.endpoint = KafkaEndpoint(BROKER, on_free_ports(settings), quotas)
        stack.callback(self.endpoint.close)
        self.port: int = self.endpoint.port
        self._lead(topic, control.endpoint)
        groups.on_metadata_changed()  # their actors may have heard first that they lead
        transactions.on_metadata_changed()
        listeners = (EndPoint(LISTENER, "127.0.0.1", self.port),)
        started = StartedBroker("localhost:2181", (), listeners, listeners, control.endpoint)
        disk = LogManager([], BROKER)
        acls = None
        if authorizer is not ALLOW_ALL:
            made = AclAuthorizer(AuthorizerSettings(), lambda: 0.0)
            acls = AclCache(ZkAclStore(zookeeper), made, threading.Lock(), lambda: 0.0)
            acls.start()
        self.endpoint.serve(
            Served(
                self.replica_manager,
                cache,
                topics,
                groups,
                zookeeper,
                lambda: "a-cluster",
                started,
                disk,
                ReplicaAlterLogDirsManager(self.replica_manager, disk.moves),
                transactions,
                authorizer=authorizer,
                acls=acls,
                controller=controller,
            )
        )
        if admits_clients:
            self.endpoint.admit_clients()

    @property
    def closed(self) -> dict[Closed, int]:
        """Reasons of closed connections, with counts."""
        metrics = self.endpoint.metrics.values()
        return dict(+sum((of_listener.closed for of_listener in metrics), Counter[Closed]()))

    def _lead(self, topic: str, control_endpoint: str) -> None:
        kafka = UpdateMetadataEndPoint(LISTENER, "127.0.0.1", self.port, LISTENER)
        alive = UpdateMetadataBroker(BROKER, -1, (kafka,), None, control_endpoint, None)
        for number, name in enumerate((topic, GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC), 1):
            topic_id = encode_topic_id(bytes([number]) * 16)
            self.world.put_topic(name, {0: (BROKER,)}, topic_id)
            lead(self.replica_manager, alive, {name: 1}, (BROKER,), topic_id=topic_id)


def _no_channel(endpoint: str) -> RequestChannel[Any, Any]:
    raise AssertionError(f"a request to {endpoint}")
