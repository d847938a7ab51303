"""Who may connect to the listeners of brokers, by their security protocols and settings."""

from __future__ import annotations

import functools
import pwd
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Final, NamedTuple

from regent.client.doctor.examined_cluster import ExaminedCluster, Settings
from regent.client.doctor.findings import Finding, Severity
from regent.config.addresses import host_of, resolve, tcp_endpoint
from regent.core.model import BrokerId, BrokerInfo
from regent.core.security.session import ANONYMOUS, SecurityProtocol
from regent.transport.local_users import ANY, SAME, local_users

LISTENERS: Final = "listeners"
"""The name of this check."""

LOCAL_USERS: Final = "regent.local.users"
ALLOW_UNAUTHENTICATED: Final = "regent.allow.unauthenticated"

_AUTHORIZER: Final = "authorizer.class.name"
_ALLOW_EVERYONE: Final = "allow.everyone.if.no.acl.found"
_SUPER_USERS: Final = "super.users"
_CLIENT_AUTH: Final = "ssl.client.auth"
_MECHANISMS: Final = "sasl.enabled.mechanisms"
_UNSECURED: Final = "regent.sasl.oauthbearer.unsecured"
_BY_TOKEN: Final = "OAUTHBEARER"
_ADD_LOGIN: Final = (
    "give the listener SASL_SSL in listener_security_protocol_map, or SSL with"
    ' ssl_client_auth = "required"'
)


class Access(NamedTuple):
    """Who may connect to a socket, why, how bad that is, and what closes it."""

    who: str
    why: str
    severity: Severity = Severity.OK
    remedy: str = ""


class Listener(NamedTuple):
    """A listener of a broker for Kafka's protocol; ``host`` is where it listens or is found."""

    name: str
    protocol: SecurityProtocol
    host: str

    @classmethod
    def of(cls, name: str, protocol: str, host: str) -> Listener:
        """Return a listener; an unknown protocol counts as one without TLS and login."""
        known = SecurityProtocol.__members__
        return cls(name, known.get(protocol, SecurityProtocol.PLAINTEXT), host)

    def value(self, settings: Settings, name: str) -> str:
        """Return the value that a setting has for this listener; "" if it has none."""
        return settings.get(f"listener.name.{self.name.lower()}.{name}", settings.get(name, ""))

    def has_login(self, settings: Settings) -> bool:
        """Whether clients prove who they are. With SASL_SSL a certificate is asked for beside."""
        if self.protocol.has_sasl:
            return True
        return self.protocol.has_tls and self.value(settings, _CLIENT_AUTH) == "required"


@functools.cache
def is_loopback(host: str) -> bool:
    """Whether only processes of its machine reach a host; False for one that nobody knows."""
    try:
        return ip_address(resolve(host).number).is_loopback
    except OSError:
        return False


def access(listener: Listener, settings: Settings | None, user: str) -> Access:
    """Return who may connect to a listener; ``settings`` None: the broker has not told them.

    ``user`` is the name of the broker's user.
    """
    known = settings or {}
    if listener.has_login(known):
        return _with_login(listener, known)
    if is_loopback(listener.host):
        return local_access(known.get(LOCAL_USERS, SAME), user, is_known=settings is not None)
    encrypted = " The bytes are encrypted." if listener.protocol.has_tls else ""
    return Access(
        "everybody who reaches that address",
        f"{listener.protocol.value} without a login.{encrypted}".removesuffix("."),
        Severity.PROBLEM,
        _ADD_LOGIN,
    )


def _with_login(listener: Listener, settings: Settings) -> Access:
    protocol = listener.protocol
    who = "users who can log in" if protocol.has_sasl else "owners of a certificate of our CA"
    why = protocol.value
    if protocol.has_sasl and (offered := listener.value(settings, _MECHANISMS)):
        why = f"{why} with {offered}"
    if protocol.has_tls or is_loopback(listener.host):
        return Access(who, why)
    read = "records and passwords" if _sends_secrets(listener, settings) else "records"
    return Access(
        f"{who}, and everybody who is on the network path reads {read}",
        f"{why}: not encrypted",
        Severity.PROBLEM if _sends_secrets(listener, settings) else Severity.WARNING,
        "give the listener SASL_SSL in listener_security_protocol_map",
    )


def _mechanisms(listener: Listener, settings: Settings) -> set[str]:
    return {name.strip() for name in listener.value(settings, _MECHANISMS).split(",")}


def _sends_secrets(listener: Listener, settings: Settings) -> bool:
    """Whether clients send what lets others log in: passwords or tokens."""
    return not _mechanisms(listener, settings).isdisjoint({"PLAIN", _BY_TOKEN})


def local_access(setting: str, user: str, *, is_known: bool = True) -> Access:
    """Return who may connect on loopback, by the setting ``local_users``."""
    names = [name.strip() for name in setting.split(",") if name.strip()]
    if names == [ANY]:
        return Access(
            "every user of this machine",
            f'local_users = "{ANY}"',
            Severity.WARNING,
            f'set local_users = "{SAME}", or name the users',
        )
    if problem := local_users(SAME).problem:
        return Access(
            "every user of this machine",
            problem,
            Severity.WARNING,
            "let no other user have an account on it, or use listeners with a login",
        )
    users = [user, *(name for name in names if name not in (SAME, user))]
    told = f'local_users = "{setting}"' if is_known else "if local_users has its default"
    return Access(f"processes of {' and '.join(users)}", f"the uid check, {told}")


