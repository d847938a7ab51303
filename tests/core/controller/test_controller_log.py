"""One partition, followed through the log of the controller."""

from __future__ import annotations

import re

import pytest

from regent.core.controller.election.election import OfflineElection
from regent.core.controller.states import PartitionState, ReplicaState
from regent.core.model import PartitionAndReplica
from tests.support.controller_parts import ControllerParts
from tests.support.world import T0

OF_A_REQUEST = "event 1-0: Sending"
REPLICAS = [PartitionAndReplica(T0, 1), PartitionAndReplica(T0, 2)]


@pytest.fixture
def parts() -> ControllerParts:
    parts = ControllerParts(brokers=(1, 2))
    parts.assign(T0, (1, 2), state=PartitionState.NON_EXISTENT)
    return parts


def create(parts: ControllerParts) -> None:
    parts.partitions.handle_state_changes([T0], PartitionState.NEW)
    parts.replicas.handle_state_changes(REPLICAS, ReplicaState.NEW)
    parts.partitions.handle_state_changes([T0], PartitionState.ONLINE, OfflineElection())


def elect_another_leader(parts: ControllerParts) -> None:
    parts.context.shutting_down_broker_ids.add(1)
    parts.partitions.handle_state_changes([T0], PartitionState.OFFLINE)
    parts.partitions.handle_state_changes([T0], PartitionState.ONLINE, OfflineElection())


def stop_the_first_replica(parts: ControllerParts) -> None:
    parts.replicas.handle_state_changes(REPLICAS[:1], ReplicaState.OFFLINE)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines without their prefix and without the values that they show."""
    shown = [line.removeprefix("[Controller id=0 epoch=1] ") for line in caplog.messages]
    caplog.clear()
    return [re.sub(r" \w+\(.*\)", "", line) for line in shown]


def test_above_debug_there_is_a_line_for_each_request(
    parts: ControllerParts, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="state.change")
    create(parts)
    assert lines(caplog) == [
        "event 1-0: LeaderAndIsr INCREMENTAL to broker 1: 1 partitions",
        "event 1-0: LeaderAndIsr INCREMENTAL to broker 2: 1 partitions",
        "event 1-0: UpdateMetadata to brokers [1, 2]: 1 partitions",
    ]


def test_above_debug_no_line_of_a_partition_is_computed(parts: ControllerParts) -> None:
    rows = iter([(T0,)])
    parts.services.log("state.change").each("%s", rows)
    assert list(rows) == [(T0,)]


def test_at_debug_one_partition_can_be_followed(
    parts: ControllerParts, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="state.change")
    create(parts)
    assert [line for line in lines(caplog) if "t-0" in line] == [
        "Changed partition t-0 state from NonExistentPartition to NewPartition",
        "Changed state of replica 1 for partition t-0 from NonExistentReplica to NewReplica",
        "Changed state of replica 2 for partition t-0 from NonExistentReplica to NewReplica",
        "Changed partition t-0 from NewPartition to OnlinePartition with state",
        f"{OF_A_REQUEST} become-leader LeaderAndIsr request to broker 1 for partition t-0",
        f"{OF_A_REQUEST} become-follower LeaderAndIsr request to broker 2 for partition t-0",
        f"{OF_A_REQUEST} UpdateMetadata request to brokers [1, 2] for partition t-0",
    ]
    elect_another_leader(parts)
    assert [line for line in lines(caplog) if "t-0" in line] == [
        "Changed partition t-0 state from OnlinePartition to OfflinePartition",
        "Partition t-0 state changed to",
        "Changed partition t-0 from OfflinePartition to OnlinePartition with state",
        f"{OF_A_REQUEST} become-leader LeaderAndIsr request to broker 2 for partition t-0",
        f"{OF_A_REQUEST} UpdateMetadata request to brokers [1, 2] for partition t-0",
    ]
    stop_the_first_replica(parts)
    stopped = [line for line in lines(caplog) if "t-0" in line]
    assert (
        "Changed state of replica 1 for partition t-0 from NewReplica to OfflineReplica" in stopped
    )
    assert f"{OF_A_REQUEST} StopReplica request to broker 1 for partition t-0" in stopped
