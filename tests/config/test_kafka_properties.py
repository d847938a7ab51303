"""Files of Kafka's brokers: what is taken, what is ignored, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regent.config.kafka_properties import Given, KafkaProperties, read_kafka_properties
from regent.config.kafka_treatments import IGNORED, REFUSED, TAKEN, TAKEN_SPECIALLY
from regent.config.settings import Settings
from regent.config.settings_file import SettingsError, load_settings

NAMES = Path(__file__).parent / "kafka-3.9-broker-settings.txt"
PAGE = Path(__file__).parents[2] / "docs/kafka-properties.md"
NEEDED = "broker.id=7\nzookeeper.connect=zk:2181/kafka\nlog.dirs=/data/a,/data/b\n"
LOOPBACK = "listeners=PLAINTEXT://127.0.0.1:9092\n"

Read = Callable[..., KafkaProperties]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Return what reads a text, private as files with passwords must be."""

    def read_text(text: str, given: Given | None = None, **options: Any) -> KafkaProperties:
        path = tmp_path / "server.properties"
        path.write_text(text, encoding="iso-8859-1")
        path.chmod(0o600)
        return read_kafka_properties(path, given or {}, **options)

    return read_text


def settings_of(properties: KafkaProperties, given: Given | None = None) -> Settings:
    """Return the settings that a broker starts with."""
    return load_settings(None, given or {}, kafka_properties=(properties.path, properties.tables))


def problems(read: Read, text: str, given: Given | None = None) -> list[str]:
    """Return the lines of the refusal, without the name of the file."""
    with pytest.raises(SettingsError) as refused:
        read(text, given)
    lines = str(refused.value).splitlines()
    return [re.sub(r"^\S*server\.properties:? ", "", line) for line in lines]


def test_every_setting_of_a_broker_of_kafka_has_a_row():
    names = NAMES.read_text().split()
    assert len(names) == 328
    rows = {*TAKEN, *TAKEN_SPECIALLY, *IGNORED, *REFUSED}
    assert [name for name in names if name not in rows] == []
    page = PAGE.read_text()
    assert [name for name in names if f"| `{name}`" not in page] == []


def test_a_setting_has_one_row_only():
    assert not {*IGNORED} & {*TAKEN, *TAKEN_SPECIALLY, *REFUSED}
    assert not {*TAKEN} & {*TAKEN_SPECIALLY}


def test_the_place_of_a_broker_is_taken(read: Read):
    found = read(NEEDED + LOOPBACK)
    assert (found.broker_id, found.zookeeper) == (7, "zk:2181/kafka")
    assert found.data_dir == Path("/data/regent-7")
    settings = settings_of(found)
    assert settings.log.log_dirs == "/data/a,/data/b"
    assert settings.listeners.registered_names == ("PLAINTEXT",)


def test_settings_are_taken_by_their_names(read: Read):
    text = "num.partitions=3\nbroker.rack=r1\nunclean.leader.election.enable=TRUE\n"
    text += "log.cleaner.io.max.bytes.per.second=1.5E6\nlog.cleanup.policy=compact,delete\n"
    settings = settings_of(read(NEEDED + LOOPBACK + text))
    assert settings.broker.num_partitions == 3
    assert settings.broker.rack == "r1"
    assert settings.controller.unclean_leader_election_enable
    assert settings.log.log_cleaner_io_max_bytes_per_second == 1.5e6
    assert settings.log.log_cleanup_policy == "compact,delete"
    assert {"broker.num_partitions", "broker.rack"} <= settings.given


@pytest.mark.parametrize(
    ("text", "table", "name", "value"),
    [
        ("log.retention.hours=2", "log", "log_retention_ms", 7_200_000),
        ("log.retention.hours=-1", "log", "log_retention_ms", -1),
        ("log.retention.hours=2\nlog.retention.minutes=3", "log", "log_retention_ms", 180_000),
        ("log.retention.ms=4\nlog.retention.minutes=3", "log", "log_retention_ms", 4),
        ("log.roll.hours=1", "log", "log_roll_ms", 3_600_000),
        ("log.roll.jitter.hours=1", "log", "log_roll_jitter_ms", 3_600_000),
        ("controller.socket.timeout.ms=5000", "controller", "request_timeout_ms", 5_000),
        ("regent.control.port=9093", "broker", "control_port", 9093),
        ("regent.logging.levels=kazoo=INFO", "logging", "levels", {"kazoo": "INFO"}),
    ],
)
def test_other_names_and_units(read: Read, text: str, table: str, name: str, value: object):
    assert read(NEEDED + LOOPBACK + text).tables[table][name] == value


