"""Changes of ISRs are told of once they are over, but not later than after a minute."""

from __future__ import annotations

from regent.core.model import TopicPartition
from regent.core.replication.isr_change_propagation import (
    LINGER_MS,
    MAX_DELAY_MS,
    IsrChangePropagation,
)

FIRST, SECOND = TopicPartition("payments", 0), TopicPartition("payments", 1)
START = 1_000_000


def test_without_a_change_there_is_nothing_to_tell():
    propagation = IsrChangePropagation(START)
    propagation.record([], START)
    assert propagation.due(START + 10 * MAX_DELAY_MS) == ()


def test_a_change_is_told_of_when_it_was_the_last_for_a_while():
    propagation = IsrChangePropagation(START)
    propagation.record([FIRST], START)
    assert propagation.due(START + LINGER_MS) == ()
    assert propagation.due(START + LINGER_MS + 1) == (FIRST,)


def test_another_change_starts_the_wait_anew():
    propagation = IsrChangePropagation(START)
    propagation.record([FIRST], START)
    propagation.record([SECOND], START + LINGER_MS)
    assert propagation.due(START + LINGER_MS + 1) == ()
    assert propagation.due(START + 2 * LINGER_MS + 1) == (FIRST, SECOND)


def test_a_partition_that_changed_twice_is_named_once():
    propagation = IsrChangePropagation(START)
    propagation.record([FIRST, SECOND], START)
    propagation.record([FIRST], START + 1)
    assert propagation.due(START + LINGER_MS + 2) == (FIRST, SECOND)


def test_changes_that_never_end_are_told_of_after_a_minute():
    propagation = IsrChangePropagation(START)
    for at in range(START, START + MAX_DELAY_MS + 1, 1000):
        propagation.record([FIRST], at)
        assert propagation.due(at) == ()
    assert propagation.due(START + MAX_DELAY_MS + 1) == (FIRST,)


def test_what_was_told_of_is_forgotten_and_the_minute_begins_again():
    propagation = IsrChangePropagation(START)
    propagation.record([FIRST], START)
    now = START + MAX_DELAY_MS + 1
    propagation.propagated(propagation.due(now), now)
    assert propagation.due(now) == ()
    propagation.record([SECOND], now + 1)
    assert propagation.due(now + 2) == ()
    assert propagation.due(now + LINGER_MS + 2) == (SECOND,)


def test_what_changed_while_it_was_told_of_waits_for_the_next_time():
    propagation = IsrChangePropagation(START)
    propagation.record([FIRST], START)
    now = START + LINGER_MS + 1
    told = propagation.due(now)
    propagation.record([SECOND], now)
    propagation.propagated(told, now)
    assert propagation.due(now + LINGER_MS + 1) == (SECOND,)


def test_what_could_not_be_told_of_is_due_still():
    propagation = IsrChangePropagation(START)
    propagation.record([FIRST], START)
    now = START + LINGER_MS + 1
    assert propagation.due(now) == propagation.due(now + 1) == (FIRST,)
