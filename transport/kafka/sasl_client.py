"""The login of a broker or command at a broker. Mirrors ``SaslClientAuthenticator``."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from regent.config.private_files import read_private
from regent.config.tables.sasl import SaslConfig
from regent.core.errors import Errors, RegentError
from regent.core.protocol.messages.authentication import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from regent.core.security.oauthbearer import OAUTHBEARER, acknowledged, bearer_token_message
from regent.core.security.plain import PLAIN, plain_token
from regent.core.security.sasl_login import SaslAuthenticationError
from regent.core.security.scram import RANDOM_BITS, ScramClient, ScramMechanism, printable
from regent.transport.kafka.api import KafkaApiKey
from regent.transport.kafka.message_codec import decoded, encoded

Ask = Callable[[KafkaApiKey, int, bytes], memoryview]
"""Sends a request of a version that is not flexible; returns the body of its response."""

_VERSION: Final = 1  # of both requests: all brokers since Kafka 2.2 have it


@dataclass(frozen=True, slots=True)
class ClientSasl:
    """How to log in. ``secret`` returns the password, or the token of OAUTHBEARER.

    It is called for each login. ``by_token``: the user is the id of a delegation token, and the
    secret its HMAC. Raises ``RegentError`` for a mechanism that is not offered.
    """

    mechanism: str
    user: str
    secret: Callable[[], str] = field(repr=False)
    by_token: bool = False

    def __post_init__(self) -> None:
        """Check the mechanism and the user."""
        offered = (PLAIN, OAUTHBEARER, *(scram.value for scram in ScramMechanism))
        if self.mechanism not in offered:
            raise RegentError(
                f"the mechanism {self.mechanism!r} is not offered; there are {', '.join(offered)}"
            )
        if not self.user and self.mechanism != OAUTHBEARER:
            raise RegentError(f"a login with {self.mechanism} needs the name of a user")

    @classmethod
    def of_file(cls, mechanism: str, user: str, path: Path, what: str) -> ClientSasl:
        """Log in with the secret in a file, one line; ``what`` says what it is.

        Raises ``RegentError`` if it cannot be used now.
        """

        def secret() -> str:
            return one_line(path, what)

        secret()
        return cls(mechanism, user, secret)

    def log_in(self, ask: Ask) -> int:
        """Log in; return for how many milliseconds, 0: for ever.

        Raises ``SaslAuthenticationError``, ``RegentError`` for a secret that cannot be read,
        ``MalformedRequestError``, and what ``ask`` raises.
        """
        request = encoded(
            SaslHandshakeRequest(mechanism=self.mechanism), _VERSION, is_flexible=False
        )
        body = ask(KafkaApiKey.SASL_HANDSHAKE, _VERSION, request)
        handshake = decoded(SaslHandshakeResponse, body, _VERSION, is_flexible=False)
        if handshake.error_code == Errors.UNSUPPORTED_SASL_MECHANISM:
            names = ", ".join(handshake.mechanisms)
            raise SaslAuthenticationError(
                f"clients cannot log in with {self.mechanism} there, but with {names}"
            )
        if handshake.error_code:
            error = Errors(handshake.error_code).name
            raise SaslAuthenticationError(f"no login with {self.mechanism} there: {error}")
        return self._authenticate(ask)

    def _authenticate(self, ask: Ask) -> int:
        lifetime_ms = 0

        def exchange(token: bytes) -> bytes:
            nonlocal lifetime_ms
            request = encoded(
                SaslAuthenticateRequest(auth_bytes=token), _VERSION, is_flexible=False
            )
            body = ask(KafkaApiKey.SASL_AUTHENTICATE, _VERSION, request)
            response = decoded(SaslAuthenticateResponse, body, _VERSION, is_flexible=False)
            if response.error_code:
                reason = response.error_message or Errors(response.error_code).name
                raise SaslAuthenticationError(f"the login of {self._who} failed: {reason}")
            lifetime_ms = response.session_lifetime_ms
            return bytes(response.auth_bytes)

        if self.mechanism == PLAIN:
            exchange(plain_token(self.user, self.secret()))
        elif self.mechanism == OAUTHBEARER:
            if exchange(bearer_token_message(self.secret())):
                exchange(acknowledged())  # the broker says why the token is refused
        else:
            scram = ScramClient(
                ScramMechanism(self.mechanism),
                self.user,
                self.secret(),
                random_text(),
                by_token=self.by_token,
            )
            scram.check(exchange(scram.final(exchange(scram.first()))))
        return lifetime_ms

    @property
    def _who(self) -> str:
        return f"the user {self.user}" if self.user else "the owner of the token"


def one_line(path: Path, what: str) -> str:
    """Return the only line of a private file, ``what`` is in it. Raises ``RegentError``."""
    try:
        (text,) = (line.decode() for line in read_private(path, what).splitlines())
    except ValueError:
        text = ""
    if not text:
        raise RegentError(f"{path} must have one line, {what}")
    return text


def random_text() -> str:
    """Return a random text for a nonce or a salt."""
    return printable(secrets.randbits(RANDOM_BITS))


def sasl_of_broker(config: SaslConfig) -> ClientSasl:
    """Return the login of a broker at others. Raises ``RegentError``, which names the setting."""
    mechanism = config.sasl_mechanism_inter_broker_protocol
    if not config.sasl_inter_broker_user and mechanism != OAUTHBEARER:
        raise RegentError(
            "sasl.sasl_inter_broker_user must be set: the brokers' listener asks for a login"
        )
    if not config.sasl_inter_broker_password_file:
        raise RegentError(
            "sasl.sasl_inter_broker_password_file must be set: the brokers' listener asks for a"
            " login"
        )
    what = "the password of this broker (sasl.sasl_inter_broker_password_file)"
    path = Path(config.sasl_inter_broker_password_file)
    return ClientSasl.of_file(mechanism, config.sasl_inter_broker_user, path, what)
