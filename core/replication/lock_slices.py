"""Splits work into slices and releases the lock between them.

A request for many partitions then does not block other requests for long. Kafka has a lock for each
partition instead.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import TypeAlias, TypeVar

from regent.core.model import TopicPartition

T = TypeVar("T")

BYTES_PER_SLICE = 1024 * 1024
"""How many bytes one slice appends: a disk needs some milliseconds for them."""
APPEND_BYTES = 16 * 1024
"""The fixed cost of an append, counted as bytes."""
REPLICAS_PER_SLICE = 32
"""How many replicas one slice creates, deletes, or changes the role of."""
LOOKS_PER_SLICE = 500
"""How many replicas one slice looks at, mostly without a change."""

Slices: TypeAlias = Generator[Callable[[], None] | None, None, T]
"""Yields at the end of each slice except the last, and returns the outcome.

It may yield work that needs no lock, and is done before the next slice.
"""


def locked_slices(lock: AbstractContextManager[object], slices: Slices[T]) -> T:
    """Run all slices, each with the lock held, and return the outcome."""
    while True:
        with lock:
            try:
                work = next(slices)
            except StopIteration as end:
                outcome: T = end.value
                return outcome
        if work is not None:
            work()


def run_in_slices(slices: Iterable[T], run: Callable[[T], object]) -> Slices[None]:
    """Run one item of ``slices`` at a time; the lock may be released between two."""
    for number, items in enumerate(slices):
        if number:
            yield None
        run(items)


def slices_of_records(
    sizes: Iterable[tuple[TopicPartition, int]],
) -> Iterator[Sequence[TopicPartition]]:
    """Group partitions into slices by the bytes to append to each."""
    group: list[TopicPartition] = []
    cost = 0
    for topic_partition, size in sizes:
        if cost >= BYTES_PER_SLICE:
            yield group
            group, cost = [], 0
        group.append(topic_partition)
        cost += size + APPEND_BYTES if size else 0
    if group:
        yield group


def slices_to_look_at(items: Iterable[T]) -> Iterator[Sequence[T]]:
    """Group what is only looked at; the items may change between two slices."""
    left = iter(list(items))
    while group := list(islice(left, LOOKS_PER_SLICE)):
        yield group


def slices_of_replicas(rows: Iterable[T]) -> Iterator[Sequence[T]]:
    """Group the rows of a control request into slices; each row is one replica."""
    left = iter(rows)
    while group := list(islice(left, REPLICAS_PER_SLICE)):
        yield group
