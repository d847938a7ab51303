"""Counts file descriptors and decides whether one more connection is accepted.

Without a free descriptor the broker can neither open files of its logs nor accept connections. So
some descriptors are reserved for files.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

UNLIMITED: Final = 2**31 - 1
RESERVED_DESCRIPTORS: Final = 128
"""The number of descriptors reserved for files and for other brokers."""
_FEW_CONNECTIONS: Final = 16  # may use reserved descriptors, so that an operator can connect
_MEASURE_INTERVAL_S: Final = 1.0
_MEASURE_SHARE: Final = 0.01  # the largest share of time that counting descriptors takes


class Descriptors:
    """The file descriptors of this process, counted periodically."""

    def __init__(
        self,
        count: Callable[[], int] | None = None,
        limit: Callable[[], int] | None = None,
    ) -> None:
        self._count = count or _open_descriptors
        self._limit = limit or _descriptor_limit
        self._connections: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self._of_others = 0
        self._measure_at = 0.0

    def shortage(
        self,
        acceptor: object,
        connections: int,
        reserved: int = RESERVED_DESCRIPTORS,
        share: float = 1.0,
    ) -> str | None:
        """Return why ``acceptor`` may not have one more connection, or None if it may.

        It may use ``share`` of all descriptors, and must leave ``reserved`` free.
        """
        self._connections[acceptor] = connections
        of_all = sum(self._connections.copy().values())
        now = time.monotonic()
        if now >= self._measure_at:
            try:
                self._of_others = self._count() - of_all
            except OSError:  # counting needs a descriptor, and none was left
                self._of_others = self._limit() - of_all
            took = time.monotonic() - now
            self._measure_at = now + max(_MEASURE_INTERVAL_S, took / _MEASURE_SHARE)
        limit = self._limit()
        left = limit - self._of_others - of_all
        if connections < _FEW_CONNECTIONS:
            is_short = left <= _FEW_CONNECTIONS
        else:
            is_short = left <= reserved or connections >= limit * share
        if not is_short:
            return None
        if left > reserved:
            return (
                f"{connections} of {limit} file descriptors are in use by connections to this port:"
                " raise the limit (ulimit -n)"
            )
        return (
            f"{left} of {limit} file descriptors are left, {self._of_others} are in use by logs"
            " and other brokers: raise the limit (ulimit -n)"
        )


def _descriptor_limit() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if limit == resource.RLIM_INFINITY else limit


def _open_descriptors() -> int:
    return len(os.listdir("/dev/fd")) - 1  # the one it is read with


OF_THIS_PROCESS: Final = Descriptors()
"""The descriptors of this process, which all listeners share."""
