"""What would be lost with topics: their records and bytes, and the groups that read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from regent.cli.lazy_group import load
from regent.cli.topic_options import TopicError
from regent.client.broker_request import NoAnswerError, ask_broker
from regent.client.cluster_connection import Cluster
from regent.core.admin.topic_settings import DELETION_PROTECTION
from regent.core.errors import RegentError
from regent.core.model import EndPoint, TopicPartition
from regent.core.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from regent.core.protocol.messages.log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from regent.transport.kafka.api import KafkaApiKey

_TOPIC: Final = 2  # a type of resources
_QUESTION_S: Final = 5.0


class Loss(NamedTuple):
    """What a topic has; None: it is not known. ``bytes`` are those of one replica each."""

    topic: str
    partitions: int
    records: int | None
    bytes: int | None
    groups: list[str]
    protected: bool | None


def losses_of(cluster: Cluster, topics: Sequence[str], timeout_ms: int) -> list[Loss]:
    """Return what topics have; those that do not exist are missing.

    ``records`` counts offsets: compaction and transactions leave gaps in them. Raises
    ``TopicError`` if no topic exists, and ``RegentError`` if brokers do not answer, or a package
    that this needs is not installed.
    """
    groups = load("regent.cli.group_admin", "topics delete")
    admin = groups.GroupAdmin(cluster, timeout_ms)
    counts = admin.partition_counts()
    found = [topic for topic in topics if topic in counts]
    if not found:
        raise TopicError("\n".join(f"topic {topic} does not exist" for topic in topics))
    partitions = [TopicPartition(topic, p) for topic in found for p in range(counts[topic])]
    firsts = admin.offsets(partitions, groups.EARLIEST)
    ends = admin.offsets(partitions, groups.LATEST)
    committed = admin.committed([row.group for row in admin.groups()])
    brokers = cluster.brokers()
    sizes, protected = _sizes(brokers, partitions), _protected(brokers, found)
    losses = []
    for topic in found:
        own = [partition for partition in partitions if partition.topic == topic]
        records = [_between(firsts.get(p), ends.get(p)) for p in own]
        losses.append(
            Loss(
                topic,
                counts[topic],
                _total(records),
                _total([sizes.get(p) for p in own]),
                [g for g, offsets in committed.items() if any(p.topic == topic for p in offsets)],
                protected.get(topic),
            )
        )
    return losses


def _between(first: int | None, end: int | None) -> int | None:
    return None if first is None or end is None else end - first


def _total(numbers: Sequence[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _sizes(
    brokers: Sequence[EndPoint], partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the size of the largest replica of each partition, of brokers that answer."""
    by_topic: dict[str, list[int]] = {}
    for topic, number in partitions:
        by_topic.setdefault(topic, []).append(number)
    asked = [DescribableLogDirTopic(topic=t, partitions=tuple(p)) for t, p in by_topic.items()]
    request = DescribeLogDirsRequest(topics=tuple(asked))
    sizes: dict[TopicPartition, int] = {}
    for broker in dict.fromkeys(brokers):
        try:
            api = (KafkaApiKey.DESCRIBE_LOG_DIRS, 3)
            answer = ask_broker(broker, api, request, DescribeLogDirsResponse, _QUESTION_S)
        except (NoAnswerError, RegentError):
            continue
        for directory in answer.results:
            for row in directory.topics:
                for log in row.partitions:
                    name = TopicPartition(row.name, log.partition_index)
                    sizes[name] = max(sizes.get(name, 0), log.partition_size)
    return sizes


def _protected(brokers: Sequence[EndPoint], topics: Sequence[str]) -> Mapping[str, bool]:
    resources = [
        DescribeConfigsResource(
            resource_type=_TOPIC, resource_name=topic, configuration_keys=(DELETION_PROTECTION,)
        )
        for topic in topics
    ]
    request = DescribeConfigsRequest(resources=tuple(resources))
    for broker in brokers:
        try:
            api = (KafkaApiKey.DESCRIBE_CONFIGS, 1)
            answer = ask_broker(broker, api, request, DescribeConfigsResponse, _QUESTION_S)
        except (NoAnswerError, RegentError):
            continue
        return {
            result.resource_name: any(row.value == "true" for row in result.configs)
            for result in answer.results
            if not result.error_code
        }
    return {}
