"""Defects in the control requests that controllers send: they test the simulation.

Each is a function that breaks one rule while the returned context lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from regent.core.controller import request_batch
from regent.core.controller.brokers.broker_changes import BrokerChanges
from regent.core.controller.brokers.controlled_shutdown import ControlledShutdowns
from regent.core.controller.states import ReplicaState
from regent.core.model import BrokerId, PartitionAndReplica


def crashes_sent_three_times() -> Any:
    """Brokers get three requests for each crash of a broker."""
    take_offline = BrokerChanges._take_offline

    def and_again(self: BrokerChanges, replicas: Any, led_again: Any) -> None:
        take_offline(self, replicas, led_again)
        for _ in range(3):
            self._services.announce_metadata([replica.topic_partition for replica in replicas])

    return patch.object(BrokerChanges, "_take_offline", and_again)


def replicas_stopped_twice() -> Any:
    """A broker that shuts down gets two requests to stop its followers."""
    relieve = ControlledShutdowns.relieve

    def and_stop(self: ControlledShutdowns, broker_id: int) -> Any:
        _, followed = self._replicated_partitions(broker_id)
        led = relieve(self, broker_id)
        again = [PartitionAndReplica(partition, broker_id) for partition in followed]
        self._replicas.handle_state_changes(again, ReplicaState.OFFLINE)
        return led

    return patch.object(ControlledShutdowns, "relieve", and_stop)


def requests_of_any_size() -> Any:
    """A request is sent even if it is too large."""
    return patch.object(request_batch, "split_by_size", lambda topics, max_bytes: [list(topics)])


def lost_deletions_repeated_last() -> Any:
    """The deletions of a lost channel are repeated after reassignments let new ones start."""
    send_complete_state = BrokerChanges.send_complete_state

    def and_repeat(self: BrokerChanges, broker_id: BrokerId) -> None:
        with patch.object(self._deletions, "repeat", lambda broker_id: None):
            send_complete_state(self, broker_id)
        self._deletions.repeat(broker_id)

    return patch.object(BrokerChanges, "send_complete_state", and_repeat)


SEARCH_FROM: dict[Callable[[], Any], int] = {
    crashes_sent_three_times: 14,
    replicas_stopped_twice: 10,
    requests_of_any_size: 20,
}
