"""Kafka's Java client over TLS, and the names that it makes of certificates."""

from __future__ import annotations

import base64
import random
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from confluent_kafka import Producer
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from py4j.protocol import Py4JJavaError

from regent.config.private_files import write_private
from regent.core.security.distinguished_name import subject_of
from regent.core.security.ssl_principal_mapper import (
    BadRuleError,
    NoMatchingRuleError,
    SslPrincipalMapper,
)
from regent.testing.waits import eventually, scaled
from regent.transport.kafka.metrics import Closed
from regent.transport.kafka.tls import ServerTls
from tests.broker.api.one_broker import OneBroker
from tests.genuine_clients.java_clients import JavaClients
from tests.support import fuzzed_principals
from tests.support.certificates import Authority
from tests.support.memory_logs import MemoryLogs

IS_NIGHTLY = hypothesis.settings.get_current_profile_name() == "nightly"
RANDOM_RULES = 20_000 if IS_NIGHTLY else 400
TOPIC = "orders"
VALUES = [f"value-{number}" for number in range(500)]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture(params=["TLSv1.2", "TLSv1.3"])
def broker(request: pytest.FixtureRequest, authority: Authority) -> Iterator[OneBroker]:
    """A broker with records, whose clients must have certificates."""
    config = authority.config(ssl_client_auth="required", ssl_enabled_protocols=request.param)
    broker = OneBroker(MemoryLogs(), {TOPIC: 1}, tls=ServerTls(config))
    broker.start()
    keystore = str(authority.keystore("writer"))
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "security.protocol": "SSL",
            "ssl.ca.location": str(authority.trusted),
            "ssl.certificate.location": keystore,
            "ssl.key.location": keystore,
        }
    )
    for value in VALUES:
        producer.produce(TOPIC, value.encode(), partition=0)
    assert producer.flush(scaled(20.0)) == 0
    yield broker
    broker.close()


def settings(authority: Authority, signer: Authority) -> dict[str, object]:
    """The settings of a client with a certificate of ``signer``; Java reads PKCS#8 keys only."""
    path = signer.keystore("alice")
    text = path.read_text()
    at = text.index("-----BEGIN CERTIFICATE")
    key = load_pem_private_key(text[:at].encode(), None)
    pkcs8 = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    write_private(path, pkcs8 + text[at:])
    return {
        "security_protocol": "SSL",
        "ssl_truststore_type": "PEM",
        "ssl_truststore_location": str(authority.trusted),
        "ssl_keystore_type": "PEM",
        "ssl_keystore_location": str(path),
    }


def test_java_reads_over_tls(broker: OneBroker, authority: Authority, java: JavaClients):
    consumer = java.consumer(broker.address, **settings(authority, authority))
    partition = java.partition(TOPIC, 0)
    consumer.assign([partition])
    consumer.seekToBeginning([partition])
    read: list[str] = []

    def have_come() -> bool:
        read.extend(record.value() for record in java.poll(consumer, 1_000))
        return len(read) >= len(VALUES)

    eventually(have_come, "all records", scaled(30.0))
    java.close(consumer)
    assert read == VALUES


def test_java_with_a_certificate_of_a_stranger_is_refused(
    broker: OneBroker, authority: Authority, tmp_path: Path, java: JavaClients
):
    foreign = Authority(tmp_path, "foreign")
    consumer = java.consumer(broker.address, **settings(authority, foreign))
    with pytest.raises(Py4JJavaError) as raised:
        consumer.partitionsFor(TOPIC, java.jvm.java.time.Duration.ofSeconds(20))
    java.close(consumer)
    assert "SslAuthenticationException" in str(raised.value.java_exception)
    closed = broker.listener.metrics.closed
    eventually(lambda: closed[Closed.FAILED_AUTHENTICATION] > 0, "the broker counts it")


def test_a_certificate_has_the_name_that_java_gives_it(authority: Authority, java: JavaClients):
    factory = java.jvm.java.security.cert.CertificateFactory.getInstance("X.509")
    for name in ("alice", "Tkac, Adam", "a=b#c", "  blanks ", "Zoë+😀", 'q"\\<>;'):
        issued = authority.ca.issue_cert(
            "me@example.org", common_name=name, organization_name="O, Inc.",
            organization_unit_name="x",
        )  # fmt: skip
        pem = issued.cert_chain_pems[0].bytes().decode()
        der = ssl.PEM_cert_to_DER_cert(pem)
        decoded = java.jvm.java.util.Base64.getDecoder().decode(base64.b64encode(der).decode())
        stream = java.jvm.java.io.ByteArrayInputStream(decoded)
        certificate = factory.generateCertificate(stream)
        assert subject_of(der) == certificate.getSubjectX500Principal().getName()


