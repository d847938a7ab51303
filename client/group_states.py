"""What brokers tell of consumer groups: names, states, and the assignments of their members.

How many are in which state is a question to every broker, of one request each.

It needs no Kafka client library, and only as long as the slowest broker.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from regent.client.broker_request import NoAnswerError, ask_broker
from regent.core.errors import Errors
from regent.core.model import EndPoint, TopicPartition
from regent.core.protocol.messages.groups import (
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from regent.transport.kafka.api import KafkaApiKey

_REBALANCING: Final = "rebalancing"
_NAMES: Final = {
    "Stable": "stable",
    "Empty": "empty",
    "PreparingRebalance": _REBALANCING,
    "CompletingRebalance": _REBALANCING,
}
_LIST_GROUPS: Final = (KafkaApiKey.LIST_GROUPS, 4)  # the first version with states (KIP-518)
_MAX_BROKERS_AT_ONCE: Final = 32


def group_states(brokers: Sequence[EndPoint], timeout_s: float) -> dict[str, int] | None:
    """Return how many groups are stable, empty and rebalancing.

    None if a broker does not tell in this time, or tells an error.
    """
    counts = dict.fromkeys(_NAMES.values(), 0)
    if not brokers:
        return counts
    deadline = time.monotonic() + timeout_s
    with ThreadPoolExecutor(min(len(brokers), _MAX_BROKERS_AT_ONCE)) as threads:
        answers = list(threads.map(lambda broker: _states(broker, deadline), brokers))
    for states in answers:
        if states is None:
            return None
        for name in filter(None, map(_NAMES.get, states)):
            counts[name] += 1
    return counts


def group_names(brokers: Sequence[EndPoint], timeout_s: float) -> list[str]:
    """Return the names of the groups that brokers tell in this time, sorted."""
    deadline = time.monotonic() + timeout_s
    with ThreadPoolExecutor(_MAX_BROKERS_AT_ONCE) as threads:
        answers = threads.map(lambda broker: _listed(broker, deadline), brokers)
        return sorted({group.group_id for answer in answers for group in answer or ()})


def _states(broker: EndPoint, deadline: float) -> Iterable[str] | None:
    """Return the state of each group of a broker; None if it does not tell."""
    groups = _listed(broker, deadline)
    return None if groups is None else [group.group_state for group in groups]


def _listed(broker: EndPoint, deadline: float) -> Sequence[ListedGroup] | None:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        return None
    try:
        answer = ask_broker(broker, _LIST_GROUPS, ListGroupsRequest(), ListGroupsResponse, left_s)
    except NoAnswerError:
        return None
    if answer.error_code != Errors.NONE:
        return None
    return answer.groups


def assigned_partitions(assignment: bytes) -> list[TopicPartition]:
    """Return the partitions in a consumer's assignment; none if it is of another kind."""
    partitions = []
    try:
        (topics,) = struct.unpack_from(">i", assignment, 2)
        position = 6
        for _ in range(topics):
            (length,) = struct.unpack_from(">h", assignment, position)
            position += 2
            topic = assignment[position : position + length].decode()
            position += length
            (count,) = struct.unpack_from(">i", assignment, position)
            numbers = struct.unpack_from(f">{max(count, 0)}i", assignment, position + 4)
            position += 4 + 4 * max(count, 0)
            partitions += [TopicPartition(topic, number) for number in numbers]
    except (struct.error, UnicodeDecodeError, MemoryError):
        return []
    return partitions