def user_name(uid: int) -> str:
    """Return the name of a user, or the id of one without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def listeners_of(info: BrokerInfo) -> Iterator[Listener]:
    """Yield the listeners that a broker has registered, that for followers too."""
    yield from (listener for _, listener in _endpoints(info))
    addresses = {tcp_endpoint(each.host, each.port) for each in info.endpoints}
    of_followers = info.replication_endpoint
    if of_followers is not None and of_followers not in addresses:
        yield Listener.of("replication", "PLAINTEXT", host_of(of_followers))


def listeners_by_port(info: BrokerInfo) -> dict[int, Listener]:
    """Return the listeners that a broker has registered, by the port at which it is found."""
    return dict(_endpoints(info))


def _endpoints(info: BrokerInfo) -> Iterator[tuple[int, Listener]]:
    """Yield ports and listeners, without the control port: it does not speak Kafka's protocol."""
    for each in info.endpoints:
        if tcp_endpoint(each.host, each.port) != info.control_endpoint:
            yield each.port, Listener.of(each.listener, each.security_protocol, each.host)


def check_listeners(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Check the registered listeners of brokers elsewhere, and the settings of all brokers.

    The sockets of brokers of this machine are examined themselves.
    """
    for broker_id, info in sorted((cluster.registrations or {}).items()):
        settings = cluster.settings.get(broker_id)
        if broker_id not in cluster.local_brokers:
            yield from _registered(broker_id, info, settings)
        if settings is not None:
            yield from _settings(broker_id, list(listeners_of(info)), settings)


def _registered(
    broker_id: BrokerId, info: BrokerInfo, settings: Settings | None
) -> Iterator[Finding]:
    name = f"broker {broker_id}"
    for listener in listeners_of(info):
        found = access(listener, settings, "the broker's user")
        where = f"{listener.name} ({listener.protocol.value}) at {listener.host}"
        yield Finding(
            LISTENERS,
            found.severity,
            name,
            f"{name} has the listener {where}: {found.who} may connect ({found.why})",
            found.remedy,
            {"listener": listener.name, "protocol": listener.protocol.value},
        )


def _settings(
    broker_id: BrokerId, listeners: list[Listener], settings: Settings
) -> Iterator[Finding]:
    name = f"broker {broker_id}"

    def warning(message: str, remedy: str, severity: Severity = Severity.WARNING) -> Finding:
        return Finding(LISTENERS, severity, name, f"{name} {message}", remedy)

    has_authorizer = bool(settings.get(_AUTHORIZER))
    if settings.get(ALLOW_UNAUTHENTICATED) == "true":
        message = "has allow_unauthenticated = true: a listener beyond loopback needs no login"
        yield warning(message, "give each listener a login and remove the setting")
    if not has_authorizer and any(listener.has_login(settings) for listener in listeners):
        message = "has no authorizer: every client that can log in may do everything"
        yield warning(message, "set authorizer_class_name and super_users, then `regent acls add`")
    if has_authorizer and settings.get(_ALLOW_EVERYONE) == "true":
        message = "lets every client use a resource without ACLs"
        yield warning(message, "set allow_everyone_if_no_acl_found = false")
    offers_tokens = [
        listener
        for listener in listeners
        if listener.protocol.has_sasl and _BY_TOKEN in _mechanisms(listener, settings)
    ]
    if settings.get(_UNSECURED) == "true" and offers_tokens:
        message = "takes tokens without a signature (OAUTHBEARER): everybody can make them"
        is_local = all(is_loopback(listener.host) for listener in offers_tokens)
        severity = Severity.WARNING if is_local else Severity.PROBLEM
        remedy = "set sasl_oauthbearer_unsecured = false and sasl_oauthbearer_jwks_endpoint_url"
        yield warning(message, remedy, severity)
    users = [user.strip() for user in settings.get(_SUPER_USERS, "").split(";")]
    if str(ANONYMOUS) in users:
        message = f"has the super user {ANONYMOUS}: clients without a login may do everything"
        remedy = f"remove {ANONYMOUS} from super_users"
        yield warning(message, remedy, Severity.PROBLEM)


def listeners_told(settings: Settings) -> Mapping[int, Listener]:
    """Return the listeners in the settings of a broker, by port: what DescribeConfigs tells."""
    protocols = dict(
        entry.strip().partition(":")[::2]
        for entry in settings.get("listener.security.protocol.map", "").split(",")
    )
    found = {}
    for text in settings.get("listeners", "").split(","):
        name, _, address = text.strip().partition("://")
        host, _, port = address.rpartition(":")
        if port.isascii() and port.isdecimal():
            host = host.removeprefix("[").removesuffix("]")
            found[int(port)] = Listener.of(name, protocols.get(name, name), host)
    return found
