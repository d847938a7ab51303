"""Ports for programs that must be told theirs before they start."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress
from typing import Final

_BELOW_EPHEMERAL: Final = range(10_000, 32_768)


def free_ports(count: int) -> list[int]:
    """Return different ports of loopback on which nothing listens at this moment.

    They are not among those that Linux gives to who asks for any port, so that nobody gets one of
    them before the program has started.
    """
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < count:
            port = random.SystemRandom().choice(_BELOW_EPHEMERAL)
            with suppress(OSError):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
                found.append(port)
    return found
