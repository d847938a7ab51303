"""Defects in what a controller does while ZooKeeper denies it access: they test the simulation.

Each is a function that breaks one rule while the returned context lasts. States that are not read
again are left out: brokers that start at the end of a history hide this defect. Unit tests have
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from regent.core.controller.context import ControllerContext
from regent.core.controller.reassignment.partition_reassignment import Reassignments
from regent.core.controller.replica_state_machine import ReplicaStateMachine
from regent.core.controller.topics.topic_changes import TopicChanges
from regent.core.errors import Errors
from regent.core.replication import leader_partitions


def suspect_leaders_kept() -> Any:
    """A leader that may have lost records is sent LeaderAndIsr although it cannot be replaced."""
    return patch.object(
        ControllerContext, "must_not_lead", lambda self, broker_id, partition: False
    )


def refused_proposals_final() -> Any:
    """A leader whose ISR could not be written waits for the next control request."""
    final = leader_partitions._SUPERSEDED | {Errors.UNKNOWN_SERVER_ERROR}
    return patch.object(leader_partitions, "_SUPERSEDED", final)


def refused_moves_forgotten() -> Any:
    """A reassignment that could not be written is not retried in the same term."""
    return patch.object(Reassignments, "try_again", lambda self, partitions: None)


def replaced_logs_forgotten() -> Any:
    """A replaced log stays unused if no leader epoch could be begun at that time."""
    return patch.object(ReplicaStateMachine, "restart_waiting", lambda self: None)


def topics_led_without_ids() -> Any:
    """A topic whose id could not be written gets leaders without an id."""
    quarantine = TopicChanges._quarantine_topic
    write_ids = TopicChanges._write_ids

    def and_lead(self: TopicChanges, topics: Any, usable: Any, *, are_noted: bool) -> Any:
        def lead(self: TopicChanges, topic: str, error: Any) -> None:
            if topic in topics:
                usable[topic] = topics[topic]
            else:
                quarantine(self, topic, error)

        with patch.object(TopicChanges, "_quarantine_topic", lead):
            return write_ids(self, topics, usable, are_noted=are_noted)

    return patch.object(TopicChanges, "_write_ids", and_lead)


SEARCH_FROM: dict[Callable[[], Any], int] = {
    suspect_leaders_kept: 102_000_200,
    refused_moves_forgotten: 1707,
    topics_led_without_ids: 101_003_099,
}
