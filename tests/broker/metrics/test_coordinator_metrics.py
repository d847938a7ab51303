"""What a broker tells of the groups and transactions that it coordinates."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from math import isnan

import pytest

from regent.actors.coordinator_log import Load
from regent.broker.metrics.coordinator_metrics import GroupMetrics, TransactionMetrics
from regent.broker.metrics.metric_table import Family
from regent.core.errors import Errors
from regent.core.protocol.groups import (
    CommitOffsets,
    DeleteOffsets,
    JoinGroup,
    OffsetAndMetadata,
    SupportedProtocol,
    SyncGroup,
)
from tests.support.led_groups import ORDERS_0, LedGroups
from tests.support.led_transactions import LedTransactions
from tests.support.stage import actor_of

GROUPS = "kafka_server_group_coordinator_metrics_"
TRANSACTIONS = "kafka_server_transaction_coordinator_metrics_"
MARKERS = "kafka_coordinator_transaction_transactionmarkerchannelmanager_"


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def values(families: Iterable[Family]) -> dict[str, float]:
    return {family.name: value for family in families for value in family.values().values()}


def test_positions_and_rebalances_are_counted(undo: ExitStack):
    led = LedGroups(undo)
    actor = actor_of(led.actor)
    joined = led.ask(
        JoinGroup(
            "g",
            "",
            None,
            "client",
            "/127.0.0.1",
            10_000,
            10_000,
            "consumer",
            (SupportedProtocol("range", b"\0\0\0\0\0\0\xff\xff\xff\xff"),),
            requires_member_id=False,
            can_skip_assignment=False,
        )
    )
    sync = SyncGroup("g", 1, joined.member_id, None, None, None, {}, needs_protocol=False)
    assert led.ask(sync).error_code is Errors.NONE
    commit = CommitOffsets("g", {ORDERS_0: OffsetAndMetadata(1)}, joined.member_id, 1, None)
    assert led.ask(commit) == {ORDERS_0: Errors.NONE}
    led.ask(DeleteOffsets("g", (ORDERS_0,)))
    led.ask(DeleteOffsets("g", (ORDERS_0,)))
    seen = values(GroupMetrics(actor.manager, actor.loads).collect())
    assert {
        name: seen[f"{GROUPS}{name}_count"]
        for name in (
            "group_completed_rebalance",
            "offset_commit",
            "offset_deletion",
            "offset_expiration",
        )
    } == {
        "group_completed_rebalance": 1,
        "offset_commit": 1,
        "offset_deletion": 1,
        "offset_expiration": 0,
    }
    assert 0 < seen[GROUPS + "partition_load_time_avg"] <= seen[GROUPS + "partition_load_time_max"]


def test_the_metrics_of_a_transaction_coordinator_show_waiting_markers(undo: ExitStack):
    service = LedTransactions(undo).service
    seen = values(TransactionMetrics(service.marker_manager, service.loads).collect())
    assert seen[MARKERS + "unknowndestinationqueuesize"] == 0
    assert seen[MARKERS + "logappendretryqueuesize"] == 0
    assert seen[TRANSACTIONS + "partition_load_time_max"] > 0


def test_only_the_loads_of_the_last_minute_count(undo: ExitStack):
    service = LedTransactions(undo).service
    metrics = TransactionMetrics(service.marker_manager, deque([Load(ended_s=-100.0, took_ms=7.0)]))
    seen = values(metrics.collect())
    assert isnan(seen[TRANSACTIONS + "partition_load_time_max"])
    assert isnan(seen[TRANSACTIONS + "partition_load_time_avg"])
