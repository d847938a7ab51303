"""The event loop that listeners share, on a thread of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from regent.config.threads import NamedThread
from regent.transport.kafka.connection_scheduler import ConnectionScheduler
from regent.transport.kafka.idle_time import IdleTimeSelector
from regent.transport.kafka.request_buffers import RequestBuffers

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S: Final = 5.0
OnLoopError = Callable[[str, BaseException | None], None]


class ListenerLoop:
    """Runs from its creation until ``close``.

    All connections of all its listeners share its time.
    """

    def __init__(self, name: str = "kafka-listener") -> None:
        self.name = name
        selector = IdleTimeSelector()
        self.idle_s = selector.idle_s
        self.loop = asyncio.SelectorEventLoop(selector)
        self.scheduler = ConnectionScheduler(self.loop)
        self.buffers = RequestBuffers()
        self._on_error: OnLoopError | None = None
        self.loop.set_exception_handler(self._handle_error)
        self._thread = NamedThread(self._run, name)
        self._thread.start()

    def call(self, function: Callable[..., object], *args: object) -> bool:
        """Call a function on the loop's thread, soon; return whether the loop still runs."""
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def on_error(self, count: OnLoopError) -> None:
        """Report errors outside of connections to ``count`` from now on."""
        self._on_error = count

    def close(self) -> None:
        """Stop the loop; what still runs on it is given up. Idempotent."""
        self.call(self.loop.stop)
        self._thread.join(STOP_TIMEOUT_S)
        if self._thread.is_alive():
            logger.error("%s does not stop: a handler blocks", self.name)

    def _handle_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if self._on_error is not None:
            self._on_error(context["message"], context.get("exception"))
        else:
            logger.error("%s: %s", self.name, context["message"], exc_info=context.get("exception"))

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            given_up = asyncio.all_tasks(self.loop)
            if given_up:
                with suppress(RuntimeError):
                    waiting = asyncio.wait(given_up, timeout=STOP_TIMEOUT_S)
                    self.loop.run_until_complete(waiting)
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()
