"""What clients are told of leaders: the answers of one broker to Metadata requests.

The listener answers from the broker's cache. So these requests are cheap, and they do not wait for
the control requests that the broker is carrying out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from math import ceil
from time import monotonic
from typing import Final

from bench.kafka_connection import Address, KafkaConnection, check
from regent.core.protocol.message import Int16, Int32, Uuid, message

ASK_EVERY_S: Final = 0.01
TIMEOUT_S: Final = 300.0
TOPICS_ASKED: Final = 50


def sample(topics: Sequence[str]) -> list[str]:
    """Return up to ``TOPICS_ASKED`` of one topic or more, evenly spread, with the last."""
    return list(topics)[:: -ceil(len(topics) / TOPICS_ASKED)]


def await_told(
    addresses: Collection[Address],
    topics: Sequence[str],
    is_so: Callable[[MetadataResponsePartition], bool],
) -> None:
    """Wait until every broker has answered so about all partitions of ``topics``.

    Only the first topic that is left is asked for again and again: questions about all of them
    would take a fifth of the processor time while a crash is handled.
    """
    ends = monotonic() + TIMEOUT_S

    async def not_so(connection: KafkaConnection, names: Sequence[str]) -> list[str]:
        request = MetadataRequest(topics=tuple(MetadataRequestTopic(name=name) for name in names))
        found = (await connection.ask(request)).topics
        for topic in found:
            check(topic.error_code)
        return [topic.name or "" for topic in found if not all(map(is_so, topic.partitions))]

    async def wait(address: Address) -> None:
        left = list(topics)
        async with await KafkaConnection.to(address) as connection:
            while monotonic() < ends:
                if not await not_so(connection, left[:1]):
                    left = await not_so(connection, left)
                    if not left:
                        return
                else:
                    await asyncio.sleep(ASK_EVERY_S)
        raise AssertionError(f"{address.host}:{address.port}: not so after {TIMEOUT_S:g} s")

    async def wait_for_all() -> None:
        await asyncio.gather(*map(wait, addresses))

    asyncio.run(wait_for_all())


# --- the messages, as of version 12; the brokers have their own codec ---


@message
class MetadataRequestTopic:
    """A topic by its name."""

    topic_id: Uuid = None
    name: str | None


@message
class MetadataRequest:
    """Asks for topics."""

    topics: tuple[MetadataRequestTopic, ...] | None
    allow_auto_topic_creation: bool = False
    include_topic_authorized_operations: bool = False


@message
class MetadataResponseBroker:
    """A live broker."""

    node_id: Int32
    host: str
    port: Int32
    rack: str | None


@message
class MetadataResponsePartition:
    """A partition, its leader and its replicas."""

    error_code: Int16
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Int32
    replica_nodes: tuple[Int32, ...]
    isr_nodes: tuple[Int32, ...]
    offline_replicas: tuple[Int32, ...]


@message
class MetadataResponseTopic:
    """A topic and its partitions."""

    error_code: Int16
    name: str | None
    topic_id: Uuid
    is_internal: bool
    partitions: tuple[MetadataResponsePartition, ...]
    topic_authorized_operations: Int32


@message
class MetadataResponse:
    """What a broker knows of topics."""

    throttle_time_ms: Int32
    brokers: tuple[MetadataResponseBroker, ...]
    cluster_id: str | None
    controller_id: Int32
    topics: tuple[MetadataResponseTopic, ...]
