"""Whom quotas limit, what they limit, and how both are named in ZooKeeper.

An entity is named by its path below ``/config``: ``users/U``, ``clients/C``, ``users/U/clients/C``
or ``ips/I``. A name is sanitised, or is ``<default>`` for all who have no quota of their own.
Mirrors ``org.apache.kafka.common.utils.Sanitizer`` and ``kafka.server.DynamicConfig``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_plus

from regent.core.setting import INT_MAX, LONG_MAX

USERS, CLIENTS, IPS = "users", "clients", "ips"
DEFAULT_NAME: Final = "<default>"

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

_GREATEST: Final[Mapping[str, int | None]] = {
    PRODUCER_BYTE_RATE: LONG_MAX,
    CONSUMER_BYTE_RATE: LONG_MAX,
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
    CONNECTION_CREATION_RATE: INT_MAX,
}
"""The greatest value of each quota that is a whole number; None: it may be any number."""

_ROUNDING: Final = 1e-6  # clients send whole numbers as floating point numbers
_MAX_TEXT: Final = 400  # no number is longer
MAX_NAME: Final = 1_000
"""The greatest length of the name of a user or client id that a quota may have of its own."""


class QuotaEntity(NamedTuple):
    """Users, clients or both, or addresses; names as clients know them, "" for the default.

    None: the entity does not say which.
    """

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    @property
    def path(self) -> str:
        """The path below ``/config``."""
        if self.ip is not None:
            return f"{IPS}/{_node(self.ip)}"
        client = "" if self.client_id is None else f"{CLIENTS}/{_node(self.client_id)}"
        if self.user is None:
            return client
        return f"{USERS}/{_node(self.user)}" + (f"/{client}" if client else "")

    @property
    def quotas(self) -> frozenset[str]:
        """What can be limited for it."""
        of_addresses = {CONNECTION_CREATION_RATE}
        return frozenset(of_addresses if self.ip is not None else _GREATEST.keys() - of_addresses)


def entity_of(path: str) -> QuotaEntity | None:
    """Return the entity with a path below ``/config``; None: there are no quotas in this path."""
    match path.split("/"):
        case ["users", user] if user:
            return QuotaEntity(user=_name(user))
        case ["clients", client_id] if client_id:
            return QuotaEntity(client_id=_name(client_id))
        case ["users", user, "clients", client_id] if user and client_id:
            return QuotaEntity(user=_name(user), client_id=_name(client_id))
        case ["ips", ip] if ip:
            return QuotaEntity(ip=_name(ip))
        case _:
            return None


def sanitised(name: str) -> str:
    """Return a name as a part of a path, as Kafka does."""
    return quote(name, safe="").replace("~", "%7E")


def _node(name: str) -> str:
    return sanitised(name) if name else DEFAULT_NAME


def _name(node: str) -> str:
    return "" if node == DEFAULT_NAME else unquote_plus(node)


def quota_text(key: str, value: float) -> str:
    """Return a quota as it is stored. Raises ``ValueError``, which says what it must be."""
    greatest = _GREATEST[key]
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{key} must be greater than 0, not {value:g}")
    if greatest is None:
        return repr(float(value))
    if abs(round(value) - value) > _ROUNDING or not 1 <= round(value) <= greatest:
        raise ValueError(f"{key} must be a whole number from 1 to {greatest}, not {value:.15g}")
    return str(round(value))


def quota_value(key: str, text: str) -> float:
    """Return a stored quota. Raises ``ValueError``, which says what it must be."""
    try:
        value = float(text) if len(text) <= _MAX_TEXT else math.nan
    except ValueError:
        raise ValueError(f"{key} must be a number, not {text!r}") from None
    quota_text(key, value)
    return value
