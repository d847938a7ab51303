"""OAUTHBEARER (RFC 7628): the tokens of SASL, and bearer tokens without a signature.

Mirrors ``OAuthBearerSaslServer`` and ``OAuthBearerUnsecuredValidatorCallbackHandler``. Tokens are
secrets: no message has one.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeGuard

from regent.core.security.sasl_login import (
    SASL_NAME,
    LoggedIn,
    SaslAuthenticationError,
    invalid_credentials,
    sasl_name,
    shown,
    user,
)

OAUTHBEARER: Final = "OAUTHBEARER"

_ACKNOWLEDGED: Final = b"\x01"
_PAIR: Final = rb"[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01"
_FIRST: Final = re.compile(
    rb"n,(?:a=(?P<authzid>%s))?,\x01(?P<pairs>(?:%s)*)\x01" % (SASL_NAME, _PAIR)
)
_AUTH: Final = re.compile(rb"(?P<scheme>\w+) +(?P<token>[-_~+/.A-Za-z0-9]+=*)")
_INVALID: Final = b'{"status":"invalid_token"}'
_PART: Final = re.compile("[A-Za-z0-9_-]*")
_MS: Final = 1000


class BearerToken(NamedTuple):
    """Who has a valid token, and until when, by the wall clock."""

    name: str
    expires_at_ms: int


class InvalidTokenError(Exception):
    """A token that is not accepted; the reason has nothing of the token."""


ValidateToken = Callable[[str], BearerToken]
"""Raises ``InvalidTokenError``."""


class OAuthBearerServer:
    """One login."""

    def __init__(self, validate: ValidateToken) -> None:
        self.login: LoggedIn | None = None
        self._validate = validate
        self._refused: str | None = None  # why, when the client has been told that it is
        self._is_over = False

    def evaluate(self, token: bytes) -> bytes:
        """See ``SaslServer``."""
        if self._refused is not None or self._is_over:
            self._is_over = True
            if self._refused is not None and token == _ACKNOWLEDGED:
                raise SaslAuthenticationError(_INVALID.decode(), self._refused)
            raise invalid_credentials(OAUTHBEARER, self._refused or "an unexpected token")
        found = _FIRST.fullmatch(token)
        auth = None if found is None else _AUTH.fullmatch(_pairs(found["pairs"]).get(b"auth", b""))
        if found is None or auth is None or auth["scheme"].lower() != b"bearer":
            self._is_over = True
            raise invalid_credentials(OAUTHBEARER, "the first message is not of this mechanism")
        try:
            bearer = self._validate(auth["token"].decode())
        except InvalidTokenError as error:
            self._refused = str(error)
            return _INVALID
        self._is_over = True
        if found["authzid"] is not None and sasl_name(found["authzid"]) != bearer.name:
            raise SaslAuthenticationError(
                "Authentication failed: Client requested an authorization id that is different"
                " from the token's principal name",
                f"a token of {shown(bearer.name)} with another authorization id",
            )
        self.login = LoggedIn(user(bearer.name), bearer.expires_at_ms)
        return b""


def bearer_token_message(token: str) -> bytes:
    """Return the first message of a client."""
    return b"n,,\x01auth=Bearer " + token.encode() + b"\x01\x01"


def acknowledged() -> bytes:
    """Return what a client sends when its token is refused."""
    return _ACKNOWLEDGED


def bearer_of(
    claims: Mapping[str, Any], *, now_s: float, skew_s: float, sub_claim: str
) -> BearerToken:
    """Check the times and the subject of a token. Raises ``InvalidTokenError``."""
    name = claims.get(sub_claim)
    if not isinstance(name, str) or not name.strip():
        raise InvalidTokenError(f"the claim {sub_claim} must be a text")
    expires, issued = claims.get("exp"), claims.get("iat")
    if not _is_number(expires):
        raise InvalidTokenError("the claim exp must be a number")
    if expires + skew_s <= now_s:
        raise InvalidTokenError(f"the token of {shown(name)} has expired")
    if issued is not None:
        if not _is_number(issued) or issued - skew_s > now_s:
            raise InvalidTokenError("the claim iat must be a number, and not in the future")
        if expires <= issued:
            raise InvalidTokenError("the claim exp must be later than iat")
    return BearerToken(name, int(expires * _MS))


def unsecured_claims(token: str) -> Mapping[str, Any]:
    """Return the claims of a token without a signature. Raises ``InvalidTokenError``."""
    parts = token.split(".")
    if len(parts) != len(("header", "claims", "signature")):
        raise InvalidTokenError("an unsecured token has three parts")
    header, claims = (_decoded(part) for part in parts[:2])
    if parts[2] or header.get("alg") != "none":
        raise InvalidTokenError("only tokens without a signature (alg none) are accepted here")
    return claims


def _decoded(part: str) -> Mapping[str, Any]:
    if not _PART.fullmatch(part):
        raise InvalidTokenError("a part of the token is not in base64")
    try:
        found = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        raise InvalidTokenError("a part of the token is not JSON in base64") from None
    if not isinstance(found, dict):
        raise InvalidTokenError("a part of the token is not an object")
    return found


def _pairs(text: bytes) -> Mapping[bytes, bytes]:
    pairs: dict[bytes, bytes] = {}
    for pair in text.split(b"\x01"):
        key, _, value = pair.partition(b"=")
        pairs.setdefault(key, value)
    return pairs


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
