"""What the pages show is decided by functions of what was collected."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regent.client import lag_rates
from regent.client.health import Troubles
from regent.client.lag_rates import LagPaces
from regent.client.missing_brokers import MissingBroker
from regent.client.partitions import DescribedPartition
from regent.config.command_line import program
from regent.console.cluster_view import (
    BrokerRow,
    ClusterView,
    PartitionTable,
    Span,
    grid,
    history,
    journal,
    lanes,
    recent_failovers,
    verdict,
)
from regent.console.inquiries import GroupLagSums, GroupRow, LagRow
from regent.console.pages import render
from regent.core.model import (
    NO_LEADER,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    ReplicaAssignment,
    TopicPartition,
)
from regent.core.protocol.controller import UnansweredRequest

NOW = 1_795_987_660_000.0
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def partition(at: TopicPartition, leader: int, isr: tuple[int, ...]) -> DescribedPartition:
    state = LeaderIsrAndControllerEpoch(LeaderAndIsr(leader, isr, 1, 1), 1)
    return DescribedPartition(at, None, ReplicaAssignment((0, 1, 2)), state)


def table(*partitions: DescribedPartition) -> PartitionTable:
    return PartitionTable.of(partitions, (), {0: None, 1: None, 2: None}, NOW)


def line(ago_ms: int, event: str, broker_id: int = 1, **fields: Any) -> dict[str, Any]:
    common = {"broker_id": broker_id, "controller_epoch": 2, "event_id": 1, "cause": ""}
    return {"ts_ms": round(NOW) - ago_ms, "event": event, **common, "changes": [], **fields}


BROKERS = tuple(BrokerRow(broker_id, True, f"127.0.0.1:909{broker_id}") for broker_id in range(3))
HEALTHY = ClusterView(
    NOW,
    "127.0.0.1:2181",
    Path("data"),
    controller_id=1,
    controller_epoch=2,
    brokers=BROKERS,
    table=table(partition(T0, 0, (0, 1, 2)), partition(T1, 1, (0, 1, 2))),
)


def seen(*events: dict[str, Any], **changes: Any) -> ClusterView:
    deaths = changes.get("deaths", {})
    failovers = recent_failovers(events, deaths)
    return replace(HEALTHY, events=events, failovers=failovers, **changes)


# --- the verdict ----------------------------------------------------------------------------------


def test_a_healthy_cluster_has_a_verdict_without_a_command() -> None:
    said = "All is well: 3 brokers, 2 partitions, every replica in sync."
    assert verdict(HEALTHY) == ("ok", said, "")


def test_a_missing_broker_is_named_first_with_the_command_that_starts_it() -> None:
    away = MissingBroker(2, None, "its process 12 ended by SIGKILL")
    behind = table(partition(T0, 0, (0, 1)))
    found = verdict(replace(HEALTHY, missing=(away,), table=behind))
    assert found.level == "problem"
    assert found.sentence == "Broker 2 not registered: its process 12 ended by SIGKILL"
    assert found.remedy.endswith("brokers start 2")


def test_several_missing_brokers_are_started_by_one_command() -> None:
    away = tuple(MissingBroker(broker_id, None, "it ended") for broker_id in (0, 2))
    assert verdict(replace(HEALTHY, missing=away)).remedy.endswith("brokers start")


def test_a_cluster_on_other_machines_has_no_command_that_starts_a_broker() -> None:
    away = (MissingBroker(2, None, "it ended"),)
    assert verdict(replace(HEALTHY, missing=away, data_dir=None)).remedy.endswith(" doctor")


def test_each_trouble_has_a_sentence() -> None:
    unanswered = UnansweredRequest(2, "LeaderAndIsr", 3_500)
    troubles = {
        "No ZooKeeper answers": replace(HEALTHY, problem="No ZooKeeper answers"),
        "There is no controller.": replace(HEALTHY, controller_id=-1),
        "The controller does not answer: no answer in 1 s.": replace(
            HEALTHY, silence="the controller does not answer: no answer in 1 s"
        ),
        "Broker 2 has left LeaderAndIsr unanswered for 3.5 s.": replace(
            HEALTHY, unanswered=(unanswered,)
        ),
        "1 partition has no leader: t-0.": replace(
            HEALTHY, table=table(partition(T0, NO_LEADER, (0,)))
        ),
        "2 partitions have too few replicas in sync: t-0, t-1.": replace(
            HEALTHY, table=table(partition(T0, 0, (0, 1)), partition(T1, 1, (1,)))
        ),
    }
    assert [verdict(view).sentence for view in troubles.values()] == list(troubles)
    assert all(verdict(view).level == "problem" for view in troubles.values())


def test_partitions_that_are_not_read_yet_are_not_called_well() -> None:
    found = verdict(replace(HEALTHY, table=PartitionTable()))
    assert found.level == "warning"
    assert found.sentence == "The partitions are being read."


def test_what_status_warns_of_is_the_verdict_when_nothing_is_worse() -> None:
    slow = f"broker 2 answers slowly: `{program()} brokers list -o wide` shows the others, too"
    disk = "broker 1: the disk is full"
    warned = replace(HEALTHY, troubles=Troubles(warnings=[slow]))
    assert verdict(warned) == ("warning", slow.replace("broker", "Broker", 1), "")
    several = verdict(replace(HEALTHY, troubles=Troubles(warnings=[disk, slow])))
    assert several == (
        "warning",
        "Broker 1: the disk is full. And 1 more warning",
        f"{program()} status",
    )
    refused = verdict(replace(HEALTHY, troubles=Troubles(["refused"], [slow])))
    assert refused == ("problem", "Refused", f"{program()} doctor")
    behind = replace(warned, table=table(partition(T0, 0, (0, 1))))
    assert verdict(behind).sentence == "1 partition has too few replicas in sync: t-0."


def test_a_cluster_whose_brokers_have_not_been_asked_yet_is_not_called_well() -> None:
    assert verdict(replace(HEALTHY, troubles=None)).level == "warning"


# --- lanes ----------------------------------------------------------------------------------------


def test_a_broker_that_came_back_has_a_gap() -> None:
    view = seen(line(30_000, "BrokerChange", failed=[0]), line(20_000, "BrokerChange", started=[0]))
    assert lanes(view)[0].gaps == (Span(NOW - 30_000, NOW - 20_000),)
    assert lanes(view)[1].gaps == ()


def test_a_gap_begins_when_the_process_ended() -> None:
    gone = line(30_000, "BrokerChange", failed=[0])
    view = seen(gone, deaths={0: (round(NOW) - 30_400,)})
    away = replace(view, brokers=(BrokerRow(0, False), *BROKERS[1:]))
    assert lanes(away)[0].gaps == (Span(NOW - 30_400, None),)


def test_a_controller_that_was_killed_has_a_gap_although_no_line_says_that_it_failed() -> None:
    first = line(50_000, "Startup", 0, elected=1, controller_epoch=1)
    view = seen(first, line(30_000, "Reelect", 1, elected=2), line(9_000, "X", started=[0]))
    assert lanes(view)[0].gaps == (Span(NOW - 30_000, NOW - 9_000),)


def test_a_gap_before_the_last_minute_is_not_shown() -> None:
    view = seen(line(90_000, "BrokerChange", failed=[0]), line(70_000, "B", started=[0]))
    assert lanes(view)[0].gaps == ()


def test_the_crown_moves_to_the_next_controller() -> None:
    first = line(50_000, "Startup", 0, elected=1, controller_epoch=1)
    found = lanes(seen(first, line(30_000, "Reelect", 1, elected=2)))
    assert found[0].crowns == (Span(NOW - 50_000, NOW - 30_000),)
    assert found[1].crowns == (Span(NOW - 30_000, None),)


def test_a_controller_that_no_line_tells_of_has_the_crown() -> None:
    assert lanes(HEALTHY)[1].crowns == (Span(NOW - 60_000, None),)


def test_each_answer_of_the_last_minute_is_a_tick() -> None:
    answers = [
        line(70_000, "UpdateMetadataResponseReceived", broker=2, answered_ms=1.0),
        line(10_000, "LeaderAndIsrResponseReceived", broker=2, answered_ms=7.5),
    ]
    assert [tick.took_ms for tick in lanes(seen(*answers))[2].ticks] == [7.5]


# --- partitions, journal, groups ------------------------------------------------------------------


def test_a_cell_has_the_colour_of_its_leader_and_a_mark_for_a_small_isr() -> None:
    rows = table(partition(T0, 0, (0, 1)), partition(T1, 12, (0, 1, 2)))
    assert grid(replace(HEALTHY, table=rows)) == {"t": "a-"}


def test_the_history_of_a_partition_has_its_changes_only() -> None:
    change = {"topic": "t", "partition": 0, "leader": 1, "isr": [1], "leader_epoch": 3}
    other = {**change, "partition": 1}
    view = seen(line(9_000, "A", partitions=[change]), line(8_000, "B", partitions=[other]))
    assert [found["event"] for found in history(view, T0)] == ["A"]


def test_the_journal_leaves_out_answers_that_changed_nothing_unless_they_are_asked_for() -> None:
    answered = line(9_000, "UpdateMetadataResponseReceived", broker=2)
    view = seen(answered, line(8_000, "BrokerChange", 0, changes=["brokers [2]: started"]))

    def names(text: str, broker: str) -> list[str]:
        return [fields["event"] for fields in journal(view, text, broker, limit=9)]

    assert names("", "") == ["BrokerChange"]
    assert names("updatemetadata", "") == ["UpdateMetadataResponseReceived"]
    assert names("STARTED", "0") == ["BrokerChange"]
    assert names("started", "1") == []


def test_the_lag_is_summed_by_topic_and_by_member() -> None:
    rows = (LagRow(T0, 3, 10, "a"), LagRow(T1, None, 5, "a"), LagRow(T1, 9, 8, ""))
    group = GroupRow("g", "Stable", 0, ("a",), rows)
    some = "7 and unknown in 1 partition"
    lags = group.lags(LagPaces())
    assert [(sum.name, sum.lag) for sum in (*lags.by_topic, *lags.by_member)] == [
        ("t", some),
        ("a", some),
    ]
    assert group.lag == lags.total.lag == some
    assert lags.total.pace.lag is None
    assert group._replace(rows=rows[:1]).lag == "7"
    assert group._replace(rows=rows[1:2]).lag == "unknown in 1 partition"


def test_each_topic_and_each_member_has_its_rate_and_its_time_to_clear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, paces, u0 = [100.0], LagPaces(30.0), TopicPartition("u", 0)
    monkeypatch.setattr(lag_rates, "monotonic", lambda: now_s[0])

    def look(t_read: int, u_read: int) -> GroupLagSums:
        rows = (LagRow(T0, t_read, 110, "a"), LagRow(u0, u_read, 300, "b"))
        return GroupRow("g", "Stable", 0, ("a", "b"), rows).lags(paces)

    look(0, 0)
    now_s[0] += 10
    found = look(100, 0)
    shown = [
        (sum.name, sum.lag, sum.pace.read_per_s, sum.pace.time_to_clear)
        for sum in (found.total, *found.by_topic, *found.by_member)
    ]
    assert shown == [
        ("", "310", 10.0, "31 s"),
        ("t", "10", 10.0, "1 s"),
        ("u", "300", 0.0, "never at this rate"),
        ("a", "10", 10.0, "1 s"),
        ("b", "300", 0.0, "never at this rate"),
    ]
    page = render(
        "groups.html",
        groups=[(GroupRow("g", "Stable", 0, (), ()), found)],
        problems=[],
        may_write=False,
    )
    assert "never at this rate" in page
    now_s[0] += 31
    assert look(110, 0).total.pace.read_per_s is None, "what was seen so long ago is no measure"
