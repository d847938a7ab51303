"""The listeners of a broker: Kafka's ``listeners`` and the settings that belong to it.

Without ``listeners`` a broker has the listener PLAINTEXT for clients, at ``host`` and ``port``, and
one for other brokers only, at ``replication_port``. A listener of ``listeners`` is for clients
always, and that of ``inter_broker_listener_name`` for brokers too. Mirrors
``kafka.server.KafkaConfig``, ``kafka.cluster.EndPoint`` and ``kafka.utils.CoreUtils``.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from regent.config.addresses import is_every_address
from regent.config.tables.broker import DEFAULT_PROTOCOL_MAP, BrokerConfig
from regent.core.model import EndPoint
from regent.core.security.session import SecurityProtocol

REPLICATION: Final = "REPLICATION"
"""The name of the listener for other brokers if ``listeners`` is not set. It is not registered."""

_PLAINTEXT: Final = SecurityProtocol.PLAINTEXT.value
_ENDPOINT: Final = re.compile(
    r"([A-Za-z0-9._-]+)://\[?([0-9A-Za-z\-%._:]*)\]?:(-?[0-9]+)", re.ASCII
)
_MAX_PORT: Final = 65_535
_TWO_STACKS: Final = [4, 6]
_IN_LISTENERS: Final = (
    *("port", "replication_port", "advertised_port", "advertised_replication_port"),
)
_WITH_LISTENERS_ONLY: Final = (
    *("advertised_listeners", "inter_broker_listener_name", "security_inter_broker_protocol"),
    *("listener_security_protocol_map", "control_plane_listener_name"),
)


class ListenersError(ValueError):
    """The settings of listeners are wrong or contradict each other; the message names them."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """Where a broker listens, and where clients and brokers are told that they find it.

    Port 0 is any free port; in ``advertised`` it is the port that the listener has got. The first
    of the listeners is the one that ``regent brokers`` and ``cluster.json`` show.
    """

    listening: tuple[EndPoint, ...]
    advertised: tuple[EndPoint, ...]
    inter_broker_name: str
    are_named: bool
    """Whether the setting ``listeners`` has them."""
    control_plane_name: str = ""
    """Of the listener for requests of a controller of Kafka; "": that of brokers."""

    @property
    def inter_broker(self) -> EndPoint:
        """The listener that other brokers connect to."""
        return next(e for e in self.listening if e.listener == self.inter_broker_name)

    @property
    def control_plane(self) -> EndPoint | None:
        """The listener for requests of a controller of Kafka, if it is not that of brokers."""
        return next((e for e in self.listening if e.listener == self.control_plane_name), None)

    @property
    def of_brokers_only(self) -> EndPoint | None:
        """The listener that only brokers may use; None: that of brokers is for clients too."""
        return None if self.are_named else self.inter_broker

    @property
    def of_clients(self) -> tuple[EndPoint, ...]:
        """The listeners that clients may use."""
        return self.listening if self.are_named else self.listening[:1]

    def keeps_brokers_apart(self, listener: str) -> bool:
        """Whether connections of brokers to a listener of clients do not count among others.

        Clients could otherwise take all connections that ``max_connections`` allows.
        """
        of_brokers = (self.inter_broker_name, self.control_plane_name)
        is_of_brokers = self.are_named and listener in of_brokers
        return is_of_brokers and len(self.listening) > 1

    @property
    def registered_names(self) -> tuple[str, ...]:
        """The names of the listeners that a registration may have."""
        names = tuple(e.listener for e in self.listening)
        return names if self.are_named else names[:1]

    def shown(self, ports: Mapping[str, int]) -> tuple[EndPoint, ...]:
        """Return what is shown as Kafka's ``listeners``; ``ports`` are those they have got."""
        shown = [e for e in self.listening if e.listener in self.registered_names]
        return tuple(replace(e, port=ports[e.listener]) for e in shown)

    @staticmethod
    def of(config: BrokerConfig, given: Container[str] = ()) -> Listeners:
        """Return the listeners of the settings; those that a user has set are in ``given``.

        Raises ``ListenersError``.
        """
        if not config.listeners:
            return _of_ports(config)
        both = [
            name for name in _IN_LISTENERS if f"broker.{name}" in given and getattr(config, name)
        ]
        if both:
            raise ListenersError(
                f"broker.listeners and broker.{both[0]} say where the broker listens: remove one"
            )
        protocols = _protocols(config.listener_security_protocol_map)
        listening = _parsed("listeners", config.listeners, protocols)
        advertised = listening
        if config.advertised_listeners:
            text = config.advertised_listeners
            advertised = _parsed("advertised_listeners", text, protocols, distinct_ports=False)
        if not listening or not advertised:
            raise ListenersError("broker.listeners must name at least one listener")
        name = _inter_broker_name(config, protocols, advertised)
        _check_advertised(listening, advertised)
        return Listeners(
            tuple(replace(e, host=e.host or _every_address()) for e in listening),
            tuple(replace(e, host=e.host or socket.getfqdn()) for e in advertised),
            name,
            are_named=True,
            control_plane_name=_control_plane_name(config, name, advertised),
        )


def _of_ports(config: BrokerConfig) -> Listeners:
    for name in _WITH_LISTENERS_ONLY:
        if getattr(config, name) != getattr(BrokerConfig, name):
            raise ListenersError(f"broker.{name} needs broker.listeners: set that too")
    ports = (_PLAINTEXT, config.port), (REPLICATION, config.replication_port)
    advertised = (
        (_PLAINTEXT, config.advertised_port or config.port),
        (REPLICATION, config.advertised_replication_port or config.replication_port),
    )
    host = config.advertised_host or config.host
    return Listeners(
        tuple(EndPoint(name, config.host, port) for name, port in ports),
        tuple(EndPoint(name, host, port) for name, port in advertised),
        REPLICATION,
        are_named=False,
    )


