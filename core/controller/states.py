"""The states of partitions and replicas, and the valid transitions.

The tables have the transitions of ``kafka.controller.PartitionState`` and ``ReplicaState``. The two
state machines read them: they log and skip an invalid transition, which raises and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Self


class PartitionState(Enum):
    """The state of a partition in the controller's memory."""

    __hash__ = object.__hash__  # Enum's own is a function in Python

    NON_EXISTENT = "NonExistentPartition"  # never created, or being deleted
    NEW = "NewPartition"  # assigned; it never had a leader
    ONLINE = "OnlinePartition"  # has a leader
    OFFLINE = "OfflinePartition"  # its leader died


class ReplicaState(Enum):
    """The state of a replica in the controller's memory; ``code`` is its place in this list."""

    __hash__ = object.__hash__  # Enum's own is a function in Python
    code: int

    def __new__(cls, value: str) -> Self:
        """Number the states in the sequence of their definition."""
        state = object.__new__(cls)
        state._value_ = value
        state.code = len(cls.__members__)
        return state

    NON_EXISTENT = "NonExistentReplica"
    NEW = "NewReplica"  # assigned, may become leader or follower
    ONLINE = "OnlineReplica"  # started
    OFFLINE = "OfflineReplica"  # its broker or log directory died
    DELETION_STARTED = "ReplicaDeletionStarted"
    DELETION_SUCCESSFUL = "ReplicaDeletionSuccessful"
    DELETION_INELIGIBLE = "ReplicaDeletionIneligible"  # deletion waits for its broker


_P, _R = PartitionState, ReplicaState

VALID_PREVIOUS_PARTITION_STATES: Mapping[PartitionState, frozenset[PartitionState]] = {
    _P.NEW: frozenset({_P.NON_EXISTENT}),
    _P.ONLINE: frozenset({_P.NEW, _P.ONLINE, _P.OFFLINE}),
    _P.OFFLINE: frozenset({_P.NEW, _P.ONLINE, _P.OFFLINE}),
    _P.NON_EXISTENT: frozenset({_P.OFFLINE}),
}

VALID_PREVIOUS_REPLICA_STATES: Mapping[ReplicaState, frozenset[ReplicaState]] = {
    _R.NEW: frozenset({_R.NON_EXISTENT}),
    _R.ONLINE: frozenset({_R.NEW, _R.ONLINE, _R.OFFLINE, _R.DELETION_INELIGIBLE}),
    _R.OFFLINE: frozenset({_R.NEW, _R.ONLINE, _R.OFFLINE, _R.DELETION_INELIGIBLE}),
    _R.DELETION_STARTED: frozenset({_R.OFFLINE}),
    _R.DELETION_SUCCESSFUL: frozenset({_R.DELETION_STARTED}),
    _R.DELETION_INELIGIBLE: frozenset({_R.OFFLINE, _R.DELETION_STARTED}),
    _R.NON_EXISTENT: frozenset({_R.DELETION_SUCCESSFUL}),
}
