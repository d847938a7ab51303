"""The tables of valid transitions, written in full."""

from __future__ import annotations

import pytest

from regent.core.controller.states import (
    VALID_PREVIOUS_PARTITION_STATES,
    VALID_PREVIOUS_REPLICA_STATES,
    PartitionState,
    ReplicaState,
)

# One row for each state: the valid next states.
PARTITION_MOVES = {
    "NON_EXISTENT": "NEW",
    "NEW": "ONLINE OFFLINE",
    "ONLINE": "ONLINE OFFLINE",
    "OFFLINE": "ONLINE OFFLINE NON_EXISTENT",
}
REPLICA_MOVES = {
    "NON_EXISTENT": "NEW",
    "NEW": "ONLINE OFFLINE",
    "ONLINE": "ONLINE OFFLINE",
    "OFFLINE": "ONLINE OFFLINE DELETION_STARTED DELETION_INELIGIBLE",
    "DELETION_STARTED": "DELETION_SUCCESSFUL DELETION_INELIGIBLE",
    "DELETION_SUCCESSFUL": "NON_EXISTENT",
    "DELETION_INELIGIBLE": "ONLINE OFFLINE",
}


@pytest.mark.parametrize("source", PartitionState)
@pytest.mark.parametrize("target", PartitionState)
def test_valid_partition_transitions(source: PartitionState, target: PartitionState) -> None:
    is_allowed = source in VALID_PREVIOUS_PARTITION_STATES[target]
    assert is_allowed == (target.name in PARTITION_MOVES[source.name].split())


@pytest.mark.parametrize("source", ReplicaState)
@pytest.mark.parametrize("target", ReplicaState)
def test_valid_replica_transitions(source: ReplicaState, target: ReplicaState) -> None:
    is_allowed = source in VALID_PREVIOUS_REPLICA_STATES[target]
    assert is_allowed == (target.name in REPLICA_MOVES[source.name].split())
