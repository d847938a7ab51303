"""What everything that secures a cluster costs, beside the same cluster without and beside Kafka.

Three brokers each, everything on this machine. ``secured`` Regent: TLS on every hop of records,
followers with certificates, clients that log in with SCRAM-SHA-512 over TLS 1.3, an authorizer with
``--acls`` ACLs of others, and a login at ZooKeeper. ``secured`` Kafka 3.9.1: TLS on every hop, and
nothing else. Control requests of Regent are encrypted by CURVE in both: that cannot be left out.

All clusters stay while ``--rounds`` times each is measured in turn:

``produce``   for ``--seconds``: acks=all, three replicas, 6 partitions, values of 1 KB
``consume``   the same records from their beginning, by one consumer
``start``     ``seconds`` until `regent cluster` serves, ZooKeeper included, on an empty folder
``failover``  ``kill -9`` of the controller with ``--partitions`` partitions of three replicas;
              ``handled_s`` is the next controller's own time for it, by its journal.
              ``idle_percent`` of a processor is what a broker uses before

``cpu_s_per_gb`` is the processor time of all brokers for 10^9 bytes of values; ``mb_per_s`` is
limited by the client too. ``secured / plain`` is each round's ratio of the two: with a limit of
0.6 for ``mb_per_s`` of ``produce``. Kafka works for ``--warm-up`` seconds before: a JVM is slow
at first.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

import click
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from bench.clients import TIMEOUT_S, new_admin, new_producer
from bench.frame import benchmark
from bench.processes import Usage
from bench.produce import send_for, warm
from bench.real_cluster import SETTLE_S, await_everywhere, election_event, fill, idle_percent
from bench.result import Case
from bench.topics import Topics, existing
from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.config.command_line import COMMAND
from regent.config.tables.zookeeper import ZooKeeperConfig
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually
from tests.kafka_brokers.genuine_broker import GenuineBroker
from tests.support.free_ports import free_ports

PARTITIONS: Final = 6
RECORD_BYTES: Final = 1_000
TOPIC_SIZE: Final = 10  # of the topics of a failover
USER, PASSWORD = "bench", "a password"
_OPTIONS: Final = (
    *("--no-placement-service", "--no-internal-topics"),
    *("--session-timeout-ms", str(ZooKeeperConfig.session_timeout_ms)),
)
_SETTINGS: Final = """\
[broker]
listeners = "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0"
listener_security_protocol_map = "CLIENTS:SASL_SSL,BROKERS:SSL"
inter_broker_listener_name = "BROKERS"

[tls]
ssl_keystore_location = "{folder}/broker.pem"
ssl_truststore_location = "{folder}/ca.pem"
ssl_client_auth = "required"
ssl_principal_mapping_rules = "RULE:^CN=([^,]+)$/$1/"

[listener_name.clients]
ssl_client_auth = "none"

[authorizer]
authorizer_class_name = "kafka.security.authorizer.AclAuthorizer"
super_users = "User:broker"
"""
# As Kafka's own scripts and its own file have them.
_KAFKA_JVM: Final = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
_KAFKA_SETTINGS: Final = {
    "num.network.threads": 3,
    "num.io.threads": 8,
    "zookeeper.session.timeout.ms": 18_000,
}
_KAFKA_TLS: Final = """\
listeners=PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{port}
security.inter.broker.protocol=SSL
ssl.keystore.type=PEM
ssl.keystore.location={folder}/broker.pem
ssl.truststore.type=PEM
ssl.truststore.location={folder}/ca.pem
"""


@dataclass(frozen=True)
class Measured:
    """A running cluster: how its clients and its administrator connect."""

    name: str
    is_secured: bool
    client: Mapping[str, Any]
    admin: Mapping[str, Any]
    regent: RegentCluster | None = None

    @property
    def shape(self) -> dict[str, Any]:
        """What it is."""
        return {"cluster": self.name, "secured": self.is_secured}

    def usage(self) -> Usage:
        """Count the processor time of its brokers from now on."""
        servers = self.client["bootstrap.servers"].split(",")
        return Usage.of_ports(int(server.rpartition(":")[2]) for server in servers)


@benchmark()
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.1), default=8.0, show_default=True)
@click.option("--partitions", type=click.IntRange(TOPIC_SIZE), default=2_000, show_default=True)
@click.option("--acls", type=click.IntRange(0), default=300, show_default=True)
@click.option("--kafka/--no-kafka", default=True, show_default=True)
@click.option("--warm-up", type=click.FloatRange(0), default=40.0, show_default=True)
def secured(
    rounds: int, seconds: float, partitions: int, acls: int, kafka: bool, warm_up: float
) -> Iterator[Case]:
    """Measure plain and secured clusters in turn."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        make = [*COMMAND, "certs", "make", "--dir", str(folder), "broker=127.0.0.1"]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S)
        (folder / "secured.toml").write_text(_SETTINGS.format(folder=folder))
        yield from _starts(folder, rounds)
        clusters = [_regent(stack, folder, is_secured, acls) for is_secured in (False, True)]
        if kafka:
            server = EmbeddedZooKeeper(folder / "zookeeper")
            server.start()
            stack.callback(server.stop)
            clusters += [_kafka(stack, folder, server.address, tls) for tls in (False, True)]
            for cluster in clusters[2:]:
                _records(cluster, warm_up)
        for _ in range(rounds):
            yield from _in_turn(clusters, seconds)
        yield from _failovers(clusters[:2], partitions, rounds)


