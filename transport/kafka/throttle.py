"""How long the client of a request must wait, because it uses more than its quotas allow.

The response is sent at once and says how long. The connection is not read for that time, for
clients that do not wait by themselves (KIP-219). Several quotas may apply: the longest time counts.
Mirrors ``kafka.server.ThrottledChannel`` and ``RequestHandlerHelper``.
"""

from __future__ import annotations

import time
from typing import Final

from regent.core.quota.client_quota_manager import QuotaClient
from regent.core.quota.quota_managers import QuotaManagers

_clock: Final = time.monotonic  # also the loop's
_PERCENT: Final = 100.0  # of a second of the listener's thread


class Throttle:
    """The quotas and one request; used on the listener's thread.

    The time that a request takes counts for the requests after it: it is known when the request is
    answered. It is the time on the listener's thread.
    """

    __slots__ = (
        "_begun_at",
        "_is_exempt",
        "_quotas",
        "_size",
        "_used_s",
        "client",
        "time_ms",
        "until",
    )

    def __init__(self, quotas: QuotaManagers, client: QuotaClient, size: int) -> None:
        """``size``: the bytes of the request."""
        self.client = client
        self.time_ms = 0
        """How long the client must wait; in the response."""
        self.until = 0.0
        """When its next request may be read, by the loop's clock."""
        self._quotas = quotas
        self._size = size
        self._used_s = 0.0
        self._is_exempt = False
        self._begun_at = _clock()
        self.wait(quotas.request.record(client, 0.0, _now_ms(self._begun_at)))

    def exempt(self) -> None:
        """Let the client not wait, and do not count the time of its request."""
        self._is_exempt = True
        self.time_ms, self.until = 0, 0.0

    def wait(self, time_ms: int) -> None:
        """Make the client wait for this time at least, unless the request is exempt."""
        if time_ms > self.time_ms and not self._is_exempt:
            self.time_ms = time_ms
            self.until = _clock() + time_ms / 1_000

    def on_produce(self) -> None:
        """Count the bytes of a request with records."""
        self.wait(self._quotas.produce.record(self.client, self._size, _now_ms(_clock())))

    @property
    def max_fetch_bytes(self) -> int:
        """How many bytes a fetch may read; one batch may be larger."""
        return self._quotas.fetch.max_amount(self.client)

    def may_fetch(self, size: int) -> bool:
        """Count the bytes of records that were read; return whether to send them.

        If the client must wait, they are neither counted nor sent: it asks for them again. A batch
        that is larger than ``max_fetch_bytes`` is sent to a client that need not wait yet:
        otherwise it never was (in Kafka it is not).
        """
        quota, now_ms = self._quotas.fetch, _now_ms(_clock())
        self.wait(quota.record(self.client, 0, now_ms))
        if self.time_ms:
            return False
        throttle_time_ms = quota.record(self.client, size, now_ms)
        self.wait(throttle_time_ms)
        if throttle_time_ms and size <= self.max_fetch_bytes:
            quota.record(self.client, -size, now_ms)
            return False
        return True

    def begin_step(self) -> None:
        """Note that the listener's thread continues the request."""
        self._begun_at = _clock()

    def end_step(self) -> None:
        """Note that the request waits, or is done."""
        self._used_s += _clock() - self._begun_at

    def end(self) -> None:
        """Count the time of the request."""
        if self._is_exempt:
            return
        self._quotas.request.record(self.client, self._used_s * _PERCENT, _now_ms(_clock()))


def _now_ms(now: float) -> int:
    return int(now * 1_000)
