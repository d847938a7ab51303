"""The counters of a listener and of each kind of request.

Failures are logged at most once in ten seconds.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from regent.core.timers import Durations
from regent.transport.kafka.api import KafkaApiKey
from regent.transport.kafka.api_versions import UNKNOWN_SOFTWARE, ClientSoftware

if TYPE_CHECKING:
    from regent.transport.kafka.tls import ServerTls

logger = logging.getLogger(__name__)

_LOG_INTERVAL_S: Final = 10.0
_WARNING_S: Final = 60.0
_MAX_SOFTWARE: Final = 200  # kinds of clients that are counted one by one
MAX_VERSIONS: Final = 32  # more than any API has
_TIMED: Final = 16
_TIMED_AFTER_S: Final = 0.005
NO_ERROR: Final = "NONE"


class RequestMetrics:
    """The counters of one kind of request since the start, and how long the parts of it took.

    One thread writes, any thread reads. Mirrors ``kafka.network.RequestMetrics``.

    The parts of a request's time follow each other: it waits to be handled, it is handled until it
    is answered or first waits, it waits (for other brokers, for records), its response waits for
    the responses to earlier requests, and its response is sent. To record this takes as long as a
    twentieth of a small request. So of requests that follow each other within 5 ms one in 16 is
    timed.
    """

    __slots__ = (
        "_due_at",
        "_untimed",
        "errors",
        "local_time",
        "remote_time",
        "request_queue_time",
        "response_queue_time",
        "response_send_time",
        "total_time",
        "versions",
    )

    def __init__(self) -> None:
        self._untimed = 0
        self._due_at = 0.0
        self.versions = [0] * MAX_VERSIONS
        """How many requests there were of each version."""
        self.errors: Counter[str] = Counter()
        """How many responses had each error, by Kafka's names; ``NONE``: no error."""
        self.request_queue_time = Durations()
        self.local_time = Durations()
        self.remote_time = Durations()
        self.response_queue_time = Durations()
        self.response_send_time = Durations()
        self.total_time = Durations()

    @property
    def count(self) -> int:
        """How many requests there were."""
        return sum(self.versions)

    def is_to_be_timed(self, now: float) -> bool:
        """Whether to call ``record`` with the times of a request that has ended ``now``."""
        self._untimed += 1
        if self._untimed < _TIMED and now < self._due_at:
            return False
        self._untimed = 0
        self._due_at = now + _TIMED_AFTER_S
        return True

    def record(
        self,
        arrived: float,
        begun: float,
        first_waited: float,
        answered: float,
        in_turn: float,
        sent: float,
    ) -> None:
        """Record the times of a request; these are instants of one clock, in seconds."""
        self.request_queue_time.record((begun - arrived) * 1000)
        self.local_time.record((first_waited - begun) * 1000)
        self.remote_time.record((answered - first_waited) * 1000)
        self.response_queue_time.record((in_turn - answered) * 1000)
        self.response_send_time.record((sent - in_turn) * 1000)
        self.total_time.record((sent - arrived) * 1000)


class Closed(StrEnum):
    """Why the broker closed a connection."""

    MALFORMED = "malformed request"
    UNSUPPORTED = "unsupported request"
    FAILED = "request failed unexpectedly"
    UNANSWERED = "failed request without an answer"
    UNREADABLE = "records cannot be read"
    IDLE = "idle"
    SLOW = "request arrived slowly while others waited for its memory"
    TOO_MANY_OF_ADDRESS = "too many connections of one address"
    RATE_OF_ADDRESS = "too many new connections of one address"
    NO_DESCRIPTORS = "too few file descriptors"
    FAILED_AUTHENTICATION = "failed authentication"
    NOT_LOGGED_IN = "request before a login"
    LOGIN_SLOW = "login took too long"
    LOGIN_EXPIRED = "login expired"
    TOO_MANY_LOGINS = "too many connections of one address without a login"
    TOO_MANY_UNAUTHENTICATED = "too many connections without a login"


_EXPECTED: Final = {Closed.IDLE, Closed.UNANSWERED}


@dataclass(slots=True)
class _Warning:
    """A reason that keeps clients out, its last time, and the time of its next log line."""

    text: str = ""
    seen_at: float = 0.0
    log_at: float = 0.0


