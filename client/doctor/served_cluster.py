"""What the cluster serves, as ZooKeeper, the controller and the brokers tell it once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from regent.client.broker_request import NoAnswerError, ask_broker
from regent.client.command_config import SECURITY_OF_COMMAND
from regent.client.controller_ref import ControllerRef
from regent.client.deletion_obstacles import deletion_obstacles
from regent.client.live_brokers import read_live_brokers
from regent.client.obstacles import move_obstacles
from regent.client.partitions import DescribedPartition, read_partitions
from regent.client.slow_brokers import slow_brokers
from regent.core.errors import BadDataError, Errors, RegentError
from regent.core.model import BrokerId, BrokerRegistration, EndPoint
from regent.core.protocol.broker import DescribeMetadataRequest, DescribeMetadataResponse
from regent.core.protocol.controller import DescribeControllerRequest, DescribeControllerResponse
from regent.core.protocol.messages.transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from regent.transport.control.remote_ref import actor_at, ask
from regent.transport.kafka.api import KafkaApiKey
from regent.zk.stores.admin_store import ZkAdminStore

_ASK_S: Final = 3.0
_AT_ONCE: Final = 32
_CLIENT_ID: Final = "doctor"
_LONG_TRANSACTION_MS: Final = 15 * 60_000  # Kafka's transaction.max.timeout.ms
_MIN_INSYNC: Final = "min.insync.replicas"


@dataclass(slots=True)
class ServedCluster:
    """Brokers, partitions and what does not get on; ``default_min_insync`` is of all topics."""

    live: Mapping[BrokerId, BrokerRegistration] = field(default_factory=dict)
    has_controller: bool = True
    partitions: Sequence[DescribedPartition] = ()
    topic_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    default_min_insync: int = 1
    caches: Mapping[BrokerId, DescribeMetadataResponse] = field(default_factory=dict)
    software: Mapping[BrokerId, str] = field(default_factory=dict)
    deletions: Mapping[str, str] = field(default_factory=dict)
    move_obstacles: Sequence[str] = ()
    old_transactions: Sequence[str] = ()
    slow_brokers: Mapping[BrokerId, str] = field(default_factory=dict)

    def min_insync(self, topic: str) -> int:
        """Return ``min.insync.replicas`` of a topic."""
        text = self.topic_configs.get(topic, {}).get(_MIN_INSYNC, "")
        return int(text) if text.isdecimal() else self.default_min_insync


def read_served(
    admin: ZkAdminStore, settings: Mapping[BrokerId, Mapping[str, str]]
) -> ServedCluster:
    """Read what a cluster serves. Raises ``BadDataError``."""
    live = read_live_brokers(admin)
    names = admin.topics.read_topic_names()
    deleted = admin.topics.read_topics_being_deleted().intersection(names)
    found = read_partitions(admin, [name for name in names if name not in deleted])
    configs = admin.configs.read_topic_configs(names)
    controller = admin.read_controller()
    answer = None if controller is None else _ask_controller(admin)
    defaults = [int(rows.get(_MIN_INSYNC, "1")) for rows in settings.values()]
    moving = [p.topic_partition for p in found.partitions if p.assignment.is_being_reassigned]
    ours = {b: r.info.control_peer for b, r in live.items() if r.info.control_peer is not None}
    endpoints = [e for r in live.values() if (e := SECURITY_OF_COMMAND.endpoint_of(r.info))]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        caches = dict(zip(ours, threads.map(_cache_at, ours.values()), strict=True))
        old = list(threads.map(_old_transactions, endpoints))
    return ServedCluster(
        live,
        controller is not None,
        found.partitions,
        {t: config for t, config in configs.items() if not isinstance(config, BadDataError)},
        max(defaults, default=1),
        {broker: cache for broker, cache in caches.items() if cache is not None},
        {b: r.info.software for b, r in live.items()} | dict(answer.software if answer else ()),
        deletion_obstacles(admin, sorted(deleted), answer),
        move_obstacles(admin, moving) if moving else (),
        sorted({name for names_of_one in old for name in names_of_one}),
        dict(slow_brokers(live, answer, {b: cache for b, cache in caches.items() if cache})),
    )


def _ask_controller(admin: ZkAdminStore) -> DescribeControllerResponse | None:
    with (
        suppress(RegentError),
        ControllerRef(admin.read_controller_endpoint, client_id=_CLIENT_ID) as controller,
    ):
        deadline = time.monotonic() + _ASK_S
        return controller.ask(
            DescribeControllerRequest(), DescribeControllerResponse, deadline=deadline
        )
    return None


def _cache_at(endpoint: str) -> DescribeMetadataResponse | None:
    """Return the metadata cache of a broker; None if it does not answer."""
    with suppress(RegentError), actor_at(endpoint, client_id=_CLIENT_ID) as actor:
        answer = ask(actor, DescribeMetadataRequest(), DescribeMetadataResponse, timeout_s=_ASK_S)
        return answer if answer.error_code is Errors.NONE else None
    return None


def _old_transactions(broker: EndPoint) -> Sequence[str]:
    """Return the transactional ids of a broker whose transactions are open for long."""
    request = ListTransactionsRequest(
        state_filters=("Ongoing", "PrepareCommit", "PrepareAbort"),
        producer_id_filters=(),
        duration_filter=_LONG_TRANSACTION_MS,
    )
    try:
        api = (KafkaApiKey.LIST_TRANSACTIONS, 1)
        answer = ask_broker(broker, api, request, ListTransactionsResponse, _ASK_S)
    except (NoAnswerError, RegentError):
        return ()
    return [row.transactional_id for row in answer.transaction_states]
