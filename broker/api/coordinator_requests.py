"""Questions to a coordinator of this broker, asked on the listener's loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from regent.core.protocol.coordinator import CoordinatorRequest, CoordinatorService
from regent.transport.kafka.replies import AwaitedReply, Replies

A = TypeVar("A")


class CoordinatorRequests:
    """Asks a coordinator of this broker; used on the listener's loop only."""

    def __init__(self, service: CoordinatorService) -> None:
        self._service = service
        self._replies = Replies()

    async def ask(self, request: CoordinatorRequest[A]) -> A:
        """Return the answer to a request."""
        (given,) = await self.ask_all([request])
        return given

    async def ask_all(self, requests: Iterable[CoordinatorRequest[A]]) -> list[A]:
        """Return the answers to requests that are sent together."""
        replies: list[AwaitedReply[A]] = []
        for request in requests:
            reply: AwaitedReply[A] = self._replies.new()
            self._service.ask(request, reply.give)
            replies.append(reply)
        return [await reply for reply in replies]
