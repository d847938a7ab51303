"""The steps of a handler that waits, as tasks of the event loop run them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

from regent.transport.kafka.throttle import Throttle

T = TypeVar("T")


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
