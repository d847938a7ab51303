"""Finds and changes the quotas of clients (KIP-546).

Mirrors ``ZkAdminManager.describeClientQuotas`` and ``alterClientQuotas``. Two checks are those of
Kafka's later ``ClientQuotaControlManager``: a quota must be greater than 0, and nothing is written
for an entity with an error.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from regent.core.errors import Errors
from regent.core.quota.quota_entities import (
    MAX_NAME,
    QuotaEntity,
    entity_of,
    quota_text,
    quota_value,
)

USER, CLIENT_ID, IP = "user", "client-id", "ip"
_FIELDS: Final = {USER: "user", CLIENT_ID: "client_id", IP: "ip"}

EntityNames: TypeAlias = Sequence[tuple[str, str | None]]
"""The type and the name of each part of an entity; None: the default."""


class QuotaRefusedError(Exception):
    """A request that is refused; the message is a sentence."""

    def __init__(self, error_code: Errors, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code


class MatchType(IntEnum):
    """Which names a filter selects."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2
    """Any name, or the default."""


class QuotaFilter(NamedTuple):
    """Selects entities by one of their parts."""

    entity_type: str
    match_type: int
    match: str | None


class QuotaChange(NamedTuple):
    """A quota to set, or to remove."""

    key: str
    value: float
    remove: bool


class Quotas(NamedTuple):
    """The quotas of one entity."""

    entity: QuotaEntity
    values: Mapping[str, float]


def names_of(entity: QuotaEntity) -> EntityNames:
    """Return the parts of an entity as clients name them."""
    parts = (entity.user, entity.client_id, entity.ip)
    return [
        (type_, part or None)
        for type_, part in zip(_FIELDS, parts, strict=True)
        if part is not None
    ]


def entity_named(names: EntityNames) -> QuotaEntity:
    """Return the entity that a client names. Raises ``QuotaRefusedError``."""
    if not names:
        raise _invalid("an entity of a quota must have a user, a client-id or an ip")
    parts: dict[str, str] = {}
    for type_, name in names:
        if type_ not in _FIELDS:
            raise _invalid(f"an entity of a quota has no {type_[:100]!r}: {_one_of(_FIELDS)}")
        if _FIELDS[type_] in parts:
            raise _invalid(f"an entity of a quota has one {type_}, not several")
        if name == "":
            raise _invalid(f"the {type_} of a quota must not be empty")
        if name is not None and len(name) > MAX_NAME:
            raise _invalid(f"the {type_} of a quota is longer than {MAX_NAME} characters")
        parts[_FIELDS[type_]] = name or ""
    entity = QuotaEntity(**parts)
    if entity.ip is not None:
        if len(parts) > 1:
            raise _invalid("the quota of an ip has no user and no client-id")
        if entity.ip and not _is_address(entity.ip):
            raise _invalid(f"{entity.ip[:100]!r} is not an IP address")
    return entity


def changed(entity: QuotaEntity, changes: Iterable[QuotaChange]) -> Mapping[str, str | None]:
    """Return the settings to write, None for those to remove. Raises ``QuotaRefusedError``."""
    settings: dict[str, str | None] = {}
    for key, value, remove in changes:
        if key in settings:
            raise _invalid(f"{key} is there more than once")
        if key not in entity.quotas:  # nor removed: logins are beside the quotas
            raise _invalid(f"{key[:100]!r} cannot be limited: {_one_of(entity.quotas)}")
        if remove:
            settings[key] = None
            continue
        try:
            settings[key] = quota_text(key, value)
        except ValueError as error:
            raise _invalid(str(error)) from None
    return settings


def described(
    filters: Sequence[QuotaFilter], configs: Mapping[str, Mapping[str, str]], *, is_strict: bool
) -> Iterator[Quotas]:
    """Return the quotas that the filters select; ``configs`` are by the paths of entities.

    ``is_strict``: their entities have no parts but those in the filters. Raises
    ``QuotaRefusedError``.
    """
    _check(filters)
    wanted = {_FIELDS[row.entity_type]: row for row in filters}
    return _selected(wanted, configs, is_strict=is_strict)


def _selected(
    wanted: Mapping[str, QuotaFilter],
    configs: Mapping[str, Mapping[str, str]],
    *,
    is_strict: bool,
) -> Iterator[Quotas]:
    for path, config in configs.items():
        entity = entity_of(path)
        if entity is None:
            continue
        values = _values(entity, config)
        parts = entity._asdict().items()
        if values and all(_matches(wanted.get(f), name, is_strict=is_strict) for f, name in parts):
            yield Quotas(entity, values)


def _check(filters: Sequence[QuotaFilter]) -> None:
    types = [row.entity_type for row in filters]
    for type_, match_type, match in filters:
        if not type_:
            raise _invalid("a filter of quotas has no entity type")
        if type_ not in _FIELDS:
            message = f"there are no quotas of {type_[:100]!r}: {_one_of(_FIELDS)}"
            raise QuotaRefusedError(Errors.UNSUPPORTED_VERSION, message)
        if types.count(type_) > 1:
            raise _invalid(f"there is more than one filter for the {type_}")
        if match_type not in set(MatchType):
            raise _invalid(f"the filter for the {type_} has an unknown match type: {match_type}")
        if (match_type == MatchType.EXACT) is (match is None):
            raise _invalid(f"the filter for the {type_} must have a name if it is exact, else none")
    if IP in types and len(types) > 1:
        raise _invalid("a filter for the ip cannot be combined with one for user or client-id")


def _matches(wanted: QuotaFilter | None, name: str | None, *, is_strict: bool) -> bool:
    if wanted is None:
        return name is None or not is_strict
    if wanted.match_type == MatchType.EXACT:
        return name == wanted.match and bool(name)
    return name == "" if wanted.match_type == MatchType.DEFAULT else name is not None


def _values(entity: QuotaEntity, config: Mapping[str, str]) -> dict[str, float]:
    values = {}
    for key in entity.quotas & config.keys():
        try:
            values[key] = quota_value(key, config[key])
        except ValueError:
            continue  # brokers log why they ignore it
    return values


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _one_of(names: Iterable[str]) -> str:
    return f"it must be one of {', '.join(sorted(names))}"


def _invalid(message: str) -> QuotaRefusedError:
    return QuotaRefusedError(Errors.INVALID_REQUEST, message)
