"""Sets and clears the throttles of reassignments (KIP-73).

Mirrors ``ReassignPartitionsCommand.modifyReassignmentThrottle`` and ``clearAllThrottles``: the rate
is a dynamic setting of the brokers that send and receive, and topics name the replicas that it
applies to.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from regent.core.admin.reassignment_plan import (
    PartitionMove,
    follower_throttles,
    leader_throttles,
    reassigning_brokers,
)
from regent.core.errors import BadDataError
from regent.core.model import BrokerId, TopicPartition
from regent.zk.stores.config_store import BROKERS, TOPICS, ZkConfigStore

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
LOG_DIRS_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"

_OF_BROKERS: Final = (LEADER_RATE, FOLLOWER_RATE, LOG_DIRS_RATE)
_OF_TOPICS: Final = (LEADER_REPLICAS, FOLLOWER_REPLICAS)
_SETTINGS: Final = frozenset((*_OF_BROKERS, *_OF_TOPICS))


class Cleared(NamedTuple):
    """The brokers and topics whose throttles were removed."""

    brokers: list[BrokerId]
    topics: list[str]


def set_replication_throttle(
    configs: ZkConfigStore,
    moves: Mapping[TopicPartition, PartitionMove],
    bytes_per_second: int,
) -> None:
    """Limit what the brokers of these moves send and fetch for them. Raises ``BadDataError``."""
    rate = str(bytes_per_second)
    brokers = reassigning_brokers(moves.values())
    leaders, followers = leader_throttles(moves), follower_throttles(moves)
    configs.alter_configs(
        {
            **{
                f"{TOPICS}/{topic}": {
                    LEADER_REPLICAS: leaders[topic],
                    FOLLOWER_REPLICAS: followers[topic],
                }
                for topic in leaders
            },
            **{f"{BROKERS}/{b}": {LEADER_RATE: rate, FOLLOWER_RATE: rate} for b in brokers},
        }
    )


def set_log_dirs_throttle(
    configs: ZkConfigStore, brokers: Collection[BrokerId], bytes_per_second: int
) -> None:
    """Limit what brokers copy between their log directories. Raises ``BadDataError``."""
    rate = str(bytes_per_second)
    configs.alter_configs({f"{BROKERS}/{broker}": {LOG_DIRS_RATE: rate} for broker in brokers})


def are_throttled(
    configs: ZkConfigStore, brokers: Collection[BrokerId], topics: Collection[str]
) -> bool:
    """Return whether a broker or a topic has a throttle. Raises ``BadDataError``."""
    found = {**configs.read_topic_configs(topics), **configs.read_broker_configs(brokers)}
    for config in found.values():
        if isinstance(config, BadDataError):
            raise config
        if not _SETTINGS.isdisjoint(config):
            return True
    return False


def clear_throttles(
    configs: ZkConfigStore, brokers: Collection[BrokerId], topics: Collection[str]
) -> Cleared:
    """Remove all throttles of brokers and topics. Raises ``BadDataError``."""
    changed = configs.alter_configs(
        {
            **{f"{BROKERS}/{broker}": dict.fromkeys(_OF_BROKERS) for broker in brokers},
            **{f"{TOPICS}/{topic}": dict.fromkeys(_OF_TOPICS) for topic in topics},
        }
    )
    names: dict[str, list[str]] = {BROKERS: [], TOPICS: []}
    for entity in sorted(changed):
        kind, _, name = entity.partition("/")
        names[kind].append(name)
    return Cleared(sorted(map(int, names[BROKERS])), names[TOPICS])
