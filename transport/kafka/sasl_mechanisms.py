"""What the clients of a listener log in with, by the settings.

What is wrong with the settings, or with a file that they name, ends the start of the broker.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from regent.config.private_files import read_private
from regent.config.tables.sasl import SaslConfig
from regent.core.errors import BadDataError, RegentError
from regent.core.security.oauthbearer import (
    OAUTHBEARER,
    BearerToken,
    OAuthBearerServer,
    bearer_of,
    unsecured_claims,
)
from regent.core.security.plain import PLAIN, PlainServer, PlainUsers, parsed_users
from regent.core.security.sasl_login import SaslServer
from regent.core.security.scram import (
    CredentialProvider,
    ScramMechanism,
    ScramServer,
)
from regent.transport.kafka.sasl_client import random_text
from regent.transport.kafka.sasl_server import SaslLimits, SaslListener

if TYPE_CHECKING:
    from regent.transport.kafka.jwt_keys import JwtValidator

logger = logging.getLogger(__name__)

_SALT_BYTES: Final = 16
_SCRAM: Final = {mechanism.value: mechanism for mechanism in ScramMechanism}


def sasl_listener(
    config: SaslConfig,
    credentials: CredentialProvider,
    *,
    salt_secret: bytes,
    has_tls: bool,
    is_loopback: bool,
) -> SaslListener:
    """Return the logins of a listener; see ``ScramServer`` for ``salt_secret``.

    Raises ``RegentError`` if the settings ask for what cannot be, or what is not safe.
    """
    names = [name.strip() for name in config.sasl_enabled_mechanisms.split(",") if name.strip()]
    if not names:
        raise RegentError("sasl.sasl_enabled_mechanisms must name a mechanism: clients must log in")
    mechanisms: dict[str, Callable[[], SaslServer]] = {}
    closes: list[Callable[[], object]] = []
    for name in dict.fromkeys(names):
        if name in _SCRAM:
            mechanism = _SCRAM[name]
            mechanisms[name] = partial(_scram_server, mechanism, credentials, salt_secret)
            continue
        if not (has_tls or is_loopback or config.allow_plain_without_tls):
            raise RegentError(
                f"sasl.sasl_enabled_mechanisms: with {name} clients would send their passwords or"
                " tokens unencrypted over the network: use SASL_SSL, or set"
                " sasl.allow_plain_without_tls"
            )
        if name == PLAIN:
            mechanisms[name] = _plain(config, salt_secret)
        elif name == OAUTHBEARER:
            validate = _unsecured(config, is_loopback)
            if validate is None:
                validator = _jwt_validator(config)
                closes.append(validator.close)
                validate = validator.validate
            mechanisms[name] = partial(OAuthBearerServer, validate)
        else:
            raise RegentError(
                f"sasl.sasl_enabled_mechanisms: {name} is not offered; there are {PLAIN},"
                f" {', '.join(_SCRAM)} and {OAUTHBEARER}"
            )
    limits = SaslLimits(
        config.sasl_server_max_receive_size,
        config.connection_failed_authentication_delay_ms,
        config.connections_max_reauth_ms,
    )
    return SaslListener(mechanisms, limits, closes)


def _scram_server(
    mechanism: ScramMechanism, credentials: CredentialProvider, salt_secret: bytes
) -> SaslServer:
    return ScramServer(mechanism, credentials, random_text(), salt_secret)


def _plain(config: SaslConfig, salt_secret: bytes) -> Callable[[], SaslServer]:
    if not config.sasl_plain_users_file:
        raise RegentError(f"sasl.sasl_plain_users_file must name the users of {PLAIN}")
    file = PlainUsersFile(Path(config.sasl_plain_users_file))
    return lambda: PlainServer(file.users, salt_secret)


class PlainUsersFile:
    """The users in a file, which is read again when it has changed. Any thread asks.

    Raises ``RegentError`` if it cannot be read at first. Later the users stay as they are then.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._seen = self._look()
        self._users = self._read()

    def users(self) -> PlainUsers:
        """Return the users of the moment."""
        with self._lock:
            seen = self._look()
            if seen != self._seen:
                self._seen = seen
                try:
                    self._users = self._read()
                except RegentError as error:
                    logger.error("the users of %s stay as they are: %s", PLAIN, error)
            return self._users

    def _look(self) -> tuple[int, ...]:
        try:
            found = os.stat(self._path)
        except OSError:
            return ()
        return found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode

    def _read(self) -> PlainUsers:
        content = read_private(self._path, "the users of PLAIN (sasl.sasl_plain_users_file)")
        try:
            return parsed_users(content.decode(), secrets.token_bytes(_SALT_BYTES))
        except (BadDataError, UnicodeDecodeError) as error:
            what = str(error) if isinstance(error, BadDataError) else "it is not text"
            raise RegentError(f"sasl.sasl_plain_users_file: {self._path}: {what}") from None


def _unsecured(config: SaslConfig, is_loopback: bool) -> Callable[[str], BearerToken] | None:
    """Return what accepts tokens without a signature; None: they are not accepted."""
    if not config.sasl_oauthbearer_unsecured:
        return None
    if config.sasl_oauthbearer_jwks_endpoint_url:
        raise RegentError(
            "sasl.sasl_oauthbearer_unsecured and sasl.sasl_oauthbearer_jwks_endpoint_url exclude"
            " each other: remove one"
        )
    if not is_loopback:
        raise RegentError(
            "sasl.sasl_oauthbearer_unsecured is for listeners on loopback only: everybody could log"
            " in as anybody. Set sasl.sasl_oauthbearer_jwks_endpoint_url instead"
        )
    logger.warning("sasl.sasl_oauthbearer_unsecured: local users can log in as anybody")
    sub_claim = config.sasl_oauthbearer_sub_claim_name
    skew_s = config.sasl_oauthbearer_clock_skew_seconds

    def validate(token: str) -> BearerToken:
        claims = unsecured_claims(token)
        return bearer_of(claims, now_s=time.time(), skew_s=skew_s, sub_claim=sub_claim)

    return validate


def _jwt_validator(config: SaslConfig) -> JwtValidator:
    for name in ("jwks_endpoint_url", "expected_audience", "expected_issuer"):
        if not getattr(config, f"sasl_oauthbearer_{name}"):
            raise RegentError(
                f"sasl.sasl_oauthbearer_{name} must be set for {OAUTHBEARER}: tokens of others"
                " would be accepted"
            )
    # Its library takes time and memory that brokers without tokens need not spend.
    from regent.transport.kafka.jwt_keys import JwtValidator

    return JwtValidator(config)