# --- the clusters ---


def _options(folder: Path, is_secured: bool) -> Sequence[str]:
    if is_secured:
        return (*_OPTIONS, "--config", str(folder / "secured.toml"))
    return (*_OPTIONS, "--no-zookeeper-login")


def _starts(folder: Path, rounds: int) -> Iterator[Case]:
    for _ in range(rounds):
        for is_secured in (False, True):
            data, began = folder / "started", monotonic()
            with RegentCluster(data, *_options(folder, is_secured)):
                figures = {"seconds": round(monotonic() - began, 2)}
            shutil.rmtree(data)
            yield Case({"cluster": "regent", "secured": is_secured, "measured": "start"}, figures)


def _regent(stack: ExitStack, folder: Path, is_secured: bool, acls: int) -> Measured:
    data = folder / ("regent-secured" if is_secured else "regent-plain")
    cluster = stack.enter_context(RegentCluster(data, *_options(folder, is_secured)))
    plain = {"bootstrap.servers": cluster.bootstrap_servers}
    if not is_secured:
        return Measured("regent", False, plain, plain, cluster)
    trusted, keys = str(folder / "ca.pem"), str(folder / "broker.pem")
    client = {
        **plain,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": trusted,
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    of_brokers = [
        listener.removeprefix("SSL://")
        for broker in cluster.description["brokers"]
        for listener in broker["listeners"]
        if listener.startswith("SSL://")
    ]
    admin = {
        "bootstrap.servers": ",".join(of_brokers),
        "security.protocol": "SSL",
        "ssl.ca.location": trusted,
        "ssl.certificate.location": keys,
        "ssl.key.location": keys,
    }
    _let_in(admin, acls)
    return Measured("regent", True, client, admin, cluster)


def _let_in(settings: Mapping[str, Any], acls: int) -> None:
    """Make the user of the clients, and the ACLs."""
    admin = new_admin(settings["bootstrap.servers"], **settings)
    secret = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    user = UserScramCredentialUpsertion(USER, secret, PASSWORD.encode())
    for made in admin.alter_user_scram_credentials([user]).values():
        made.result(TIMEOUT_S)
    topic, literal, prefixed = (
        ResourceType.TOPIC,
        ResourcePatternType.LITERAL,
        ResourcePatternType.PREFIXED,
    )
    allow = AclPermissionType.ALLOW
    wanted = [AclBinding(topic, "bench-", prefixed, f"User:{USER}", "*", AclOperation.ALL, allow)]
    wanted += [
        AclBinding(topic, f"of-{n // 3}", literal, f"User:user-{n}", "*", AclOperation.WRITE, allow)
        for n in range(acls)
    ]
    for allowed in admin.create_acls(wanted).values():
        allowed.result(TIMEOUT_S)


def _kafka(stack: ExitStack, folder: Path, zookeeper: str, has_tls: bool) -> Measured:
    name = "kafka-secured" if has_tls else "kafka-plain"
    brokers, servers = [], []
    for broker_id in range(3):
        broker = GenuineBroker(
            folder / f"{name}-{broker_id}",
            broker_id,
            f"{zookeeper}/{name}",
            settings=_KAFKA_SETTINGS,
            jvm_options=_KAFKA_JVM,
        )
        log4j = broker.directory / "log4j.properties"
        log4j.write_text(log4j.read_text().replace("TRACE", "INFO"))  # as Kafka's own file
        server = broker.bootstrap_server
        if has_tls:
            (port,) = free_ports(1)
            server = f"127.0.0.1:{port}"
            with (broker.directory / "server.properties").open("a") as file:
                file.write(_KAFKA_TLS.format(plain=broker.port, port=port, folder=folder))
        brokers.append(stack.enter_context(broker))
        servers.append(server)
    for broker in brokers:
        broker.await_serving(TIMEOUT_S)
    client = {"bootstrap.servers": ",".join(servers)}
    if has_tls:
        client |= {"security.protocol": "SSL", "ssl.ca.location": str(folder / "ca.pem")}
    return Measured("kafka", has_tls, client, client)


# --- what is measured ---


def _in_turn(clusters: Sequence[Measured], seconds: float) -> Iterator[Case]:
    """Measure the records of each cluster, and what secured ones have of plain ones."""
    plain: dict[str, dict[str, float]] = {}
    for cluster in clusters:
        for measured, figures in _records(cluster, seconds).items():
            yield Case({**cluster.shape, "measured": measured}, figures)
            if not cluster.is_secured:
                plain[measured] = figures
                continue
            shape = {"cluster": cluster.name, "ratio": "secured / plain", "measured": measured}
            names = ("mb_per_s", "cpu_s_per_gb")
            yield Case(shape, {n: round(figures[n] / plain[measured][n], 3) for n in names})


def _records(cluster: Measured, seconds: float) -> dict[str, dict[str, float]]:
    """Send records to a new topic and read them; return the figures of both."""
    servers = cluster.client["bootstrap.servers"]
    topics = Topics(cluster.admin["bootstrap.servers"], 1, PARTITIONS, **cluster.admin)
    with existing(topics, {"min.insync.replicas": "2"}):
        (topic,) = topics.names
        producer = new_producer(servers, **cluster.client)
        warmed = warm(producer, topic, PARTITIONS, RECORD_BYTES)
        usage = cluster.usage()
        sent, elapsed = send_for(producer, topic, PARTITIONS, RECORD_BYTES, seconds)
        produced = _figures(sent, elapsed, usage)
        usage, began = cluster.usage(), monotonic()
        _read(cluster, topic, warmed + sent)
        return {
            "produce": produced,
            "consume": _figures(warmed + sent, monotonic() - began, usage),
        }


def _read(cluster: Measured, topic: str, records: int) -> None:
    """Read so many records of a topic. Raises ``AssertionError`` if there are fewer."""
    consumer = Consumer({**cluster.client, "group.id": USER, "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        deadline = monotonic() + TIMEOUT_S
        while records > 0:
            records -= sum(m.error() is None for m in consumer.consume(10_000, 1.0))
            assert monotonic() < deadline, f"{records} records were not read: were they refused?"
    finally:
        consumer.close()


def _figures(records: int, elapsed: float, usage: Usage) -> dict[str, float]:
    size, used = records * RECORD_BYTES, usage.result()
    return {
        "mb_per_s": round(size / elapsed / 1e6, 1),
        "cpu_s_per_gb": round(used["cpu_s"] / size * 1e9, 2),
        "bench_cpu_s_per_gb": round(used["bench_cpu_s"] / size * 1e9, 2),
    }


def _failovers(clusters: Sequence[Measured], partitions: int, rounds: int) -> Iterator[Case]:
    """Kill the controllers of our clusters in turn, and start them again."""
    ours = [(cluster.shape, cluster.regent) for cluster in clusters if cluster.regent is not None]
    for _, cluster in ours:
        fill(cluster, partitions // TOPIC_SIZE, TOPIC_SIZE)
    sleep(SETTLE_S)
    for _ in range(rounds):
        for shape, cluster in ours:
            figures = {"idle_percent": idle_percent(cluster), "handled_s": _failover_s(cluster)}
            yield Case({**shape, "measured": "failover", "partitions": partitions}, figures)


def _failover_s(cluster: RegentCluster) -> float:
    killed, epoch = cluster.await_controller(), cluster.controller_epoch() + 1
    cluster.kill(killed)
    event = eventually(lambda: election_event(cluster, epoch), "the journal", TIMEOUT_S)
    cluster.restart(killed)
    await_everywhere(cluster, cluster.brokers, lambda row: len(row.isr) == len(row.replicas))
    sleep(SETTLE_S)
    return round(float(event["handling_ms"]) / 1000, 3)
