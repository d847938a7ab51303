"""Bits that flip on a disk, in a batch that another in-sync replica has; and restored backups.

A damaged log is fetched again while another in-sync replica is undamaged. After several faults
there may be none: then an admin restores the damaged records from a backup.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from regent.core.model import BrokerId, TopicPartition
from tests.simulation.cluster import Cluster
from tests.simulation.committed_records import batch_at
from tests.simulation.simulated_logs import SimulatedDisk, SimulatedLog
from tests.support.memory_logs import StoredBatch


class Damage:
    """Damages logs at random; ``note`` writes the history."""

    def __init__(self, cluster: Cluster, dice: random.Random, note: Callable[..., None]) -> None:
        self._cluster = cluster
        self._random = dice
        self._note = note

    def flip_a_bit(self) -> tuple[BrokerId, str] | None:
        """Damage a batch, committed or not, of which another replica has a copy.

        Return the broker and the topic; None: there is no such batch.
        """
        candidates = [
            (broker_id, log, batch.base_offset)
            for broker_id, disk in sorted(self._cluster.disks.items())
            for name in sorted(disk.hosted())
            if (log := disk.get(name)) is not None
            for batch in log.damageable
            if self._is_elsewhere(log, batch)
        ]
        if candidates:
            broker_id, log, base_offset = self._random.choice(candidates)
            name = log.topic_partition
            self._note("the batch at %d of %s is damaged on %d", base_offset, name, broker_id)
            log.damage(base_offset)
            return broker_id, name.topic
        return None

    def change_files(self, disk: SimulatedDisk) -> SimulatedDisk:
        """Change the files of a broker that is down; return its disk."""
        return disk.changed(
            partial(self._is_elsewhere, are_sound=True),
            lambda change: self._note("  on %d %s", disk.broker_id, change),
        )

    def _is_elsewhere(
        self, log: SimulatedLog, batch: StoredBatch, *, are_sound: bool = False
    ) -> bool:
        for other in self._copies_in_sync(log.topic_partition, are_sound=are_sound):
            held = batch_at(other, batch.base_offset)
            is_same = held is not None and held.data == batch.data
            if other is not log and is_same and batch.base_offset not in other.damaged:
                return True
        return False

    def last_members(self) -> list[BrokerId]:
        """Return the brokers that are alone in an ISR while an eligible replica has an empty log.

        The eligible replica fetches all records again, which may take hours.
        """
        found: set[BrokerId] = set()
        for name, (filled, empty) in self._copies().items():
            state = self._cluster.state(name) if filled and empty else None
            if state is not None and len(state.leader_and_isr.isr) == 1:
                (member,) = state.leader_and_isr.isr
                if member in filled and empty & {*state.leader_and_isr.eligible_leader_replicas}:
                    found.add(member)
        return sorted(found)

    def _copies(self) -> dict[TopicPartition, tuple[set[BrokerId], set[BrokerId]]]:
        """Return for each partition the live brokers with records of it, and with empty logs."""
        found: dict[TopicPartition, tuple[set[BrokerId], set[BrokerId]]] = {}
        for broker_id, broker in sorted(self._cluster.brokers.items()):
            for name in broker.disk.hosted():
                log = broker.disk.get(name)
                if log is not None:
                    copies = found.setdefault(name, (set(), set()))
                    copies[log.log_end_offset == 0].add(broker_id)
        return found

    def restore_lost_records(self) -> set[BrokerId] | None:
        """Restore the damaged logs of partitions without a complete in-sync replica.

        Also those with damage in a segment that a truncation has made active again: no verification
        finds it before the next segment begins, only a reader. A suspect replica may have lost
        anything, so a partition without a leader may wait for a damaged log.

        Return the brokers that must restart because their logs are out of service. None: there was
        nothing to restore.
        """
        damaged = [
            (broker_id, name)
            for broker_id, broker in sorted(self._cluster.brokers.items())
            for name in sorted(broker.disk.damaged_logs())
            if _has_hidden_damage(broker.disk.get(name))
            or all(other.damaged for other in self._copies_in_sync(name, are_sound=True))
        ]
        restarted: set[BrokerId] = set()
        for broker_id, name in damaged:
            self._note("restore %s on %d", name, broker_id)
            if self._cluster.disks[broker_id].restore(name):
                restarted.add(broker_id)
        return restarted if damaged else None

    def _copies_in_sync(
        self, name: TopicPartition, *, are_sound: bool = False
    ) -> list[SimulatedLog]:
        """Return the logs of live in-sync replicas that are in service."""
        state = self._cluster.state(name)
        members = () if state is None else state.leader_and_isr.isr
        disks = [self._cluster.disks[m] for m in members if m in self._cluster.brokers]
        if are_sound:
            disks = [disk for disk in disks if disk.suspects().end_of(name) is None]
        logs = (disk.get(name) for disk in disks)
        return [log for log in logs if log is not None]


def _has_hidden_damage(log: SimulatedLog | None) -> bool:
    """Whether a batch that can be read is damaged where damage is not looked for."""
    if log is None or not log.damaged:
        return False
    verified = {batch.base_offset for batch in log.damageable}
    start = log.log_start_offset
    readable = {batch.base_offset for batch in log.batches if batch.last_offset >= start}
    return bool((log.damaged & readable) - verified)
