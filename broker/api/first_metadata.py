"""Waits for the first complete list of partitions, which a broker gets soon after its start.

Most requests that need it are refused with an error after which clients ask again. Metadata and
DescribeCluster, the first requests of every client, have no such error for all of their answers.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Final

from regent.core.replication.metadata_cache import MetadataCache

PATIENCE_S: Final = 1.0
"""How long a request waits: a broker answers clients when it has the list, or after five seconds
without. So there is no controller at the moment, and another broker may know more."""


class FirstMetadata:
    """Used on the event loop's thread."""

    def __init__(self, cache: MetadataCache) -> None:
        self._cache = cache
        self._arrival: asyncio.Event | None = None

    async def arrived(self) -> bool:
        """Whether the list has arrived; waits for it."""
        if self._cache.snapshot.is_complete:
            return True
        if self._arrival is None:
            self._arrival = asyncio.Event()
            self._cache.when_complete(partial(_tell, asyncio.get_running_loop(), self._arrival))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._arrival.wait(), PATIENCE_S)
        return self._cache.snapshot.is_complete


def _tell(loop: asyncio.AbstractEventLoop, arrival: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(arrival.set)
