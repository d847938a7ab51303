"""The file of ``--command-config``: how commands connect to brokers, in Kafka's words.

The file is one of Kafka's tools (``security.protocol``, ``ssl.*``, ``sasl.*``), so the same file
serves both. Files of keys are PEM or PKCS12.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from regent.config.java_properties import jaas_options, read_properties
from regent.config.private_files import read_private
from regent.config.tables.tls import TlsConfig
from regent.core.errors import RegentError
from regent.core.model import BrokerId, BrokerInfo, EndPoint
from regent.core.security.session import SecurityProtocol
from regent.core.setting import settings_of

if TYPE_CHECKING:  # they take time to load, and most commands need no certificates
    from regent.transport.kafka.client_security import ClientSecurity
    from regent.transport.kafka.sasl_client import ClientSasl

_PROTOCOL: Final = "security.protocol"
_MECHANISM: Final = "sasl.mechanism"
_LOGIN: Final = "sasl.jaas.config"
_TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"
_SASL_OF_LIBRDKAFKA: Final = {
    *("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"),
    *(f"sasl.kerberos.{n}" for n in ("service.name", "principal", "kinit.cmd", "keytab")),
    "sasl.kerberos.min.time.before.relogin",
    *(f"sasl.oauthbearer.{n}" for n in ("config", "method", "client.id", "client.secret")),
    *(f"sasl.oauthbearer.{n}" for n in ("scope", "extensions", "token.endpoint.url")),
}
"""It refuses what else Kafka's clients have: classes of Java, and times of their logins."""

_SECRETS: Final = re.compile(r"(?i).*(password|jaas|secret|keystore\.key|token).*")
_OF_SERVERS: Final = {"ssl_client_auth", "ssl_principal_mapping_rules"}


class CommandConfigError(RegentError):
    """The file cannot be used; the message names it and the property."""


@dataclass(frozen=True)
class CommandConfig:
    """The properties of a file, and what they are of."""

    path: Path
    properties: Mapping[str, str] = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> CommandConfig:
        """Read a file, and the files that it names. Raises ``CommandConfigError``."""
        try:
            properties = dict(read_properties(path))
        except OSError as error:
            raise CommandConfigError(f"--command-config {path}: {error.strerror}") from None
        except ValueError as error:
            raise CommandConfigError(f"--command-config {path}: {error}") from None
        secret = next((name for name in properties if _SECRETS.fullmatch(name)), None)
        if secret is not None:
            try:
                read_private(path, secret)
            except RegentError as error:
                raise CommandConfigError(f"--command-config: {error}") from None
        return cls(path, properties)

    @property
    def protocol(self) -> SecurityProtocol:
        """How to connect. Raises ``CommandConfigError``."""
        name = self.properties.get(_PROTOCOL, SecurityProtocol.PLAINTEXT.value).upper()
        try:
            return SecurityProtocol(name)
        except ValueError:
            protocols = ", ".join(protocol.value for protocol in SecurityProtocol)
            raise CommandConfigError(
                f"--command-config {self.path}: {_PROTOCOL} must be one of {protocols}, not"
                f" {name!r}"
            ) from None

    @property
    def of_sasl(self) -> Mapping[str, str]:
        """The properties of the login."""
        return {name: text for name, text in self.properties.items() if name.startswith("sasl.")}

    def tls(self) -> TlsConfig:
        """Return the properties of TLS as settings. Raises ``CommandConfigError``."""
        values: dict[str, Any] = {}
        for row in settings_of(TlsConfig()):
            text = self.properties.get(row.dotted_name)
            if text is None or row.name in _OF_SERVERS:
                continue
            if row.name.endswith("_type") and not text:
                continue
            value = row.parsed(text)
            problem = row.problem(value)
            if problem is not None:
                raise CommandConfigError(
                    f"--command-config {self.path}: {row.dotted_name} {problem}"
                )
            values[row.name] = value
        return TlsConfig(**values)

    def security(self) -> ClientSecurity:
        """Return what our own connections do. Raises ``CommandConfigError``."""
        from regent.transport.kafka.client_security import ClientSecurity, ClientTls

        with self._naming_the_file():
            return ClientSecurity(
                ClientTls.of(self.tls()) if self.protocol.has_tls else None,
                self._login() if self.protocol.has_sasl else None,
            )

    def _login(self) -> ClientSasl:
        """Return how to log in. Raises ``RegentError``."""
        from regent.transport.kafka.sasl_client import ClientSasl

        mechanism = self.properties.get(_MECHANISM, "")
        if not mechanism:
            raise RegentError(f"{_MECHANISM} is missing: {self.protocol.value} needs a login")
        token = self.properties.get(_TOKEN_URL, "")
        if token:
            path = Path(token.removeprefix("file://"))
            return ClientSasl.of_file(mechanism, "", path, f"a token ({_TOKEN_URL})")
        options = self._jaas()
        if not options.keys() >= {"username", "password"}:
            raise RegentError(f'{_LOGIN} must have username="…" and password="…"')
        user, password = options["username"], options["password"]
        by_token = options.get("tokenauth", "").lower() == "true"
        return ClientSasl(mechanism, user, lambda: password, by_token)

    def _jaas(self) -> dict[str, str]:
        """Return the options of the login. Raises ``RegentError``."""
        text = self.properties.get(_LOGIN, "")
        try:
            return jaas_options(text) if text else {}
        except ValueError as error:
            raise RegentError(f"{_LOGIN} {error}") from None

    def for_librdkafka(self) -> dict[str, str]:
        """Return the same in the words of librdkafka. Raises ``CommandConfigError``."""
        words = {_PROTOCOL: self.protocol.value}
        if self.protocol.has_tls:
            with self._naming_the_file():
                words |= _tls_for_librdkafka(self.tls())
        if self.protocol.has_sasl:
            with self._naming_the_file():
                of_login = self._jaas()
            if of_login.get("tokenauth", "").lower() == "true":
                raise CommandConfigError(
                    f"--command-config {self.path}: librdkafka, which this command uses, cannot log"
                    " in with a delegation token"
                )
            names = of_login.keys() & {"username", "password"}
            words |= {f"sasl.{name}": of_login[name] for name in names}
            words |= {n: text for n, text in self.of_sasl.items() if n in _SASL_OF_LIBRDKAFKA}
        return words

    @contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        try:
            yield
        except CommandConfigError:
            raise
        except RegentError as error:
            raise CommandConfigError(f"--command-config {self.path}: {error}") from None


