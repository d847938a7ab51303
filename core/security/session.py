"""Who a client is, and by which listener it came.

Mirrors ``org.apache.kafka.common.security.auth.KafkaPrincipal``, ``SecurityProtocol`` and
``kafka.network.RequestChannel.Session``.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple

from regent.core.security.roles import KeyOwner

USER_TYPE: Final = "User"

_REMEMBERED: Final = 10_000


class KafkaPrincipal(NamedTuple):
    """A user. Its text is ``User:name``."""

    principal_type: str
    name: str

    def __str__(self) -> str:
        return f"{self.principal_type}:{self.name}"


ANONYMOUS: Final = KafkaPrincipal(USER_TYPE, "ANONYMOUS")
"""Every client of a listener without authentication."""


class SecurityProtocol(Enum):
    """Whether a listener encrypts (SSL) and whether its clients log in (SASL).

    They are in the order of Kafka's numbers, which begin with 0.
    """

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        """Whether bytes are encrypted."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        """Whether clients log in."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


@lru_cache(_REMEMBERED)
def network_of(host: str) -> str:
    """Return for which network a client counts: with IPv6, one machine has 2^64 addresses.

    ``host`` is an IP address as text. With IPv4 it counts for itself.
    """
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    prefix = ipaddress.IPv6Address(int(address) >> 64 << 64)
    return f"{prefix}/64" if address.scope_id is None else f"{prefix}%{address.scope_id}/64"


@dataclass(frozen=True, slots=True)
class Session:
    """The client of a connection, from its login to the next one.

    ``client_host`` is its IP address as text. ``by_token``: it logged in with a delegation token.
    """

    client_host: str
    principal: KafkaPrincipal = ANONYMOUS
    listener_name: str = SecurityProtocol.PLAINTEXT.value
    security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    by_token: bool = False

    def may_act_as(self, broker_id: int) -> bool:
        """Whether the client may be the broker with this id: a user ``broker-N`` only N."""
        of_user = KeyOwner.named(self.principal.name).broker_id
        return of_user is None or of_user == broker_id
