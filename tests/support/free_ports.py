"""Ports for programs that must be told theirs before they start."""

from __future__ import annotations

import os
import random
import socket
from contextlib import ExitStack, suppress
from typing import Final

from regent.cluster.embedded_zookeeper import ANY_PORTS

_FOR_TESTS: Final = range(10_000, ANY_PORTS.start)


def ports_of_this_worker() -> range:
    """Return the ports that only this worker of pytest-xdist gives away."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    size = len(_FOR_TESTS) // workers
    return _FOR_TESTS[number * size : (number + 1) * size]


def free_ports(count: int) -> list[int]:
    """Return different ports of loopback on which nothing listens at this moment.

    They are not among those that Linux gives to who asks for any port, nor among those that an
    embedded ZooKeeper or another worker chooses: nobody gets one before the program has started.
    """
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < count:
            port = random.SystemRandom().choice(ports_of_this_worker())
            with suppress(OSError):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
                found.append(port)
    return found
