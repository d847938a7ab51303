"""A broker is ready when clients can use it, and its replicas are in sync."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from regent.actors.broker import BrokerState, BrokerStatus
from regent.broker.readiness import Readiness
from regent.core.model import ReplicaAssignment, TopicPartition
from regent.core.protocol.control import UpdateMetadataPartition
from regent.core.replication.metadata_cache import MetadataSnapshot

T0 = TopicPartition("t", 0)


def readiness(isr: tuple[int, ...], assignment: ReplicaAssignment, **changes: Any) -> Readiness:
    status = BrokerStatus()
    status.become(changes.get("state", BrokerState.RUNNING_AS_BROKER))
    row = UpdateMetadataPartition(0, 1, 2, 0, isr, 0, assignment.replicas, ())
    snapshot = MetadataSnapshot(
        topics={"t": {0: row}}, is_complete=changes.get("is_complete", True)
    )
    replicas: Any = SimpleNamespace(
        broker_id=1, partitions={T0: SimpleNamespace(assignment=assignment)}
    )
    cache: Any = SimpleNamespace(snapshot=snapshot)
    return Readiness(replicas, status, cache, lambda: False)


BOTH = ReplicaAssignment((2, 1))


def test_a_broker_in_all_of_its_isrs_is_ready() -> None:
    assert readiness((2, 1), BOTH).why_not_ready() == ""
    assert readiness((2,), ReplicaAssignment((2, 3))).why_not_ready() == ""


def test_a_replica_that_is_being_added_does_not_count() -> None:
    assert readiness((2,), ReplicaAssignment((2, 1), (1,))).why_not_ready() == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "the broker is not in sync yet: t-0"),
        ({"is_complete": False}, "the broker does not know all partitions yet"),
        ({"state": BrokerState.STARTING}, "the broker is in the state Starting"),
    ],
)
def test_a_broker_that_is_not_ready_says_why(changes: dict[str, Any], said: str) -> None:
    assert readiness((2,), BOTH, **changes).why_not_ready() == said
