"""Reads the state of a running cluster from ZooKeeper and brokers, and waits for states."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Any

from regent.core.errors import BadDataError
from regent.core.model import (
    NO_LEADER,
    BrokerId,
    LeaderIsrAndControllerEpoch,
    TopicPartition,
)
from regent.core.protocol.broker import (
    DescribeMetadataRequest,
    DescribeMetadataResponse,
    MetadataPartition,
)
from regent.testing.waits import TIMEOUT_S, eventually, scaled
from regent.transport.control.key_files import KeyPair
from regent.transport.control.remote_ref import RemoteActorRef
from regent.transport.control.sockets import Context, new_context
from regent.zk.client.zookeeper_client import ZooKeeperClient
from regent.zk.znodes import (
    BrokerIdZNode,
    ControllerEpochZNode,
    ControllerZNode,
    TopicPartitionStateZNode,
)


class ClusterObserver:
    """Reads a cluster; ``use_keys`` comes first, ``close_context`` last."""

    _context: Context | None = None

    @property
    def context(self) -> Context:
        """ZeroMQ, with a key that the brokers allow."""
        assert self._context is not None
        return self._context

    def use_keys(self, keys: KeyPair) -> None:
        """Have this key from now on."""
        self.close_context()
        self._context = new_context(keys)

    def close_context(self) -> None:
        """Close all connections to brokers."""
        if self._context is not None:
            self._context.destroy(linger=0)

    @property
    def zookeeper(self) -> ZooKeeperClient:
        """The session that reads ZooKeeper."""
        raise NotImplementedError

    # --- ZooKeeper ---

    def control_endpoint(self, broker_id: BrokerId) -> str:
        """Return where a registered broker takes control requests, with its key.

        Raises ``LookupError``, and ``ValueError`` for a broker of Kafka.
        """
        node = self.zookeeper.get(f"/brokers/ids/{broker_id}")
        if node is None:
            raise LookupError(f"broker {broker_id} is not registered")
        peer = BrokerIdZNode.decode(node.data, broker_id).control_peer
        if peer is None:
            raise ValueError(f"broker {broker_id} is one of Kafka: it has no control port")
        return peer

    def controller(self) -> BrokerId | None:
        """Return the active controller; None when there is none, or its znode is unreadable."""
        node = self.zookeeper.get(ControllerZNode.PATH)
        with suppress(BadDataError):
            return None if node is None else ControllerZNode.decode(node.data)
        return None

    def controller_epoch(self) -> int:
        """Return the controller epoch; 0 before the first election."""
        node = self.zookeeper.get(ControllerEpochZNode.PATH)
        return 0 if node is None else ControllerEpochZNode.decode(node.data)

    def broker_epoch(self, broker_id: BrokerId) -> int | None:
        """Return the broker epoch; None when the broker is not registered."""
        node = self.zookeeper.get(f"/brokers/ids/{broker_id}")
        return None if node is None else node.stat.czxid

    def partition_states(self, topic: str) -> dict[int, LeaderIsrAndControllerEpoch]:
        """Return leader and ISR of every partition of a topic that has a state."""
        numbers = self.zookeeper.children(f"/brokers/topics/{topic}/partitions") or []
        paths = [TopicPartitionStateZNode.path(TopicPartition(topic, int(n))) for n in numbers]
        return {
            int(number): TopicPartitionStateZNode.decode(node.data, node.stat.version)
            for number, node in zip(numbers, self.zookeeper.get_many(paths), strict=True)
            if node is not None
        }

    def leader_of(self, topic: str, partition: int = 0) -> BrokerId:
        """Return the leader of a partition, -1 for none; raises ``LookupError``."""
        states = self.partition_states(topic)
        if partition not in states:
            raise LookupError(f"{topic}-{partition} does not exist, or never had a leader")
        return states[partition].leader_and_isr.leader

    # --- brokers ---

    def ask(self, broker_id: BrokerId, message: Any, timeout_s: float = 5.0) -> Any:
        """Send a request to a broker's control port and return the answer."""
        return self._ask(self.context, broker_id, message, timeout_s)

    def ask_with(self, keys: KeyPair, broker_id: BrokerId, message: Any) -> Any:
        """Send a request of another owner of keys and return the answer."""
        context = new_context(keys)
        try:
            return self._ask(context, broker_id, message, timeout_s=5.0)
        finally:
            context.destroy(linger=0)

    def _ask(self, context: Context, broker_id: BrokerId, message: Any, timeout_s: float) -> Any:
        endpoint = self.control_endpoint(broker_id)
        with RemoteActorRef(context, endpoint, client_id="test") as actor:
            return actor.ask(message, timeout=scaled(timeout_s))

    def metadata(self, broker_id: BrokerId) -> DescribeMetadataResponse:
        """Return the metadata cache of a broker."""
        answer = self.ask(broker_id, DescribeMetadataRequest())
        assert isinstance(answer, DescribeMetadataResponse)
        return answer

    # --- waits: each raises ``AssertionError`` when the time is over ---

    def await_controller(self, timeout_s: float = TIMEOUT_S) -> BrokerId:
        """Wait for an active controller and return it."""
        found = eventually(
            lambda: [c for c in [self.controller()] if c is not None], "a controller", timeout_s
        )
        return found[0]

    def await_leader(
        self,
        topic: str,
        partition: int = 0,
        *,
        other_than: BrokerId = NO_LEADER,
        timeout_s: float = TIMEOUT_S,
    ) -> BrokerId:
        """Wait until a partition has a leader, another one than ``other_than``; return it."""
        without = (NO_LEADER, other_than)
        what = f"a leader of {topic}-{partition}"
        found = eventually(
            lambda: [b for b in [self.leader_of(topic, partition)] if b not in without],
            what if other_than == NO_LEADER else f"{what} other than {other_than}",
            timeout_s,
        )
        return found[0]

    def await_isr(
        self,
        topic: str,
        brokers: Collection[BrokerId],
        partition: int | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Wait until the ISR of a partition (None: of every one) is exactly these brokers."""

        def is_reached() -> bool:
            states = self.partition_states(topic).items()
            isrs = {n: s.leader_and_isr.isr for n, s in states if partition in (None, n)}
            if not isrs or any(set(isr) != set(brokers) for isr in isrs.values()):
                raise LookupError(f"the ISRs are {isrs}")
            return True

        what = f"the ISR of {topic}{'' if partition is None else f'-{partition}'}"
        eventually(is_reached, f"{what} is {sorted(brokers)}", timeout_s)

    def await_agreement(
        self, brokers: list[BrokerId], topic: str, controller_epoch: int | None = None
    ) -> dict[int, MetadataPartition]:
        """Wait until the caches of these brokers equal ZooKeeper and each other; return the rows.

        Every partition is led by one of them, and its ISR is among them.
        """

        def agreed() -> dict[int, MetadataPartition] | None:
            expected = {
                n: (s.leader_and_isr.leader, s.leader_and_isr.leader_epoch, s.leader_and_isr.isr)
                for n, s in self.partition_states(topic).items()
            }
            caches = [self.metadata(broker_id) for broker_id in brokers]
            rows = [{p.partition: p for p in c.partitions if p.topic == topic} for c in caches]
            is_agreed = (
                all(
                    {n: (p.leader, p.leader_epoch, p.isr) for n, p in seen.items()} == expected
                    for seen in rows
                )
                and {cache.controller_id for cache in caches} == {self.controller()}
                and controller_epoch in (None, caches[0].controller_epoch)
                and all(
                    p.leader in brokers and set(p.isr) <= set(brokers) for p in rows[0].values()
                )
            )
            return rows[0] if is_agreed else None

        found = eventually(agreed, f"brokers {brokers} agree about {topic}")
        assert found is not None
        return found