def test_the_command_line_counts_before_the_file(read: Read):
    given: Given = {
        "broker": {"num_partitions": 5},
        "log": {"log_dirs": "/c", "log_retention_ms": 9},
        "authorizer": {"authorizer_class_name": ""},
    }
    text = NEEDED + LOOPBACK + "num.partitions=wrong\nlog.retention.hours=2\n"
    text += "authorizer.class.name=my.Authorizer\n"
    found = read(text, given, broker_id=8, zookeeper="other:1", data_dir=Path("/d"))
    assert (found.broker_id, found.zookeeper, found.data_dir) == (8, "other:1", Path("/d"))
    settings = settings_of(found, given)
    assert settings.broker.num_partitions == 5
    assert (settings.log.log_dirs, settings.log.log_retention_ms) == ("/c", 9)


def test_an_id_that_the_file_does_not_have_is_that_of_the_log_directories(
    read: Read, tmp_path: Path
):
    text = f"zookeeper.connect=zk\nlog.dir={tmp_path}/a\n{LOOPBACK}"
    assert "broker.id must be one number" in problems(read, text)[0]
    (tmp_path / "a").mkdir()
    (tmp_path / "a/meta.properties").write_text("version=0\ncluster.id=x\nbroker.id=4\n")
    assert read(text).broker_id == 4


@pytest.mark.parametrize("text", ["broker.id=x\n", "broker.id=1\nnode.id=2\n", "broker.id=-2\n"])
def test_a_wrong_id_is_refused(read: Read, text: str):
    assert "broker.id must be one number" in problems(read, f"zookeeper.connect=z\n{text}")[0]


def test_all_that_cannot_be_honoured_is_refused_at_once(read: Read):
    text = NEEDED + LOOPBACK + "process.roles=broker\ninter.broker.protocol.version=2.3-IV1\n"
    text += "authorizer.class.name=my.Authorizer\nzookeeper.ssl.client.enable=true\n"
    text += "num.partitions=0\n"
    text += "zookeeper.ssl.truststore.password=secret\n"
    lines = problems(read, text)
    assert [line.split()[0] for line in lines] == [
        "process.roles=broker",
        "inter.broker.protocol.version=2.3-IV1",
        "authorizer.class.name=my.Authorizer",
        "zookeeper.ssl.client.enable=true",
        "num.partitions",
        "zookeeper.ssl.truststore.password",
    ]
    assert "secret" not in "".join(lines)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_value_that_cannot_be_honoured_is_refused(read: Read, name: str):
    line = f"{name}=TLS_something"
    assert any(name in one for one in problems(read, f"{NEEDED}{LOOPBACK}{line}\n"))


@pytest.mark.parametrize(
    "text",
    [
        "process.roles=",
        "zookeeper.set.acl=false",
        "zookeeper.ssl.client.enable=false",
        "zookeeper.ssl.protocol=TLSv1.2",
        "inter.broker.protocol.version=2.4",
        "inter.broker.protocol.version=2.4.1",
        "inter.broker.protocol.version=2.4-IV1",
        "inter.broker.protocol.version=3.9-IV0",
        "log.message.format.version=3.0-IV1",
        "log.message.format.version=0.11.0",
        "authorizer.class.name=kafka.security.authorizer.AclAuthorizer\nsuper.users=User:a",
        "remote.log.storage.system.enable=false",
        "sasl.server.callback.handler.class=org.apache.kafka.common.security.oauthbearer.secured"
        ".OAuthBearerValidatorCallbackHandler",
        "zookeeper.set.acl=true\nregent.secret.file=/secret",
    ],
)
def test_a_value_that_changes_nothing_is_not_refused(read: Read, text: str):
    read(f"{NEEDED}{LOOPBACK}{text}\n")


@pytest.mark.parametrize("version", ["2.3", "2.4-IV0", "0.10.2", "4.0", "2.40", "1.0"])
def test_the_protocols_of_other_versions_are_refused(read: Read, version: str):
    text = f"inter.broker.protocol.version={version}\n"
    assert "Kafka 2.4 to 3.9" in problems(read, NEEDED + LOOPBACK + text)[0]


