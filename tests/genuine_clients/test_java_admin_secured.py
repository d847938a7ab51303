"""Kafka's Java admin client makes users, ACLs and delegation tokens; others use them at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError

from regent.config.private_files import write_private
from regent.config.tables.authorizer import ACL_AUTHORIZER
from regent.testing import RegentCluster
from regent.testing.waits import eventually
from tests.genuine_clients.java_clients import JavaClients
from tests.support.sasl_users import PASSWORD, users_file

pytestmark = [pytest.mark.nightly, pytest.mark.system, pytest.mark.zookeeper]

TOPIC = "orders"
LOGIN = "org.apache.kafka.common.security"
TEXT = "org.apache.kafka.common.serialization.StringSerializer"
NOT_ALLOWED, UNKNOWN = "TopicAuthorizationException", "SaslAuthenticationException"


@pytest.fixture
def bootstrap(tmp_path: Path) -> Iterator[str]:
    """Two brokers with an authorizer, whose clients must log in; ``admin`` may do everything."""
    write_private(tmp_path / "secret", "the secret of all tokens")
    (tmp_path / "cluster.toml").write_text(
        f"""
        [broker]
        listeners = "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0"
        listener_security_protocol_map = "CLIENTS:SASL_PLAINTEXT,BROKERS:PLAINTEXT"
        inter_broker_listener_name = "BROKERS"
        [sasl]
        sasl_enabled_mechanisms = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
        sasl_plain_users_file = "{users_file(tmp_path, "admin")}"
        [authorizer]
        authorizer_class_name = "{ACL_AUTHORIZER}"
        super_users = "User:admin"
        [delegation_tokens]
        delegation_token_secret_key_file = "{tmp_path / "secret"}"
        """
    )
    options = (
        *("--brokers", "2", "--no-placement-service", "--no-internal-topics"),
        *("--config", str(tmp_path / "cluster.toml")),
    )
    with RegentCluster(tmp_path / "data", *options) as cluster:
        yield ",".join(
            broker["listeners"][0].partition("://")[2] for broker in cluster.description["brokers"]
        )


def login(name: str, secret: str, mechanism: str, extra: str = "") -> dict[str, str]:
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": (
            f'{LOGIN}.{module} required username="{name}" password="{secret}"{extra};'
        ),
    }


def outcome(java: JavaClients, bootstrap: str, config: dict[str, str]) -> str:
    """Write one record; return the name of the error, empty: all replicas have it.

    The producer is not idempotent: Java's may time out without the reason, if the login fails with
    which it asks for a producer id.
    """
    clients = java.jvm.org.apache.kafka.clients.producer
    settings = {"bootstrap.servers": bootstrap, "enable.idempotence": "false", **config}
    producer = clients.KafkaProducer(
        {**settings, "key.serializer": TEXT, "value.serializer": TEXT, "max.block.ms": "20000"}
    )
    try:
        producer.send(clients.ProducerRecord(TOPIC, "value")).get()
    except Py4JJavaError as error:
        cause = error.java_exception.getCause() or error.java_exception
        return str(cause.getClass().getSimpleName())
    else:
        return ""
    finally:
        java.close(producer)


def has_outcome(expected: str, java: JavaClients, bootstrap: str, config: dict[str, str]) -> bool:
    """Whether the outcome of a write is this one; raises ``LookupError``, which names another."""
    found = outcome(java, bootstrap, config)
    if found != expected:
        raise LookupError(found or "the record was written")
    return True


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_what_the_admin_client_makes_and_deletes_counts_on_all_brokers(
    java: JavaClients, bootstrap: str, mechanism: str
):
    kafka = java.jvm.org.apache.kafka
    admin_login = login("admin", PASSWORD, "PLAIN")
    admin = kafka.clients.admin.Admin.create({"bootstrap.servers": bootstrap, **admin_login})
    admin.createTopics([kafka.clients.admin.NewTopic(TOPIC, 1, 2)]).all().get()
    alice = login("alice", "her secret", mechanism)
    assert outcome(java, bootstrap, alice) == UNKNOWN
    # A user.
    scram = getattr(kafka.clients.admin.ScramMechanism, mechanism.replace("-", "_"))
    info = kafka.clients.admin.ScramCredentialInfo(scram, 8192)
    upsertion = kafka.clients.admin.UserScramCredentialUpsertion("alice", info, "her secret")
    admin.alterUserScramCredentials([upsertion]).all().get()
    eventually(lambda: has_outcome(NOT_ALLOWED, java, bootstrap, alice), "alice logs in")
    # An ACL.
    acl, resource = kafka.common.acl, kafka.common.resource
    pattern = resource.ResourcePattern(
        resource.ResourceType.TOPIC, TOPIC[:3], resource.PatternType.PREFIXED
    )
    entry = acl.AccessControlEntry(
        "User:alice", "*", acl.AclOperation.WRITE, acl.AclPermissionType.ALLOW
    )
    binding = acl.AclBinding(pattern, entry)
    admin.createAcls([binding]).all().get()
    eventually(lambda: has_outcome("", java, bootstrap, alice), "alice may write")
    # A token of hers.
    owner = kafka.common.security.auth.KafkaPrincipal("User", "alice")
    options = kafka.clients.admin.CreateDelegationTokenOptions().owner(owner)
    token = admin.createDelegationToken(options).delegationToken().get()
    token_id = token.tokenInfo().tokenId()
    by_token = login(token_id, token.hmacAsBase64String(), mechanism, ' tokenauth="true"')
    eventually(lambda: has_outcome("", java, bootstrap, by_token), "the token may write")
    as_user = login(token_id, token.hmacAsBase64String(), mechanism)
    assert outcome(java, bootstrap, as_user) == UNKNOWN
    hers = kafka.clients.admin.Admin.create({"bootstrap.servers": bootstrap, **alice})
    now = kafka.clients.admin.ExpireDelegationTokenOptions().expiryTimePeriodMs(-1)
    hers.expireDelegationToken(token.hmac(), now).expiryTimestamp().get()
    eventually(lambda: has_outcome(UNKNOWN, java, bootstrap, by_token), "the token is gone")
    # All is taken back.
    admin.deleteAcls([binding.toFilter()]).all().get()
    eventually(lambda: has_outcome(NOT_ALLOWED, java, bootstrap, alice), "alice may not write")
    deletion = kafka.clients.admin.UserScramCredentialDeletion("alice", scram)
    admin.alterUserScramCredentials([deletion]).all().get()
    eventually(lambda: has_outcome(UNKNOWN, java, bootstrap, alice), "alice is gone")
    hers.close()
    admin.close()
