"""Requests that take their time are carried out in the order they came in, for each partition."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from regent.core.model import TopicPartition


class Turn:
    """Of one request: it comes when all that began before it have ended."""

    def __init__(self, before: Collection[asyncio.Future[None]]) -> None:
        self._before = before

    async def come(self) -> None:
        """Wait for it."""
        if self._before:
            await asyncio.wait(self._before)


class PartitionOrder:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._last: dict[TopicPartition, asyncio.Future[None]] = {}

    def has_any(self, names: Collection[TopicPartition]) -> bool:
        """Whether a request for one of these has not ended."""
        return bool(self._last) and not self._last.keys().isdisjoint(names)

    @contextmanager
    def turn(self, names: Collection[TopicPartition]) -> Iterator[Turn]:
        """Begin now, and end when the block does, whatever happens in it."""
        partitions = tuple(names)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        before = {self._last[name] for name in partitions if name in self._last}
        self._last.update(dict.fromkeys(partitions, ended))
        try:
            yield Turn(before)
        finally:
            for name in partitions:
                if self._last.get(name) is ended:
                    del self._last[name]
            ended.set_result(None)
