"""How Kafka's controllers read ZooKeeper in their time: the peers of Regent's, on the same server.

Both read each topic's assignment and then each partition's state, in a request of its own:

``sync``       one after the other, as Kafka did before 1.1
``pipelined``  with ten requests in flight, as Kafka 1.1 and later
               (``zookeeper.max.in.flight.requests``)

They decode what they read, and no more: they elect nobody, build no memory, and tell no broker.
They use Regent's own connection to ZooKeeper, which is faster than kazoo's. A Java client would
need less processor time for each request, but waits as long for each answer.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from regent.core.model import TopicPartition
from regent.zk.client.operations import Znode
from regent.zk.client.requests import GetData, ZkReply, decode_znode
from regent.zk.client.zookeeper_client import ZooKeeperClient
from regent.zk.znodes import TopicPartitionStateZNode, TopicZNode

T = TypeVar("T")

SYNC: Final = 1
PIPELINED: Final = 10
_TIMEOUT_S: Final = 30.0


def loading_seconds(address: str, topics: Sequence[str], window: int) -> float:
    """Return how long it takes to read these topics with so many requests in flight."""
    client = ZooKeeperClient(address, 30_000, on_watch=lambda _: None)
    client.start(_TIMEOUT_S)
    try:
        started = time.monotonic()
        names: list[TopicPartition] = []
        for topic, node in _read(client, topics, TopicZNode.path, window):
            assignments = TopicZNode.decode(node.data).partitions
            names += [TopicPartition(topic, number) for number in assignments]
        for _, node in _read(client, names, TopicPartitionStateZNode.path, window):
            TopicPartitionStateZNode.decode(node.data, node.stat.version)
        return time.monotonic() - started
    finally:
        client.close(_TIMEOUT_S)


def _read(
    client: ZooKeeperClient, names: Iterable[T], path: Callable[[T], str], window: int
) -> Iterator[tuple[T, Znode]]:
    in_flight: deque[tuple[T, ZkReply]] = deque()
    for name in names:
        in_flight.append((name, client.send(GetData(path(name), watch=False))))
        if len(in_flight) == window:
            yield _received(client, *in_flight.popleft())
    for sent in in_flight:
        yield _received(client, *sent)


def _received(client: ZooKeeperClient, name: T, reply: ZkReply) -> tuple[T, Znode]:
    answer = client.receive(reply)
    assert answer is not None, f"{name} is not there"
    return name, decode_znode(*answer)[0]
