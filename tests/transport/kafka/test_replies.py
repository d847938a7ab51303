from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from regent.core.replication.delayed_operation import Answer, DelayedOperation
from regent.testing.waits import scaled
from regent.transport.kafka.replies import AwaitedReply, Replies

WAIT_S = scaled(10)


class Operation(DelayedOperation):
    """An operation that only a test answers."""

    kind = "Fetch"

    def on_changes(self, names: object) -> bool:
        return False

    def answer(self) -> Answer:
        raise AssertionError("not called")


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts how often other threads wake it, and keeps its timers."""

    def __init__(self) -> None:
        super().__init__()
        self.wakes = 0
        self.timers: list[asyncio.TimerHandle] = []

    def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> asyncio.Handle:  # type: ignore[override]
        self.wakes += 1
        return super().call_soon_threadsafe(*args, **kwargs)

    def call_later(self, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:  # type: ignore[override]
        self.timers.append(super().call_later(*args, **kwargs))
        return self.timers[-1]


def run(main: Callable[[CountingLoop], Coroutine[Any, Any, None]]) -> None:
    loop = CountingLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main(loop))


def in_thread(call: Callable[[], None]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(WAIT_S)


def test_an_answer_given_at_once_needs_no_wait():
    async def main(loop: CountingLoop) -> None:
        reply = Replies().new()
        reply.give(5)
        assert await reply == 5

    run(main)


def test_an_answer_of_another_thread_wakes_the_waiting_task():
    async def main(loop: CountingLoop) -> None:
        reply = Replies().new()
        thread = threading.Thread(target=reply.give, args=(5,))
        loop.call_soon(thread.start)
        assert await reply == 5
        thread.join(WAIT_S)

    run(main)


def test_an_answer_is_converted_on_the_thread_of_the_loop_and_its_error_is_raised_there():
    async def main(loop: CountingLoop) -> None:
        number = Replies().new()
        doubled = number.mapped(lambda value: (2 * value, threading.get_ident()))
        failed = doubled.mapped(lambda _: 1 // 0)
        thread = threading.Thread(target=number.give, args=(5,))
        loop.call_soon(thread.start)
        with pytest.raises(ZeroDivisionError):
            await failed
        assert doubled.outcome() == (10, threading.get_ident())
        thread.join(WAIT_S)

    run(main)


def test_many_answers_wake_the_loop_once():
    async def main(loop: CountingLoop) -> None:
        replies = Replies()
        burst: list[AwaitedReply[int]] = [replies.new() for _ in range(1000)]

        def answer() -> None:
            for number, reply in enumerate(burst):
                reply.give(number)

        in_thread(answer)
        assert [await reply for reply in burst] == list(range(1000))
        assert loop.wakes == 1

    run(main)


def test_answers_of_many_threads_all_arrive():
    async def main(loop: CountingLoop) -> None:
        replies = Replies()
        waiting = [replies.new() for _ in range(2000)]

        def answer(start: int) -> None:
            for number in range(start, 2000, 4):
                waiting[number].give(number)

        threads = [threading.Thread(target=answer, args=(start,)) for start in range(4)]
        for thread in threads:
            thread.start()
        assert [await reply for reply in waiting] == list(range(2000))
        for thread in threads:
            thread.join(WAIT_S)

    run(main)


def test_an_operation_expires_after_its_timeout():
    async def main(loop: CountingLoop) -> None:
        reply: AwaitedReply[str] = Replies().new()
        operation = Operation([])
        expired: list[DelayedOperation] = []

        def expire(operation: DelayedOperation, now_ms: int) -> None:
            expired.append(operation)
            reply.give("the present result")

        assert await reply.wait_for(operation, 1, expire) == "the present result"
        assert expired == [operation]

    run(main)


def test_an_answered_operation_does_not_expire():
    async def main(loop: CountingLoop) -> None:
        reply: AwaitedReply[str] = Replies().new()
        expired: list[DelayedOperation] = []
        loop.call_soon(reply.give, "in time")

        def expire(operation: DelayedOperation, now_ms: int) -> None:
            expired.append(operation)

        assert await reply.wait_for(Operation([]), 60_000, expire) == "in time"
        assert expired == []
        assert [timer.cancelled() for timer in loop.timers] == [True]

    run(main)


def test_an_operation_whose_task_is_cancelled_is_expired():
    async def main(loop: CountingLoop) -> None:
        reply: AwaitedReply[str] = Replies().new()
        operation = Operation([])
        expired: list[DelayedOperation] = []

        def expire(operation: DelayedOperation, now_ms: int) -> None:
            expired.append(operation)
            reply.give("too late")

        task = asyncio.create_task(reply.wait_for(operation, 60_000, expire))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert expired == [operation]

    run(main)


def test_an_answer_after_the_end_of_the_loop_is_ignored():
    kept: list[AwaitedReply[int]] = []

    async def main(loop: CountingLoop) -> None:
        kept.append(Replies().new())

    run(main)
    in_thread(lambda: kept[0].give(5))
