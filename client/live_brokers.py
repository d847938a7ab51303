"""The brokers that are registered in ZooKeeper."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from regent.client.wording import listed
from regent.core.errors import BadDataError
from regent.core.model import BrokerId, BrokerRegistration
from regent.core.protocol.controller import DescribeControllerResponse
from regent.zk.stores.admin_store import ZkAdminStore


def read_live_brokers(admin: ZkAdminStore) -> dict[BrokerId, BrokerRegistration]:
    """Return the brokers that may hold replicas: registered, with a readable registration."""
    return {
        broker_id: registration
        for broker_id, registration in admin.read_brokers().items()
        if not isinstance(registration, BadDataError)
    }


def software_of(
    live: Mapping[BrokerId, BrokerRegistration], answer: DescribeControllerResponse | None
) -> dict[BrokerId, str]:
    """Return what each broker is; the controller's ``answer`` has the releases of Kafka's."""
    told = {} if answer is None else dict(answer.software)
    return {
        broker_id: told.get(broker_id, info.software) if info.is_of_kafka else info.software
        for broker_id, info in ((b, registration.info) for b, registration in live.items())
    }


def not_registered(broker_id: BrokerId, live: Collection[BrokerId]) -> str:
    """Return the error text for a broker that is not among ``live``."""
    registered = listed(sorted(live)) or "none"
    return f"broker {broker_id} is not registered; registered are {registered}"
