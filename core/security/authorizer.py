"""Decides whether a client may do what it asks for.

``ALLOW_ALL`` is that of a broker without an authorizer. ``AclAuthorizer`` decides by ACLs:

1. A super user may do everything.
2. The ACLs of a resource are those of its name, of ``*``, and of every prefix of its name.
3. Without any, ``allow_everyone_if_no_acl_found`` decides.
4. An entry that denies comes before all that allow. Read, Write, Delete and Alter allow Describe,
   and AlterConfigs allows DescribeConfigs; nothing that is denied implies another denial.

ACLs that cannot be read deny everything: nobody knows what they say. So do all resources until the
ACLs were read for the first time. Mirrors ``kafka.security.authorizer.AclAuthorizer``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple, TypeAlias

from regent.core.security.acls import (
    ANY_HOST,
    ANYBODY,
    EVERY_NAME,
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    Resource,
    ResourcePattern,
    ResourceType,
)
from regent.core.security.session import KafkaPrincipal, SecurityProtocol, Session

log: Final = logging.getLogger("kafka.authorizer.logger")

MAX_REMEMBERED: Final = 20_000
"""Decisions that are remembered for the ACLs of one moment; a quarter of a kilobyte each."""
MAX_LINES_PER_S: Final = 100
_TRACE: Final = 5

_IMPLYING: Final[Mapping[AclOperation, frozenset[AclOperation]]] = {
    AclOperation.DESCRIBE: frozenset(
        {
            AclOperation.ALL,
            AclOperation.DESCRIBE,
            AclOperation.READ,
            AclOperation.WRITE,
            AclOperation.DELETE,
            AclOperation.ALTER,
        }
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset(
        {AclOperation.ALL, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS}
    ),
}
"""What allows an operation beside itself and All."""

Entries: TypeAlias = frozenset[AccessControlEntry] | None
"""The entries of a pattern; None: they cannot be read."""
_Rows: TypeAlias = Mapping[tuple[str, str], Sequence[AccessControlEntry]]
"""The entries of a pattern, by principal and host."""


class Asked(NamedTuple):
    """Where a question comes from, for the log.

    ``is_logged`` false: the client did not name the resource, so a denial is no news.
    """

    request: str = ""
    references: int = 1
    is_logged: bool = True


NOT_NAMED: Final = Asked()


class Authorizer:
    """Allows everything: brokers without an authorizer have this one. Thread-safe."""

    is_configured: bool = False

    def authorize(
        self,
        session: Session,
        operation: AclOperation,
        resource: Resource,
        asked: Asked = NOT_NAMED,
    ) -> bool:
        """Whether the client of a session may do an operation on a resource."""
        del session, operation, resource, asked
        return True

    def authorize_by_resource_type(
        self,
        session: Session,
        operation: AclOperation,
        resource_type: ResourceType,
        asked: Asked = NOT_NAMED,
    ) -> bool:
        """Whether there may be a resource of a type on which it may do the operation (KIP-679)."""
        del session, operation, resource_type, asked
        return True


ALLOW_ALL: Final = Authorizer()


class PlaintextBrokers(Authorizer):
    """For the listener of brokers: without TLS and SASL, who may connect to it counts as a broker.

    Everything else ``authorizer`` decides.
    """

    is_configured = True

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    def authorize(
        self,
        session: Session,
        operation: AclOperation,
        resource: Resource,
        asked: Asked = NOT_NAMED,
    ) -> bool:
        """Decide."""
        is_plaintext = session.security_protocol is SecurityProtocol.PLAINTEXT
        if is_plaintext and operation is AclOperation.CLUSTER_ACTION:
            return True
        return self._authorizer.authorize(session, operation, resource, asked)

    def authorize_by_resource_type(
        self,
        session: Session,
        operation: AclOperation,
        resource_type: ResourceType,
        asked: Asked = NOT_NAMED,
    ) -> bool:
        """Decide."""
        return self._authorizer.authorize_by_resource_type(session, operation, resource_type, asked)


class AuthorizerSettings(NamedTuple):
    """Kafka's settings of the same names."""

    super_users: frozenset[KafkaPrincipal] = frozenset()
    allow_everyone_if_no_acl_found: bool = False

    @classmethod
    def of(cls, super_users: str, *, allow_everyone_if_no_acl_found: bool) -> AuthorizerSettings:
        """Return the settings; names are separated by semicolons: a DN has commas.

        Raises ``ValueError`` for a name that is not ``Type:name``.
        """
        names = [name.strip() for name in super_users.split(";")]
        users = frozenset(_principal(name) for name in names if name)
        return cls(users, allow_everyone_if_no_acl_found)


def _principal(text: str) -> KafkaPrincipal:
    principal_type, colon, name = text.partition(":")
    if not (principal_type and colon and name):
        raise ValueError(f"{text!r} is not a principal: write Type:name, as User:alice")
    return KafkaPrincipal(principal_type, name)


