"""How far the moves of partitions are: what their new replicas lack of the leader's log.

The sizes of logs tell it, also of moves that others have begun. A rate is that of the last half
minute, if a page shows the moves so long.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Final, NamedTuple

from regent.client.log_sizes import CatchingUp
from regent.client.partitions import DescribedPartition
from regent.client.progress_line import Speed
from regent.core.model import BrokerId, TopicPartition

_WINDOW_S: Final = 30.0


class MoveRow(NamedTuple):
    """A partition that is being reassigned; ``left``: a line for each replica that it gets."""

    partition: DescribedPartition
    left: Sequence[str]


class MovesLeft(NamedTuple):
    """The moves, and what each broker that receives has to copy for them, as far as it is known."""

    rows: Sequence[MoveRow]
    brokers: Sequence[CatchingUp]


class MoveProgress:
    """Remembers what replicas lacked; any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._speeds: dict[tuple[BrokerId, TopicPartition], Speed] = {}

    def look(
        self,
        moving: Sequence[DescribedPartition],
        sizes: Mapping[TopicPartition, Mapping[BrokerId, int]],
    ) -> MovesLeft:
        """Return how far these moves are. ``sizes``: the bytes of replicas that brokers told."""
        rows: list[MoveRow] = []
        by_broker: dict[BrokerId, list[CatchingUp]] = defaultdict(list)
        with self._lock:
            before, self._speeds = self._speeds, {}
            for partition in moving:
                lines = []
                for broker_id in partition.assignment.adding_replicas:
                    if broker_id in partition.state.leader_and_isr.isr:
                        lines.append(f"broker {broker_id}: in sync")
                        continue
                    at = broker_id, partition.topic_partition
                    speed = self._speeds[at] = before.get(at) or Speed(_WINDOW_S)
                    left = _left(broker_id, partition, sizes.get(partition.topic_partition, {}))
                    if left is None:
                        lines.append(f"broker {broker_id}: not known")
                        continue
                    speed.note(monotonic(), left)
                    found = CatchingUp(broker_id, 1, left, speed.measured)
                    by_broker[broker_id].append(found)
                    lines.append(f"broker {broker_id}: {found.rest()}")
                rows.append(MoveRow(partition, lines))
        return MovesLeft(rows, [_sum(found) for _, found in sorted(by_broker.items())])


def _left(
    broker_id: BrokerId, partition: DescribedPartition, sizes: Mapping[BrokerId, int]
) -> int | None:
    """Return what a replica lacks; None: the leader does not tell, or the broker nothing at all."""
    whole, own = sizes.get(partition.leader), sizes.get(broker_id)
    return None if whole is None or own is None else max(whole - own, 0)


def _sum(found: Sequence[CatchingUp]) -> CatchingUp:
    """Return what one broker has to copy; its rate is known if that of each partition is."""
    rates = [one.bytes_per_s for one in found if one.bytes_per_s is not None]
    return CatchingUp(
        found[0].broker_id,
        len(found),
        sum(one.bytes_left for one in found),
        sum(rates) if len(rates) == len(found) else None,
    )
