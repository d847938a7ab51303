"""Blocks of producer ids; no two brokers ever get the same block.

Mirrors ``kafka.coordinator.transaction.ZkProducerIdManager``.
"""

from __future__ import annotations

from regent.core.errors import BadDataError
from regent.core.model import BrokerId
from regent.zk.client.operations import Create, Operation, SetData
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.codecs.admin_znodes import ProducerIdBlock
from regent.zk.codecs.json_fields import MAX_INT64
from regent.zk.stores.fenced_writes import change_znodes
from regent.zk.znodes import ProducerIdBlockZNode

BLOCK_SIZE = 1_000


class ZkProducerIds:
    """``/latest_producer_id_block`` over one ZooKeeper session."""

    def __init__(self, zookeeper: ZooKeeper, broker_id: BrokerId) -> None:
        self._zookeeper = zookeeper
        self._broker_id = broker_id

    def take_block(self) -> range:
        """Take the next ``BLOCK_SIZE`` ids.

        A block is left unused when the answer to its write was lost. Raises
        ``SessionExpiredError``, ``ConflictError``, and ``BadDataError`` when the stored block
        cannot be decoded.
        """
        path = ProducerIdBlockZNode.PATH

        def decide() -> tuple[range, list[Operation]]:
            node = self._zookeeper.get(path)
            latest = None if node is None else ProducerIdBlockZNode.decode(node.data)
            first = 0 if latest is None else latest.last_producer_id + 1
            last = first + BLOCK_SIZE - 1
            if last > MAX_INT64:
                raise BadDataError(f"{path}: there are no producer ids left after {first - 1}")
            data = ProducerIdBlockZNode.encode(ProducerIdBlock(self._broker_id, first, last))
            write = Create(path, data) if node is None else SetData(path, data, node.stat.version)
            return range(first, last + 1), [write]

        contested = f"{path}: other brokers keep taking the same block"
        return change_znodes(self._zookeeper, decide, contested)