@dataclass
class ListenerMetrics:
    """Counters since the start, written by the listener's thread; any thread may read them.

    Readers must copy ``software``, which grows.

    ``requests`` has the metrics of each API at the index of its key.
    ``throttled`` counts how often a connection was not read from for a while, because it had too
    many requests under way, all requests together took too much memory, or its client used more
    than its quota; ``accept_pauses`` how often no connection was accepted for a while because there
    were ``max_connections``.
    """

    connections: int = 0  # open now
    accepted: int = 0
    disconnected: int = 0
    unread: int = 0  # connections whose client does not read its responses now
    software: Counter[ClientSoftware] = field(default_factory=Counter)  # of open connections
    requests: list[RequestMetrics] = field(
        default_factory=lambda: [RequestMetrics() for _ in range(max(KafkaApiKey) + 1)]
    )
    queue_size: Callable[[], int] = lambda: 0
    """Returns how many connections have requests that wait to be handled."""
    idle_s: Callable[[], float] = lambda: 0.0
    """Returns how long the listener's thread has had nothing to do since the start."""
    accept_paused_s: float = 0.0  # since the start
    successful_authentications: int = 0  # first logins of connections; with SSL: handshakes
    failed_authentications: int = 0
    successful_reauthentications: int = 0  # later logins
    failed_reauthentications: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    throttled: int = 0
    accept_pauses: int = 0
    errors: int = 0  # outside of connections
    tls: ServerTls | None = None
    """The keys of a listener with TLS: when they expire, and how often new ones were not taken."""
    closed: Counter[Closed] = field(default_factory=lambda: Counter(dict.fromkeys(Closed, 0)))
    _log_at: float = 0.0
    _log_error_at: float = 0.0
    _warnings: dict[str, _Warning] = field(default_factory=dict)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The reasons that kept clients out in the last minute, one line each."""
        since = time.monotonic() - _WARNING_S
        return tuple(w.text for w in list(self._warnings.values()) if w.seen_at >= since)

    def connected(self) -> ClientSoftware:
        """Count a new connection; return the software that it is counted under."""
        self.accepted += 1
        self.connections += 1
        self.software[UNKNOWN_SOFTWARE] += 1
        return UNKNOWN_SOFTWARE

    def named(self, before: ClientSoftware, software: ClientSoftware) -> ClientSoftware:
        """The client of a connection has told its software; return what it is counted under."""
        if software not in self.software and len(self.software) >= _MAX_SOFTWARE:
            software = UNKNOWN_SOFTWARE
        self._forget(before)
        self.software[software] += 1
        return software

    def count_without_handshake(self) -> None:
        """Count a connection that ended before its TLS handshake was complete."""
        self.accepted += 1
        self.disconnected += 1

    def closed_connection(self, software: ClientSoftware) -> None:
        """Count the end of a connection."""
        self.disconnected += 1
        self.connections -= 1
        self._forget(software)

    def _forget(self, software: ClientSoftware) -> None:
        self.software[software] -= 1
        if not self.software[software]:
            del self.software[software]

    def warn_of_limit(self, listener: str, connections: int) -> None:
        """Note that no connection is accepted because there are ``max_connections``."""
        text = f"{connections} clients are connected, as many as max_connections allows: more wait"
        self._warn("limit", listener, text)

    def count_shortage(self, listener: str, client: str, shortage: str) -> None:
        """Count a client that was refused because descriptors were short."""
        self.closed[Closed.NO_DESCRIPTORS] += 1
        self._warn("descriptors", listener, f"clients are turned away, {client} last: {shortage}")

    def warn_of_none_left(self, listener: str, error: OSError) -> None:
        """Note that no descriptor is left, not even to refuse a client."""
        text = f"clients wait to be accepted: {error.strerror}: raise the limit (ulimit -n)"
        self._warn("descriptors", listener, text)

    def count_error(self, listener: str, message: str, error: BaseException | None) -> None:
        """Count an unexpected error; the first one in ten seconds is logged in full."""
        self.errors += 1
        now = time.monotonic()
        if now >= self._log_error_at:
            self._log_error_at = now + _LOG_INTERVAL_S
            logger.error("%s: %s (%d so far)", listener, message, self.errors, exc_info=error)

    def _warn(self, subject: str, listener: str, text: str) -> None:
        now = time.monotonic()
        warning = self._warnings.setdefault(subject, _Warning())
        warning.seen_at, warning.text = now, text
        if now >= warning.log_at:
            warning.log_at = now + _LOG_INTERVAL_S
            logger.error("%s: %s", listener, text)

    def count_closed(
        self, reason: Closed, listener: str, client: str, detail: BaseException | str
    ) -> None:
        """Count a connection that the broker closed."""
        self.closed[reason] += 1
        now = time.monotonic()
        bug = detail if reason is Closed.FAILED and isinstance(detail, BaseException) else None
        if reason not in _EXPECTED and now >= self._log_at:
            self._log_at = now + _LOG_INTERVAL_S
            so_far = ", ".join(f"{count} {reason}" for reason, count in (+self.closed).items())
            logger.warning(
                "%s closed the connection of %s, %s: %s (so far: %s)",
                listener,
                client,
                reason,
                detail,
                so_far,
                exc_info=bug,
            )


_COUNTED: Final = (
    *("connections", "accepted", "disconnected", "unread", "bytes_in", "bytes_out", "throttled"),
    *("accept_pauses", "accept_paused_s", "errors"),
)


def of_all_listeners(listeners: Sequence[ListenerMetrics]) -> ListenerMetrics:
    """Return the metrics of listeners together; they share a thread and ``requests``."""
    if len(listeners) == 1:
        return listeners[0]
    sums = {name: sum(getattr(metrics, name) for metrics in listeners) for name in _COUNTED}
    closed = sum((metrics.closed for metrics in listeners), Counter[Closed]())
    closed.update(dict.fromkeys(Closed, 0))
    return replace(listeners[0], **sums, closed=closed)
