"""How the listeners of a broker encrypt and log in their clients, by the settings.

A setting that asks for security and cannot be honoured ends the start of the broker: a listener
never falls back to less. The libraries for certificates are loaded only if a listener needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from regent.actors.request_channel import ControllersOfKafka
from regent.broker.user_credentials import salt_secret
from regent.config.addresses import is_loopback
from regent.config.settings import Settings
from regent.config.tables.tls import TlsConfig
from regent.core.errors import RegentError
from regent.core.model import EndPoint
from regent.core.security.scram import CredentialProvider
from regent.core.security.session import SecurityProtocol
from regent.transport.kafka.controller_channel import KafkaControllerChannel

if TYPE_CHECKING:
    from regent.transport.kafka.client_security import ClientSecurity
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
        tls = ServerTls.of(of_listener.tls)
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


def security_to_brokers(settings: Settings) -> ClientSecurity | None:
    """Return how this broker connects to the brokers' listener of others; None: in plain text.

    Raises ``RegentError``, which names the setting or the file that is wrong.
    """
    endpoint = settings.listeners.inter_broker
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
