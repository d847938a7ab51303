"""Fetch for followers, from version 12 on: sessions, epochs, and waits for records.

A waiting fetch is answered by the call that completes it, an append for instance, and no task runs
for it. When a wait is over, the others that have lasted for more than half of their time end with
it. So idle followers, each of which asks again at once, wake the event loop together.

Mirrors the part of ``kafka.server.KafkaApis.handleFetchRequest`` for followers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, Protocol, TypeVar

from regent.broker.api.topic_names import TopicNamesById
from regent.core.protocol.broker import FetchRequest, FetchResponse
from regent.core.replication.all_partitions import AllPartitions
from regent.core.replication.delayed_operation import DelayedOperation
from regent.transport.kafka.api import KafkaAnswer, KafkaRequest
from regent.transport.kafka.follower_fetch import (
    FollowerFetch,
    decode_request,
    encode_response,
    with_unknown,
)
from regent.transport.kafka.replies import AwaitedReply, Replies, monotonic_ms

T = TypeVar("T")

MAX_WAIT_MS: Final = 3_000
"""The longest wait of a fetch, even if the follower asks for more."""
_SHORTEST_WAIT: Final = 0.5  # the part of a wait after which it may end together with others


class FollowerSource(Protocol):
    """Reads records for followers; ``ReplicaManager`` implements it."""

    def fetch(
        self, request: FetchRequest, now_ms: int, respond: Callable[[FetchResponse], None]
    ) -> DelayedOperation | None:
        """Note the follower's positions, and respond when there are records or the wait is over."""
        ...

    def expire(self, operation: DelayedOperation, now_ms: int, *, is_early: bool = False) -> None:
        """Make an operation respond now; ``is_early``: its wait is not over."""
        ...

    def exclusively(self, act: Callable[[AllPartitions], T]) -> T:
        """Run ``act`` with the hosted replicas."""
        ...


class FollowerFetchHandler:
    """Answers the fetches of followers; ``on_fetched`` is called after each of them."""

    def __init__(
        self, source: FollowerSource, names: TopicNamesById, on_fetched: Callable[[], None]
    ) -> None:
        self._source = source
        self._names = names
        self._on_fetched = on_fetched
        self._replies = Replies()
        self._waiting: dict[_FetchAnswer, None] = {}

    def answer(self, request: KafkaRequest, fetch: FollowerFetch) -> AwaitedReply[KafkaAnswer]:
        """Answer at once or later; on the event loop."""
        answer = _FetchAnswer(request, fetch, self._replies, self._waiting)
        longest_ms = 0 if fetch.unknown else MAX_WAIT_MS
        asked = fetch.request
        if asked.max_wait_ms > longest_ms:
            asked = replace(asked, max_wait_ms=longest_ms)
        operation = self._source.fetch(asked, monotonic_ms(), answer.respond)
        if operation is not None:
            answer.wait(asked.max_wait_ms, partial(self._expire, operation))
        self._on_fetched()
        return answer

    def decode(self, request: KafkaRequest) -> FollowerFetch:
        """Return the fetch in a request; raises ``MalformedRequestError``."""
        names = self._names.current()
        fetch = decode_request(request, names)
        if fetch.unknown or any(t.topic_name is None for t in fetch.request.forgotten_topics):
            hosted = self._source.exclusively(lambda partitions: partitions.topics_by_id())
            return decode_request(request, {**hosted, **names})
        return fetch

    def _expire(self, operation: DelayedOperation, is_early: bool) -> None:
        self._source.expire(operation, monotonic_ms(), is_early=is_early)


class _FetchAnswer(AwaitedReply[KafkaAnswer]):
    """The answer to one fetch."""

    __slots__ = (
        "_end_wait",
        "_fetch",
        "_loop",
        "_may_end_at",
        "_request",
        "_timer",
        "_waiting",
    )

    def __init__(
        self,
        request: KafkaRequest,
        fetch: FollowerFetch,
        replies: Replies,
        waiting: dict[_FetchAnswer, None],
    ) -> None:
        super().__init__(replies)
        self._request = request
        self._fetch = fetch
        self._loop = replies.loop()
        self._waiting = waiting
        self._may_end_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._end_wait: Callable[[bool], None] | None = None  # gets whether it is early

    def respond(self, response: FetchResponse) -> None:
        """Answer; on any thread."""
        self._replies.run(lambda: self._give(response))

    def wait(self, wait_ms: int, end_wait: Callable[[bool], None]) -> None:
        """Call ``end_wait`` after ``wait_ms``, or early, unless the answer is given by then."""
        if not self.is_given:
            self._end_wait = end_wait
            self._timer = self._loop.call_later(wait_ms / 1000, self._end_waits)
            self._may_end_at = self._timer.when() - wait_ms / 1000 * (1 - _SHORTEST_WAIT)
            self._waiting[self] = None

    def hurry(self) -> None:
        """Let the operation respond now."""
        self._end(is_early=True)

    def abandon(self) -> None:
        """Let the operation respond now: it may have been woken already."""
        self._end(is_early=True)

    def _end(self, *, is_early: bool) -> None:
        if self._end_wait is not None:
            self._end_wait(is_early)

    def _end_waits(self) -> None:
        """End this wait, which is over, and others with it."""
        now = self._loop.time()
        for other in [other for other in self._waiting if other._may_end_at <= now]:
            other._end(is_early=False)

    def _give(self, response: FetchResponse) -> None:
        self._waiting.pop(self, None)
        # Otherwise timer, operation and answer would form a cycle until garbage is collected.
        timer, self._timer, self._end_wait = self._timer, None, None
        if timer is not None:
            timer.cancel()
        if self._fetch.unknown:
            response = with_unknown(response, self._fetch.unknown)
        self._take(encode_response(self._request, response))
