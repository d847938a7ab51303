"""Keeps the ACLs of a broker as they are in ZooKeeper, and changes them there.

A notification names the pattern whose ACLs changed; they are read from its znode. All are read at
the start, when notifications were missed, in each new session, and after ``MAX_AGE_S``: a tool that
failed in the middle has changed ACLs and told nobody. Mirrors what
``kafka.security.authorizer.AclAuthorizer`` does beside its decisions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Protocol, TypeAlias

from regent.core.errors import ApiError, BadDataError, Errors, RegentError, SessionExpiredError
from regent.core.security.acls import (
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    PatternType,
    ResourcePattern,
)
from regent.core.security.authorizer import AclAuthorizer, Entries

logger = logging.getLogger(__name__)

MAX_AGE_S: Final = 600.0
CHANGE_EXPIRATION_MS: Final = 15 * 60 * 1000
_MAX_MESSAGE: Final = 1_000

NONE: Final[frozenset[AccessControlEntry]] = frozenset()

ChangeEntries: TypeAlias = Callable[[frozenset[AccessControlEntry]], frozenset[AccessControlEntry]]


class AclChange(NamedTuple):
    """A notification; ``pattern`` None: it cannot be decoded.

    Those about literal and about prefixed patterns have numbers of their own.
    """

    kind: PatternType
    name: str
    sequence: int
    pattern: ResourcePattern | None
    created_ms: int | None  # by ZooKeeper's clock; None: it cannot be read


class AclStore(Protocol):
    """The ACLs in ZooKeeper. The methods block, and raise ``RegentError``."""

    def create_paths(self) -> None:
        """Create the parents of all ACLs and notifications, if they are missing."""
        ...

    def sync(self) -> None:
        """Make later reads see every change that was acknowledged before this call."""
        ...

    def read_changes(self) -> Sequence[AclChange]:
        """Read all notifications, and watch for new ones."""
        ...

    def delete_changes(self, changes: Iterable[AclChange]) -> None:
        """Delete notifications. Absent ones are ignored."""
        ...

    def read_all(self) -> Mapping[ResourcePattern, Entries]:
        """Read all ACLs."""
        ...

    def read(self, patterns: Collection[ResourcePattern]) -> Mapping[ResourcePattern, Entries]:
        """Read the ACLs of patterns; a pattern without any is missing.

        Those that cannot be decoded are None, and logged.
        """
        ...

    def change(
        self, pattern: ResourcePattern, change: ChangeEntries
    ) -> frozenset[AccessControlEntry]:
        """Change the entries of a pattern, notify all brokers, and return the new entries.

        ``change`` is called again when another client was faster.
        """
        ...


class AclCache:
    """Sets the ACLs by which ``authorizer`` decides. Any thread; ``lock`` keeps their sequence."""

    def __init__(
        self,
        store: AclStore,
        authorizer: AclAuthorizer,
        lock: AbstractContextManager[object],
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._authorizer = authorizer
        self._lock = lock
        self._clock = clock
        self._last: dict[PatternType, int] = {}  # the newest notification that was read
        self._read_all_at: float | None = None  # None: all must be read

    def start(self) -> None:
        """Read all ACLs; raises ``RegentError`` if they cannot be read."""
        with self._lock:
            self._store.create_paths()
            self._catch_up()

    def distrust(self) -> None:
        """Read all ACLs at the next ``catch_up``: notifications may have been missed."""
        self._read_all_at = None

    def catch_up(self, *, sync: bool = False) -> None:
        """Read what changed. Raises ``SessionExpiredError``; the next call then reads it.

        If ACLs may not be read any more, those that are known stay in force.
        """
        with self._lock:
            try:
                if sync:
                    self._store.sync()
                self._catch_up()
            except SessionExpiredError:
                raise
            except RegentError as error:
                self._read_all_at = None
                logger.error("the newest ACLs cannot be read; those before stay: %s", error)

    def _catch_up(self) -> None:
        changes = self._store.read_changes()  # first: what comes after the reading is a change
        news = [c for c in changes if c.sequence > self._last.get(c.kind, -1)]
        newest = dict(self._last)
        newest |= {
            kind: max(c.sequence for c in changes if c.kind is kind)
            for kind in dict.fromkeys(c.kind for c in changes)
        }
        now, read_all_at = self._clock(), self._read_all_at
        has_missed_some = any(
            sequence - self._last.get(kind, -1) != sum(c.kind is kind for c in news)
            for kind, sequence in newest.items()
        )
        is_old = read_all_at is None or now - read_all_at > MAX_AGE_S
        if is_old or has_missed_some or any(c.pattern is None for c in news):
            self._authorizer.replace(self._store.read_all())
            self._read_all_at = now
        elif news:
            self._apply({c.pattern for c in news if c.pattern is not None})
        self._last = newest
        self._purge(changes)

    def _apply(self, patterns: Collection[ResourcePattern]) -> None:
        found = self._store.read(patterns)
        known = self._authorizer.snapshot.entries
        kept = {p: entries for p, entries in known.items() if p not in patterns}
        self._authorizer.replace({**kept, **found})

    @property
    def damaged(self) -> int:
        """How many patterns have ACLs that cannot be read: their resources are denied."""
        return sum(entries is None for entries in self._authorizer.snapshot.entries.values())

    def _purge(self, changes: Sequence[AclChange]) -> None:
        """Delete notifications much older than the newest, by ZooKeeper's clock."""
        times = {c: c.created_ms for c in changes if c.created_ms is not None}
        for kind in dict.fromkeys(c.kind for c in changes):
            newest_ms = max((ms for c, ms in times.items() if c.kind is kind), default=0)
            expired = [
                c
                for c, ms in times.items()
                if c.kind is kind and newest_ms - ms > CHANGE_EXPIRATION_MS
            ]
            if expired:
                self._store.delete_changes(expired)

    # --- changes --------------------------------------------------------------------------------

    def find(self, wanted: AclBindingFilter) -> Sequence[AclBinding]:
        """Return the rules that a filter means, as this broker knows them."""
        return list(self._authorizer.snapshot.bindings(wanted))

    def create(self, bindings: Sequence[AclBinding]) -> Sequence[ApiError]:
        """Create rules; return the outcomes. One that exists is created again: no error."""
        outcomes = dict.fromkeys(bindings, ApiError(Errors.NONE))
        added: dict[ResourcePattern, frozenset[AccessControlEntry]] = {}
        for binding in bindings:
            if binding.problem:
                outcomes[binding] = ApiError(Errors.INVALID_REQUEST, binding.problem)
            else:
                added[binding.pattern] = added.get(binding.pattern, NONE) | {binding.entry}
        for pattern, entries in added.items():
            error = self._change(pattern, entries.union)
            outcomes |= {AclBinding(pattern, entry): error for entry in entries}
        return [outcomes[binding] for binding in bindings]

    def delete(
        self, filters: Sequence[AclBindingFilter]
    ) -> Sequence[Sequence[tuple[AclBinding, ApiError]]]:
        """Delete the rules that filters mean; return those of each filter with the outcomes.

        A rule that several filters mean is told for the first. ACLs of a resource that a filter
        names are found also if this broker does not know them yet (KAFKA-9386).
        """
        named = [pattern for wanted in filters for pattern in wanted.named_patterns]
        found: list[list[tuple[AclBinding, ApiError]]] = [[] for _ in filters]
        for pattern in dict.fromkeys([*self._authorizer.snapshot.entries, *named]):
            meant = [(n, f) for n, f in enumerate(filters) if f.has_pattern(pattern)]
            if not meant:
                continue
            # Also of an attempt whose answer was lost: the next one does not find them any more.
            owners: dict[AccessControlEntry, int] = {}

            def without(
                old: frozenset[AccessControlEntry],
                meant: Sequence[tuple[int, AclBindingFilter]] = meant,
                owners: dict[AccessControlEntry, int] = owners,
            ) -> frozenset[AccessControlEntry]:
                for entry in sorted(old):
                    owner = next((n for n, f in meant if f.has_entry(entry)), None)
                    if owner is not None:
                        owners[entry] = owner
                return old - owners.keys()

            error = self._change(pattern, without)
            for entry, owner in owners.items():
                found[owner].append((AclBinding(pattern, entry), error))
        return found

    def _change(self, pattern: ResourcePattern, change: ChangeEntries) -> ApiError:
        try:
            with self._lock:
                entries = self._store.change(pattern, change)
                known = dict(self._authorizer.snapshot.entries)
                known.pop(pattern, None)
                self._authorizer.replace({**known, pattern: entries} if entries else known)
        except SessionExpiredError as error:
            message = f"the change may be written, or not: {error}"
            return ApiError(Errors.REQUEST_TIMED_OUT, message[:_MAX_MESSAGE])
        except (RegentError, BadDataError) as error:
            return ApiError(Errors.UNKNOWN_SERVER_ERROR, str(error)[:_MAX_MESSAGE])
        return ApiError(Errors.NONE)