def parse_advertised(text: str, present: Sequence[EndPoint]) -> tuple[EndPoint, ...]:
    """Return other advertised endpoints of the listeners ``present``.

    Raises ``ListenersError``.
    """
    protocols = {endpoint.listener: endpoint.security_protocol for endpoint in present}
    parsed = _parsed("advertised_listeners", text, protocols, distinct_ports=False)
    return tuple(replace(e, host=e.host or socket.getfqdn()) for e in parsed)


def _protocols(text: str) -> Mapping[str, str]:
    """Return the security protocols of listeners. The last one of a name counts, as in Kafka."""
    protocols: dict[str, str] = {}
    for item in _items(text or DEFAULT_PROTOCOL_MAP):
        name, colon, protocol = (part.strip() for part in item.rpartition(":"))
        if not colon or not name or protocol.upper() not in SecurityProtocol.__members__:
            raise ListenersError(
                "broker.listener_security_protocol_map must be NAME:PROTOCOL,NAME:PROTOCOL,… with"
                f" the protocols {', '.join(SecurityProtocol.__members__)}: {item!r}"
            )
        protocols[name.upper()] = protocol.upper()
    return protocols


def _items(text: str) -> Iterator[str]:
    return filter(None, (item.strip() for item in text.split(",")))


def _parsed(
    key: str, text: str, protocols: Mapping[str, str], *, distinct_ports: bool = True
) -> tuple[EndPoint, ...]:
    endpoints = tuple(_endpoint(key, item, protocols) for item in _items(text))
    names = [endpoint.listener for endpoint in endpoints]
    if len(set(names)) < len(names):
        raise ListenersError(f"broker.{key}: each listener must have a different name: {text!r}")
    if distinct_ports:
        _check_ports(key, endpoints)
    return endpoints


def _endpoint(key: str, item: str, protocols: Mapping[str, str]) -> EndPoint:
    match = _ENDPOINT.fullmatch(item)
    name = match[1].upper() if match else ""
    if match is None or not 0 <= int(match[3]) <= _MAX_PORT:
        raise ListenersError(
            f"broker.{key} must be NAME://HOST:PORT,NAME://HOST:PORT,… (IPv6 in brackets): {item!r}"
        )
    if name not in protocols:
        raise ListenersError(
            f"broker.{key}: no security protocol is defined for the listener {name}: name it in"
            " broker.listener_security_protocol_map"
        )
    return EndPoint(name, match[2], int(match[3]), protocols[name])


def _check_ports(key: str, endpoints: Sequence[EndPoint]) -> None:
    """Two listeners may have the same port only with one IPv4 and one IPv6 address."""
    for port in {endpoint.port for endpoint in endpoints if endpoint.port}:
        hosts = [endpoint.host for endpoint in endpoints if endpoint.port == port]
        if len(hosts) > 1 and sorted(map(_version, hosts)) != _TWO_STACKS:
            raise ListenersError(
                f"broker.{key}: each listener must have a different port, except one with an IPv4"
                f" and one with an IPv6 address: {port}"
            )


def _version(host: str) -> int:
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return 0


def _inter_broker_name(
    config: BrokerConfig,
    protocols: Mapping[str, str],
    advertised: Sequence[EndPoint],
) -> str:
    name, protocol = config.inter_broker_listener_name, config.security_inter_broker_protocol
    key = "inter_broker_listener_name" if name else "security_inter_broker_protocol"
    if name and protocol != BrokerConfig.security_inter_broker_protocol:
        raise ListenersError(
            "only one of broker.inter_broker_listener_name and"
            " broker.security_inter_broker_protocol can be set"
        )
    name = (name or protocol).upper()
    if key == "inter_broker_listener_name" and name not in protocols:
        raise ListenersError(
            f"broker.{key}: the listener {name} is not in broker.listener_security_protocol_map"
        )
    names = [endpoint.listener for endpoint in advertised]
    if name not in names:
        raise ListenersError(
            f"broker.{key}: brokers find each other at the listener {name}, which is not"
            f" advertised: set broker.inter_broker_listener_name to one of {', '.join(names)}"
        )
    return name


def _control_plane_name(
    config: BrokerConfig, inter_broker_name: str, advertised: Sequence[EndPoint]
) -> str:
    name = config.control_plane_listener_name.upper()
    others = [e.listener for e in advertised if e.listener != inter_broker_name]
    if name and name not in others:
        raise ListenersError(
            "broker.control_plane_listener_name must be an advertised listener that is not the one"
            f" of brokers, {inter_broker_name}: {name} is not one of {', '.join(others) or 'none'}"
        )
    return name


def _check_advertised(listening: Sequence[EndPoint], advertised: Sequence[EndPoint]) -> None:
    names = [endpoint.listener for endpoint in listening]
    others = [endpoint.listener for endpoint in advertised if endpoint.listener not in names]
    if others:
        raise ListenersError(
            f"broker.advertised_listeners must be those of broker.listeners or some of them:"
            f" {', '.join(others)} is not one of {', '.join(names)}"
        )
    for endpoint in advertised:
        if is_every_address(endpoint.host):
            raise ListenersError(
                f"broker.advertised_listeners cannot be {endpoint.connection_string}, which tells"
                " others nothing: name a host or an address at which they find this broker"
            )


def _every_address() -> str:
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
