"""PLAIN (RFC 4616), and the users whose passwords it checks.

Mirrors ``PlainSaslServer``. A file has a user on each line, ``name:scrypt$N$R$P$SALT$HASH`` or, for
tests, ``name:plain$PASSWORD``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from regent.core.errors import BadDataError
from regent.core.security.sasl_login import (
    LoggedIn,
    SaslAuthenticationError,
    shown,
    stand_in,
    strict_base64,
    user,
)

PLAIN: Final = "PLAIN"

_PARTS: Final = 3
_COST, _BLOCK_SIZE, _PARALLEL = 2**14, 8, 1  # 16 MiB and some 50 ms
_MAX_COST: Final = 2**20
_MAX_MEMORY: Final = 2**28
_KEY_BYTES: Final = 32
_SCRYPT: Final = re.compile(
    r"scrypt\$([1-9][0-9]{0,6})\$([1-9][0-9]{0,2})\$([1-9][0-9]{0,1})\$([^$]+)\$([^$]+)"
)
_IN_CLEAR: Final = "plain$"


class PasswordHash(NamedTuple):
    """A password that was hashed with scrypt, and how."""

    cost: int
    block_size: int
    parallel: int
    salt: bytes
    digest: bytes

    def __repr__(self) -> str:
        return f"PasswordHash(cost={self.cost})"

    @property
    def text(self) -> str:
        """What stands in the file after the user's name."""
        salt, digest = (base64.b64encode(data).decode() for data in (self.salt, self.digest))
        return f"scrypt${self.cost}${self.block_size}${self.parallel}${salt}${digest}"

    def matches(self, password: str) -> bool:
        """Whether it is the hash of a password; takes long, and as long for each one."""
        found = _hash(password, self.salt, self.cost, self.block_size, self.parallel)
        return hmac.compare_digest(found, self.digest)


PlainUsers = Mapping[str, PasswordHash]
"""The hashes of passwords by the names of users."""


def hashed(password: str, salt: bytes) -> PasswordHash:
    """Return the hash of a password; ``salt`` is random."""
    digest = _hash(password, salt, _COST, _BLOCK_SIZE, _PARALLEL)
    return PasswordHash(_COST, _BLOCK_SIZE, _PARALLEL, salt, digest)


def parsed_users(text: str, salt: bytes) -> PlainUsers:
    """Return the users in the lines of a file. Passwords in clear are hashed with ``salt``.

    Raises ``BadDataError``, which names the line but not what is in it.
    """
    users: dict[str, PasswordHash] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, secret = line.partition(":")
        if not (name and colon) or name in users:
            raise BadDataError(f"line {number} must be NAME:scrypt$…, a user that is new")
        if secret.startswith(_IN_CLEAR) and secret != _IN_CLEAR:
            users[name] = hashed(secret.removeprefix(_IN_CLEAR), salt)
            continue
        found = _SCRYPT.fullmatch(secret)
        parsed = None if found is None else _parsed(found)
        if parsed is None:
            raise BadDataError(
                f"line {number} must be NAME:scrypt$N$R$P$SALT$HASH or NAME:plain$PASSWORD"
            )
        users[name] = parsed
    return users


class PlainServer:
    """One login; ``users`` are those of the moment.

    ``salt_secret`` chooses whose hash takes the time of a user that does not exist: see
    ``ScramServer``.
    """

    def __init__(self, users: Callable[[], PlainUsers], salt_secret: bytes) -> None:
        self.login: LoggedIn | None = None
        self._users = users
        self._salt_secret = salt_secret
        self._is_over = False

    def evaluate(self, token: bytes) -> bytes:
        """See ``SaslServer``."""
        if self._is_over:
            raise SaslAuthenticationError("Authentication failed: a token after the last one")
        self._is_over = True
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            parts = []
        if len(parts) != _PARTS:
            raise SaslAuthenticationError(
                "Invalid SASL/PLAIN response: expected 3 tokens, separated by zero bytes"
            )
        authorization_id, name, password = parts
        if not name:
            raise SaslAuthenticationError("Authentication failed: username not specified")
        if not password:
            raise SaslAuthenticationError("Authentication failed: password not specified")
        if authorization_id and authorization_id != name:
            raise SaslAuthenticationError(
                "Authentication failed: Client requested an authorization id that is different"
                " from username"
            )
        users = self._users()
        known = users.get(name)
        tried = known or (stand_in(self._salt_secret, name, [*users.values()]) if users else None)
        is_right = tried is not None and tried.matches(password)  # unknown users take time, too
        if known is None or not is_right:
            reason = "there is no such user" if known is None else "wrong password"
            raise SaslAuthenticationError(
                "Authentication failed: Invalid username or password",
                f"user {shown(name)}: {reason}",
            )
        self.login = LoggedIn(user(name))
        return b""


def plain_token(name: str, password: str) -> bytes:
    """Return the token of a client."""
    return b"\0" + name.encode() + b"\0" + password.encode()


def _hash(password: str, salt: bytes, cost: int, block_size: int, parallel: int) -> bytes:
    return hashlib.scrypt(
        password.encode("utf-8", "surrogatepass"),
        salt=salt,
        n=cost,
        r=block_size,
        p=parallel,
        maxmem=_MAX_MEMORY,
        dklen=_KEY_BYTES,
    )


def _parsed(found: re.Match[str]) -> PasswordHash | None:
    cost, block_size, parallel = map(int, found.groups()[:3])
    salt, digest = strict_base64(found[4].encode()), strict_base64(found[5].encode())
    is_power = cost > 1 and cost & (cost - 1) == 0
    memory = 128 * block_size * (cost + parallel + 2)
    if not is_power or cost > _MAX_COST or memory > _MAX_MEMORY // 2:
        return None
    if not salt or digest is None or len(digest) != _KEY_BYTES:
        return None
    return PasswordHash(cost, block_size, parallel, salt, digest)