def test_what_is_ignored_is_listed_by_reason_and_an_unknown_name_is_named(read: Read):
    text = "num.io.threads=8\nsocket.send.buffer.bytes=1\nnum.network.threads=3\nmy.key=1\n"
    notes = [note.split(": ", 1)[1] for note in read(NEEDED + LOOPBACK + text).notes()]
    assert notes == [
        "ignored, because a broker has one event loop, and threads of its own choice:"
        " num.io.threads, num.network.threads",
        "ignored, because the system sizes the buffers of sockets, and waits are the broker's own:"
        " socket.send.buffer.bytes",
        "my.key is not a setting of Kafka 3.9, and is ignored",
    ]


def test_without_listeners_they_are_kafkas_and_the_loader_asks_who_may_connect(read: Read):
    found = read(NEEDED)
    assert found.tables["broker"]["listeners"] == "PLAINTEXT://:9092"
    with pytest.raises(SettingsError, match="allow-unauthenticated"):
        settings_of(found)


def test_the_control_port_is_where_brokers_find_each_other(read: Read):
    text = "listeners=CLIENT://:9092,INNER://10.0.0.1:9094\ninter.broker.listener.name=INNER\n"
    text += "listener.security.protocol.map=CLIENT:PLAINTEXT,INNER:PLAINTEXT\n"
    text += "advertised.listeners=CLIENT://c.example:1,INNER://i.example:2\n"
    text += "regent.allow.unauthenticated=true\n"
    broker = settings_of(read(NEEDED + text)).broker
    assert (broker.host, broker.advertised_host) == ("10.0.0.1", "i.example")


def test_wrong_listeners_are_refused_with_the_rest(read: Read):
    lines = problems(read, NEEDED + "listeners=X://h:1\nprocess.roles=broker\n")
    assert len(lines) == 2
    assert "no security protocol is defined for the listener X" in lines[1]


SASL = """\
listeners=IN://127.0.0.1:9092,OUT://127.0.0.1:9093
listener.security.protocol.map=IN:SASL_PLAINTEXT,OUT:SASL_PLAINTEXT
inter.broker.listener.name=IN
"""
LOGIN = (
    "listener.name.in.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram"
    '.ScramLoginModule required \\\n  username="adm\\\\"in" password="s;ecret";\n'
)


def test_logins_are_taken_from_lines_of_jaas(read: Read, tmp_path: Path):
    text = NEEDED + SASL + LOGIN + "sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512\n"
    text += "sasl.enabled.mechanisms=SCRAM-SHA-512\nlistener.name.out.max.connections=9\n"
    text += "listener.name.out.sasl.enabled.mechanisms=SCRAM-SHA-512,PLAIN\n"
    text += "listener.name.out.plain.sasl.jaas.config=x.PlainLoginModule required"
    text += ' user_alice="wonder" user_my-app=land;\n'
    found = read(text, data_dir=tmp_path / "d")
    found.write_secrets()
    settings = settings_of(found)
    sasl = settings.of_listener("IN").sasl
    assert sasl.sasl_inter_broker_user == 'adm"in'
    password = Path(sasl.sasl_inter_broker_password_file)
    assert password.read_text() == "s;ecret\n"
    assert password.stat().st_mode & 0o777 == 0o600
    users = Path(settings.of_listener("OUT").sasl.sasl_plain_users_file)
    assert users.read_text() == "alice:plain$wonder\nmy-app:plain$land\n"
    assert settings.of_listener("OUT").broker.max_connections == 9
    assert "s;ecret" not in repr(found)


def test_a_line_of_jaas_is_read_as_kafka_reads_it(read: Read):
    text = NEEDED + SASL + "sasl.mechanism.inter.broker.protocol=PLAIN\n"
    text += "sasl.enabled.mechanisms=PLAIN\nlistener.name.in.plain.sasl.jaas.config=x required"
    users = " username='b' password='it\"s' user_b='it\"s';\n"
    out = users.replace(" user_", "\\\n user_").replace("in.", "out.")
    text_of_out = "listener.name.out.plain.sasl.jaas.config=x required" + out
    found = read(text + users + text_of_out)
    assert set(found.secret_files.values()) == {'it"s\n', 'b:plain$it"s\n'}
    (line,) = problems(read, text + users.replace(";", "") + text_of_out)
    assert "listener.name.in.plain.sasl.jaas.config must be: MODULE required" in line
    assert "it" not in line.split("must be")[0].split("listener")[1]


