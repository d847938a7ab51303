"""Defects that show only beside brokers of Kafka."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from regent.broker.api import control_requests, controller_requests
from regent.core.controller.context import ControllerContext
from regent.core.controller.replica_state_machine import ReplicaStateMachine
from regent.core.protocol.control import LeaderAndIsrType


def deletions_of_brokers_of_kafka_forgotten() -> Any:
    """The complete state, which replaces queued requests, has no deletions of replicas."""
    return patch.object(ReplicaStateMachine, "_stop_removed", lambda *_: None)


def requests_of_kafka_taken_for_full() -> Any:
    """A broker sets aside what a LeaderAndIsr request of a controller of Kafka does not list."""
    return patch.object(control_requests, "_FULL", LeaderAndIsrType.INCREMENTAL)


def missing_broker_epochs_taken_for_0() -> Any:
    """In a proposal without the broker epochs of members, their epoch is 0."""
    return patch.object(controller_requests, "UNKNOWN_BROKER_EPOCH", 0)


def eligible_replicas_of_kafkas_leaders() -> Any:
    """Replicas that leave the ISR of a leader of Kafka, which commits alone, stay eligible."""
    return patch.object(ControllerContext, "is_of_kafka", lambda *_: False)


SEARCH_FROM = {
    eligible_replicas_of_kafkas_leaders: 110_002_686,
    deletions_of_brokers_of_kafka_forgotten: 122_000_525,
    requests_of_kafka_taken_for_full: 235,
    missing_broker_epochs_taken_for_0: 70,
}
