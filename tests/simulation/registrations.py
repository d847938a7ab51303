"""Registrations of brokers: nobody touches that of another process."""

from __future__ import annotations

from tests.simulation.broker import SimulatedBroker
from tests.simulation.cluster import Cluster
from tests.support.zookeeper_replica import Transaction
from zk.operations import Create, Delete, SetData
from zk.znodes import BrokerIdsZNode


class Registrations:
    """Looks at every transaction once; raises ``AssertionError``."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._processes: dict[int, SimulatedBroker] = {}  # by their sessions, former ones as well
        self._owners: dict[str, int] = {}  # broker id -> the session that registered it
        self._read = 0

    def check(self) -> None:
        """Check the transactions since the last time."""
        for broker in self._cluster.brokers.values():
            self._processes.setdefault(broker.session.session_id, broker)
        transactions = self._cluster.zookeeper.transactions
        while self._read < len(transactions):
            self._check_transaction(transactions[self._read])
            self._read += 1

    def _check_transaction(self, transaction: Transaction) -> None:
        session_id = transaction.session_id
        for operation in transaction.operations:
            parent, _, broker_id = operation.path.rpartition("/")
            if parent != BrokerIdsZNode.PATH:
                continue
            if isinstance(operation, Create):
                self._owners[broker_id] = session_id
            elif isinstance(operation, Delete | SetData):
                owner = self._owners.get(broker_id, session_id)
                is_theirs = session_id == 0 or transaction.ends_session  # admins, ZooKeeper itself
                assert is_theirs or self._is_same_process(owner, session_id), (
                    f"OwnRegistration: session {session_id} writes {operation}, which {owner} made"
                )
                if isinstance(operation, Delete):
                    self._owners.pop(broker_id, None)

    def _is_same_process(self, one: int, other: int) -> bool:
        first, second = self._processes.get(one), self._processes.get(other)
        return one == other or first is None or second is None or first is second
