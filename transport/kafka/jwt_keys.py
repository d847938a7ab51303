"""Signed tokens of OAUTHBEARER, and the keys that sign them (RFC 7515, RFC 7517).

The keys are read in the background, and a login uses those of the last time: it never waits for the
network. Only the operator's settings say where they are (CVE-2025-27817).

Mirrors ``RefreshingHttpsJwks``.
"""

from __future__ import annotations

import logging
import threading
import time
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, Final, NamedTuple
from urllib.error import URLError

import jwt
import orjson

from regent.config.tables.sasl import SaslConfig
from regent.config.threads import NamedThread
from regent.core.errors import RegentError
from regent.core.security.oauthbearer import BearerToken, InvalidTokenError, bearer_of

logger = logging.getLogger(__name__)

_SETTING: Final = "sasl.sasl_oauthbearer_jwks_endpoint_url"
_ALGORITHMS: Final[Mapping[str, tuple[str, ...]]] = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
"""The algorithms of each kind of key. Keys that also sign (``oct``) and ``none`` are not here."""
_TIMEOUT_S: Final = 10.0
_MIN_RSA_BITS: Final = 2048
_MAX_BYTES: Final = 1024 * 1024
_COOL_DOWN_S: Final = 30.0  # tokens with made-up keys must not make this broker ask others all day
_STOP_TIMEOUT_S: Final = 1.0


class SigningKey(NamedTuple):
    """A public key, and the algorithms whose signatures it may check."""

    key: Any
    algorithms: tuple[str, ...]


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Another place than the operator's, or plain HTTP, is not asked."""

    def redirect_request(self, *_: Any) -> None:
        return None


class JwtValidator:
    """Checks tokens; any thread asks. Raises ``RegentError`` if a file of keys cannot be used."""

    def __init__(self, config: SaslConfig) -> None:
        self._url = config.sasl_oauthbearer_jwks_endpoint_url
        audiences = config.sasl_oauthbearer_expected_audience.split(",")
        self._audiences = [name.strip() for name in audiences if name.strip()]
        self._issuer = config.sasl_oauthbearer_expected_issuer
        self._skew_s = config.sasl_oauthbearer_clock_skew_seconds
        self._sub_claim = config.sasl_oauthbearer_sub_claim_name
        self._refresh_s = config.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000
        self._first_pause_s = config.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms / 1000
        self._max_pause_s = config.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms / 1000
        self._keys: Mapping[str | None, SigningKey] = {}
        self._asked_at = -_COOL_DOWN_S
        self._is_asked = threading.Event()
        self._is_closing = threading.Event()
        if not self._refresh() and self._url.startswith("file:"):
            raise RegentError(f"{_SETTING}: {self._url} has no keys that can be read")
        self._thread = NamedThread(self._run, "jwks-refresh")
        self._thread.start()

    def validate(self, token: str) -> BearerToken:
        """Return whose token it is. Raises ``InvalidTokenError``."""
        try:
            header = jwt.get_unverified_header(token)
            key = self._key(header.get("kid"))
            claims = jwt.decode(
                token,
                key.key,
                algorithms=list(key.algorithms),
                audience=self._audiences,
                issuer=self._issuer,
                leeway=self._skew_s,
                options={"require": ["exp", "iat", "aud", "iss"]},
            )
        except jwt.PyJWTError as error:
            raise InvalidTokenError(f"the token is refused: {type(error).__name__}") from None
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidTokenError(f"the token is malformed: {type(error).__name__}") from None
        return bearer_of(claims, now_s=time.time(), skew_s=self._skew_s, sub_claim=self._sub_claim)

    def close(self) -> None:
        """End the thread."""
        self._is_closing.set()
        self._is_asked.set()
        self._thread.join(_STOP_TIMEOUT_S)

    def _key(self, kid: Any) -> SigningKey:
        keys = self._keys
        if kid is None and len(keys) == 1:
            return next(iter(keys.values()))
        if isinstance(kid, str) and kid in keys:
            return keys[kid]
        now = time.monotonic()
        if now >= self._asked_at + _COOL_DOWN_S:
            self._asked_at = now
            self._is_asked.set()
        raise InvalidTokenError("the token names a key that is not known")

    def _run(self) -> None:
        pause_s = self._first_pause_s
        while not self._is_closing.is_set():
            if self._keys:
                self._is_asked.wait(self._refresh_s)
            else:
                self._is_asked.wait(pause_s)
                pause_s = min(pause_s * 2, self._max_pause_s)
            self._is_asked.clear()
            if not self._is_closing.is_set() and self._refresh():
                pause_s = self._first_pause_s

    def _refresh(self) -> bool:
        """Read the keys; return whether there are some. If not, the last ones stay."""
        try:
            keys = _usable(orjson.loads(_content(self._url)))
        except (OSError, HTTPException, URLError, ValueError, jwt.PyJWTError) as error:
            logger.warning("%s: %s cannot be read: %s", _SETTING, self._url, error)
            return False
        if not keys:
            logger.warning("%s: %s has no key that signs tokens", _SETTING, self._url)
            return False
        self._keys = keys
        return True


def _content(url: str) -> bytes:
    if url.startswith("file://"):
        with open(url.removeprefix("file://"), "rb") as file:
            return file.read(_MAX_BYTES)
    if not url.startswith("https://"):
        raise ValueError("it must begin with https:// or file://")
    opener = urllib.request.build_opener(_NoRedirects)
    with opener.open(url, timeout=_TIMEOUT_S) as response:
        content: bytes = response.read(_MAX_BYTES)
        return content


def _usable(found: Any) -> Mapping[str | None, SigningKey]:
    """Return the keys that sign tokens, by their ids; others are left out."""
    rows = found.get("keys") if isinstance(found, dict) else None
    keys: dict[str | None, SigningKey] = {}
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, dict) or row.get("use", "sig") != "sig" or "d" in row:
            continue
        kid, possible = row.get("kid"), _ALGORITHMS.get(str(row.get("kty")), ())
        algorithms = tuple(name for name in possible if row.get("alg", name) == name)
        if not algorithms or not isinstance(kid, str | None):
            continue
        try:
            key = jwt.PyJWK.from_dict(row).key
        except jwt.PyJWTError as error:
            logger.warning("%s: a key is left out: %s", _SETTING, type(error).__name__)
            continue
        if row["kty"] == "RSA" and key.key_size < _MIN_RSA_BITS:
            logger.warning("%s: a key of %d bits is left out", _SETTING, key.key_size)
            continue
        keys[kid] = SigningKey(key, algorithms)
    return keys
