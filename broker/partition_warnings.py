"""Says why clients wait, for ``status``; any thread may ask."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from regent.core.model import TopicPartition
from regent.core.quantities import span_text
from regent.core.replication.partition import Partition, Role
from regent.core.replication.replica_manager import ReplicaManager

_NAMED: Final = 5
_PAUSED_MS: Final = 6_000  # a tenth of a minute


def partition_warnings(replicas: ReplicaManager) -> Sequence[str]:
    """Return all lines of this module."""
    lines = (*late_transaction_warnings(replicas), *under_min_isr_warnings(replicas))
    return (*lines, *pause_warnings(replicas, time.monotonic()))


def late_transaction_warnings(replicas: ReplicaManager) -> Sequence[str]:
    """Return a line that names the led partitions with a late transaction, if any (KIP-664).

    It is open longer than any coordinator allows: its coordinator has lost it, and nothing ends it.
    """
    limit_ms = replicas.max_transaction_timeout_ms
    late = [
        partition.topic_partition
        for partition in _led(replicas)
        if (log := partition.log) is not None
        and log.producer_summary(limit_ms).has_late_transaction
    ]
    if not late:
        return ()
    return (f"transactions hang in {_places(late)}, see docs/operations.md: {_named(late)}",)


def under_min_isr_warnings(replicas: ReplicaManager) -> Sequence[str]:
    """Return a line that names the led partitions that refuse records with acks=all, if any."""
    few = [
        partition.topic_partition
        for partition in _led(replicas)
        if len(partition.isr) < partition.min_isr
    ]
    if not few:
        return ()
    return (
        f"producers with acks=all wait for {_places(few)} with fewer replicas in sync than"
        f" min.insync.replicas: {_named(few)}",
    )


def pause_warnings(replicas: ReplicaManager, now_s: float) -> Sequence[str]:
    """Return a line if this process could not run for a tenth of the last minute."""
    paused_ms = replicas.follower_times.paused_ms(now_s)
    if paused_ms < _PAUSED_MS:
        return ()
    return (
        f"it runs slowly: its process stood still for {span_text(paused_ms / 1000)} of the last"
        " minute; look at the load and the memory of its machine, and at who stops it",
    )


def _led(replicas: ReplicaManager) -> Iterator[Partition]:
    return (p for p in list(replicas.partitions.values()) if p.role is Role.LEADER)


def _places(partitions: Collection[TopicPartition]) -> str:
    return "a partition" if len(partitions) == 1 else f"{len(partitions)} partitions"


def _named(partitions: Collection[TopicPartition]) -> str:
    named = ", ".join(map(str, sorted(partitions)[:_NAMED]))
    return f"{named} and {len(partitions) - _NAMED} more" if len(partitions) > _NAMED else named
