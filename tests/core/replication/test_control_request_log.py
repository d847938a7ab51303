"""One partition, followed through the log of a broker."""

from __future__ import annotations

import re

import pytest

from regent.core.model import LEADER_DURING_DELETE
from regent.core.protocol.control import (
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from tests.core.replication.stage import FULL, T0, T1, A, BareBroker, state

PREFIX = "[Broker id=1 epoch=100] event 7-0:"


def update_metadata(leader: int, leader_epoch: int) -> UpdateMetadataRequest:
    row = UpdateMetadataPartition(0, 7, leader, leader_epoch, (1,), 0, (1, 2, 3), ())
    return UpdateMetadataRequest((UpdateMetadataTopic("t", A, (row,)),), ())


def use(broker: BareBroker) -> None:
    """Send every kind of request, some of them twice."""
    broker.apply({T0: state(1, leader_epoch=1), T1: state(2, leader_epoch=1)}, type=FULL)
    broker.apply({T0: state(2, leader_epoch=0)})
    broker.handle(update_metadata(2, leader_epoch=2))
    broker.handle(update_metadata(1, leader_epoch=1))
    broker.handle(update_metadata(LEADER_DURING_DELETE, leader_epoch=0))
    broker.stop(T0, 3, delete=True)


def test_a_request_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="state.change")
    use(BareBroker())
    refused = f"0 of 1 partitions, not {T0}: STALE_CONTROLLER_EPOCH"
    assert caplog.messages == [
        f"{PREFIX} LeaderAndIsr FULL: made leader or follower of 2 of 2 partitions",
        f"{PREFIX} LeaderAndIsr INCREMENTAL: made leader or follower of {refused}",
        *[f"{PREFIX} UpdateMetadata: 1 partitions, 0 live brokers"] * 3,
        f"{PREFIX} StopReplica: stopped 1 of 1 partitions",
    ]


def test_at_debug_one_partition_can_be_followed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="state.change")
    use(BareBroker())
    lines = [line.removeprefix(f"{PREFIX} ") for line in caplog.messages if line.startswith(PREFIX)]
    values = re.compile(r" \w+\(.*\)")
    of_t0 = [values.sub("", line) for line in lines if "t-0" in line and "tions, not" not in line]
    now = "it is leader in leader epoch 1 from offset 0"
    assert of_t0 == [
        "Received LeaderAndIsr request from controller 0 for partition t-0",
        f"Completed LeaderAndIsr request for partition t-0 with NONE: {now}",
        "Received LeaderAndIsr request from controller 0 for partition t-0",
        f"Completed LeaderAndIsr request for partition t-0 with STALE_CONTROLLER_EPOCH: {now}",
        "Cached leader info for partition t-0",
        "Ignored outdated leader info for partition t-0",
        "Deleted partition t-0 from metadata cache",
        "Received StopReplica request from controller 0 for partition t-0",
        "Completed StopReplica request for partition t-0 with NONE: it is not hosted",
    ]
    assert f"request {state(1, leader_epoch=1)} from" in lines[0]
