"""The znodes of the designs before the controller, as their texts name them.

Numbers and lists are decimal text; a leadership is ``leader;isr;epoch``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from regent.core.errors import BadDataError
from regent.core.model import NO_LEADER, BrokerId, TopicPartition
from regent.zk.client.operations import Create

BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"
STATE = "/brokers/state"
PARTITIONS_REASSIGNED = "/admin/partitions_reassigned"
PARTITIONS_ADD = "/admin/partitions_add"
PARTITIONS_REMOVE = "/admin/partitions_remove"
PERSISTENT_PATHS = (
    *("/brokers", BROKER_IDS, TOPICS, STATE),
    *("/admin", PARTITIONS_REASSIGNED, PARTITIONS_ADD, PARTITIONS_REMOVE),
)
"""What brokers create when they start, parents first."""


def broker_path(broker_id: BrokerId) -> str:
    """Return the path of a broker's registration, which is ephemeral."""
    return f"{BROKER_IDS}/{broker_id}"


def topic_path(topic: str) -> str:
    """Return the path whose children are the partitions of a topic."""
    return f"{TOPICS}/{topic}"


def partition_path(topic_partition: TopicPartition) -> str:
    """Return the path below which the nodes of a partition are."""
    return f"{TOPICS}/{topic_partition.topic}/{topic_partition.partition}"


def replicas_path(topic_partition: TopicPartition) -> str:
    """Return the path of the assigned replicas; the first is the preferred one."""
    return f"{partition_path(topic_partition)}/replicas"


def leader_path(topic_partition: TopicPartition) -> str:
    """Return the path of the lock that makes a leader."""
    return f"{partition_path(topic_partition)}/leader"


def isr_path(topic_partition: TopicPartition) -> str:
    """Return the path of the in-sync replicas (v1)."""
    return f"{partition_path(topic_partition)}/ISR"


def leader_and_isr_path(topic_partition: TopicPartition) -> str:
    """Return the path of leader, in-sync replicas and epoch (v2)."""
    return f"{partition_path(topic_partition)}/leaderAndISR"


def state_path(broker_id: BrokerId) -> str:
    """Return the path whose children are the state changes that wait for a broker (v2)."""
    return f"{STATE}/{broker_id}"


def partition_name(topic_partition: TopicPartition) -> str:
    """Return the name of a partition below the paths of ``/admin`` (v2).

    One flat list of them: a level for topics would need one watch for each topic.
    """
    return f"{topic_partition.topic}-{topic_partition.partition}"


def partition_of(name: str) -> TopicPartition:
    """Return the partition that has this name. Raises ``BadDataError``."""
    topic, dash, partition = name.rpartition("-")
    if not dash or not partition.isdecimal():
        raise BadDataError(f"not the name of a partition: {name[:80]!r}")
    return TopicPartition(topic, int(partition))


def encode_ids(broker_ids: Iterable[BrokerId]) -> bytes:
    """Encode a list of brokers."""
    return b",".join(b"%d" % broker_id for broker_id in broker_ids)


def decode_ids(data: bytes) -> tuple[BrokerId, ...]:
    """Decode a list of brokers. Raises ``BadDataError``."""
    try:
        return tuple(int(text) for text in data.split(b",") if text)
    except ValueError:
        raise BadDataError(f"not a list of broker ids: {data[:80]!r}") from None


def creations(
    design: str, topic_partition: TopicPartition, replicas: Iterable[BrokerId]
) -> list[Create]:
    """Return what an administrator writes to create a partition of a topic (v1)."""
    created = [
        Create(partition_path(topic_partition)),
        Create(replicas_path(topic_partition), encode_ids(replicas)),
        Create(isr_path(topic_partition)),
    ]
    if design == "v1-sequential":
        created.append(Create(leader_path(topic_partition)))
    return created


class StoredLeadership(NamedTuple):
    """What ``leaderAndISR`` holds (v2)."""

    leader: BrokerId = NO_LEADER
    isr: tuple[BrokerId, ...] = ()
    epoch: int = 0

    def encode(self) -> bytes:
        return b"%d;%b;%d" % (self.leader, encode_ids(self.isr), self.epoch)

    @classmethod
    def decode(cls, data: bytes) -> StoredLeadership:
        """Decode. Raises ``BadDataError``."""
        try:
            leader, isr, epoch = data.split(b";")
            return cls(int(leader), decode_ids(isr), int(epoch))
        except ValueError:
            raise BadDataError(f"not a leadership: {data[:80]!r}") from None
