"""Check registrations: only their owners write them, and they list suspect replicas."""

from __future__ import annotations

from regent.zk.client.operations import Create, Delete, SetData
from regent.zk.codecs.broker_znodes import SuspectZnodes
from regent.zk.znodes import BrokerIdsZNode
from tests.simulation.broker import SimulatedBroker
from tests.simulation.cluster import Cluster
from tests.support.zookeeper_replica import Transaction


class Registrations:
    """Checks every transaction once; raises ``AssertionError``."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._processes: dict[int, SimulatedBroker] = {}  # by session, including expired ones
        self._owners: dict[str, int] = {}  # broker id -> the session that registered it
        # Processes with suspect replicas from their start until now: each registration lists some.
        self._suspecting: set[SimulatedBroker] = set()
        self._read = 0

    def check(self) -> None:
        """Check the transactions since the last call."""
        for broker in self._cluster.brokers.values():
            if broker.session.session_id not in self._processes:
                is_new = broker not in self._processes.values()
                if is_new and not broker.is_of_kafka and broker.disk.suspects():
                    self._suspecting.add(broker)
                self._processes[broker.session.session_id] = broker
            if broker in self._suspecting and not broker.disk.suspects():
                self._suspecting.discard(broker)
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
                self._check_suspects(transaction, operation.path)
            elif isinstance(operation, Delete | SetData):
                owner = self._owners.get(broker_id, session_id)
                is_theirs = (
                    session_id == 0 or transaction.ends_session
                )  # by an admin or ZooKeeper itself
                assert is_theirs or self._is_same_process(owner, session_id), (
                    f"OwnRegistration: session {session_id} writes {operation}, owned by {owner}"
                )
                if isinstance(operation, Delete):
                    self._owners.pop(broker_id, None)

    def _check_suspects(self, transaction: Transaction, path: str) -> None:
        """A new registration lists the suspect replicas: otherwise they would count as sound."""
        process = self._processes.get(transaction.session_id)
        if process not in self._suspecting:
            return
        written = [o for o in transaction.operations if isinstance(o, SetData) and o.path == path]
        is_listed = any(SuspectZnodes.decode(operation.data, path).count for operation in written)
        assert is_listed, f"SuspectsAreListed: {transaction}"

    def _is_same_process(self, one: int, other: int) -> bool:
        first, second = self._processes.get(one), self._processes.get(other)
        return one == other or first is None or second is None or first is second
