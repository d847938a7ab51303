"""Brokers and clients that encrypt and log in: certificates, users and ACLs, as Kafka has them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificate

from regent.config.java import find_java
from regent.testing.waits import scaled
from tests.kafka_brokers.genuine_broker import command_of_kafka
from tests.support.certificates import HOSTS, Authority

PROTOCOL: Final = "SASL_SSL"
MECHANISM: Final = "SCRAM-SHA-512"
BROKER, APP, STRANGER = "broker", "app", "stranger"
PASSWORD: Final = "its own; secret"
WAIT_S: Final = scaled(60.0)
_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_OF_APP: Final = (
    (ResourceType.TOPIC, "*", AclOperation.ALL),
    (ResourceType.GROUP, "*", AclOperation.ALL),
    (ResourceType.TRANSACTIONAL_ID, "*", AclOperation.ALL),
    (ResourceType.BROKER, "kafka-cluster", AclOperation.IDEMPOTENT_WRITE),
)


class Secured:
    """Writes keystores of PKCS12 as Java reads and makes them, below ``folder``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._authority = Authority(folder)
        self._keys = folder / "broker.p12"
        self._trusted = folder / "trusted.p12"
        issued = self._authority.ca.issue_cert(*HOSTS)
        certificates = [load_pem_x509_certificate(one.bytes()) for one in issued.cert_chain_pems]
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        encryption = BestAvailableEncryption(PASSWORD.encode())
        self._keys.write_bytes(
            pkcs12.serialize_key_and_certificates(
                *(b"broker", key, certificates[0], certificates[1:], encryption)  # type: ignore[arg-type]
            )
        )
        self._keys.chmod(0o600)
        keytool = find_java().executable.with_name("keytool")
        command = [*(str(keytool), "-importcert", "-noprompt", "-alias", "authority")]
        command += ["-file", str(self._authority.trusted), "-keystore", str(self._trusted)]
        command += ["-storepass", PASSWORD, "-storetype", "PKCS12"]
        subprocess.run(command, check=True, capture_output=True, timeout=WAIT_S)

    @property
    def broker(self) -> Mapping[str, object]:
        """Return what is in the file of a broker of Kafka."""
        login = f'{_MODULE} required username="{BROKER}" password="{PASSWORD}";'
        return {
            "security.inter.broker.protocol": PROTOCOL,
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            "sasl.enabled.mechanisms": MECHANISM,
            f"listener.name.sasl_ssl.{MECHANISM.lower()}.sasl.jaas.config": login,
            "ssl.keystore.location": self._keys,
            "ssl.keystore.password": PASSWORD,
            "ssl.key.password": PASSWORD,
            "ssl.truststore.location": self._trusted,
            "ssl.truststore.password": PASSWORD,
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": f"User:{BROKER}",
        }

    def client(self, user: str, password: str = PASSWORD) -> dict[str, str]:
        """Return what a client of librdkafka needs to log in."""
        return {
            "security.protocol": PROTOCOL,
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": password,
            "ssl.ca.location": str(self._authority.trusted),
        }

    def command_config(self, user: str) -> str:
        """Return the text of the file with which Kafka's tools and ours log in."""
        return (
            f"security.protocol={PROTOCOL}\nsasl.mechanism={MECHANISM}\n"
            f'sasl.jaas.config={_MODULE} required username="{user}" password="{PASSWORD}";\n'
            f"ssl.truststore.type=PEM\nssl.truststore.location={self._authority.trusted}\n"
        )


def add_first_user(zookeeper: str, version: str) -> None:
    """Add the user of brokers to ZooKeeper with Kafka's own tool, before any broker runs."""
    command = command_of_kafka(version, "kafka.admin.ConfigCommand")
    command += ["--zookeeper", zookeeper, "--alter", "--entity-type", "users"]
    command += ["--entity-name", BROKER, "--add-config", f"{MECHANISM}=[password={PASSWORD}]"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def add_users(admin: AdminClient, names: Iterable[str]) -> None:
    """Add users who may do nothing yet."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    changes: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(name, info, PASSWORD.encode()) for name in names
    ]
    for changed in admin.alter_user_scram_credentials(changes).values():
        changed.result(WAIT_S)


def acl(user: str, kind: ResourceType, name: str, operation: AclOperation) -> AclBinding:
    """Return what allows an operation from every host."""
    literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    return AclBinding(kind, name, literal, f"User:{user}", "*", operation, allow)


def filter_of(one: AclBinding) -> AclBindingFilter:
    """Return what finds this ACL."""
    return AclBindingFilter(
        *(one.restype, one.name, one.resource_pattern_type, one.principal),
        *(one.host, one.operation, one.permission_type),
    )


def allow_app(admin: AdminClient) -> None:
    """Let the user of the load do what it does."""
    for made in admin.create_acls([acl(APP, *row) for row in _OF_APP]).values():
        made.result(WAIT_S)
