"""The calls of a ``ReplicaManager``: they share one lock, and some wait for changes of partitions.

A call for many partitions is split into slices, and the lock is released between them, so that it
does not block other calls for long. (Kafka has a lock for each partition instead.) The changes made
by one call are collected, and the waiting operations check them once, at the end of the call. Each
is answered exactly once, after the lock is released (KAFKA-13254): the receiver may call again at
once, on the same thread. Mirrors ``kafka.server.DelayedOperationPurgatory``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import islice
from typing import ClassVar, TypeAlias, TypeVar

from regent.core.model import TopicPartition

T = TypeVar("T")

MAX_DELAYED = 100_000
"""Further operations are answered at once, as if they had expired."""

BYTES_PER_SLICE = 1024 * 1024
"""How many bytes one slice appends: a disk needs some milliseconds for them."""
APPEND_BYTES = 16 * 1024
"""The fixed cost of an append, counted as bytes."""
REPLICAS_PER_SLICE = 32
"""How many replicas one slice creates, deletes, or changes the role of."""
LOOKS_PER_SLICE = 500
"""How many replicas one slice looks at, mostly without a change."""

Answer: TypeAlias = Callable[[], None]


Slices: TypeAlias = Generator[Callable[[], None] | None, None, T]
"""Yields at the end of each slice except the last, and returns the outcome.

It may yield work that needs no lock, and is done before the next slice.
"""


class DelayedOperation(ABC):
    """A request that waits for changes of ``partitions``."""

    kind: ClassVar[str]
    """The request, by Kafka's name."""

    def __init__(self, partitions: Collection[TopicPartition]) -> None:
        self.partitions = partitions
        self.is_completed = False

    @abstractmethod
    def on_changes(self, topic_partitions: Collection[TopicPartition]) -> bool:
        """Check changed partitions; return whether the operation is complete."""

    def on_expiry(self) -> None:  # noqa: B027 - most have nothing to do
        """Prepare for the answer: the whole wait has passed without a change."""

    @abstractmethod
    def answer(self) -> Answer:
        """Return the call that answers with the present outcome, complete or not."""


class DelayedOperationPurgatory:
    """All operations that wait. Not thread-safe."""

    def __init__(self, limit: int = MAX_DELAYED) -> None:
        self._limit = limit
        self._counts: dict[str, int] = {}
        self._watching: dict[TopicPartition, dict[DelayedOperation, None]] = {}
        self._woken: dict[DelayedOperation, dict[TopicPartition, None]] = {}
        self._answers: list[Answer] = []

    def __len__(self) -> int:
        return sum(self._counts.values())

    @property
    def counts(self) -> Mapping[str, int]:
        """How many operations of each kind wait, as a copy."""
        return self._counts.copy()

    def hold(self, operation: DelayedOperation) -> DelayedOperation | None:
        """Keep an operation waiting and return it; None: too many wait, and it is answered now."""
        if len(self) >= self._limit:
            self._finish(operation)
            return None
        self._counts[operation.kind] = self._counts.get(operation.kind, 0) + 1
        for topic_partition in operation.partitions:
            self._watching.setdefault(topic_partition, {})[operation] = None
        return operation

    def on_change(self, topic_partition: TopicPartition) -> None:
        """Let the operations that wait for a partition check it again."""
        for operation in self._watching.get(topic_partition, ()):
            self.wake(operation, topic_partition)

    def wake(self, operation: DelayedOperation, topic_partition: TopicPartition) -> None:
        """Let one operation check a partition again."""
        self._woken.setdefault(operation, {})[topic_partition] = None

    def complete(self, operation: DelayedOperation) -> None:
        """Complete now. No-op if already completed."""
        if operation.is_completed:
            return
        self._counts[operation.kind] -= 1
        for topic_partition in operation.partitions:
            watching = self._watching[topic_partition]
            del watching[operation]
            if not watching:
                del self._watching[topic_partition]
        self._finish(operation)

    def answer(self, answer: Answer) -> None:
        """Queue the answer of a request that need not wait."""
        self._answers.append(answer)

    def _finish(self, operation: DelayedOperation) -> None:
        operation.is_completed = True
        self._answers.append(operation.answer())

    def settle(self) -> None:
        """Complete the operations that the collected changes complete."""
        while self._woken:
            woken, self._woken = self._woken, {}
            for operation, names in woken.items():
                if not operation.is_completed and operation.on_changes(names):
                    self.complete(operation)

    def take_answers(self) -> list[Answer]:
        """Return the queued answers and empty the queue."""
        answers, self._answers = self._answers, []
        return answers


class LockedCall:
    """A context manager that holds the lock, then releases it and gives the answers.

    An answer that raises does not prevent the others.
    """

    def __init__(
        self, lock: AbstractContextManager[object], end: Callable[[], list[Answer]]
    ) -> None:
        self._lock = lock
        self._end = end

    def __enter__(self) -> None:
        self._lock.__enter__()

    def __exit__(self, *exc_info: object) -> None:
        try:
            answers = self._end()
        finally:
            self._lock.__exit__(None, None, None)
        if len(answers) == 1:
            answers[0]()
        elif answers:
            with ExitStack() as stack:
                for answer in reversed(answers):
                    stack.callback(answer)


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
