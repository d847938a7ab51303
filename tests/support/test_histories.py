"""Tests of the checker with good histories that are changed in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from regent.core.model import BrokerId, TopicPartition
from tests.support.histories import History, Outcome, Read, Send, check, summary
from tests.support.record_batches import Record

EVENTS, ORDERS = TopicPartition("events", 0), TopicPartition("orders", 1)
BROKERS = (0, 1, 2)

WholeLogs: TypeAlias = dict[TopicPartition, dict[BrokerId, list[Record]]]


def good() -> tuple[History, WholeLogs]:
    """Two producers; one record with an unknown outcome is in the log, one is not; all are read."""
    history = History()
    logs: WholeLogs = {EVENTS: {}, ORDERS: {}}
    for partition in (EVENTS, ORDERS):
        records: list[Record] = []
        for number in range(12):
            producer = f"p{number % 2}"
            value = f"{producer}-{partition.topic}-{number}".encode()
            send = Send(producer, number, partition, value)
            history.sends.append(send)
            if number == 5:
                continue  # never arrived, outcome unknown
            if number != 6:  # arrived, outcome unknown
                send.outcome = Outcome.ACKNOWLEDGED
            if number not in (6, 7):  # 7 is acknowledged without an offset
                send.offset = len(records)
            records.append(Record(len(records), number // 4, None, value))
        refused = Send("p0", 12, partition, b"refused-" + partition.topic.encode())
        refused.outcome = Outcome.REFUSED
        history.sends.append(refused)
        logs[partition] = {broker: list(records) for broker in BROKERS}
        history.reads += [Read("c", partition, r.offset, r.value) for r in records]
    return history, logs


def test_a_good_history_has_no_violation():
    assert check(*good()) == []


def drop_from_all(history: History, logs: WholeLogs) -> None:
    for records in logs[EVENTS].values():
        records.pop()


def lose_the_partition(history: History, logs: WholeLogs) -> None:
    del logs[ORDERS]


def drop_from_one_replica(history: History, logs: WholeLogs) -> None:
    logs[EVENTS][1].pop()


def drop_from_the_middle(history: History, logs: WholeLogs) -> None:
    del logs[ORDERS][0][3]


def drop_a_record_acknowledged_without_offset(history: History, logs: WholeLogs) -> None:
    history.reads[:] = [read for read in history.reads if read.value != b"p1-events-7"]
    for records in logs[EVENTS].values():
        del records[6:]


def swap_everywhere(history: History, logs: WholeLogs) -> None:
    for records in logs[ORDERS].values():
        records[2], records[4] = (
            records[2]._replace(value=records[4].value),
            records[4]._replace(value=records[2].value),
        )


def swap_on_one_replica(history: History, logs: WholeLogs) -> None:
    first, second, *rest = logs[EVENTS][2]
    logs[EVENTS][2] = [
        first._replace(value=second.value),
        second._replace(value=first.value),
        *rest,
    ]


def write_twice(history: History, logs: WholeLogs) -> None:
    for records in logs[EVENTS].values():
        records.append(records[-1]._replace(offset=len(records)))


def shift_offsets(history: History, logs: WholeLogs) -> None:
    for records in logs[EVENTS].values():
        records[:] = [record._replace(offset=record.offset + 1) for record in records]


def lower_an_epoch(history: History, logs: WholeLogs) -> None:
    for records in logs[EVENTS].values():
        records[-1] = records[-1]._replace(leader_epoch=0)


def change_an_epoch_on_one_replica(history: History, logs: WholeLogs) -> None:
    logs[EVENTS][0][-1] = logs[EVENTS][0][-1]._replace(leader_epoch=9)


def write_an_unsent_record(history: History, logs: WholeLogs) -> None:
    for records in logs[EVENTS].values():
        records.append(Record(len(records), 3, None, b"stranger"))


def write_to_the_wrong_partition(history: History, logs: WholeLogs) -> None:
    for records in logs[EVENTS].values():
        records.append(Record(len(records), 3, None, b"p1-orders-5"))


def write_a_refused_record(history: History, logs: WholeLogs) -> None:
    for records in logs[EVENTS].values():
        records.append(Record(len(records), 3, None, b"refused-events"))


def answer_with_another_offset(history: History, logs: WholeLogs) -> None:
    history.sends[3].offset += 1


def acknowledge_a_lost_record(history: History, logs: WholeLogs) -> None:
    history.sends[5].outcome, history.sends[5].offset = Outcome.ACKNOWLEDGED, 5


def read_above_the_high_watermark(history: History, logs: WholeLogs) -> None:
    history.reads.append(Read("early", EVENTS, 11, b"p1-events-5"))


def read_something_else(history: History, logs: WholeLogs) -> None:
    history.reads[4] = history.reads[4]._replace(value=b"p1-events-5")


def read_twice(history: History, logs: WholeLogs) -> None:
    history.reads.insert(5, history.reads[4])


def skip_a_record(history: History, logs: WholeLogs) -> None:
    del history.reads[4]


def stop_reading_too_early(history: History, logs: WholeLogs) -> None:
    history.reads.pop()


def complain(history: History, logs: WholeLogs) -> None:
    history.complaints.append("p0: fatal error")


STAYS, AGREE, ORDER = (
    "acknowledged records stay",
    "replicas agree",
    "records of a producer are in sequence",
)
GROW, READ_STAYS = "offsets and epochs grow", "records that were read stay"


@pytest.mark.parametrize(
    ("spoil", "broken"),
    [
        (drop_from_all, {STAYS, READ_STAYS}),
        (lose_the_partition, {STAYS, READ_STAYS}),
        (drop_from_one_replica, {STAYS, AGREE}),
        (drop_from_the_middle, {STAYS, AGREE, GROW, READ_STAYS}),
        (drop_a_record_acknowledged_without_offset, {STAYS, "acknowledged records are read"}),
        (swap_everywhere, {STAYS, ORDER, READ_STAYS}),
        (swap_on_one_replica, {STAYS, AGREE}),
        (write_twice, {"written once"}),
        (shift_offsets, {STAYS, READ_STAYS}),
        (lower_an_epoch, {GROW}),
        (change_an_epoch_on_one_replica, {AGREE}),
        (write_an_unsent_record, {"only sent records are written"}),
        (write_to_the_wrong_partition, {"only sent records are written"}),
        (write_a_refused_record, {"refused records are not written"}),
        (answer_with_another_offset, {STAYS}),
        (acknowledge_a_lost_record, {STAYS}),
        (read_above_the_high_watermark, {READ_STAYS}),
        (read_something_else, {READ_STAYS}),
        (read_twice, {"consumers read in sequence"}),
        (skip_a_record, {"consumers read in sequence", "acknowledged records are read"}),
        (stop_reading_too_early, {"acknowledged records are read"}),
        (complain, {"no complaint"}),
    ],
)
def test_each_change_of_a_good_history_is_found(
    spoil: Callable[[History, WholeLogs], None], broken: set[str]
):
    history, logs = good()
    spoil(history, logs)
    violations = check(history, logs)
    assert broken <= {violation.promise for violation in violations}
    for promise in broken:
        assert promise in summary(violations)


def test_a_producer_whose_login_failed_may_write_twice_but_loses_nothing():
    history, logs = good()
    history.repeaters.add("p0")
    for record in logs[EVENTS][0][0], logs[EVENTS][0][1]:  # of p0, and of p1
        for records in logs[EVENTS].values():
            records.append(record._replace(offset=len(records), leader_epoch=3))
    twice = {v.what for v in check(history, logs) if v.promise in ("written once", ORDER)}
    assert {what.partition("b'")[2][:2] for what in twice} == {"p1"}
    drop_from_one_replica(history, logs)
    assert AGREE in {violation.promise for violation in check(history, logs)}
