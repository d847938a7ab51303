"""A reference to an actor of another process, with the methods of a local one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self, TypeVar

from regent.config.addresses import without_key
from regent.transport.control.client import RequestClient, RequestError, RequestTimeoutError
from regent.transport.control.codec import Request, Response
from regent.transport.control.key_files import keys_of_command
from regent.transport.control.sockets import Context, new_context

logger = logging.getLogger(__name__)

_CONNECT_TIMEOUT_MS: Final = 1000
_CLOSE_TIMEOUT_S: Final = 5.0  # an ask in progress ends within a fraction of a second

T = TypeVar("T")


class RemoteActorRef:
    """``ask`` and ``tell`` with the shape of Pykka's ``ActorRef``, to the actor at ``endpoint``.

    Connects at the first use. Any thread may use it, one at a time: other threads wait during an
    ask, so threads that must not wait need references of their own. Messages of one thread arrive
    in their sequence.
    """

    def __init__(self, context: Context, endpoint: str, *, client_id: str) -> None:
        self.endpoint = without_key(endpoint)
        self._client = RequestClient(
            context, endpoint, client_id=client_id, connect_timeout_ms=_CONNECT_TIMEOUT_MS
        )
        self._turn = threading.Lock()
        self._closing = threading.Event()

    def ask(self, message: Request, *, timeout: float) -> Response:
        """Return the answer to ``message``; ``timeout`` is in seconds, as Pykka's.

        Raises a RequestError. The message may have been carried out nevertheless, except after
        a PeerUnreachableError.
        """
        deadline = time.monotonic() + timeout
        if not self._turn.acquire(timeout=timeout):
            raise RequestTimeoutError(self.endpoint, "other threads are using the connection")
        try:
            timeout_ms = max(0, round((deadline - time.monotonic()) * 1000))
            return self._client.request(message, timeout_ms=timeout_ms, closing=self._closing)
        finally:
            self._turn.release()

    def tell(self, message: Request) -> None:
        """Send ``message`` without waiting for an answer. It arrives at most once.

        Waits at most a second for other threads and a second for a connection. Then it logs a
        warning and drops the message.
        """
        if not self._turn.acquire(timeout=_CONNECT_TIMEOUT_MS / 1000):
            logger.warning("Dropping %s: %s is busy", type(message).__name__, self.endpoint)
            return
        try:
            self._client.send(message, closing=self._closing)
        except RequestError as error:
            logger.warning("Dropping %s: %s", type(message).__name__, error)
        finally:
            self._turn.release()

    def close(self) -> None:
        """Abandon the ask in progress and disconnect. The reference cannot be used afterwards."""
        self._closing.set()
        if self._turn.acquire(timeout=_CLOSE_TIMEOUT_S):
            try:
                self._client.close()
            finally:
                self._turn.release()
        else:
            logger.error("The reference to %s stays open: an ask does not end", self.endpoint)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


@contextmanager
def actor_at(endpoint: str, *, client_id: str) -> Iterator[RemoteActorRef]:
    """Return a reference to the actor at a control endpoint, for a ``with`` block.

    It has the key of this command; raises ``KeyFileError``.
    """
    context = new_context(keys_of_command())
    try:
        with RemoteActorRef(context, endpoint, client_id=client_id) as actor:
            yield actor
    finally:
        context.destroy(linger=0)


def ask(actor: RemoteActorRef, message: Request, answer: type[T], *, timeout_s: float) -> T:
    """Return the answer to ``message``; raises a ``RequestError``."""
    response = actor.ask(message, timeout=timeout_s)
    assert isinstance(response, answer)
    return response
