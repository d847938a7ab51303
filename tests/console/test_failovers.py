"""Failovers are found in journals, with what each step took."""

from __future__ import annotations

from typing import Any

import pytest

from regent.console.failovers import (
    ALL_KNOW,
    CLOSED,
    DECIDED,
    DIED,
    ELECTED,
    FIRST_TOLD,
    GONE,
    SEEN,
    TOLD,
    UPDATED,
    WRITTEN,
    Failover,
    find_failovers,
)

T = 1_795_987_600_000


def line(at_ms: int, event: str, broker_id: int = 1, **fields: Any) -> dict[str, Any]:
    common = {"broker_id": broker_id, "controller_epoch": 2, "event_id": at_ms, "changes": []}
    return {"ts_ms": T + at_ms, "event": event, **common, "queue_ms": 0.0, **fields}


def answer(at_ms: int, event: str, broker: int, took_ms: float) -> dict[str, Any]:
    return line(at_ms, event, broker=broker, answered_ms=took_ms)


FIRST = line(0, "Startup", 0, elected=1, controller_epoch=1)
STANDS = line(891, "Reelect", 2, controller_epoch=0, queue_ms=2.0)
ELECTION = line(893, "Reelect", 1, elected=2, queue_ms=0.3, handling_ms=137.0, change_count=107)
ANSWERED = [
    answer(1069, UPDATED, 1, 77.0),
    answer(1072, TOLD, 1, 77.5),
    answer(1081, UPDATED, 2, 88.0),
    answer(1086, TOLD, 2, 93.0),
    answer(1104, UPDATED, 2, 17.0),
]


def steps(failover: Failover) -> dict[str, float]:
    return {step.name: round(step.at_ms - T) for step in failover.steps}


def test_a_takeover_has_every_step_from_the_death_to_the_last_answer() -> None:
    (failover,) = find_failovers([FIRST, STANDS, ELECTION, *ANSWERED], {0: [T + 855]})
    assert steps(failover) == {
        DIED: 855,
        CLOSED: 889,
        ELECTED: 893,
        WRITTEN: 1030,
        FIRST_TOLD: 1072,
        ALL_KNOW: 1104,
    }
    assert failover.sentence == (
        "controller 0 died, broker 1 took over: 106 changes, 249 ms until every live broker knew it"
    )
    assert failover.broker_ids == (0,)


def test_the_spans_of_a_failover_follow_one_another() -> None:
    (failover,) = find_failovers([FIRST, STANDS, ELECTION, *ANSWERED], {0: [T + 855]})
    spans = failover.spans
    assert [start for _, start, _ in spans] == [0.0, *(end for _, _, end in spans[:-1])]
    assert spans[-1][2] == failover.duration_ms


def test_without_a_supervisor_a_failover_begins_when_it_is_noticed() -> None:
    (failover,) = find_failovers([FIRST, STANDS, ELECTION], {})
    assert failover.began_ms == T + 889
    assert failover.sentence.startswith("controller 0 was lost, broker 1 took over")
    assert failover.sentence.endswith("so far")


def test_the_supervisor_may_see_a_death_after_the_controller() -> None:
    (failover,) = find_failovers([FIRST, STANDS, ELECTION], {0: [T + 900]})
    assert steps(failover)[DIED] == 889


def test_an_old_death_of_the_same_broker_does_not_count() -> None:
    (failover,) = find_failovers([FIRST, STANDS, ELECTION], {0: [T - 90_000]})
    assert DIED not in steps(failover)


def test_answers_to_later_requests_are_not_part_of_a_failover() -> None:
    later = answer(5_000, UPDATED, 2, 4.0)
    (failover,) = find_failovers([FIRST, STANDS, ELECTION, *ANSWERED, later], {})
    assert steps(failover)[ALL_KNOW] == 1104


def test_answers_of_another_term_are_not_part_of_a_failover() -> None:
    other = {**answer(1110, UPDATED, 2, 5.0), "controller_epoch": 1}
    (failover,) = find_failovers([FIRST, STANDS, ELECTION, *ANSWERED, other], {})
    assert steps(failover)[ALL_KNOW] == 1104


@pytest.mark.parametrize(
    ("before", "what"),
    [
        ([], "broker 2 died"),
        ([line(4_000, "ControlledShutdown", broker=2)], "broker 2 stopped in order"),
        ([line(4_000, "ControlledShutdown", broker=0)], "broker 2 died"),
    ],
)
def test_a_broker_that_goes_is_a_failover(before: list[dict[str, Any]], what: str) -> None:
    gone = line(5_000, "BrokerChange", failed=[2], queue_ms=1.0, handling_ms=20.0, change_count=5)
    told = [answer(5_030, TOLD, 0, 9.0), answer(5_040, UPDATED, 0, 12.0)]
    (failover,) = find_failovers([*before, gone, *told], {2: [T + 4_990]})
    assert failover.what == what
    assert steps(failover) == {
        DIED: 4_990,
        GONE: 4_999,
        SEEN: 5_000,
        DECIDED: 5_020,
        FIRST_TOLD: 5_030,
        ALL_KNOW: 5_040,
    }


def test_a_controller_that_was_moved_has_not_died() -> None:
    resigned = line(880, "ControllerChange", 0, resigned=1, controller_epoch=1)
    (failover,) = find_failovers([FIRST, resigned, STANDS, ELECTION], {})
    assert failover.what == "the controller moved from broker 0 to broker 1"
    assert failover.broker_ids == ()


def test_a_start_of_the_cluster_is_no_failover() -> None:
    again = line(9_000, "Startup", 1, elected=2)
    assert find_failovers([FIRST, again], {}) == []


def test_the_newest_failover_comes_first() -> None:
    gone = line(5_000, "BrokerChange", failed=[2], handling_ms=20.0, change_count=5)
    found = find_failovers([FIRST, STANDS, ELECTION, *ANSWERED, gone], {})
    assert [failover.began_ms for failover in found] == [T + 5_000, T + 889]
