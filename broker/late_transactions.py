"""Names the partitions whose transactions hang, for ``status`` (KIP-664)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from regent.core.replication.partition import Role
from regent.core.replication.replica_manager import ReplicaManager

_NAMED: Final = 5


def late_transaction_warnings(replicas: ReplicaManager) -> Sequence[str]:
    """Return a line that names the led partitions with a late transaction, if any; on any thread.

    It is open for so long that its coordinator must have lost it: nothing will end it.
    """
    late = sorted(
        partition.topic_partition
        for partition in list(replicas.partitions.values())
        if partition.role is Role.LEADER
        and (log := partition.log) is not None
        and log.producer_summary(replicas.max_transaction_timeout_ms).has_late_transaction
    )
    if not late:
        return ()
    named = ", ".join(map(str, late[:_NAMED]))
    rest = f" and {len(late) - _NAMED} more" if len(late) > _NAMED else ""
    places = "a partition" if len(late) == 1 else f"{len(late)} partitions"
    return (f"transactions hang in {places}, see docs/operations.md: {named}{rest}",)
