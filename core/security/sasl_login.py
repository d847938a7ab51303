"""What a mechanism of SASL is for a server: it takes tokens until somebody is logged in.

Mirrors ``javax.security.sasl.SaslServer``. A mechanism has neither a clock nor a socket, and may
take long: its steps run beside the event loop.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from regent.core.errors import RegentError
from regent.core.security.session import USER_TYPE, KafkaPrincipal

SASL_NAME: Final = rb"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
"""The name of a user in a token (RFC 5802), as a regular expression."""

T = TypeVar("T")
_MAX_SHOWN: Final = 100
_ESCAPE: Final = re.compile("=2C|=3D")


class SaslAuthenticationError(RegentError):
    """A login that is refused. The client gets the message.

    ``detail`` is for the log: it may say what a client must not learn.
    """

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail or message


class LoggedIn(NamedTuple):
    """Who has logged in; the login ends at ``expires_at_ms`` of the wall clock, None: it does not.

    ``by_token``: with a delegation token.
    """

    principal: KafkaPrincipal
    expires_at_ms: int | None = None
    by_token: bool = False


class SaslServer(Protocol):
    """One login with one mechanism; one thread at a time uses it."""

    @property
    def login(self) -> LoggedIn | None:
        """Who has logged in; None as long as a token is missing."""
        ...

    def evaluate(self, token: bytes) -> bytes:
        """Take the next token of the client; return the answer.

        Raises ``SaslAuthenticationError``, after which the login is over.
        """
        ...


def user(name: str) -> KafkaPrincipal:
    """Return the principal of a user."""
    return KafkaPrincipal(USER_TYPE, name)


def shown(name: str) -> str:
    """Return what a client calls itself, for the log: it may be long, or have line breaks."""
    return ascii(name if len(name) <= _MAX_SHOWN else f"{name[:_MAX_SHOWN]}…")


def invalid_credentials(mechanism: str, detail: str) -> SaslAuthenticationError:
    """Return the error that does not tell whether the user or the password is wrong."""
    return SaslAuthenticationError(
        "Authentication failed during authentication due to invalid credentials with SASL"
        f" mechanism {mechanism}",
        detail,
    )


def stand_in(secret: bytes, name: str, known: Sequence[T]) -> T:
    """Return one of ``known``, for a name that is not there: the same one each time.

    With ``secret``, brokers agree, and nobody else knows which one. A few more or fewer known ones
    change it for a few names only.
    """
    digest = hmac.digest(secret, b"stand-in:" + name.encode("utf-8", "surrogatepass"), "sha256")
    return known[int.from_bytes(digest) * len(known) >> 8 * hashlib.sha256().digest_size]


def sasl_name(encoded: bytes) -> str:
    """Return the name that a ``SASL_NAME`` stands for."""
    return _ESCAPE.sub(lambda found: "," if found[0] == "=2C" else "=", encoded.decode("ascii"))


def strict_base64(text: bytes) -> bytes | None:
    """Return what a text stands for; None if it is not the only text that stands for it."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if base64.b64encode(data) == text else None
