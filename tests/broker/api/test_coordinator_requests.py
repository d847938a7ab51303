from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from regent.broker.api.coordinator_requests import CoordinatorRequests
from regent.core.errors import Errors
from regent.core.protocol.coordinator import Question
from regent.core.protocol.groups import Heartbeat
from regent.testing.waits import scaled

WAIT_S = scaled(10)


class Service:
    """Notes what it is asked together, and answers each request with NONE."""

    def __init__(self) -> None:
        self.asked: list[list[Any]] = []

    def ask(self, questions: Sequence[Question[Any]]) -> None:
        self.asked.append([question.request for question in questions])
        for question in questions:
            question.respond(Errors.NONE)


def test_what_is_asked_in_one_turn_of_the_loop_is_one_message_in_its_sequence():
    service = Service()
    beats = [Heartbeat("g", f"member-{number}", 1) for number in range(4)]

    async def main() -> None:
        requests = CoordinatorRequests(service)
        first = requests.answer(beats[0], lambda error: (error.name.encode(),))
        assert await requests.ask_all(beats[1:3]) == [Errors.NONE, Errors.NONE]
        assert await first == (b"NONE",)
        assert await requests.ask(beats[3]) is Errors.NONE

    asyncio.run(asyncio.wait_for(main(), WAIT_S))
    assert service.asked == [beats[:3], beats[3:]]
