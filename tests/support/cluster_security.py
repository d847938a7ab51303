"""All of the security that a cluster has, for ``BreakableCluster``: logins, keys, users and ACLs.

Clients log in with SCRAM over TLS. Brokers show each other certificates at a listener of their own.
Nobody may do anything without an ACL, except the brokers and ``OPERATOR``. Control requests need
keys that the folder of keys allows, and ZooKeeper a login.
"""

from __future__ import annotations

import secrets
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Final, TypeAlias

from regent.client.cluster_connection import cluster_admin
from regent.config.private_files import write_private
from regent.config.tables.authorizer import ACL_AUTHORIZER
from regent.core.model import BrokerId
from regent.core.quota.quota_entities import QuotaEntity
from regent.core.security.acl_cache import AclCache
from regent.core.security.acls import (
    AccessControlEntry,
    AclBinding,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from regent.core.security.authorizer import AclAuthorizer, AuthorizerSettings
from regent.core.security.scram import MIN_ITERATIONS, ScramMechanism, derive
from regent.testing.waits import eventually
from regent.zk.client.login import SECRET_FILE, Login, log_in, make_login
from regent.zk.client.zookeeper_client import ZooKeeperClient
from regent.zk.stores.acl_store import ZkAclStore
from regent.zk.stores.tree_acls import secure_tree
from tests.support.certificates import Authority

ClientSettings: TypeAlias = Mapping[str, str | int | float | bool]
"""Settings of librdkafka."""

OPERATOR, WRITER, READER = "operator", "writer", "reader"
TOPICS: Final = ("history-", "soak-")
"""What the names of the topics begin with that WRITER may write and READER may read."""

_MECHANISM: Final = ScramMechanism.SCRAM_SHA_512
_CLIENTS, _BROKERS = "CLIENTS://127.0.0.1:{}", "BROKERS://127.0.0.1:{}"
_SETTINGS: Final = """\
broker_keys = "allowed"
listeners = "{listeners}"
listener_security_protocol_map = "CLIENTS:SASL_SSL,BROKERS:SSL"
inter_broker_listener_name = "BROKERS"
[tls]
ssl_truststore_location = "{truststore}"
ssl_client_auth = "required"
ssl_principal_mapping_rules = "RULE:^CN=([^,]+),OU=Tests,O=Regent$/$1/"
[listener_name.clients]
ssl_client_auth = "none"
[sasl]
sasl_enabled_mechanisms = "{mechanism}"
connections_max_reauth_ms = 20000
[authorizer]
authorizer_class_name = "{authorizer}"
super_users = "{super_users}"
[zookeeper]
secret_file = "{secret_file}"
"""


class ClusterSecurity:
    """The files are below ``directory``, the data directory of the cluster."""

    def __init__(self, directory: Path, brokers: tuple[BrokerId, ...]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._brokers = brokers
        self._secret_file = directory / SECRET_FILE
        folder = directory / "certificates"
        folder.mkdir(mode=0o700, exist_ok=True)
        self._authority = Authority(folder)
        for broker_id in brokers:
            self._authority.keystore(f"broker-{broker_id}")
        self._passwords = {name: _password() for name in (OPERATOR, WRITER, READER)}
        self._ports: dict[BrokerId, tuple[int, int]] = {}

    # --- the start of the cluster ---

    def zookeeper_login(self) -> Login:
        """Return the login for ZooKeeper, which is made at the first start."""
        return make_login(self._secret_file)

    def prepare(self, zookeeper: str) -> None:
        """Secure a new ZooKeeper, and write users and ACLs, before a broker runs."""
        log_in(zookeeper, self.zookeeper_login())
        secure_tree(zookeeper)
        for name in self._passwords:
            self._write_user(zookeeper, name)
        _write_acls(zookeeper)

    def settings(self) -> str:
        """Return the settings of all brokers, in TOML; the first ones are of the table [broker]."""
        super_users = [OPERATOR, *(f"broker-{broker_id}" for broker_id in self._brokers)]
        return _SETTINGS.format(
            listeners=_listeners(0, 0),
            truststore=self._authority.trusted,
            mechanism=_MECHANISM.value,
            authorizer=ACL_AUTHORIZER,
            super_users=";".join(f"User:{name}" for name in super_users),
            secret_file=self._secret_file.absolute(),
        )

    def cluster_options(self) -> list[str]:
        """Return the options of ``regent cluster``: what each broker has for itself."""
        settings = (f"{b}:ssl_keystore_location={self._keystore(b)}" for b in self._brokers)
        return [part for setting in settings for part in ("--broker-setting", setting)]

    def use_ports(self, broker_id: BrokerId, listeners: list[str]) -> None:
        """Remember the ports of a broker: it has them again after a restart."""
        ports = dict(text.split("://") for text in listeners)
        self._ports[broker_id] = _port(ports["SASL_SSL"]), _port(ports["SSL"])

    def broker_arguments(self, broker_id: BrokerId) -> list[str]:
        """Return the options with which a broker is started again."""
        keystore = str(self._keystore(broker_id))
        listeners = _listeners(*self._ports[broker_id])
        return ["--listeners", listeners, "--ssl-keystore-location", keystore]

    def _keystore(self, broker_id: BrokerId) -> Path:
        return self._authority.folder / f"broker-{broker_id}.pem"

    # --- clients ---

    def client_settings(self, user: str) -> ClientSettings:
        """Return what a client of a user needs."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self._authority.trusted),
            "sasl.mechanism": _MECHANISM.value,
            "sasl.username": user,
            "sasl.password": self._passwords[user],
        }

    # --- changes while the cluster runs ---

    def change_password(self, zookeeper: str, user: str) -> str:
        """Give a user another password, and return it."""
        self._passwords[user] = _password()
        self._write_user(zookeeper, user)
        return self._passwords[user]

    def renew_certificate(self, broker_id: BrokerId) -> bytes:
        """Put another key and its certificate in the place of a broker's; return it in DER."""
        path = self._keystore(broker_id)
        text = self._authority.issued(path.stem)
        new = path.with_suffix(".new")
        write_private(new, text)
        new.replace(path)
        return ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN CERTIFICATE") :])

    def await_certificate(self, broker_id: BrokerId, certificate: bytes) -> None:
        """Wait until a broker shows this certificate at both of its listeners."""

        def is_shown() -> bool:
            ports = self._ports[broker_id]
            shown = (ssl.get_server_certificate(("127.0.0.1", port)) for port in ports)
            return all(ssl.PEM_cert_to_DER_cert(text) == certificate for text in shown)

        eventually(is_shown, f"broker {broker_id} shows its new certificate")

    def _write_user(self, zookeeper: str, name: str) -> None:
        password = self._passwords[name]
        credential = derive(_MECHANISM, password, secrets.token_bytes(16), MIN_ITERATIONS)
        with cluster_admin(zookeeper) as admin:
            change = {_MECHANISM.value: credential.text}
            admin.configs.change_config(QuotaEntity(user=name).path, lambda _: change)


def _listeners(for_clients: int, for_brokers: int) -> str:
    return f"{_CLIENTS.format(for_clients)},{_BROKERS.format(for_brokers)}"


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _password() -> str:
    """Return a password with what must be quoted somewhere."""
    return f"{secrets.token_urlsafe(9)}=,;' ü"


def _write_acls(zookeeper: str) -> None:
    client = ZooKeeperClient(zookeeper, 10_000, on_watch=lambda _: None)
    client.start(10.0)
    try:
        store = ZkAclStore(client)
        store.create_paths()
        authorizer = AclAuthorizer(AuthorizerSettings(), monotonic)
        AclCache(store, authorizer, threading.Lock(), monotonic).create(_acls())
    finally:
        client.close()


def _acls() -> list[AclBinding]:
    topics = [(ResourceType.TOPIC, prefix) for prefix in TOPICS]
    transactions = [(ResourceType.TRANSACTIONAL_ID, prefix) for prefix in TOPICS]
    allowed = {
        (WRITER, AclOperation.WRITE): [*topics, *transactions],
        (READER, AclOperation.READ): [*topics, (ResourceType.GROUP, "nobody")],
    }
    return [
        AclBinding(
            ResourcePattern(kind, name, PatternType.PREFIXED),
            AccessControlEntry(f"User:{user}", "*", operation, AclPermissionType.ALLOW),
        )
        for (user, operation), resources in allowed.items()
        for kind, name in resources
    ]
