"""Files of properties, as Kafka's tools have them, for our own connections and for librdkafka's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from regent.client.broker_request import NoAnswerError, ask_broker
from regent.client.command_config import (
    SECURITY_OF_COMMAND,
    CommandConfig,
    CommandConfigError,
)
from regent.config.java_properties import jaas_options, parse_properties
from regent.config.private_files import write_private
from regent.core.model import BrokerInfo, EndPoint
from regent.core.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from regent.testing.waits import scaled
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import encoded
from regent.transport.kafka.tls import ServerTls
from tests.broker.api.one_broker import OneBroker
from tests.support.certificates import Authority
from tests.support.memory_logs import MemoryLogs
from tests.transport.kafka.conftest import Listen

TOPIC = "orders"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture(autouse=True)
def no_security() -> Iterator[None]:
    yield
    SECURITY_OF_COMMAND.use(None)


@pytest.fixture
def broker(authority: Authority) -> Iterator[OneBroker]:
    config = authority.config(ssl_client_auth="required")
    broker = OneBroker(MemoryLogs(), {TOPIC: 1}, tls=ServerTls(config))
    broker.start()
    yield broker
    broker.close()


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "client.properties"
    write_private(path, text)
    path.chmod(mode)
    return path


def of_user(authority: Authority, name: str = "alice") -> str:
    return (
        "security.protocol=SSL\n"
        f"ssl.truststore.location={authority.trusted}\nssl.truststore.type=PEM\n"
        f"ssl.keystore.location={authority.keystore(name)}\nssl.keystore.type=PEM\n"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a = b c \n", {"a": "b c "}),
        ("a:b\na b\n", {"a": "b"}),
        ("# no\n! no\n\n  a=1\n", {"a": "1"}),
        ("a=one,\\\n   two\n", {"a": "one,two"}),
        ("a=x\\\\\nb=y", {"a": "x\\", "b": "y"}),
        (r"a\=b=c\td\u0041", {"a=b": "c\tdA"}),
        ("a=", {"a": ""}),
        ("a", {"a": ""}),
        ("a=b=c", {"a": "b=c"}),
        ("a\x0c=\t\x85b\u2028c\xa0\r\n\rd=e", {"a": "\x85b\u2028c\xa0", "d": "e"}),
        ("# \xc3\x85a=b\nc\xa0=d", {"c\xa0": "d"}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, expected: dict[str, str]):
    assert dict(parse_properties(text)) == expected


def test_our_connections_use_the_file(authority: Authority, tmp_path: Path, listen: Listen):
    expected = DescribeClusterResponse(cluster_id="c", controller_id=7)

    async def handle(request: KafkaRequest) -> KafkaAnswer:
        assert request.session.principal.name.startswith("CN=alice,")
        return (encoded(expected, 0, is_flexible=True),)

    tls = ServerTls(authority.config(ssl_client_auth="required"))
    listener = listen([KafkaApi(KafkaApiKey.DESCRIBE_CLUSTER, 0, 0, handle)], tls=tls)
    broker, api = EndPoint("", "127.0.0.1", listener.port), (KafkaApiKey.DESCRIBE_CLUSTER, 0)
    request = DescribeClusterRequest(include_cluster_authorized_operations=False)
    with pytest.raises(NoAnswerError):
        ask_broker(broker, api, request, DescribeClusterResponse, scaled(2.0))

    SECURITY_OF_COMMAND.use(CommandConfig.read(written(tmp_path, of_user(authority))))
    assert ask_broker(broker, api, request, DescribeClusterResponse, scaled(5.0)) == expected


def test_librdkafka_uses_the_file(broker: OneBroker, authority: Authority, tmp_path: Path):
    config = CommandConfig.read(written(tmp_path, of_user(authority)))
    settings: dict[str, str | int | float | bool] = {"bootstrap.servers": broker.address}
    settings.update(config.for_librdkafka())
    assert TOPIC in AdminClient(settings).list_topics(timeout=scaled(10.0)).topics


def test_a_broker_is_asked_where_it_listens_for_such_clients(tmp_path: Path, authority: Authority):
    plain, encrypted = EndPoint("A", "a", 1), EndPoint("B", "b", 2, "SSL")
    info = BrokerInfo(1, (plain, encrypted))
    assert SECURITY_OF_COMMAND.endpoint_of(info) == plain
    SECURITY_OF_COMMAND.use(CommandConfig.read(written(tmp_path, of_user(authority))))
    assert SECURITY_OF_COMMAND.endpoint_of(info) == encrypted


def test_the_login_is_passed_on(tmp_path: Path):
    path = written(
        tmp_path,
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        '  username="alice" password="it\\\\"s";\n'
        "sasl.login.class=a.B\nsasl.login.callback.handler.class=a.C\n"
        "sasl.client.callback.handler.class=a.D\nsasl.login.connect.timeout.ms=9\n"
        "sasl.login.refresh.window.factor=0.5\n",
    )
    config = CommandConfig.read(path)
    assert config.for_librdkafka() == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "alice",
        "sasl.password": 'it"s',
    }
    assert 'it"s' not in repr(config)


MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", {}),
        ("password='it\"s; # fine'", {"password": 'it"s; # fine'}),
        ("username=\"it's\"password='x'", {"username": "it's", "password": "x"}),
        ("username = a-b_$.c9 tokenauth=true", {"username": "a-b_$.c9", "tokenauth": "true"}),
        (r"""a="\"\\\x" b='\'"'""", {"a": '"\\x', "b": "'\""}),
        (r"a='\t\n\a\v\101\7\400'", {"a": "\t\n\a\vA\7\x200"}),
        ("a=b // a='c'\n c=d /* e=f\n */ g=h / i", {"a": "b", "c": "d", "g": "h"}),
        ("a='1' a='2'", {"a": "2"}),
        ("a='\xe9' b=\xe9\u20ac", {"a": "\xe9", "b": "\xe9\u20ac"}),
        ("a='/*' b='*/'", {"a": "/*", "b": "*/"}),
    ],
)
def test_options_of_logins_are_read_as_kafka_reads_them(options: str, expected: dict[str, str]):
    assert jaas_options(f"{MODULE} required {options}\n;") == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", MODULE, f"{MODULE} required", f"{MODULE} needed a=b;", f"{MODULE} required a=b"),
        *(
            f"{MODULE} required {o};"
            for o in ("a", "a=", "a=5b", "a=-b", "a=b!", "a='b\nc'", "a='b")
        ),
        f"{MODULE} required a=b; {MODULE} required a=c;",
        f"{MODULE} requireda=b;",
    ],
)
def test_a_login_that_kafka_cannot_read_is_refused(text: str):
    with pytest.raises(ValueError, match="must be: MODULE required"):
        jaas_options(text)


def test_the_file_is_read_as_kafkas_tools_read_it(tmp_path: Path):
    text = "security.protocol = sasl_plaintext \nsasl.mechanism=PLAIN\t\nsasl.jaas.config="
    text += f"{MODULE} required username='\xe9' password='p\\u00e9 ';  \n"
    path = tmp_path / "client.properties"
    path.touch(0o600)
    path.write_bytes(text.encode("iso-8859-1"))
    assert CommandConfig.read(path).for_librdkafka() == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "\xe9",
        "sasl.password": "p\xe9 ",
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("security.protocol=TLS", "security.protocol must be one of PLAINTEXT, SSL"),
        ("security.protocol=SSL\nssl.keystore.type=BKS", "ssl.keystore.type must be PEM or PKCS12"),
        ("security.protocol=SSL\nssl.truststore.location=/none", "/none cannot be read"),
        (
            "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config=a required b=c",
            "sasl.jaas.config must be: MODULE required",
        ),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, problem: str):
    path = written(tmp_path, text)
    with pytest.raises(CommandConfigError, match=f"--command-config .*{problem}"):
        SECURITY_OF_COMMAND.use(CommandConfig.read(path))


def test_a_file_with_a_password_must_be_private(tmp_path: Path):
    path = written(tmp_path, "ssl.key.password=x\n", 0o644)
    with pytest.raises(CommandConfigError, match=r"mode 0644.*chmod 600"):
        CommandConfig.read(path)
    with pytest.raises(CommandConfigError, match="No such file"):
        CommandConfig.read(tmp_path / "none")