def _tls_for_librdkafka(config: TlsConfig) -> dict[str, str]:
    from regent.transport.kafka.key_material import read_keys, read_trusted

    words = {
        "ssl.endpoint.identification.algorithm": config.ssl_endpoint_identification_algorithm
        or "none"
    }
    trusted, keys = read_trusted(config), read_keys(config)
    if trusted:
        words["ssl.ca.pem"] = trusted
    if keys is not None:
        words |= {
            "ssl.key.pem": keys.key.decode(),
            "ssl.key.password": keys.password,
            "ssl.certificate.pem": keys.chain,
        }
    if config.ssl_cipher_suites:
        words["ssl.cipher.suites"] = config.ssl_cipher_suites.replace(",", ":")
    return words


class _SecurityOfThisProcess:
    """How a command connects to brokers; a process runs one command."""

    def __init__(self) -> None:
        self.config: CommandConfig | None = None
        self.security: ClientSecurity | None = None

    def use(self, config: CommandConfig | None) -> None:
        """Use a file, or none. Raises ``CommandConfigError``."""
        self.security = None if config is None else config.security()
        self.config = config

    @property
    def protocol(self) -> SecurityProtocol:
        """How it connects."""
        return SecurityProtocol.PLAINTEXT if self.config is None else self.config.protocol

    def endpoint_of(self, broker: BrokerInfo) -> EndPoint | None:
        """Return where a broker listens for such clients."""
        wanted = self.protocol.value
        return next((one for one in broker.endpoints if one.security_protocol == wanted), None)

    def not_listening(self, broker_id: BrokerId | None = None) -> str:
        """Return the sentence that a broker has no such listener; None: no broker has one."""
        who = "no broker listens" if broker_id is None else f"broker {broker_id} does not listen"
        fits = "does security.protocol of --command-config fit the listeners?"
        return f"{who} for {self.protocol.value}: {fits}"

    def for_librdkafka(self) -> dict[str, str]:
        """Return the settings of librdkafka. Raises ``CommandConfigError``."""
        return {} if self.config is None else self.config.for_librdkafka()


SECURITY_OF_COMMAND: Final = _SecurityOfThisProcess()
"""How this command connects to brokers."""
