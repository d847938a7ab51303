"""A broker takes the place of one of Kafka's, with its file and its log directories, and back."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.cluster.jvm_launcher import ending_with_this_process
from regent.config.command_line import COMMAND
from regent.testing.waits import eventually, next_line, scaled
from tests.kafka_brokers.genuine_broker import JARS, GenuineBroker

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

KAFKA: Final = 9
WAIT_S: Final = scaled(30.0)
COMPACTED, PLAIN, GROUP = "compacted", "plain", "readers"
CODECS: Final = ("gzip", "snappy", "lz4", "zstd")
SMALL: Final = {"segment.bytes": "4096", "index.interval.bytes": "512"}
OF_KAFKA: Final = {"log.cleaner.backoff.ms": 200, "num.network.threads": 2}
NOT_LOADED: Final = (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR)
LEVELS: Final = ("read_committed", "read_uncommitted")
BAD_LINES: Final = (" ERROR ", "orrupt", "Found invalid", "Recovering unflushed")

Shown = dict[tuple[str, str, int], object]


@contextmanager
def regent_on(kafka: GenuineBroker) -> Iterator[str]:
    """Run our broker in the place of a stopped one; what it prints is yielded."""
    properties = kafka.directory / "server.properties"
    output = kafka.directory / "regent.out"
    command = [*COMMAND, "broker", "--kafka-properties", str(properties)]
    command += ["--control-port", "0", "--metrics-port", "0"]
    with output.open("ab") as errors:
        process = subprocess.Popen(
            ending_with_this_process(command), stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        line = next_line(process, "the broker is ready", WAIT_S)
        assert line.startswith("ready: "), output.read_text()
        yield output.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.communicate(timeout=WAIT_S)


def shown(server: str) -> Shown:
    """Return what consumers see of all logs.

    The cleaner may run at any time: of a compacted log this is the newest record of each key.
    """
    return {
        (level, topic, partition): newest(rows) if topic == COMPACTED else rows
        for level in LEVELS
        for (topic, partition), rows in records(server, level).items()
    }


def newest(rows: list[tuple[object, ...]]) -> object:
    return {row[2]: row for row in rows}


def records(server: str, level: str) -> dict[tuple[str, int], list[tuple[object, ...]]]:
    """Return all records: offset, timestamp, key, value and headers."""
    settings = {"bootstrap.servers": server, "group.id": "all", "isolation.level": level}
    settings |= {"enable.partition.eof": "true", "enable.auto.commit": "false"}
    consumer = Consumer(settings)
    found: dict[tuple[str, int], list[tuple[object, ...]]] = {}
    for topic, partition in ((COMPACTED, 0), (COMPACTED, 1), *((t, 0) for t in (PLAIN, *CODECS))):
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        rows = found[topic, partition] = []
        while True:
            (message,) = consumer.consume(1, timeout=WAIT_S)
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                break
            what = (message.key(), message.value(), message.headers())
            rows.append((message.offset(), message.timestamp(), *what))
    consumer.close()
    return found


def write(server: str, word: str, *, transactional_id: str) -> None:
    """Write to all topics: in transactions, of which one is aborted, and outside."""
    producer = Producer({"bootstrap.servers": server, "transactional.id": transactional_id})
    producer.init_transactions(WAIT_S)
    for turn, is_kept in enumerate((True, False, True)):
        producer.begin_transaction()
        for number in range(40):
            key, value = f"key-{number % 7}", f"{word}-{turn}-{number}" * 10
            producer.produce(COMPACTED, value, key, headers={"turn": str(turn)})
            producer.produce(PLAIN, value, key)
            if number % 10 == 9:  # a batch must fit in a segment
                producer.flush(WAIT_S)
        (producer.commit_transaction if is_kept else producer.abort_transaction)(WAIT_S)
    for codec in CODECS:
        settings = {"enable.idempotence": True, "compression.type": codec}
        other = Producer({"bootstrap.servers": server, **settings})
        for number in range(40):
            other.produce(codec, f"{word}-{number}" * 20, f"{number}")
            if number % 10 == 9:
                other.flush(WAIT_S)
        assert other.flush(WAIT_S) == 0


def commit(server: str, offset: int) -> None:
    """Commit a position of a group."""
    consumer = Consumer({"bootstrap.servers": server, "group.id": GROUP})
    consumer.commit(offsets=[TopicPartition(PLAIN, 0, offset)], asynchronous=False)
    consumer.close()


def committed(server: str) -> int:
    """Return the position of the group, once its coordinator has loaded it."""
    asked = ConsumerGroupTopicPartitions(GROUP, [TopicPartition(PLAIN, 0)])
    admin = AdminClient({"bootstrap.servers": server})
    found: list[int] = []

    def is_found() -> bool:
        try:
            groups = admin.list_consumer_group_offsets([asked])
            (row,) = groups[GROUP].result(WAIT_S).topic_partitions
        except KafkaException as error:
            if error.args[0].code() not in NOT_LOADED:
                raise
            return False
        found.append(int(row.offset))
        return True

    eventually(is_found, "the coordinator has loaded the group", WAIT_S)
    return found[-1]


def create_topics(server: str) -> None:
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", **SMALL}
    topics = [NewTopic(COMPACTED, 2, 1, config=compacted), NewTopic(PLAIN, 1, 1, config=SMALL)]
    topics += [NewTopic(codec, 1, 1, config=SMALL) for codec in CODECS]
    admin = AdminClient({"bootstrap.servers": server})
    eventually(lambda: admin.list_topics(timeout=WAIT_S).controller_id == KAFKA, "it rules")
    for made in admin.create_topics(topics).values():
        made.result(WAIT_S)


def obstacles(kafka: GenuineBroker, zookeeper: str) -> list[str]:
    """Return which checks find that something stands in the way of the move."""
    command = [*COMMAND, "migrate", "check", "--zookeeper", zookeeper, "-o", "json"]
    command += ["--kafka-properties", str(kafka.directory / "server.properties")]
    ended = subprocess.run(command, stdout=subprocess.PIPE, check=False, timeout=WAIT_S)
    return [row["check"] for row in json.loads(ended.stdout)["obstacles"]]


def delete_beginning(server: str) -> None:
    """Raise the log start offset of a log, also within a segment."""
    admin = AdminClient({"bootstrap.servers": server})
    for deleted in admin.delete_records([TopicPartition(PLAIN, 0, 7)]).values():
        deleted.result(WAIT_S)


def compacted_until(directory: Path) -> int:
    """Return the sum of the offsets up to which the logs are compacted."""
    path = directory / "cleaner-offset-checkpoint"
    lines = path.read_text().splitlines()[2:] if path.exists() else []
    return sum(int(line.split()[2]) for line in lines if line.startswith(COMPACTED))


def await_compaction(directory: Path, former: int = 0) -> int:
    eventually(lambda: compacted_until(directory) > former, "it is compacted", WAIT_S)
    return compacted_until(directory)


@pytest.mark.timeout(400)
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("version", JARS)
def test_every_record_is_there_after_the_way_there_and_back(
    version: str, jars: None, zookeeper_server: EmbeddedZooKeeper, tmp_path: Path
):
    del jars
    zookeeper = f"{zookeeper_server.address}/{tmp_path.name}"
    settings = {**OF_KAFKA, "transaction.state.log.replication.factor": 1}
    settings |= {"transaction.state.log.min.isr": 1, "offsets.topic.segment.bytes": 16384}
    kafka = GenuineBroker(tmp_path / "k", KAFKA, zookeeper, version=version, settings=settings)
    server, directory = kafka.bootstrap_server, kafka.directory / "data"
    with kafka:
        kafka.await_serving()
        create_topics(server)
        assert obstacles(kafka, zookeeper) == ["partitions"]  # they have one replica
        write(server, "kafka", transactional_id="t")
        delete_beginning(server)
        commit(server, 11)
        cleaned = await_compaction(directory)
        open_one = Producer({"bootstrap.servers": server, "transactional.id": "open"})
        open_one.init_transactions(WAIT_S)
        open_one.begin_transaction()
        open_one.produce(PLAIN, "open")
        open_one.flush(WAIT_S)
        of_kafka = shown(server)
        kafka.stop()

        before = files(directory)
        with regent_on(kafka) as printed:
            assert "ignored, because a broker has one event loop" in printed
            assert committed(server) == 11
            assert shown(server) == of_kafka
            open_one.abort_transaction(WAIT_S)
            write(server, "regent", transactional_id="t")
            commit(server, 13)
            await_compaction(directory, cleaned)
            of_regent = shown(server)
        for name, data in before.items():
            assert (directory / name).read_bytes()[: len(data)] == data, name

        kafka.log.unlink()
        kafka.start()
        kafka.await_serving()
        assert committed(server) == 13
        assert shown(server) == of_regent
        write(server, "kafka again", transactional_id="t")
        kafka.stop()
        lines = kafka.log.read_text().splitlines()
        assert any("since clean shutdown file was found" in line for line in lines)
        assert not [line for line in lines if any(bad in line for bad in BAD_LINES)]
        with regent_on(kafka):
            assert len(str(shown(server))) > len(str(of_regent))


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.nightly
def test_stray_logs_are_moved_away_before_kafka_starts_that_does_not_know_them(
    jars: None, zookeeper_server: EmbeddedZooKeeper, tmp_path: Path
):
    del jars
    zookeeper = f"{zookeeper_server.address}/{tmp_path.name}"
    kafka = GenuineBroker(tmp_path / "k", KAFKA, zookeeper, version="2.8.2", settings=OF_KAFKA)
    directory, moved = kafka.directory / "data", tmp_path / "moved"
    back = [*COMMAND, "migrate", "back", "--move-to", str(moved)]
    back += ["--kafka-properties", str(kafka.directory / "server.properties")]

    def go_back() -> subprocess.CompletedProcess[str]:
        return subprocess.run(back, capture_output=True, text=True, check=False, timeout=WAIT_S)

    with kafka:
        kafka.await_serving()
        create_topics(kafka.bootstrap_server)
        assert "in use" in go_back().stderr
        kafka.stop()
        znodes = KazooClient(zookeeper)
        znodes.start(timeout=WAIT_S)
        znodes.delete(f"/brokers/topics/{PLAIN}", recursive=True)
        znodes.stop()
        znodes.close()
        with regent_on(kafka):
            eventually(lambda: [*directory.glob("*-stray")], "it is stray", WAIT_S)
            assert "in use" in go_back().stderr
        (stray,) = directory.glob("*-stray")

        kafka.start()
        with pytest.raises(AssertionError):
            kafka.await_serving()
        assert f"'{stray.name}' is not in the form" in kafka.log.read_text()

        done = go_back()
        assert (done.returncode, done.stdout) == (0, f"{moved / stray.name}\n"), done.stderr
        assert [*moved.iterdir()] == [moved / stray.name]
        assert "nothing to move" in go_back().stderr
        kafka.start()
        kafka.await_serving()
        kafka.stop()


def files(directory: Path) -> dict[str, bytes]:
    """Return the files of records that no cleaner changes."""
    logs = [log for topic in (PLAIN, *CODECS) for log in directory.glob(f"{topic}-0/*.log")]
    return {str(log.relative_to(directory)): log.read_bytes() for log in logs}