def test_a_listener_of_the_controllers_requests_is_taken_with_its_login(read: Read):
    text = NEEDED + SASL + LOGIN + LOGIN.replace("name.in.", "name.out.").replace("ecret", "")
    text += "sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512\n"
    text += "sasl.enabled.mechanisms=SCRAM-SHA-512\ncontrol.plane.listener.name=OUT\n"
    found = read(text)
    assert set(found.secret_files.values()) == {"s;ecret\n", "s;\n"}
    control_plane = settings_of(found).listeners.control_plane
    assert control_plane is not None
    assert control_plane.listener == "OUT"


def test_kerberos_is_refused_also_where_it_is_kafkas_default(read: Read):
    named = [line.split()[0] for line in problems(read, NEEDED + SASL + LOGIN)]
    assert named == ["sasl.enabled.mechanisms", "sasl.mechanism.inter.broker.protocol"]
    lines = problems(read, NEEDED + SASL + "sasl.enabled.mechanisms=GSSAPI\n")
    assert "Kerberos, is not offered" in lines[0]


def test_a_missing_login_is_refused(read: Read):
    text = SASL + "sasl.enabled.mechanisms=PLAIN\nsasl.mechanism.inter.broker.protocol=PLAIN\n"
    assert "listener.name.in.plain.sasl.jaas.config has no" in problems(read, NEEDED + text)[0]
    files = {"sasl_inter_broker_password_file": "/p", "sasl_plain_users_file": "/u"}
    given: Given = {"sasl": files}
    assert read(NEEDED + text, given).secret_files == {}


def test_users_of_plain_in_a_file_of_jaas_are_refused(read: Read):
    """Such a file is named to Java only: there is no user here."""
    text = NEEDED + SASL + LOGIN + "sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512\n"
    text += "sasl.enabled.mechanisms=SCRAM-SHA-512, PLAIN\n"
    of_in, of_out = problems(read, text)
    assert 'listener.name.in.plain.sasl.jaas.config has no user_NAME="password"' in of_in
    assert "not in a file of JAAS" in of_out
    names = [path.name for path in read(text + "regent.sasl.plain.users.file=/u\n").secret_files]
    assert names == ["in-password"]


def test_a_file_with_passwords_must_be_private(tmp_path: Path):
    path = tmp_path / "server.properties"
    path.write_text(NEEDED + LOOPBACK + "ssl.keystore.password=x\n")
    path.chmod(0o644)
    with pytest.raises(SettingsError, match=r"mode 0644.*chmod 600"):
        read_kafka_properties(path, {})


def test_a_setting_of_one_mechanism_or_of_a_plugin_is_refused(read: Read):
    text = "listener.name.plaintext.scram-sha-256.connections.max.reauth.ms=1\n"
    text += "listener.name.plaintext.plain.sasl.server.callback.handler.class=my.Handler\n"
    text += "listener.name.plaintext.ssl.client.auth=perhaps\n"
    lines = problems(read, NEEDED + LOOPBACK + text)
    assert "for all mechanisms" in lines[0]
    assert "loads no classes of Java" in lines[1]
    assert "must be one of required, requested, none" in lines[2]


def test_settings_of_no_listener_are_unknown(read: Read):
    text = "listener.name.other.ssl.client.auth=none\nlistener.name.plaintext.my.key=1\n"
    text += "listener.name.plaintext.num.io.threads=1\n"
    found = read(NEEDED + LOOPBACK + text)
    assert len(found.unknown) == 2
    assert list(found.ignored.values()) == [("listener.name.plaintext.num.io.threads",)]


