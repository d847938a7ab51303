"""The sentences of changes, which people read in the journal."""

from __future__ import annotations

import pytest

from regent.core.controller.effects import (
    MAX_NAMED_CHANGES,
    BrokersFailed,
    BrokersStarted,
    Change,
    ControllerElected,
    ControllerResigned,
    Outbox,
    PartitionChanged,
    PartitionCreated,
    RecordChanges,
)
from regent.core.model import (
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    LeaderRecoveryState,
    TopicPartition,
)

T0 = TopicPartition("t", 0)
BEFORE = LeaderIsrAndControllerEpoch(LeaderAndIsr(1, (1, 2), 4), 1)
RECOVERING = LeaderRecoveryState.RECOVERING


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (PartitionCreated(T0, LeaderAndIsr(1, (1, 2))), "t-0: created, leader 1, isr [1, 2]"),
        (
            PartitionChanged(T0, BEFORE, LeaderAndIsr(2, (2,), 5)),
            "t-0: leader 1 → 2, isr [2], leader epoch 5",
        ),
        (
            PartitionChanged(T0, None, LeaderAndIsr(2, (2,), 5)),
            "t-0: leader ? → 2, isr [2], leader epoch 5",
        ),
        (
            PartitionChanged(T0, BEFORE, LeaderAndIsr(1, (1,), 5)),
            "t-0: leader 1, isr [1, 2] → [1], leader epoch 5",
        ),
        (
            PartitionChanged(T0, BEFORE, LeaderAndIsr(1, (1, 2, 3), 4)),
            "t-0: leader 1, isr [1, 2] → [1, 2, 3]",
        ),
        (
            PartitionChanged(T0, BEFORE, LeaderAndIsr(1, (1,), 4, 7, RECOVERING)),
            "t-0: leader 1, isr [1, 2] → [1], recovering",
        ),
        (BrokersStarted((1, 2)), "brokers [1, 2]: started"),
        (BrokersFailed((3,)), "brokers [3]: failed"),
        (ControllerElected(1, 7), "broker 1: controller epoch 7"),
        (ControllerResigned(1, 7), "broker 1: resigned"),
    ],
)
def test_sentences(change: Change, sentence: str) -> None:
    assert str(change) == sentence


class Unprintable:
    """Must not be formatted."""

    def __str__(self) -> str:
        raise AssertionError


def test_only_the_first_changes_are_created_and_formatted() -> None:
    outbox = Outbox()
    for number in range(MAX_NAMED_CHANGES - 1):
        outbox.note("change %d", number)
    outbox.record(BrokersStarted, (1,))
    outbox.note("change %s", Unprintable())
    outbox.record(PartitionCreated, T0, LeaderAndIsr(1, (1,)))
    [effect] = outbox.drain(7)
    assert isinstance(effect, RecordChanges)
    assert effect.total == MAX_NAMED_CHANGES + 2
    assert effect.changes[0] == "change 0"
    assert effect.changes[-1] == BrokersStarted((1,))
    assert outbox.drain(7) == []


def test_internal_topics_are_named_after_the_others() -> None:
    outbox = Outbox()
    internal = [TopicPartition("__consumer_offsets", p) for p in range(MAX_NAMED_CHANGES)]
    created = LeaderAndIsr(1, (1,))
    outbox.record_each(PartitionCreated, [(tp, created) for tp in (*internal, T0)])
    [effect] = outbox.drain(7)
    assert isinstance(effect, RecordChanges)
    assert effect.changes[0] == PartitionCreated(T0, created)
    assert (len(effect.changes), effect.total) == (MAX_NAMED_CHANGES, MAX_NAMED_CHANGES + 1)
