"""Clients among the commands, and a broker in this process; tests/system has clusters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka import TopicPartition as KafkaTopicPartition

import regent
from regent.cli.consume import _Reading, _Start
from regent.cli.waiting import Explained
from regent.config.settings import Settings
from regent.config.tables.groups import GroupsConfig
from regent.core.model import BrokerInfo, EndPoint
from regent.core.security.acls import AclOperation, Resource, ResourceType
from regent.core.security.authorizer import NOT_NAMED, Asked, Authorizer
from regent.core.security.session import Session
from regent.testing.waits import eventually, scaled
from regent.zk.znodes import BrokerIdZNode
from tests.support.fake_cluster import FakeCluster, failing
from tests.support.memory_logs import MemoryLogs
from tests.support.served_endpoint import BROKER, ServedEndpoint

GROUP, TOPIC = "billing", "payments"
MEMBER_STAYS_MS = 30_000


@pytest.fixture
def broker(cluster: FakeCluster) -> Iterator[ServedEndpoint]:
    """A broker that commands find, with three records in partition 0 of a topic."""
    with ExitStack() as stack:
        settings = replace(Settings(), groups=GroupsConfig(group_initial_rebalance_delay_ms=0))
        broker = ServedEndpoint(stack, MemoryLogs(), settings, TOPIC)
        cluster.add_broker(BROKER, port=broker.port)
        write(broker, "a", "b", "c")
        yield broker


def write(broker: ServedEndpoint, *values: str) -> None:
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{broker.port}", "log_level": 0})
    for value in values:
        producer.produce(TOPIC, value, partition=0)
    assert producer.flush(scaled(10)) == 0


@pytest.mark.parametrize(
    "command", [("consume", "t"), ("produce", "t"), ("groups", "list")], ids=" ".join
)
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("sasl.oauthbearer.method=bogus", 'property "sasl.oauthbearer.method"'),
        ("sasl.kerberos.min.time.before.relogin=-5", '"sasl.kerberos.min.time.before.relogin"'),
    ],
)
def test_a_setting_that_librdkafka_refuses_is_named_in_one_line(
    cluster: FakeCluster, tmp_path: Path, command: tuple[str, ...], wrong: str, told: str
) -> None:
    protocol = "SASL_PLAINTEXT"
    endpoint = EndPoint(protocol, "127.0.0.1", 1, protocol)
    cluster.register_as(BrokerInfo(0, (endpoint,)))
    login = 'x.PlainLoginModule required username="a" password="b";'
    path = tmp_path / "command.properties"
    path.write_text(
        f"security.protocol={protocol}\nsasl.mechanism=PLAIN\nsasl.jaas.config={login}\n{wrong}\n"
    )
    path.chmod(0o600)
    problem = failing(cluster.run(*command, "--command-config", str(path)))
    assert problem.startswith(f"--command-config {path}: ")
    assert told in problem


def test_no_command_opens_a_client_without_naming_what_it_refuses() -> None:
    root = Path(regent.__path__[0])
    sources = [path for room in ("cli", "client") for path in (root / room).rglob("*.py")]
    opened = re.compile(r"\b(Producer|Consumer|AdminClient)\(")
    assert [str(path) for path in sources if opened.search(path.read_text())] == []


def consumer(broker: ServedEndpoint) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{broker.port}",
            "group.id": GROUP,
            "session.timeout.ms": MEMBER_STAYS_MS,
            "enable.auto.commit": False,
        }
    )


def position(broker: ServedEndpoint) -> int:
    with closing(consumer(broker)) as reader:
        (committed,) = reader.committed([KafkaTopicPartition(TOPIC, 0)], timeout=scaled(10))
    offset: int = committed.offset
    return offset


def test_offsets_of_a_group_with_members_are_not_reset(
    cluster: FakeCluster, broker: ServedEndpoint
) -> None:
    reset = ("groups", "reset-offsets", GROUP, "--topic", TOPIC, "--to-latest")
    with closing(consumer(broker)) as member:
        member.subscribe([TOPIC])

        def is_member() -> bool:
            member.poll(0.1)
            return bool(member.assignment())

        eventually(is_member, "the member has its assignment")
        member.commit(offsets=[KafkaTopicPartition(TOPIC, 0, 1)], asynchronous=False)
        refused = f"group {GROUP} has 1 member and is Stable: stop them first"
        assert failing(cluster.run(*reset)) == refused
        assert failing(cluster.run(*reset, "--execute")) == refused
        assert failing(cluster.run("groups", "delete", GROUP)) == (
            f"group {GROUP}: it has members: stop them first"
        )
    assert position(broker) == 1
    assert cluster.run(*reset).exit_code == 0  # it only shows what it would do
    assert position(broker) == 1
    assert cluster.run(*reset, "--execute").exit_code == 0
    assert position(broker) == 3


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "abc"),
        (("--offset", "1"), "bc"),
        (("--offset", "3"), ""),
        (("--offset", "9"), ""),
        (("--offset", "-1"), "c"),
        (("--offset", "-9"), "abc"),
        (("--offset", "1", "--max-messages", "1"), "b"),
        (("--partition", "0", "--offset", "latest"), ""),
    ],
)
def test_records_are_read_from_an_offset_that_is_in_the_log(
    cluster: FakeCluster, broker: ServedEndpoint, options: tuple[str, ...], expected: str
) -> None:
    result = cluster.run("consume", TOPIC, "-o", "json", *options)
    assert result.exit_code == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert "".join(row["value"] for row in rows) == expected


def test_a_topic_that_does_not_exist_is_not_read(
    cluster: FakeCluster, broker: ServedEndpoint
) -> None:
    assert failing(cluster.run("consume", "absent")) == "there is no topic absent"
    assert failing(cluster.run("consume", "absent", "--group", "g")) == "there is no topic absent"


@pytest.mark.parametrize(
    "command", [("consume",), ("groups", "reset-offsets", "g", "--to-latest", "--topic")]
)
def test_a_topic_that_an_authorizer_hides_may_exist(
    cluster: FakeCluster, command: tuple[str, ...]
) -> None:
    settings = replace(Settings(), groups=GroupsConfig(group_initial_rebalance_delay_ms=0))
    with ExitStack() as stack:
        hidden = ServedEndpoint(stack, MemoryLogs(), settings, TOPIC, HidesTopics())
        cluster.add_broker(BROKER, port=hidden.port)
        assert failing(cluster.run(*command, TOPIC)) == (
            f"there is no topic {TOPIC}, or you may not see it"
        )


class HidesTopics(Authorizer):
    """Allows everything but what is about topics."""

    is_configured = True

    def authorize(
        self,
        session: Session,
        operation: AclOperation,
        resource: Resource,
        asked: Asked = NOT_NAMED,
    ) -> bool:
        return resource.resource_type is not ResourceType.TOPIC

    def authorize_by_resource_type(
        self,
        session: Session,
        operation: AclOperation,
        resource_type: ResourceType,
        asked: Asked = NOT_NAMED,
    ) -> bool:
        return resource_type is not ResourceType.TOPIC


@pytest.mark.parametrize("isolation_level", ["read_committed", "read_uncommitted"])
def test_records_that_come_after_the_end_was_reached_are_of_no_open_transaction(
    broker: ServedEndpoint, capsys: pytest.CaptureFixture[str], isolation_level: str
) -> None:
    settings = {
        "bootstrap.servers": f"127.0.0.1:{broker.port}",
        "group.id": GROUP,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": isolation_level,
    }
    with closing(Consumer(settings)) as reader:
        silence = Explained("no record comes", list)
        reading = _Reading(reader, TOPIC, scaled(10), silence, follow=False)
        reading.assign([0], _Start("earliest", None))

        end = eventually(lambda: end_of_partition(reader), "the end is reached")
        assert end is not None
        assert end.offset() == 3
        write(broker, "d")
        known = KafkaTopicPartition(TOPIC, 0)
        eventually(
            lambda: reader.get_watermark_offsets(known, cached=True)[1] == 4, "a later end is known"
        )
        reading._tell_open_transaction(end)
    assert capsys.readouterr().err == ""


def end_of_partition(reader: Consumer) -> Message | None:
    """Return what tells the end of a partition, if it comes next."""
    message = reader.poll(0.1)
    error = None if message is None else message.error()
    return message if error is not None and error.code() == KafkaError._PARTITION_EOF else None


def test_an_open_transaction_is_told_of(cluster: FakeCluster, broker: ServedEndpoint) -> None:
    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{broker.port}",
            "transactional.id": "orders",
            "log_level": 0,
        }
    )
    producer.init_transactions(scaled(20))
    producer.begin_transaction()
    producer.produce(TOPIC, b"open", partition=0)
    assert producer.flush(scaled(20)) == 0
    read = cluster.run("consume", TOPIC, "-o", "json")
    assert len(read.stdout.splitlines()) == 3
    assert read.stderr == (
        "regent: partition 0: a transaction is open since offset 3; it hides what follows, up to"
        " offset 3 (--isolation-level read_uncommitted shows it)\n"
    )
    assert cluster.run("consume", TOPIC, "--isolation-level", "read_uncommitted").stderr == ""
    producer.abort_transaction(scaled(20))


def test_brokers_without_a_usable_address_are_passed_over(
    cluster: FakeCluster, broker: ServedEndpoint
) -> None:
    cluster.zookeeper.put(BrokerIdZNode.path(7), b"garbage")
    cluster.zookeeper.put(BrokerIdZNode.path(8), b'{"version":5,"endpoints":[],"features":{}}')
    assert cluster.run("consume", TOPIC, "--max-messages", "1").exit_code == 0


def test_only_partitions_with_a_committed_offset_are_shown(
    cluster: FakeCluster, broker: ServedEndpoint
) -> None:
    assert position(broker) < 0
    reset = ("groups", "reset-offsets", GROUP, "--all-topics", "--to-latest")
    assert failing(cluster.run(*reset)) == (
        "the group has no committed offsets: name topics with --topic"
    )
    assert cluster.run(*reset[:3], "--topic", TOPIC, "--to-latest", "--execute").exit_code == 0
    (described,) = cluster.json("groups", "describe", GROUP)
    (row,) = described["partitions"]
    assert (row["topic"], row["partition"], row["current_offset"], row["lag"]) == (TOPIC, 0, 3, 0)
    assert [listed["group"] for listed in cluster.json("groups", "list")] == [GROUP]
    assert cluster.json("groups", "delete", GROUP) == [{"group": GROUP, "deleted": True}]
    assert failing(cluster.run("groups", "describe", GROUP)) == f"group {GROUP} does not exist"
