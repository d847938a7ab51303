"""The brokers for a job: from a JSON file, or those registered in ZooKeeper."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from regent.core.admin.topic_settings import similar_names
from regent.core.errors import BadDataError
from regent.core.model import BrokerId
from regent.jobs.assignment_source import ZOOKEEPER
from regent.jobs.command import InputError, cluster_admin
from regent.jobs.files import JobFiles
from regent.jobs.json_list import Given, field_of, read_json_list
from regent.zk.stores.admin_store import ZkAdminStore

_MAX_ID: Final = 2**31 - 1
_MAX_COUNT: Final = 2**63 - 1
_KEYS: Final = ("id", "rack", "node_host", "replica_count", "capacity")
_NO_REPLICAS: Final = "no_replicas"
_OF_TOOLS: Final = frozenset(
    {
        # ``regent brokers list -o json``
        *("host", "port", "control_endpoint", "replication_endpoint", "software"),
        *("broker_epoch", "is_controller", _NO_REPLICAS),
        # Kafka's registration in ZooKeeper, a node of its AdminClient, and ``kcat -J``
        *("version", "timestamp", "endpoints", "jmx_port", "listener_security_protocol_map"),
        *("features", "tags", "idString", "isFenced", "name"),
    }
)
"""Keys that are there in lists which others write; they have no meaning here."""


class PlannedBroker(NamedTuple):
    """A broker that may hold replicas, or has some."""

    broker_id: BrokerId
    rack: str | None
    replica_count: int  # replicas that it has already
    capacity: int | None  # maximum number of replicas; None: no limit
    node_host: str | None = None  # the machine, if other brokers are on it
    no_replicas: bool = False  # it takes no new ones


def read_brokers(
    given: Given,
    zookeeper_address: Callable[[], str],
    files: JobFiles,
    *,
    with_no_replicas: bool = False,
) -> tuple[PlannedBroker, ...]:
    """Read the brokers of a file or a list, or for ``zookeeper`` those that are registered.

    Those that take no new replicas are left out unless ``with_no_replicas``. See the functions.
    """
    if given != ZOOKEEPER:
        found = read_brokers_file(given, files)
    else:
        with cluster_admin(zookeeper_address()) as admin:
            found = read_registered_brokers(admin)
    return found if with_no_replicas else takers_of(found)


def takers_of(brokers: Sequence[PlannedBroker]) -> tuple[PlannedBroker, ...]:
    """Return the brokers that take new replicas. Raises ``InputError`` if there is none."""
    takers = tuple(broker for broker in brokers if not broker.no_replicas)
    if not takers:
        raise InputError("all brokers have no_replicas: name or start others")
    return takers


def read_brokers_file(given: Given, files: JobFiles) -> tuple[PlannedBroker, ...]:
    """Read a list of ids, or of objects with an id and the other ``_KEYS``, in any order.

    The output of ``regent brokers list -o json`` is such a list. Returns the brokers sorted by id.
    Raises ``InputError``, also for an unknown key: a misspelt ``rack`` would place rack-blind.
    """
    brokers: dict[BrokerId, PlannedBroker] = {}
    for where, entry in read_json_list(given, "broker", files):
        broker = _broker(entry, where)
        if broker.broker_id in brokers:
            raise InputError(f"{where}: broker {broker.broker_id} is listed more than once")
        brokers[broker.broker_id] = broker
    return tuple(sorted(brokers.values()))


def read_registered_brokers(admin: ZkAdminStore) -> tuple[PlannedBroker, ...]:
    """Read the brokers that are registered in ZooKeeper, sorted by id.

    Their ``replica_count`` is 0, because the assignment has their replicas. Raises ``InputError``
    when there is none, ``NoClusterError``, and ``BadDataError`` for an invalid registration:
    without its rack no replica can be placed there.
    """
    brokers = []
    for broker_id, registration in admin.read_brokers().items():
        if isinstance(registration, BadDataError):
            raise registration
        info = registration.info
        found = (broker_id, info.rack, 0, None, info.node_host, info.no_replicas)
        brokers.append(PlannedBroker(*found))
    if not brokers:
        raise InputError("no broker is registered in ZooKeeper: is the cluster running?")
    return tuple(brokers)


def _broker(entry: object, where: str) -> PlannedBroker:
    fields: object = {"id": entry} if isinstance(entry, int) else entry
    if not isinstance(fields, dict):
        raise InputError(f"{where} must be a broker id or an object, not {reprlib.repr(entry)}")
    for key in fields:
        if key not in _KEYS and key not in _OF_TOOLS:
            raise InputError(
                f"{where}: {reprlib.repr(key)} is unknown; {similar_names(key, _KEYS)}"
            )

    def number(name: str, limit: int) -> int | None:
        found: int | None = field_of(
            fields,
            name,
            where,
            f"a number from 0 to {limit}",
            lambda value: value is None or (type(value) is int and 0 <= value <= limit),
        )
        return found

    rack, node_host = (
        field_of(fields, name, where, "a text", lambda r: r is None or (type(r) is str and r != ""))
        for name in ("rack", "node_host")
    )
    broker_id = number("id", _MAX_ID)
    if broker_id is None:
        raise InputError(f"{where}: a broker needs an id")
    replica_count = number("replica_count", _MAX_COUNT) or 0
    capacity = number("capacity", _MAX_COUNT)
    no_replicas = fields.get(_NO_REPLICAS) is True
    return PlannedBroker(broker_id, rack, replica_count, capacity, node_host, no_replicas)
