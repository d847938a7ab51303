"""A connection to one peer, as the actors that ask over it see it."""

from __future__ import annotations

import threading
from typing import Protocol, TypeVar

from transport.codec import Response

R_contra = TypeVar("R_contra", contravariant=True)


class RequestChannel(Protocol[R_contra]):
    """Asks one peer, one request at a time; ``transport.client.RequestClient``."""

    def request(
        self, body: R_contra, *, timeout_ms: int, closing: threading.Event | None = None
    ) -> Response:
        """Send and wait for the answer; raises ``RequestError``, soon after ``closing`` is set."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...
