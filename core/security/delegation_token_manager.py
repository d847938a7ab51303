"""Delegation tokens (KIP-48): everybody who has a token of a user can log in as this user.

A token is a znode with its owner and its times. The password of a token is the HMAC of its id with
a secret that all brokers have, so it is in no znode. Mirrors
``kafka.server.DelegationTokenManagerZk`` and ``DelegationTokenCache``, with two differences: an
expired token does not log in, also before it is deleted, and the credentials for SCRAM, which cost
some milliseconds each, are derived when a token logs in.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol, TypeAlias

from regent.core.errors import BadDataError, Errors, RegentError, UnreadableError
from regent.core.security.scram import ScramCredential, ScramMechanism, derive
from regent.core.security.session import USER_TYPE, KafkaPrincipal

log = logging.getLogger(__name__)

CHANGE_EXPIRATION_MS: Final = 15 * 60 * 1000

_ID_BYTES: Final = 16
_SALT_BYTES: Final = 16
_MAX_CREDENTIALS: Final = 1_000
_CHECK_SALT: Final = b"regent: the check of delegation_token_secret_key"
_CHECK_ITERATIONS: Final = 10_000


@dataclass(frozen=True)
class DelegationTokenSettings:
    """How long tokens live, in milliseconds."""

    delegation_token_max_lifetime_ms: int = 7 * 86_400_000
    delegation_token_expiry_time_ms: int = 86_400_000


class TokenRefusedError(RegentError):
    """A request about a token is refused with a code of Kafka's."""

    def __init__(self, error: Errors) -> None:
        super().__init__(error.name)
        self.error = error


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A token. Times are wall-clock times of brokers.

    Its owner is whom it logs in; its requester has asked for it. It is not valid after the earlier
    one of both ends: ``expiry_timestamp_ms`` can be moved, up to ``max_timestamp_ms``.
    """

    token_id: str
    owner: KafkaPrincipal
    requester: KafkaPrincipal
    renewers: tuple[KafkaPrincipal, ...]
    issue_timestamp_ms: int
    max_timestamp_ms: int
    expiry_timestamp_ms: int

    @property
    def end_ms(self) -> int:
        """The last moment in which it is valid."""
        return min(self.max_timestamp_ms, self.expiry_timestamp_ms)

    def is_expired(self, now_ms: int) -> bool:
        """Whether it is not valid any more."""
        return self.end_ms < now_ms

    def may_be_renewed_by(self, principal: KafkaPrincipal) -> bool:
        """Whether a user may move its end. The requester may not, unless it is the owner."""
        return principal == self.owner or principal in self.renewers

    def concerns(self, principal: KafkaPrincipal) -> bool:
        """Whether a user may see it without an ACL."""
        return principal == self.requester or self.may_be_renewed_by(principal)


class TokenWithHmac(NamedTuple):
    """A token with its HMAC. Everybody who knows the HMAC can log in, so it is never printed."""

    token: DelegationToken
    hmac: bytes

    def __repr__(self) -> str:
        return f"TokenWithHmac({self.token.token_id})"


class TokenChange(NamedTuple):
    """A notification that a token was written or deleted.

    ``token_id`` is None when it cannot be decoded, ``created_ms`` (by the clock of the ZooKeeper
    server) when it cannot be read.
    """

    name: str
    sequence: int
    token_id: str | None
    created_ms: int | None


Decide: TypeAlias = Callable[[DelegationToken], DelegationToken | None]
"""Returns what a token becomes; None: it is deleted. Raises ``TokenRefusedError``."""


class DelegationTokenStore(Protocol):
    """``/delegation_token`` as a broker sees it. Every call raises ``SessionExpiredError``."""

    def prepare(self) -> None:
        """Create what is missing above the tokens."""
        ...

    def exchange_secret_check(self, check: str) -> bool:
        """Write the check of the secret; return whether there was a different one."""
        ...

    def sync(self) -> None:
        """Make later reads see every change that was acknowledged before this call."""
        ...

    def read_changes(self) -> Sequence[TokenChange]:
        """Read all notifications, oldest first, and watch for new ones.

        Raises ``UnreadableError``; nothing is watched then.
        """
        ...

    def read_token_ids(self) -> Collection[str]:
        """List all tokens. Raises ``UnreadableError``."""
        ...

    def read_tokens(
        self, token_ids: Collection[str]
    ) -> Mapping[str, DelegationToken | BadDataError]:
        """Read tokens; absent ones are missing, and those that cannot be read are the error."""
        ...

    def delete_changes(self, names: Collection[str]) -> None:
        """Delete notifications. Absent ones are ignored."""
        ...

    def create_token(self, token: DelegationToken) -> None:
        """Write a new token and its notification in one transaction."""
        ...

    def change_token(self, token_id: str, decide: Decide) -> DelegationToken | None:
        """Replace or delete a token by what ``decide`` says, with its notification.

        ``decide`` gets what is in ZooKeeper now. Raises what it raises, and ``TokenRefusedError``
        when there is no such token.
        """
        ...


def create_hmac(token_id: str, secret: bytes) -> bytes:
    """Return the HMAC of a token, as Kafka computes it."""
    return hmac.digest(secret, token_id.encode(), "sha512")


def secret_check(secret: bytes) -> str:
    """Return a text that differs for each secret and does not reveal it.

    It is slow, so that trying many secrets is no faster here than with the HMAC of a token.
    """
    return hashlib.pbkdf2_hmac("sha256", secret, _CHECK_SALT, _CHECK_ITERATIONS, 16).hex()


def renewed(
    token: DelegationToken,
    principal: KafkaPrincipal,
    period_ms: int,
    settings: DelegationTokenSettings,
    now_ms: int,
) -> DelegationToken:
    """Return a token that a user renews; a negative period stands for the setting."""
    _check_may_renew(token, principal)
    if token.is_expired(now_ms):
        raise TokenRefusedError(Errors.DELEGATION_TOKEN_EXPIRED)
    if period_ms < 0:
        period_ms = settings.delegation_token_expiry_time_ms
    return _ending(token, now_ms + period_ms)


def shortened(
    token: DelegationToken, principal: KafkaPrincipal, period_ms: int, now_ms: int
) -> DelegationToken | None:
    """Return a token whose end a user sets; None: with a negative period it is deleted now.

    Also an expired token can be deleted (KAFKA-13771).
    """
    _check_may_renew(token, principal)
    if period_ms < 0:
        return None
    if token.is_expired(now_ms):
        raise TokenRefusedError(Errors.DELEGATION_TOKEN_EXPIRED)
    return _ending(token, now_ms + period_ms)


def _check_may_renew(token: DelegationToken, principal: KafkaPrincipal) -> None:
    if not token.may_be_renewed_by(principal):
        raise TokenRefusedError(Errors.DELEGATION_TOKEN_OWNER_MISMATCH)


def _ending(token: DelegationToken, end_ms: int) -> DelegationToken:
    return replace(token, expiry_timestamp_ms=min(token.max_timestamp_ms, end_ms))


class DelegationTokenManager:
    """The tokens of a cluster, as one broker knows them.

    ``lock`` is held while ZooKeeper is read and written, so that an older read never replaces a
    newer one. ``scram`` takes no lock and does not wait for ZooKeeper. ``random_bytes`` are
    fit for secrets. Thread-safe.
    """

    def __init__(
        self,
        store: DelegationTokenStore,
        secret: bytes,
        settings: DelegationTokenSettings,
        *,
        now_ms: Callable[[], int],
        random_bytes: Callable[[int], bytes],
        lock: AbstractContextManager[object],
    ) -> None:
        self._store = store
        self._secret = secret
        self._settings = settings
        self._now_ms = now_ms
        self._random_bytes = random_bytes
        self._lock = lock
        self._tokens: dict[str, DelegationToken] = {}
        self._ids: dict[bytes, str] = {}  # by HMAC
        self._credentials: OrderedDict[tuple[ScramMechanism, str], ScramCredential] = OrderedDict()
        self._last_sequence = -1
        self._must_read_all = True
        self._unreadable: set[str] = set()  # the ids of tokens
        self._problems: set[str] = set()  # what is in the log

    # --- following ZooKeeper ---

    def load(self) -> None:
        """Read all tokens, before the first client is served.

        Raises ``UnreadableError`` when they cannot be listed.
        """
        self._store.prepare()
        has_changed = self._store.exchange_secret_check(secret_check(self._secret))
        with self._lock:
            self._catch_up(sync=True)
        now_ms = self._now_ms()
        valid = sum(not token.is_expired(now_ms) for token in self._tokens.values())
        if has_changed and valid:
            log.warning(
                "the secret of delegation tokens is not the one of the broker that started last:"
                " %d tokens do not log in with the HMACs that their users have. All brokers must"
                " have the same delegation_token_secret_key_file",
                valid,
            )

    def expect_gaps(self) -> None:
        """Read all tokens the next time: a new session begins, changes may have been missed."""
        self._must_read_all = True

    def catch_up(self, *, sync: bool = False) -> None:
        """Learn the tokens that changed since the last call, and delete old notifications.

        Call it sometimes without a watch, too: none fires while an ACL hides a znode, or when the
        ACL is gone.

        ``sync``: include every change that was acknowledged before this call. Raises
        ``SessionExpiredError``; the next call then learns what this one did not.
        """
        with self._lock:
            try:
                self._catch_up(sync=sync)
            except UnreadableError as error:
                self._say({f"the list of delegation tokens stays as it is: {error}"})

    def _catch_up(self, *, sync: bool) -> None:
        if sync:
            self._store.sync()
        must_read_all, self._must_read_all = self._must_read_all, False
        problems: set[str] = set()
        try:
            try:
                changes = self._store.read_changes()
            except UnreadableError as error:
                changes, must_read_all = (), True
                problems.add(f"changes of delegation tokens are not followed: {error}")
            news = [change for change in changes if change.sequence > self._last_sequence]
            newest = max((change.sequence for change in changes), default=self._last_sequence)
            is_unclear = any(change.token_id is None for change in news)
            has_missed_some = len(news) < newest - self._last_sequence
            reads_all = must_read_all or has_missed_some or is_unclear
            if reads_all:
                ids = set(self._store.read_token_ids()) | self._tokens.keys()
            else:
                ids = {change.token_id for change in news if change.token_id is not None}
                ids |= self._unreadable
            found = self._store.read_tokens(sorted(ids)) if ids else {}
            self._purge(changes)
        except RegentError:
            self._must_read_all = True
            raise
        # Nothing is raised from here on, so every change that is marked as read is applied.
        self._must_read_all |= bool(problems)
        if reads_all:  # the numbers may have begun again
            newest = max((change.sequence for change in changes), default=-1)
        self._last_sequence = newest
        tokens = {i: token for i, token in found.items() if isinstance(token, DelegationToken)}
        for token_id in ids:
            self._put(token_id, tokens.get(token_id))
        self._unreadable = found.keys() - tokens.keys()
        self._say(problems | {f"delegation token {i}: {found[i]}" for i in self._unreadable})

    def _say(self, problems: set[str]) -> None:
        """Log what was not in the log the last time."""
        for problem in sorted(problems - self._problems):
            log.error("%s", problem)
        self._problems = problems

    def _purge(self, changes: Sequence[TokenChange]) -> None:
        """Delete notifications much older than the newest, by ZooKeeper's clock."""
        created_ms = {c.name: c.created_ms for c in changes if c.created_ms is not None}
        newest_ms = max(created_ms.values(), default=0)
        expired = [n for n, ms in created_ms.items() if newest_ms - ms > CHANGE_EXPIRATION_MS]
        if expired:
            self._store.delete_changes(expired)

    def _put(self, token_id: str, token: DelegationToken | None) -> None:
        """Remember what ZooKeeper has; None: the token does not exist, or cannot be read."""
        hmac_of_token = create_hmac(token_id, self._secret)
        if token is None:
            self._tokens.pop(token_id, None)
            self._ids.pop(hmac_of_token, None)
        else:
            self._tokens[token_id] = token
            self._ids[hmac_of_token] = token_id

    # --- requests of clients ---

    def create(
        self,
        owner: KafkaPrincipal,
        requester: KafkaPrincipal,
        renewers: Iterable[KafkaPrincipal],
        max_lifetime_ms: int,
    ) -> TokenWithHmac:
        """Create a token; a lifetime of 0 or less stands for the setting, which is the longest.

        Raises ``TokenRefusedError`` for a renewer that is no user.
        """
        renewers = tuple(renewers)
        check_renewers(renewers)
        limit_ms, now_ms = self._settings.delegation_token_max_lifetime_ms, self._now_ms()
        end_ms = now_ms + (limit_ms if max_lifetime_ms <= 0 else min(max_lifetime_ms, limit_ms))
        expiry_ms = min(end_ms, now_ms + self._settings.delegation_token_expiry_time_ms)
        token_id = self._new_id()
        token = DelegationToken(token_id, owner, requester, renewers, now_ms, end_ms, expiry_ms)
        with self._lock:
            self._store.create_token(token)
            self._put(token_id, token)
        log.info("Created the delegation token %s of %s", token_id, owner)
        return self._with_hmac(token)

    def renew(self, principal: KafkaPrincipal, hmac_: bytes, period_ms: int) -> int:
        """Move the end of a token; return when it expires. Raises ``TokenRefusedError``."""
        changed = self._change(
            hmac_,
            lambda token: renewed(token, principal, period_ms, self._settings, self._now_ms()),
        )
        assert changed is not None, "renewing deletes no token"
        return changed.expiry_timestamp_ms

    def expire(self, principal: KafkaPrincipal, hmac_: bytes, period_ms: int) -> int:
        """Let a token end earlier, or now; return when it expires. Raises as ``renew``."""
        changed = self._change(
            hmac_, lambda token: shortened(token, principal, period_ms, self._now_ms())
        )
        return self._now_ms() if changed is None else changed.expiry_timestamp_ms

    def _change(self, hmac_: bytes, decide: Decide) -> DelegationToken | None:
        with self._lock:
            if hmac_ not in self._ids:  # another broker may have created it just now
                self._catch_up(sync=True)
            token_id = self._ids.get(hmac_)
            if token_id is None:
                raise TokenRefusedError(Errors.DELEGATION_TOKEN_NOT_FOUND)
            try:
                changed = self._store.change_token(token_id, decide)
            except TokenRefusedError as refused:
                if refused.error is Errors.DELEGATION_TOKEN_NOT_FOUND:
                    self._put(token_id, None)
                raise
            self._put(token_id, changed)
        if changed is None:
            log.info("Deleted the delegation token %s", token_id)
        else:
            log.info(
                "The delegation token %s expires at %d ms", token_id, changed.expiry_timestamp_ms
            )
        return changed

    def describe(
        self,
        principal: KafkaPrincipal,
        owners: Collection[KafkaPrincipal] | None,
        may_describe: Callable[[DelegationToken], bool],
    ) -> list[TokenWithHmac]:
        """Return the tokens that concern one of the owners (None: all) and that a user may see."""
        self.catch_up(sync=True)
        return [
            self._with_hmac(token)
            for token in list(self._tokens.values())
            if (owners is None or any(map(token.concerns, owners)))
            and (token.concerns(principal) or may_describe(token))
        ]

    def _new_id(self) -> str:
        """Return a random UUID, as Kafka's; none that a command would take for an option."""
        while True:
            number = bytearray(self._random_bytes(_ID_BYTES))
            number[6] = number[6] & 0x0F | 0x40
            number[8] = number[8] & 0x3F | 0x80
            token_id = base64.urlsafe_b64encode(number).decode().rstrip("=")
            if not token_id.startswith("-"):
                return token_id

    def _with_hmac(self, token: DelegationToken) -> TokenWithHmac:
        return TokenWithHmac(token, create_hmac(token.token_id, self._secret))

    # --- logins ---

    def scram(
        self, mechanism: ScramMechanism, username: str, by_token: bool
    ) -> ScramCredential | None:
        """See ``CredentialProvider``; users have none here.

        The first login of a token takes some milliseconds. Its credential is kept afterwards.
        """
        token = self._tokens.get(username) if by_token else None
        if token is None or token.is_expired(self._now_ms()):
            return None
        key = mechanism, token.token_id
        credential = self._credentials.pop(key, None)
        if credential is None:
            password = base64.b64encode(create_hmac(token.token_id, self._secret)).decode()
            credential = derive(mechanism, password, self._random_bytes(_SALT_BYTES))
        self._credentials[key] = credential
        while len(self._credentials) > _MAX_CREDENTIALS:
            self._credentials.popitem(last=False)
        return credential._replace(owner=token.owner, expires_at_ms=token.end_ms)


def check_renewers(renewers: Iterable[KafkaPrincipal]) -> None:
    """Raise ``TokenRefusedError`` if one of them is not a user."""
    if any(renewer.principal_type != USER_TYPE for renewer in renewers):
        raise TokenRefusedError(Errors.INVALID_PRINCIPAL_TYPE)
