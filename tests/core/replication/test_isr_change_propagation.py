"""ISR changes are notified after a quiet period, or after one minute at the latest."""

from __future__ import annotations

from regent.core.model import TopicPartition
from regent.core.replication.isr_change_propagation import (
    LINGER_MS,
    MAX_DELAY_MS,
    IsrChangePropagation,
)

FIRST, SECOND = TopicPartition("payments", 0), TopicPartition("payments", 1)
START = 1_000_000


def test_without_a_change_there_is_no_notification():
    propagation = IsrChangePropagation(START)
    propagation.record([], START)
    assert propagation.due(START + 10 * MAX_DELAY_MS) == ()


def test_the_last_change_is_notified_after_the_quiet_period():
    propagation = IsrChangePropagation(START)
    propagation.record([FIRST], START)
    assert propagation.due(START + LINGER_MS) == ()
    assert propagation.due(START + LINGER_MS + 1) == (FIRST,)


def test_another_change_restarts_the_quiet_period():
    propagation = IsrChangePropagation(START)
    propagation.record([FIRST], START)
    propagation.record([SECOND], START + LINGER_MS)
    assert propagation.due(START + LINGER_MS + 1) == ()
    assert propagation.due(START + 2 * LINGER_MS + 1) == (FIRST, SECOND)


def test_a_partition_with_two_changes_is_named_once():
    propagation = IsrChangePropagation(START)
    propagation.record([FIRST, SECOND], START)
    propagation.record([FIRST], START + 1)
    assert propagation.due(START + LINGER_MS + 2) == (FIRST, SECOND)


def test_continuous_changes_are_notified_after_one_minute():
    propagation = IsrChangePropagation(START)
    for at in range(START, START + MAX_DELAY_MS + 1, 1000):
        propagation.record([FIRST], at)
        assert propagation.due(at) == ()
    assert propagation.due(START + MAX_DELAY_MS + 1) == (FIRST,)


def test_after_a_notification_the_minute_starts_again():
    propagation = IsrChangePropagation(START)
    propagation.record([FIRST], START)
    now = START + MAX_DELAY_MS + 1
    propagation.propagated(propagation.due(now), now)
    assert propagation.due(now) == ()
    propagation.record([SECOND], now + 1)
    assert propagation.due(now + 2) == ()
    assert propagation.due(now + LINGER_MS + 2) == (SECOND,)


def test_a_change_during_a_notification_waits_for_the_next():
    propagation = IsrChangePropagation(START)
    propagation.record([FIRST], START)
    now = START + LINGER_MS + 1
    due = propagation.due(now)
    propagation.record([SECOND], now)
    propagation.propagated(due, now)
    assert propagation.due(now + LINGER_MS + 1) == (SECOND,)


def test_changes_of_a_failed_notification_are_notified_again():
    propagation = IsrChangePropagation(START)
    propagation.record([FIRST], START)
    now = START + LINGER_MS + 1
    assert propagation.due(now) == propagation.due(now + 1) == (FIRST,)
