"""Limits how much of one thing each client may use, and says how long it must wait.

Mirrors ``kafka.server.ClientQuotaManager``, ``ClientRequestQuotaManager`` and
``ControllerMutationQuotaManager``. Whom a quota limits together has one bucket: all connections of
a user, of a client id, or of a user with a client id. As long as there is no quota, nothing is
counted (KAFKA-5402).

One thread records. Any thread may set the quotas: the recording thread finds them at its next call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from regent.core.quota.quota_config import QuotaWindow
from regent.core.quota.quota_entities import CLIENTS, DEFAULT_NAME, USERS, sanitised
from regent.core.quota.rates import Rate, TokenBucket
from regent.core.setting import INT_MAX

MAX_CLIENTS = 10_000
"""Of how many clients the use is known. Client ids come from strangers."""

M = TypeVar("M", Rate, TokenBucket)


class QuotaClient(NamedTuple):
    """Whose quotas apply: the name of the user, and the client id, of ``MAX_NAME`` at most."""

    user: str
    client_id: str


class QuotaUse(NamedTuple):
    """How much those who share a bucket use; ``path`` is that of the entity that shares it."""

    path: str
    rate: float
    limit: float


@dataclass(slots=True, weakref_slot=True)
class _Bucket(Generic[M]):
    """What those use together whom one quota limits."""

    used: M
    limit: float


class _Buckets(Generic[M]):
    """The buckets of clients for one kind of quota."""

    def __init__(self, measure: type[M], window: QuotaWindow) -> None:
        self.limits: Mapping[str, float] = {}
        """The quotas by the paths of their entities; replaced as a whole, on any thread."""
        self._measure: type[M] = measure
        self._window = window
        self._applied: Mapping[str, float] = self.limits
        self._of_clients: OrderedDict[QuotaClient, _Bucket[M] | None] = OrderedDict()
        self._buckets: WeakValueDictionary[str, _Bucket[M]] = WeakValueDictionary()

    def of(self, client: QuotaClient) -> _Bucket[M] | None:
        """Return a client's bucket; None: no quota limits it."""
        of_clients = self._of_clients
        if self._applied is not self.limits:
            self._applied = self.limits
            for known in of_clients:  # they keep what they have used
                of_clients[known] = self._find(known)
        if client in of_clients:
            of_clients.move_to_end(client)
            return of_clients[client]
        if len(of_clients) >= MAX_CLIENTS:
            of_clients.popitem(last=False)
        bucket = of_clients[client] = self._find(client)
        return bucket

    def all(self) -> list[tuple[str, _Bucket[M]]]:
        """Return the buckets of all clients, by the entities that share them; on any thread."""
        while True:
            try:
                return list(self._buckets.items())
            except RuntimeError:  # there is a new one
                continue

    def _find(self, client: QuotaClient) -> _Bucket[M] | None:
        for path, owner in _candidates(client):
            limit = self._applied.get(path)
            if limit is not None:
                bucket = self._buckets.get(owner)
                if bucket is None:
                    bucket = self._buckets[owner] = _Bucket(self._measure(self._window), limit)
                bucket.limit = limit
                return bucket
        return None


def _candidates(client: QuotaClient) -> tuple[tuple[str, str], ...]:
    """Return the entities whose quota may apply, the first that has one; and who shares it."""
    user, client_id = sanitised(client.user), sanitised(client.client_id) or DEFAULT_NAME
    one, other = f"{USERS}/{user}", f"{USERS}/{DEFAULT_NAME}"
    named, unnamed = f"{CLIENTS}/{client_id}", f"{CLIENTS}/{DEFAULT_NAME}"
    pair = f"{one}/{named}"
    return (
        (pair, pair),
        (f"{one}/{unnamed}", pair),
        (one, one),
        (f"{other}/{named}", pair),
        (f"{other}/{unnamed}", pair),
        (other, one),
        (named, named),
        (unnamed, named),
    )


class ClientQuotaManager:
    """The quotas of bytes, or of the time of requests.

    ``max_throttle_time_ms``: a client waits no longer, and may then be throttled again.
    """

    def __init__(self, window: QuotaWindow, max_throttle_time_ms: int = INT_MAX) -> None:
        self._burst_s = (window.samples - 1) * window.sample_ms / 1_000
        self._max_throttle_time_ms = max_throttle_time_ms
        self._buckets: _Buckets[Rate] = _Buckets(Rate, window)

    def set_limits(self, limits: Mapping[str, float]) -> None:
        """Set the quotas, an amount a second, by the paths of their entities."""
        self._buckets.limits = limits

    def record(self, client: QuotaClient, amount: float, now_ms: int) -> int:
        """Count what a client uses; return how long it must wait, in milliseconds."""
        bucket = self._buckets.of(client)
        if bucket is None:
            return 0
        bucket.used.record(amount, now_ms)
        throttle_time_ms = bucket.used.throttle_time_ms(bucket.limit, now_ms)
        return min(throttle_time_ms, self._max_throttle_time_ms)

    def uses(self, now_ms: int) -> list[QuotaUse]:
        """Return how much each bucket is used, an amount a second; on any thread."""
        return [
            QuotaUse(path, bucket.used.a_second(now_ms), bucket.limit)
            for path, bucket in self._buckets.all()
        ]

    def max_amount(self, client: QuotaClient) -> int:
        """Return the greatest amount that a client with an unused quota may use without a wait."""
        bucket = self._buckets.of(client)
        return INT_MAX if bucket is None else min(int(bucket.limit * self._burst_s), INT_MAX)


class ControllerMutationQuotaManager:
    """The quotas of partitions that are created and deleted (KIP-599)."""

    def __init__(self, window: QuotaWindow) -> None:
        self._buckets: _Buckets[TokenBucket] = _Buckets(TokenBucket, window)

    def set_limits(self, limits: Mapping[str, float]) -> None:
        """Set the quotas, partitions a second, by the paths of their entities."""
        self._buckets.limits = limits

    def record(
        self, client: QuotaClient, permits: int, now_ms: int, *, is_strict: bool
    ) -> tuple[bool, int]:
        """Take permits; return whether the client got them, and how long it must wait.

        With ``is_strict`` it gets none while there are fewer than none. It may get more than there
        are: otherwise a topic of many partitions could never be created.
        """
        bucket = self._buckets.of(client)
        if bucket is None:
            return True, 0
        wait_ms = bucket.used.throttle_time_ms(bucket.limit, now_ms)
        if is_strict and wait_ms:
            return False, wait_ms
        bucket.used.record(permits, bucket.limit, now_ms)
        if is_strict:
            return True, 0
        return True, bucket.used.throttle_time_ms(bucket.limit, now_ms)