PATTERNS = [
    "^CN=(.*?),OU=ServiceUsers.*$",
    "^CN=([^,]+),?.*$",
    "^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$",
    r"^CN=((\\, *|\w)+)(,.*|$)",
    "(?i)cn=(.*)",
    "CN=(?<who>[^,]*).*",
    "CN=(a)?(.*)",
    ".*",
    "",
    "CN=.{2}(.)(.*)",
]
REPLACEMENTS = ["$1", "$1@$4", "$12", "$0", "x", "", r"\$1", "$2$1", "${who}", "a$"]
SUBJECTS = [
    "CN=Duke,OU=ServiceUsers,O=Org,C=US",
    "cn=duke,ou=sme,dc=mycp,dc=com",
    r"CN=Tkac\, Adam,OU=ITZ",
    "OU=JavaSoft,O=Sun",
    "CN=",
    "",
    "CN=Zoë",
]


def test_rules_make_the_names_that_java_makes(java: JavaClients):
    """Where Kafka refuses a client, this does, or refuses the rule; and never the other way."""
    theirs: Any = java.jvm.org.apache.kafka.common.security.ssl.SslPrincipalMapper
    dice = random.Random(1)
    compared = 0
    for pattern in PATTERNS:
        for replacement in REPLACEMENTS:
            rules = f"RULE:{pattern}/{replacement}/{dice.choice(['', 'L', 'U'])}"
            rules += dice.choice(["", ",DEFAULT"])
            try:
                mapper = SslPrincipalMapper(rules)
            except BadRuleError:
                mapper = None
            for subject in SUBJECTS:
                try:
                    expected = theirs.fromRules(rules).getName(subject) or None
                except Py4JJavaError:
                    expected = None
                if mapper is not None:
                    assert (rules, subject, name_of(mapper, subject)) == (rules, subject, expected)
                    compared += 1
    assert compared > 300


@pytest.mark.timeout(300)
def test_random_rules_make_the_names_that_java_makes(java: JavaClients):
    """Who is refused there is nobody here; a rule that has a name here has the same one there."""
    theirs: Any = java.jvm.org.apache.kafka.common.security.ssl.SslPrincipalMapper
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    named = 0
    for _ in range(RANDOM_RULES):
        rules = fuzzed_principals.rules(dice)
        subjects = [fuzzed_principals.subject(dice) for _ in range(4)]
        try:
            mapper = SslPrincipalMapper(rules)
        except BadRuleError:
            continue
        try:
            java_mapper = theirs.fromRules(rules)
        except Py4JJavaError:
            java_mapper = None
        for subject in subjects:
            found = name_of(mapper, subject)
            try:
                expected = None if java_mapper is None else java_mapper.getName(subject) or None
            except Py4JJavaError:
                expected = None
            if found is None and (
                max(subject, default="") > "\uffff" or "\u03a3" in rules + subject
            ):
                continue  # Java may cut such a character in two, or has another small letter
            assert (rules, subject, found) == (rules, subject, expected), f"seed {seed}"
            named += found is not None
    assert named > RANDOM_RULES / 10


@pytest.mark.timeout(300)
def test_random_certificates_have_the_names_that_java_gives_them(java: JavaClients):
    factory = java.jvm.java.security.cert.CertificateFactory.getInstance("X.509")
    seed = random.randrange(2**32)
    dice, key = random.Random(seed), generate_private_key(SECP256R1())
    for _ in range(RANDOM_RULES):
        der = fuzzed_principals.certificate(dice, key)
        theirs = factory.generateCertificate(java.jvm.java.io.ByteArrayInputStream(der))
        assert subject_of(der) == theirs.getSubjectX500Principal().getName(), f"seed {seed}"


def name_of(mapper: SslPrincipalMapper, subject: str) -> str | None:
    try:
        return mapper.name_of(subject)
    except NoMatchingRuleError:
        return None
