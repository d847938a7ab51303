"""Until when the certificates of listeners are valid, as the brokers show them to a client."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Final, NamedTuple

from cryptography import x509

from regent.client.doctor.examined_cluster import ExaminedCluster
from regent.client.doctor.findings import Finding, Severity
from regent.client.doctor.listener_check import Listener, listeners_by_port
from regent.client.wording import counted
from regent.core.model import BrokerId

CERTIFICATES: Final = "certificates"
"""The name of this check."""

_EXPIRES_SOON_DAYS: Final = 30
_ASK_LIMIT_S: Final = 3.0
_ASKED_AT_ONCE: Final = 32
_DAY_S: Final = 86_400.0
_REMEDY: Final = (
    "write a new certificate for the same subject into the file of its ssl_keystore_location: a"
    " broker of Regent takes it within a minute, one of Kafka when its setting is written again"
)


class _Shown(NamedTuple):
    broker_id: BrokerId
    listener: Listener
    port: int

    def days_left(self) -> float | str | None:
        """Return in how many days the certificate expires, or why that is not known.

        None: nobody answers there, which other checks find.
        """
        try:
            shown = ssl.get_server_certificate(
                (self.listener.host, self.port), timeout=_ASK_LIMIT_S
            )
            end = x509.load_pem_x509_certificate(shown.encode()).not_valid_after_utc
        except (ssl.SSLError, ValueError) as error:
            return str(error)
        except OSError:
            return None
        return (end - datetime.now(UTC)).total_seconds() / _DAY_S

    def finding(self, days_left: float | str) -> Finding:
        name = f"broker {self.broker_id}"
        whose = (
            f"the certificate of {name} for the listener {self.listener.name}"
            f" ({self.listener.host}:{self.port})"
        )
        if isinstance(days_left, str):
            message = f"{whose} is not shown ({days_left})"
            return Finding(CERTIFICATES, Severity.WARNING, name, message)
        days = counted(int(abs(days_left)), "day")
        if days_left < 0:
            message = f"{whose} has expired {days} ago: clients that check it cannot connect"
            return Finding(CERTIFICATES, Severity.PROBLEM, name, message, _REMEDY)
        message = f"{whose} expires in {days}"
        if days_left < _EXPIRES_SOON_DAYS:
            return Finding(CERTIFICATES, Severity.WARNING, name, message, _REMEDY)
        return Finding(CERTIFICATES, Severity.OK, name, message)


def check_certificates(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Ask every registered listener with TLS for its certificate, which proves nothing yet."""
    asked = [
        _Shown(broker_id, listener, port)
        for broker_id, info in sorted((cluster.registrations or {}).items())
        for port, listener in listeners_by_port(info).items()
        if listener.protocol.has_tls
    ]
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as threads:
        answers = list(threads.map(_Shown.days_left, asked))
    for one, days_left in zip(asked, answers, strict=True):
        if days_left is not None:
            yield one.finding(days_left)
