"""ControllerState: Kafka's numbers and names."""

from __future__ import annotations

from typing import get_args

import pytest

from regent.core.controller import events
from regent.core.controller.gauges import _STATES, ControllerState, state_of


def test_every_event_has_a_state() -> None:
    assert set(_STATES) == set(get_args(events.ControllerEvent))


@pytest.mark.parametrize(
    ("event", "state", "timer"),
    [
        (events.Reelect(), 1, "ControllerChangeRateAndTimeMs"),
        (events.BrokerChange(), 2, "LeaderElectionRateAndTimeMs"),
        (events.TopicChange(), 3, "TopicChangeRateAndTimeMs"),
        (events.TopicDeletion(), 4, "TopicDeletionRateAndTimeMs"),
        (events.ZkPartitionReassignment(), 5, "PartitionReassignmentRateAndTimeMs"),
        (events.AutoPreferredReplicaLeaderElection(1), 6, "AutoLeaderBalanceRateAndTimeMs"),
        (events.PreferredReplicaElection(), 7, "ManualLeaderBalanceRateAndTimeMs"),
        (events.ControlledShutdown(1, 2, 3), 8, "ControlledShutdownRateAndTimeMs"),
        (events.IsrChangeNotification(), 9, "IsrChangeRateAndTimeMs"),
        (events.LogDirEventNotification(), 11, "LogDirChangeRateAndTimeMs"),
        (
            events.TopicUncleanLeaderElectionEnable("t"),
            14,
            "TopicUncleanLeaderElectionEnableRateAndTimeMs",
        ),
    ],
)
def test_states_have_the_numbers_and_timers_of_kafka(
    event: events.ControllerEvent, state: int, timer: str | None
) -> None:
    assert state_of(event) == state
    assert state_of(event).timer == timer


def test_states_are_spelled_as_in_kafka() -> None:
    assert ControllerState.IDLE.label == "Idle"
    assert ControllerState.LEADER_AND_ISR_RESPONSE_RECEIVED.label == "LeaderAndIsrResponseReceived"
