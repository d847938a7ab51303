"""Long work in short turns, so that a request for many partitions keeps nobody else waiting.

A turn is what is done while nobody else may do anything; between two of them anybody may. Kafka has
a lock for each partition instead.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeAlias, TypeVar

from regent.core.model import TopicPartition

T = TypeVar("T")

BYTES_PER_TURN = 1024 * 1024
"""How much is appended in one turn: about what the disk may take milliseconds for."""
APPEND_BYTES = 16 * 1024
"""What each append costs beside its bytes."""
ORDERS_PER_TURN = 32
"""How many replicas are created, deleted or given a role in one turn."""

Turns: TypeAlias = Generator[None, None, T]
"""Stops where a turn ends, and returns the outcome after the last."""


def take(portions: Iterable[T], do: Callable[[T], object]) -> Turns[None]:
    """Do one portion in each turn."""
    for number, portion in enumerate(portions):
        if number:
            yield
        do(portion)


def portions_of_records(
    sizes: Iterable[tuple[TopicPartition, int]],
) -> Iterator[Sequence[TopicPartition]]:
    """Share out partitions by the bytes to be appended to each; 0: nothing is."""
    portion: list[TopicPartition] = []
    cost = 0
    for topic_partition, size in sizes:
        if cost >= BYTES_PER_TURN:
            yield portion
            portion, cost = [], 0
        portion.append(topic_partition)
        cost += size + APPEND_BYTES if size else 0
    if portion:
        yield portion


def portions_of_orders(orders: Iterable[T]) -> Iterator[Sequence[T]]:
    """Share out the orders for replicas."""
    left = iter(orders)
    while portion := list(islice(left, ORDERS_PER_TURN)):
        yield portion
