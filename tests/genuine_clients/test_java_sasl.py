"""Kafka's Java client logs in with each mechanism, and is told why it may not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from regent.testing.waits import eventually
from regent.transport.kafka.metrics import Closed
from regent.transport.kafka.tls import ServerTls
from tests.broker.api.one_broker import OneBroker
from tests.genuine_clients.java_clients import JavaClients
from tests.support.certificates import Authority
from tests.support.memory_logs import MemoryLogs
from tests.support.sasl_users import MECHANISMS, NAME, PASSWORD, sasl_for_test

TOPIC = "orders"
SECURITY = "org.apache.kafka.common.security"
REFUSALS = {
    "PLAIN": "Authentication failed: Invalid username or password",
    "OAUTHBEARER": '{"status":"invalid_token"}',
    **{
        mechanism: "Authentication failed during authentication due to invalid credentials with"
        f" SASL mechanism {mechanism}"
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
    },
}
"""What a Kafka 3.9.1 broker says to a client with a wrong secret."""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture(params=["SASL_PLAINTEXT", "SASL_SSL"])
def protocol(request: pytest.FixtureRequest) -> str:
    protocol: str = request.param
    return protocol


@pytest.fixture
def broker(tmp_path: Path, protocol: str, authority: Authority) -> Iterator[OneBroker]:
    tls = ServerTls(authority.config()) if protocol == "SASL_SSL" else None
    broker = OneBroker(MemoryLogs(), {TOPIC: 1}, tls=tls, sasl=sasl_for_test(tmp_path))
    broker.start()
    yield broker
    broker.close()


def login(mechanism: str, name: str = NAME, *, is_right: bool = True) -> dict[str, object]:
    """The settings of a client with a right or a wrong password or token."""
    if mechanism == "OAUTHBEARER":
        claim = "sub" if is_right else "other"
        options = f'unsecuredLoginPrincipalClaimName="{claim}"'
        options += f' unsecuredLoginStringClaim_{claim}="{name}"'
        module = "oauthbearer.OAuthBearerLoginModule"
    else:
        secret = PASSWORD if is_right else "wrong"
        options = f'username="{name}" password="{secret}"'
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    config = f"{SECURITY}.{module} required {options};"
    return {"sasl_mechanism": mechanism, "sasl_jaas_config": config}


def outcome(java: JavaClients, broker: OneBroker, authority: Authority, **config: object) -> str:
    """Ask for the partitions of the topic; return how many there are, or what Java says."""
    trust: dict[str, object] = {}
    if "SSL" in str(config["security_protocol"]):
        trust = {"ssl_truststore_type": "PEM", "ssl_truststore_location": str(authority.trusted)}
    consumer: Any = java.consumer(broker.address, **trust, **config)
    try:
        found = consumer.partitionsFor(TOPIC, java.jvm.java.time.Duration.ofSeconds(20))
        return f"{len(list(found))} partitions"
    except Py4JJavaError as error:
        return str(error.java_exception).removeprefix("org.apache.kafka.common.errors.")
    finally:
        java.close(consumer)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_java_with_the_right_secret_is_let_in(
    java: JavaClients, broker: OneBroker, authority: Authority, protocol: str, mechanism: str
):
    config = login(mechanism)
    found = outcome(java, broker, authority, security_protocol=protocol, **config)
    assert found == "1 partitions"
    metrics = broker.listener.metrics
    assert (metrics.successful_authentications, metrics.failed_authentications) == (1, 0)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_java_with_a_wrong_secret_is_told_what_kafka_tells(
    java: JavaClients, broker: OneBroker, authority: Authority, protocol: str, mechanism: str
):
    expected = f"SaslAuthenticationException: {REFUSALS[mechanism]}"
    users = (NAME,) if mechanism == "OAUTHBEARER" else (NAME, "nobody")  # the same for both
    for name in users:
        config = login(mechanism, name, is_right=False)
        said = outcome(java, broker, authority, security_protocol=protocol, **config)
        assert said == expected
    metrics = broker.listener.metrics
    assert metrics.successful_authentications == 0
    assert metrics.failed_authentications == len(users)
    closed = metrics.closed  # after the answer
    eventually(lambda: closed[Closed.FAILED_AUTHENTICATION] == len(users), "connections end")


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT"])
def test_java_is_told_which_mechanisms_are_enabled(
    java: JavaClients, tmp_path: Path, authority: Authority, protocol: str
):
    sasl = sasl_for_test(tmp_path, sasl_enabled_mechanisms="SCRAM-SHA-512")
    broker = OneBroker(MemoryLogs(), {TOPIC: 1}, sasl=sasl)
    broker.start()
    said = outcome(java, broker, authority, security_protocol=protocol, **login("PLAIN"))
    broker.close()
    assert said == (
        "UnsupportedSaslMechanismException: Client SASL mechanism 'PLAIN' not enabled in the"
        " server, enabled mechanisms are [SCRAM-SHA-512]"
    )


@pytest.mark.parametrize(
    ("protocol", "theirs"),
    [
        *(("SASL_PLAINTEXT", theirs) for theirs in ("PLAINTEXT", "SSL", "SASL_SSL")),
        *(("SASL_SSL", theirs) for theirs in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT")),
    ],
)
def test_java_with_another_protocol_is_closed_and_counted(
    java: JavaClients, broker: OneBroker, authority: Authority, theirs: str
):
    """It tries again until its own time limit, as with Kafka."""
    config = login("PLAIN") if "SASL" in theirs else {}
    consumer: Any = java.consumer(
        broker.address,
        security_protocol=theirs,
        ssl_truststore_type="PEM",
        ssl_truststore_location=str(authority.trusted),
        **config,
    )
    metrics = broker.listener.metrics
    consumer.assign([java.partition(TOPIC, 0)])

    def is_counted() -> bool:
        assert not java.poll(consumer, 100)
        return metrics.failed_authentications > 0

    eventually(is_counted, "a refusal")
    java.close(consumer)
    assert metrics.successful_authentications == 0
    closed, reasons = metrics.closed, (Closed.FAILED_AUTHENTICATION, Closed.NOT_LOGGED_IN)
    eventually(
        lambda: sum(closed[reason] for reason in reasons) == metrics.failed_authentications,
        "connections end",
    )
