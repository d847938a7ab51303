"""The interface of a connection to one peer, as actors use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from regent.config.closing import Closing

R_contra = TypeVar("R_contra", contravariant=True)
A_co = TypeVar("A_co", covariant=True)


class RequestChannel(Protocol[R_contra, A_co]):
    """Sends one request at a time to one peer; see ``transport.client.RequestClient``."""

    def request(self, body: R_contra, *, timeout_ms: int, closing: Closing | None = None) -> A_co:
        """Send and wait for the answer; raises ``RequestError``, soon after ``closing`` is set."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class ChannelToCurrent(Generic[R_contra, A_co]):
    """One connection to the current receiver, for example the active controller.

    ``open_channel`` connects to an endpoint, on the thread that uses it.
    """

    def __init__(self, open_channel: Callable[[str], RequestChannel[R_contra, A_co]]) -> None:
        self._open_channel = open_channel
        self._current: tuple[str, RequestChannel[R_contra, A_co]] | None = None

    def to(self, endpoint: str) -> RequestChannel[R_contra, A_co]:
        """Return a connection to ``endpoint``; close one to another endpoint."""
        if self._current is None or self._current[0] != endpoint:
            self.close()
            self._current = (endpoint, self._open_channel(endpoint))
        return self._current[1]

    def close(self) -> None:
        """Close the connection, if there is one."""
        current, self._current = self._current, None
        if current is not None:
            current[1].close()