@pytest.mark.parametrize(
    ("content", "stated", "expected"),
    [
        (b"0\x82\x01\x02", "", "PKCS12"),
        (b"0\x82\x01\x02", "JKS", "PKCS12"),
        (b"0\x82\x01\x02", "PKCS12", "PKCS12"),
        (b"-----BEGIN", "PEM", "PEM"),
        (b"-----BEGIN", "", "set the type beside it to PEM"),
        (b"\xfe\xed\xfe\xed", "", "keytool -importkeystore"),
        (b"\xfe\xed\xfe\xed", "JKS", "keytool -importkeystore"),
        (None, "JKS", "cannot be read: No such file"),
        (b"", "BCFKS", "must be PEM or PKCS12"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "listener.name.ssl."])
def test_the_form_of_a_keystore_is_that_of_the_file(
    read: Read, tmp_path: Path, prefix: str, content: bytes | None, stated: str, expected: str
):
    store = tmp_path / "keys"
    if content is not None:
        store.write_bytes(content)
    text = NEEDED + "listeners=SSL://127.0.0.1:1\nsecurity.inter.broker.protocol=SSL\n"
    text += f"{prefix}ssl.keystore.location={store}\n"
    text += f"ssl.keystore.type={stated}\n" if stated else ""
    if len(expected) > 6:
        assert expected in "".join(problems(read, text))
    else:
        tls = settings_of(read(text)).of_listener("SSL").tls
        assert (tls.ssl_keystore_type, tls.ssl_keystore_location) == (expected, str(store))


def test_the_secret_of_tokens_is_taken(read: Read, tmp_path: Path):
    text = NEEDED + LOOPBACK + "delegation.token.master.key=old\n"
    found = read(text + "delegation.token.secret.key=new\n", data_dir=tmp_path)
    found.write_secrets()
    file = settings_of(found).delegation_tokens.delegation_token_secret_key_file
    assert Path(file).read_text() == "new"
    assert read(text, data_dir=tmp_path).secret_files == {Path(file): "old"}


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(SettingsError, match=r"--kafka-properties /.*No such file"):
        read_kafka_properties(tmp_path / "none", {})


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("process.roles=broker,controller", "process.roles=broker,controller cannot be honoured"),
        ("num.partitions=three", "num.partitions must be a number from 1 to 1000000, not 'three'"),
        ("num.partitions=", "num.partitions must be a number from 1 to 1000000, not ''"),
        ("num.partitions=${env:PARTS}", "num.partitions must be a number from 1 to 1000000, not"),
        ("log.segment.bytes=-5", "log.segment.bytes must be a number from 14"),
        ("unclean.leader.election.enable=yes", "must be true or false, not 'yes'"),
        ("zookeeper.connect=", "zookeeper.connect is missing: it, or --zookeeper, must name"),
        ("broker.id=one", "broker.id must be one number from 0"),
        ("listeners=PLAIN//h:1", "broker.listeners must be NAME://HOST:PORT"),
        ("listeners=PLAINTEXT://h:99999", "broker.listeners must be NAME://HOST:PORT"),
        ("inter.broker.listener.name=INNER", "the listener INNER is not in"),
        ("super.users=admin", "super.users must be users as Type:name, separated by semicolons"),
        ("authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer", "only"),
        ("broker.rack=C:\\up", "four hexadecimal digits: a backslash is \\\\"),
        ("broker\\u00e.id=1", "has \\u without four hexadecimal digits"),
        ("broker.rack=\0r", "is not a text in ISO 8859-1 or UTF-8: save it as one"),
        ("ssl.keystore.location=/none/k", "names /none/k, which cannot be read: No such file"),
        ("ssl.truststore.location=/none/t", "names /none/t, which cannot be read: No such file"),
        ("ssl.keystore.location=/", "names /, which cannot be read: Is a directory"),
        ("zookeeper.set.acl=true", "add regent.secret.file=FILE"),
        ("config.providers=file", "write the values themselves in the file"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(read: Read, text: str, line: str):
    (found,) = problems(read, f"{NEEDED}{LOOPBACK}{text}\n")
    assert line in found


def test_what_kafka_reads_without_a_complaint_is_named(read: Read):
    """Java takes the last of several values, and the first word of a line without a sign."""
    text = "num.partitions=2\nnum.partitions = 3\nbroker.rack\\u003dr\\\\u1\nlog dirs\n"
    found = read(NEEDED + LOOPBACK + text + "broker.id=8\n")
    assert (found.broker_id, found.tables["broker"]["num_partitions"]) == (8, 3)
    assert [note.split(": ", 1)[1] for note in found.notes()] == [
        "broker.rack=r\\u1 is not a setting of Kafka 3.9, and is ignored",
        "log is not a setting of Kafka 3.9, and is ignored",
        "broker.id is there more than once: only the last value counts",
        "num.partitions is there more than once: only the last value counts",
    ]
