"""The producer ids of a transaction coordinator, from blocks that belong to this broker alone.

A block is taken before the one before it is used up, on a thread of its own: a coordinator never
waits for an id. Mirrors ``kafka.coordinator.transaction.ProducerIdManager``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from regent.actors.scheduler import monotonic_ms
from regent.config.threads import named_executor
from regent.core.errors import Errors, RegentError
from regent.core.repeated_lines import RepeatedLines

log = logging.getLogger(__name__)

_PREFETCH_BELOW: Final = 100
"""How many ids may be left when the next block is taken: a tenth of a block."""


class ProducerIdManager:
    """Used on the coordinator's thread.

    ``take_block`` reserves ids, or raises ``RegentError``. ``on_taken`` is called on another
    thread: it passes the block, or None, to ``add`` on the coordinator's thread.
    """

    def __init__(
        self, take_block: Callable[[], range], on_taken: Callable[[range | None], None]
    ) -> None:
        self._take_block = take_block
        self._on_taken = on_taken
        self._ids: deque[int] = deque()
        self._is_taking = False
        self._lines = RepeatedLines()  # of the executor's thread
        self._executor = named_executor(1, "producer-ids")

    def next_id(self) -> int | Errors:
        """Return an id that no producer had before; COORDINATOR_LOAD_IN_PROGRESS: not yet."""
        producer_id = self._ids.popleft() if self._ids else None
        self.prefetch()
        return Errors.COORDINATOR_LOAD_IN_PROGRESS if producer_id is None else producer_id

    def prefetch(self) -> None:
        """Begin to take a block, if few ids are left."""
        if len(self._ids) < _PREFETCH_BELOW and not self._is_taking:
            self._executor.submit(self._take)
            self._is_taking = True  # not before: perhaps no thread can be started

    def add(self, block: range | None) -> None:
        """Add a block; None: it could not be taken, and is taken when the next id is wanted."""
        self._is_taking = False
        self._ids.extend(block or ())

    def stop(self) -> None:
        """Take no more blocks."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _take(self) -> None:
        block = None
        try:
            block = self._take_block()
        except RegentError as error:
            if self._lines.is_due(type(error).__name__, monotonic_ms()):
                log.warning("no producer ids for transactional producers: %s", error)
        finally:
            self._on_taken(block)