@lru_cache(maxsize=10_000)
def normalised_host(host: str) -> str:
    """Return an address in one form: an IPv4 address that is mapped to IPv6 becomes IPv4."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


class AclSnapshot:
    """All ACLs of one moment. Immutable, but it remembers decisions."""

    def __init__(
        self, entries: Mapping[ResourcePattern, Entries], settings: AuthorizerSettings
    ) -> None:
        self.entries = entries
        self._settings = settings
        self._rows: dict[ResourcePattern, _Rows] = {}  # of patterns that were asked for
        self._remembered: dict[object, bool] = {}
        lengths: dict[ResourceType, set[int]] = {}
        for resource_type, name, pattern_type in entries:
            if pattern_type is PatternType.PREFIXED:
                lengths.setdefault(resource_type, set()).add(len(name))
        self._lengths = {kind: tuple(sorted(found)) for kind, found in lengths.items()}

    def allows(
        self, principal: KafkaPrincipal, host: str, operation: AclOperation, resource: Resource
    ) -> bool:
        """Decide for a client that is not a super user."""
        key = (principal, host, operation, resource)
        allowed = self._remembered.get(key)
        if allowed is None:
            allowed = self._decide(str(principal), normalised_host(host), operation, resource)
            self._remember(key, allowed=allowed)
        return allowed

    def allows_any(
        self,
        principal: KafkaPrincipal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
    ) -> bool:
        """Decide whether a client may do an operation on any resource of a type."""
        key = (principal, host, operation, resource_type)
        allowed = self._remembered.get(key)
        if allowed is None:
            client = str(principal), normalised_host(host)
            allowed = self._decide_for_any(*client, operation, resource_type)
            self._remember(key, allowed=allowed)
        return allowed

    def bindings(self, wanted: AclBindingFilter) -> Iterator[AclBinding]:
        """Yield the rules that a filter means."""
        for pattern, entries in self.entries.items():
            if wanted.has_pattern(pattern):
                for entry in sorted(entries or ()):
                    if wanted.has_entry(entry):
                        yield AclBinding(pattern, entry)

    def _remember(self, key: object, *, allowed: bool) -> None:
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[key] = allowed

    def _decide(
        self, principal: str, host: str, operation: AclOperation, resource: Resource
    ) -> bool:
        allowing = _IMPLYING.get(operation, frozenset({operation, AclOperation.ALL}))
        is_any_found = is_allowed = False
        for pattern in self._patterns(resource):
            if pattern not in self.entries:
                continue
            entries = self.entries[pattern]
            if entries is None:
                return False
            is_any_found = is_any_found or bool(entries)
            for entry in self._of(pattern, entries, principal, host):
                if entry.permission_type is AclPermissionType.ALLOW:
                    is_allowed = is_allowed or entry.operation in allowing
                elif entry.operation in (operation, AclOperation.ALL):
                    return False
        return is_allowed if is_any_found else self._settings.allow_everyone_if_no_acl_found

    def _patterns(self, resource: Resource) -> Iterator[ResourcePattern]:
        """Yield every pattern that may exist and that the resource has."""
        resource_type, name = resource
        yield ResourcePattern(resource_type, name, PatternType.LITERAL)
        if name != EVERY_NAME:
            yield ResourcePattern(resource_type, EVERY_NAME, PatternType.LITERAL)
        for length in self._lengths.get(resource_type, ()):
            if length > len(name):
                return
            yield ResourcePattern(resource_type, name[:length], PatternType.PREFIXED)

    def _of(
        self,
        pattern: ResourcePattern,
        entries: Iterable[AccessControlEntry],
        principal: str,
        host: str,
    ) -> Iterator[AccessControlEntry]:
        """Yield the entries of a pattern that are about a client; those of others cost nothing."""
        rows = self._rows.get(pattern)
        if rows is None:
            rows = self._rows[pattern] = _by_client(entries)
        for name in dict.fromkeys((principal, ANYBODY)):
            yield from rows.get((name, host), ())
            yield from rows.get((name, ANY_HOST), ())

    @cached_property
    def _patterns_of(self) -> Mapping[tuple[ResourceType, str], tuple[ResourcePattern, ...]]:
        """The patterns with an entry of each principal."""
        found: dict[tuple[ResourceType, str], dict[ResourcePattern, None]] = {}
        for pattern, entries in self.entries.items():
            for entry in entries or ():
                found.setdefault((pattern.resource_type, entry.principal), {})[pattern] = None
        return {key: tuple(patterns) for key, patterns in found.items()}

    def _decide_for_any(
        self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        every = ResourcePattern(resource_type, EVERY_NAME, PatternType.LITERAL)
        if every in self.entries and self.entries[every] is None:
            return False
        allowed: set[ResourcePattern] = set()
        denied = {p for p, found in self.entries.items() if found is None}
        for pattern in {
            pattern: None
            for name in (principal, ANYBODY)
            for pattern in self._patterns_of.get((resource_type, name), ())
        }:
            for entry in self._of(pattern, self.entries[pattern] or (), principal, host):
                if entry.operation in (operation, AclOperation.ALL):
                    is_allow = entry.permission_type is AclPermissionType.ALLOW
                    (allowed if is_allow else denied).add(pattern)
        if every in denied:
            return False
        if self._settings.allow_everyone_if_no_acl_found:
            return True
        return any(not self._is_dominated(pattern, denied) for pattern in allowed)

    @staticmethod
    def _is_dominated(allowed: ResourcePattern, denied: set[ResourcePattern]) -> bool:
        """Whether all that a pattern allows is denied by others."""
        resource_type, name, pattern_type = allowed
        is_literal = pattern_type is PatternType.LITERAL
        if not denied or (is_literal and name == EVERY_NAME):
            return False  # ``*`` is a name of nothing else; names that begin with it are some
        if is_literal and allowed in denied:
            return True
        return any(
            ResourcePattern(resource_type, name[:length], PatternType.PREFIXED) in denied
            for length in range(len(name) + 1)
        )


def _by_client(entries: Iterable[AccessControlEntry]) -> _Rows:
    rows: dict[tuple[str, str], list[AccessControlEntry]] = {}
    for entry in entries:
        rows.setdefault((entry.principal, normalised_host(entry.host)), []).append(entry)
    return rows


class AclAuthorizer(Authorizer):
    """Decides by the newest ACLs, which ``replace`` sets; ``clock`` returns seconds."""

    is_configured = True

    def __init__(self, settings: AuthorizerSettings, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._second, self._lines, self.unlogged = 0, 0, 0
        self._snapshot: AclSnapshot | None = None

    @property
    def snapshot(self) -> AclSnapshot:
        """The ACLs; none before they were read."""
        return self._snapshot or AclSnapshot({}, self._settings)

    def replace(self, entries: Mapping[ResourcePattern, Entries]) -> None:
        """Decide by these ACLs from now on."""
        self._snapshot = AclSnapshot(entries, self._settings)

    def authorize(
        self,
        session: Session,
        operation: AclOperation,
        resource: Resource,
        asked: Asked = NOT_NAMED,
    ) -> bool:
        """Decide, and log the decision."""
        principal, snapshot = session.principal, self._snapshot
        is_allowed = principal in self._settings.super_users or (
            snapshot is not None
            and snapshot.allows(principal, session.client_host, operation, resource)
        )
        if not is_allowed or log.isEnabledFor(logging.DEBUG):
            pattern = f"{resource.resource_type.text}:LITERAL:{resource.name}"
            self._audit(session, operation, pattern, asked, is_allowed=is_allowed)
        return is_allowed

    def authorize_by_resource_type(
        self,
        session: Session,
        operation: AclOperation,
        resource_type: ResourceType,
        asked: Asked = NOT_NAMED,
    ) -> bool:
        """Decide, and log the decision."""
        principal, snapshot = session.principal, self._snapshot
        is_allowed = principal in self._settings.super_users or (
            snapshot is not None
            and snapshot.allows_any(principal, session.client_host, operation, resource_type)
        )
        if not is_allowed or log.isEnabledFor(logging.DEBUG):
            pattern = f"{resource_type.text}:UNKNOWN:NONE"  # as Kafka names no resource
            asked = asked._replace(references=0)
            self._audit(session, operation, pattern, asked, is_allowed=is_allowed)
        return is_allowed

    def _audit(
        self,
        session: Session,
        operation: AclOperation,
        pattern: str,
        asked: Asked,
        *,
        is_allowed: bool,
    ) -> None:
        """Log in Kafka's words; of the denials at most ``MAX_LINES_PER_S``."""
        level = logging.DEBUG if is_allowed else logging.INFO
        if not asked.is_logged:
            level = _TRACE
        if not log.isEnabledFor(level) or (level == logging.INFO and not self._is_due()):
            return
        log.log(
            level,
            "Principal = %s is %s Operation = %s from host = %s on resource = %s"
            " for request = %s with resourceRefCount = %d",
            _shown(str(session.principal)),
            "Allowed" if is_allowed else "Denied",
            operation.text,
            session.client_host,
            _shown(pattern),
            asked.request,
            asked.references,
        )

    def _is_due(self) -> bool:
        second = int(self._clock())
        if second != self._second:
            unlogged, self.unlogged = self.unlogged, 0
            self._second, self._lines = second, 0
            if unlogged:
                log.info("%d more denials were not logged", unlogged)
        self._lines += 1
        self.unlogged += self._lines > MAX_LINES_PER_S
        return self._lines <= MAX_LINES_PER_S


def _shown(text: str) -> str:
    """Return text from strangers so that it stays on its line."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()
