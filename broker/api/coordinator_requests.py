"""Questions to a coordinator of this broker, asked on the listener's loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from regent.core.protocol.coordinator import CoordinatorRequest, CoordinatorService, Question
from regent.transport.kafka.api import KafkaAnswer
from regent.transport.kafka.replies import AwaitedReply, Replies

A = TypeVar("A")


class CoordinatorRequests:
    """Asks a coordinator of this broker; used on the listener's loop only.

    What is asked in one turn of the loop goes to the coordinator as one message: to wake its thread
    takes longer than to answer most requests.
    """

    def __init__(self, service: CoordinatorService) -> None:
        self._service = service
        self._replies = Replies()
        self._asked: list[Question[Any]] = []

    def send(self, request: CoordinatorRequest[A]) -> AwaitedReply[A]:
        """Ask, in the sequence of the calls; return the reply."""
        reply: AwaitedReply[A] = self._replies.new()
        if not self._asked:
            self._replies.loop().call_soon(self._ask)
        self._asked.append(Question(request, reply.give))
        return reply

    def answer(
        self, request: CoordinatorRequest[A], encode: Callable[[A], KafkaAnswer]
    ) -> AwaitedReply[KafkaAnswer]:
        """Ask; return the reply of a handler that only has to encode the answer: no task waits."""
        return self.send(request).mapped(encode)

    def given(self, answer: KafkaAnswer) -> AwaitedReply[KafkaAnswer]:
        """Return the reply of a handler that need not ask."""
        reply: AwaitedReply[KafkaAnswer] = self._replies.new()
        reply.give(answer)
        return reply

    async def ask(self, request: CoordinatorRequest[A]) -> A:
        """Return the answer to a request."""
        return await self.send(request)

    async def ask_all(self, requests: Iterable[CoordinatorRequest[A]]) -> list[A]:
        """Return the answers to requests that are sent together."""
        replies = [self.send(request) for request in requests]
        return [await reply for reply in replies]

    def _ask(self) -> None:
        asked, self._asked = self._asked, []
        self._service.ask(asked)
