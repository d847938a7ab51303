"""Conditions narrow what is read and never exclude a matching record."""

import random
from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from regent.core.model import TopicPartition
from regent.jobs.source.filters import PushedFilters
from regent.jobs.source.offset_range import OffsetRange

TOPICS = ("orders", "orders-eu", "audit")
RANGE = OffsetRange(TopicPartition("t", 0), 10, 90)


def narrowed(*conditions: Filter) -> tuple[int, int]:
    filters = PushedFilters()
    for condition in conditions:
        filters.take(condition)
    found = filters.narrow(RANGE)
    return found.start, found.end


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (EqualTo(("offset",), 50), (50, 51)),
        (GreaterThan(("offset",), 50), (51, 90)),
        (GreaterThanOrEqual(("offset",), 50), (50, 90)),
        (LessThan(("offset",), 50), (10, 50)),
        (LessThanOrEqual(("offset",), 50), (10, 51)),
        (LessThan(("offset",), -5), (10, 10)),
        (GreaterThan(("offset",), 500), (90, 90)),
    ],
)
def test_offsets_cut_the_range_exactly(condition: Filter, expected: tuple[int, int]):
    assert PushedFilters().take(condition)
    assert narrowed(condition) == expected


def test_a_list_of_offsets_is_cut_to_its_ends_and_checked_by_spark():
    condition = In(("offset",), [40, 20, 30])  # type: ignore[arg-type] # a list at run time
    assert not PushedFilters().take(condition)
    assert narrowed(condition) == (20, 41)
    assert narrowed(condition, GreaterThan(("offset",), 25)) == (26, 41)


def test_times_exclude_old_batches_and_are_checked_by_spark():
    filters = PushedFilters()
    time = datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC)
    for condition in (
        GreaterThanOrEqual(("timestamp",), time),
        GreaterThan(("timestamp",), datetime(2025, 1, 1, tzinfo=UTC)),
        LessThan(("timestamp",), datetime(2027, 1, 1, tzinfo=UTC)),
    ):
        assert not filters.take(condition)
    assert filters.narrow(RANGE).since_ms == int(time.timestamp()) * 1000 + 678


def test_other_conditions_are_left_to_spark():
    for condition in (
        EqualTo(("key",), b"x"),
        EqualTo(("value", "offset"), 5),
        StringContains(("topic",), "x"),
        Not(EqualTo(("offset",), 5)),
        EqualTo(("partition",), None),
        Not(In(("partition",), (1, None))),
        IsNotNull(("key",)),
    ):
        assert not PushedFilters().take(condition), condition
    assert PushedFilters().take(IsNotNull(("offset",)))


@pytest.mark.parametrize("seed", range(20))
def test_partitions_are_chosen_as_the_conditions_say(seed: int):
    chance = random.Random(seed)
    topics: list[Filter] = [EqualTo(("topic",), t) for t in TOPICS] + [
        In(("topic",), tuple(TOPICS[:2]))
    ]
    topics += [StringStartsWith(("topic",), "ord"), GreaterThan(("topic",), "b")]
    numbers: list[Filter] = [
        kind(("partition",), 2) for kind in (EqualTo, LessThan, LessThanOrEqual)
    ]
    numbers += [In(("partition",), (0, 3))]
    chosen: list[Filter] = [chance.choice(topics), chance.choice(numbers)]
    chosen = [Not(c) if chance.random() < 0.3 else c for c in chosen]
    filters = PushedFilters()
    assert all(filters.take(condition) for condition in chosen)
    for topic in TOPICS:
        for number in range(5):
            values = {"topic": topic, "partition": number}
            expected = all(holds(condition, values) for condition in chosen)
            assert filters.admits(TopicPartition(topic, number)) == expected


def holds(condition: Filter, values: dict[str, object]) -> bool:
    """Evaluate a condition in Python."""
    match condition:
        case Not(child):
            return not holds(child, values)
        case In((column,), wanted):
            return values[column] in wanted
        case StringStartsWith((column,), prefix):
            return str(values[column]).startswith(prefix)
        case EqualTo((column,), value):
            return bool(values[column] == value)
        case GreaterThan((column,), value):
            return bool(values[column] > value)
        case LessThan((column,), value):
            return bool(values[column] < value)
        case LessThanOrEqual((column,), value):
            return bool(values[column] <= value)
        case _:
            raise AssertionError(condition)
