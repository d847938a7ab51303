"""How the listeners of a broker encrypt and log in their clients, by the settings.

A setting that asks for security and cannot be honoured ends the start of the broker: a listener
never falls back to less. The libraries for certificates are loaded only if a listener needs them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from regent.actors.request_channel import ControllersOfKafka
from regent.broker.machine_settings import dynamic_values, listener_rows, listener_setting
from regent.broker.user_credentials import salt_secret
from regent.config.addresses import is_loopback
from regent.config.settings import (
    DYNAMIC_LISTENER_SETTINGS,
    KAFKA_SETTINGS,
    LISTENER_OPTIONS,
    Settings,
)
from regent.config.tables.tls import TlsConfig
from regent.core.admin.config_handlers import values_in_force
from regent.core.admin.config_problems import base_name, is_of_keys
from regent.core.errors import RegentError
from regent.core.model import EndPoint
from regent.core.security.scram import CredentialProvider
from regent.core.security.session import SecurityProtocol
from regent.core.setting import SettingValues
from regent.transport.kafka.controller_channel import KafkaControllerChannel

if TYPE_CHECKING:
    from regent.transport.kafka.client_security import ClientSecurity, ClientTls
    from regent.transport.kafka.sasl_server import SaslListener
    from regent.transport.kafka.tls import ServerTls


class ListenerSecurity(NamedTuple):
    """What a listener has beside its address; None: it does not encrypt, or nobody logs in."""

    tls: ServerTls | None = None
    sasl: SaslListener | None = None


def security_of(
    endpoint: EndPoint, settings: Settings, credentials: CredentialProvider
) -> ListenerSecurity:
    """Return what a listener needs for its security protocol.

    Raises ``RegentError``, which names the setting or the file that is wrong.
    """
    protocol = SecurityProtocol(endpoint.security_protocol)
    of_listener = settings.of_listener(endpoint.listener)
    tls, sasl = None, None
    if protocol.has_tls:
        from regent.transport.kafka.tls import ServerTls

        _check_client_auth(protocol, endpoint.listener, settings)
        is_of_brokers = endpoint.listener == settings.listeners.inter_broker_name
        tls = ServerTls.of(of_listener.tls, is_of_brokers=is_of_brokers)
    if protocol.has_sasl:
        from regent.transport.kafka.sasl_mechanisms import sasl_listener

        sasl = sasl_listener(
            of_listener.sasl,
            credentials,
            salt_secret=salt_secret(settings),
            has_tls=protocol.has_tls,
            is_loopback=is_loopback(endpoint.host),
        )
    return ListenerSecurity(tls, sasl)


def _check_client_auth(protocol: SecurityProtocol, name: str, settings: Settings) -> None:
    """Raise ``RegentError`` where Kafka ignores that certificates are asked for (KIP-684)."""
    is_asked = settings.tls.ssl_client_auth != TlsConfig.ssl_client_auth
    is_own = "ssl_client_auth" in settings.listener_name.get(name.lower(), {})
    if protocol.has_sasl and is_asked and not is_own:
        raise RegentError(
            f"tls.ssl_client_auth is {settings.tls.ssl_client_auth}, and clients of {name} log in"
            f" with {protocol.value}: say in [listener_name.{name.lower()}] whether they need a"
            " certificate too"
        )


class ListenerKeys:
    """The keys of TLS of a broker, which follow changed files and settings of single listeners.

    Thread-safe, after the calls of ``add``.
    """

    reconfigurable_configs: Final = (
        *("ssl.keystore.location", "ssl.keystore.type"),
        *("ssl.truststore.location", "ssl.truststore.type"),
        *("ssl.key.password", "ssl.keystore.password", "ssl.truststore.password"),
    )

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._servers: dict[str, ServerTls] = {}
        self._client: ClientTls | None = None
        self._of_brokers = settings.listeners.inter_broker_name
        self._started = dynamic_values(settings)
        self._rows = listener_rows(settings)

    def add(self, servers: Mapping[str, ServerTls], client: ClientTls | None = None) -> None:
        """Add the keys of listeners by their names.

        With those of ``client`` this broker connects to the brokers' listener of others.
        """
        self._servers |= servers
        self._client = client

    def reconfigure(self, old: SettingValues, new: SettingValues) -> None:
        """Take other keys into use; those that cannot serve are logged."""
        del old
        for name, tls in self._servers.items():
            tls.reconfigure(self._config(name, new))
        if self._client is not None:
            self._client.reconfigure(self._config(self._of_brokers, new))

    def read_again(self) -> None:
        """Take changed files into use; who connects looks for them each time."""
        for tls in self._servers.values():
            tls.reload_if_changed()

    def check(self, overrides: Mapping[str, str], changed: Collection[str]) -> None:
        """Raise ``RegentError`` if changed settings of a listener cannot be used.

        As in Kafka, one that is not followed is refused: nobody shall believe in it.
        """
        followed = {name: text for name, text in overrides.items() if name in self._rows}
        values = values_in_force(self._started, followed, self._rows)
        for endpoint in self._settings.listeners.listening:
            name = endpoint.listener
            prefix = listener_setting(name, "")
            written = [one for one in changed if one.startswith(prefix) and one in overrides]
            for one in written:
                if one not in self._rows and base_name(one) in KAFKA_SETTINGS:
                    raise RegentError(
                        f"{one} cannot change while the broker runs: set it in the broker's file,"
                        f" in [listener_name.{name.lower()}], and restart the broker"
                    )
            if name in self._servers and any(map(is_of_keys, written)):
                self._servers[name].check(self._config(name, values))

    def _config(self, listener: str, values: SettingValues) -> TlsConfig:
        of_listener = {
            name: values[listener_setting(listener, name)]
            for name in DYNAMIC_LISTENER_SETTINGS
            if LISTENER_OPTIONS[name][0] == "tls"
        }
        return replace(self._settings.of_listener(listener).tls, **of_listener)


def security_to_brokers(
    settings: Settings, endpoint: EndPoint | None = None
) -> ClientSecurity | None:
    """Return how this broker connects to the brokers' listener of others; None: in plain text.

    ``endpoint``: our listener of another name that it connects to. Raises ``RegentError``, which
    names the setting or the file that is wrong.
    """
    endpoint = endpoint or settings.listeners.inter_broker
    protocol = SecurityProtocol(endpoint.security_protocol)
    if protocol is SecurityProtocol.PLAINTEXT:
        return None
    from regent.transport.kafka.client_security import ClientSecurity, ClientTls
    from regent.transport.kafka.sasl_client import sasl_of_broker

    of_listener = settings.of_listener(endpoint.listener)
    return ClientSecurity(
        ClientTls.of(of_listener.tls) if protocol.has_tls else None,
        sasl_of_broker(of_listener.sasl) if protocol.has_sasl else None,
    )


def controllers_of_kafka(settings: Settings, client_id: str) -> ControllersOfKafka:
    """Return how this broker reaches a controller of Kafka.

    Raises ``RegentError``, which names the setting or the file that is wrong.
    """
    endpoint, security = settings.listeners.inter_broker, security_to_brokers(settings)
    return ControllersOfKafka(
        endpoint.listener,
        endpoint.security_protocol,
        lambda at: KafkaControllerChannel(at, client_id=client_id, security=security),
    )
