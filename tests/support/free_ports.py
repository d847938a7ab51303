"""Ports for programs that must be told theirs before they start."""

from __future__ import annotations

import os
import random
import socket
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, Final

from regent.cluster.embedded_zookeeper import ANY_PORTS
from regent.config.settings import Settings
from regent.config.tables.broker import BrokerConfig

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


_PORTS: Final = ("port", "control_port", "replication_port", "metrics_port")

ANY_PORTS_OF_A_BROKER: Final = tuple(
    word for name in _PORTS for word in (f"--{name.replace('_', '-')}", "0")
)
"""Options of ``regent broker``: it takes free ports."""


def on_free_ports(settings: Settings) -> Settings:
    """Return the settings with free ports in the place of the fixed ones that are the defaults."""
    broker = settings.broker
    fixed = [name for name in _PORTS if getattr(broker, name) == getattr(BrokerConfig, name)]
    free: dict[str, Any] = dict.fromkeys(fixed, 0)
    return replace(settings, broker=replace(broker, **free))
