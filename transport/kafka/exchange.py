"""A request in progress, and the steps of its handler, as a task of the event loop runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

from regent.transport.kafka.api import KafkaAnswer, KafkaRequest
from regent.transport.kafka.metrics import RequestMetrics
from regent.transport.kafka.replies import AwaitedReply
from regent.transport.kafka.request_memory import Reservation
from regent.transport.kafka.throttle import Throttle

T = TypeVar("T")


class Exchange:
    """A request in progress and, when there is one, its response.

    ``end``: how many bytes have been sent on its connection when its response has.
    """

    __slots__ = (
        "answer",
        "answered_at",
        "arrived_at",
        "begun_at",
        "correlation_id",
        "end",
        "first_waited_at",
        "header_end",
        "in_turn_at",
        "is_done",
        "later",
        "metrics",
        "reservation",
        "task",
        "throttle",
    )

    def __init__(
        self,
        request: KafkaRequest,
        reservation: Reservation | None,
        metrics: RequestMetrics,
        arrived_at: float,
        begun_at: float,
    ) -> None:
        self.metrics = metrics
        self.arrived_at = arrived_at
        self.begun_at = begun_at
        self.first_waited_at = self.answered_at = self.in_turn_at = 0.0
        self.end = 0
        self.correlation_id = request.correlation_id
        self.header_end = request.response_header_end
        self.reservation = reservation  # of the listener's memory, when it is large
        self.throttle = request.throttle
        self.task: asyncio.Task[KafkaAnswer] | None = None
        self.later: AwaitedReply[KafkaAnswer] | None = None
        self.answer: KafkaAnswer = None
        self.is_done = False

    def on_sent(self, now: float) -> None:
        """Record the times of the request: its response was sent, or there is none."""
        if not self.metrics.is_to_be_timed(now):
            return
        self.metrics.record(
            self.arrived_at,
            self.begun_at,
            self.first_waited_at or self.answered_at,
            self.answered_at,
            self.in_turn_at,
            now,
        )


class TimedSteps(Generator[Any, Any, T]):
    """The steps of a request, each of which counts for the quota of its client."""

    def __init__(self, steps: Generator[Any, Any, T], throttle: Throttle) -> None:
        self._steps = steps
        self._throttle = throttle

    def send(self, value: object) -> object:
        self._throttle.begin_step()
        try:
            return self._steps.send(value)
        finally:
            self._throttle.end_step()

    def throw(self, *error: Any) -> object:
        return self._steps.throw(*error)


class BegunSteps(Coroutine[Any, Any, T]):
    """The rest of an awaitable after its first step, which returned ``awaited``."""

    def __init__(self, steps: Generator[Any, Any, T], awaited: object) -> None:
        self._steps = steps
        self._awaited: list[object] = [awaited]

    def send(self, value: object) -> object:
        return self._awaited.pop() if self._awaited else self._steps.send(value)

    def throw(self, *error: Any) -> object:
        # A task that is cancelled before its first step does not know what it would wait for.
        while self._awaited:
            awaited = self._awaited.pop()
            if isinstance(awaited, asyncio.Future):
                awaited.cancel()
        return self._steps.throw(*error)

    def close(self) -> None:
        self._steps.close()

    def __await__(self) -> Generator[Any, Any, T]:
        raise NotImplementedError("only a task runs it")
