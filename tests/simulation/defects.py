"""Defects to put into the core on purpose: they test the simulation.

Each is a function that breaks one protection while the returned context lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias
from unittest.mock import patch

from core.controller.broker_membership import BrokerMembership
from core.errors import Errors
from core.model import LeaderAndIsr
from core.ports import ControllerEpoch
from core.replication.replica_manager import ReplicaManager
from zk import fenced_writes, store
from zk.store import ZkControllerStore

Defect: TypeAlias = Callable[[], Any]


def no_controller_epoch_check_on_writes() -> Any:
    """A deposed controller's writes take effect (KAFKA-6082)."""

    def unfenced(zookeeper: Any, writes: Any, epoch_zk_version: int) -> Any:
        return fenced_writes.write_unfenced(zookeeper, writes)

    return patch.object(store, "write_fenced", unfenced)


def epoch_read_after_waking() -> Any:
    """A controller that wakes up writes with the epoch it reads then (KAFKA-1096)."""
    update = ZkControllerStore.update_partition_states

    def with_present_epoch(self: ZkControllerStore, states: Any, epoch_zk_version: int) -> Any:
        current = self.read_controller_epoch() or ControllerEpoch(0, epoch_zk_version)
        return update(self, states, current.zk_version)

    return patch.object(ZkControllerStore, "update_partition_states", with_present_epoch)


def no_leader_epoch_bump() -> Any:
    """A new leadership keeps the old leader epoch."""

    def without_bump(self: LeaderAndIsr, leader: int, isr: tuple[int, ...]) -> LeaderAndIsr:
        return self._replace(leader=leader, isr=isr)

    return patch.object(LeaderAndIsr, "new_leader_and_isr", without_bump)


def receivers_ignore_epochs() -> Any:
    """Brokers obey whoever speaks, whichever life of theirs is meant (KAFKA-1188, KIP-380)."""
    return patch.object(ReplicaManager, "_check_epochs", lambda self, header: Errors.NONE)


def bounces_go_unseen() -> Any:
    """A broker that restarts quickly is taken for the one that was there (KIP-380)."""
    read = BrokerMembership._read_brokers

    def with_known_epochs(self: BrokerMembership) -> Any:
        known = self._context.registrations
        return {b: known.get(b, registration) for b, registration in read(self).items()}

    return patch.object(BrokerMembership, "_read_brokers", with_known_epochs)


def last_isr_member_removed() -> Any:
    """The ISR becomes empty when its last member dies (KAFKA-708)."""
    new = LeaderAndIsr.new_leader_and_isr

    def shrink_to_nothing(self: LeaderAndIsr, leader: int, isr: tuple[int, ...]) -> LeaderAndIsr:
        changed = new(self, leader, isr)
        return changed._replace(isr=()) if leader < 0 and isr == self.isr else changed

    return patch.object(LeaderAndIsr, "new_leader_and_isr", shrink_to_nothing)


DEFECTS: tuple[Defect, ...] = (
    no_controller_epoch_check_on_writes,
    epoch_read_after_waking,
    no_leader_epoch_bump,
    receivers_ignore_epochs,
    bounces_go_unseen,
    last_isr_member_removed,
)
