"""Requests that wait for changes of partitions, each answered exactly once.

Mirrors ``kafka.server.DelayedOperationPurgatory``. The changes made by one call are collected, and
the waiting operations check them once, at the end of the call. Answers are given after the lock is
released (KAFKA-13254): the receiver may call again at once, on the same thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import ClassVar, TypeAlias

from regent.core.model import TopicPartition

MAX_DELAYED = 100_000
"""Further operations are answered at once, as if they had expired."""

Answer: TypeAlias = Callable[[], None]


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
