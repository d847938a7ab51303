"""``jobs backup`` and ``jobs restore`` with a real cluster: what was there is there again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)
from pyarrow import parquet
from pyspark.sql import SparkSession

from regent.jobs import backup, restore
from regent.jobs.files import JobFiles
from regent.jobs.leader_connections import BrokerAccess
from regent.jobs.topic_backup import read_backup
from regent.records.compression import ZSTD
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually, scaled
from regent.zk.stores.admin_store import ZkAdminStore

pytestmark = [pytest.mark.spark, pytest.mark.system, pytest.mark.zookeeper]

TOPIC, OTHER, GROUP = "orders.eu", "007", "billing"
BEGINS_AT = 40
CONFIGS = {"retention.ms": "-1", "cleanup.policy": "compact,delete", "min.insync.replicas": "2"}


class State(NamedTuple):
    """What clients see of a topic."""

    records: list[tuple[Any, ...]]
    bounds: list[tuple[int, int]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegentCluster]:
    folder = tmp_path_factory.mktemp("backup")
    settings = [
        f"--broker-setting={broker_id}:log_retention_check_interval_ms=500"
        for broker_id in range(2)
    ]
    options = ["--brokers", "2", "--no-placement-service", *settings]
    with RegentCluster(folder / "cluster", *options) as cluster:
        fill(cluster)
        yield cluster


def fill(cluster: RegentCluster) -> None:
    """Write two topics: records of every kind, an aborted transaction, offsets of a group."""
    cluster.create_topic(TOPIC, partitions=3, replication_factor=2, config=CONFIGS)
    cluster.create_topic(OTHER, partitions=1, replication_factor=2)
    now_ms = round(time.time() * 1000) - 86_400_000
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(300):
        headers: list[tuple[str, str | bytes | None]] = []
        if number % 3 == 0:
            headers = [("trace", b"%d" % number), ("none", None)]
        producer.produce(
            TOPIC,
            key=b"k%d" % number,
            value=b"v%d" % number * (number % 5) if number % 7 else None,
            partition=number % 2,
            timestamp=now_ms + number,
            headers=headers,
        )
    assert producer.flush(scaled(30)) == 0
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "t"}
    transactions = Producer(settings)
    transactions.init_transactions(scaled(30))
    for number in range(4):
        transactions.begin_transaction()
        transactions.produce(TOPIC, key=b"t", value=b"%d" % number, partition=1)
        transactions.produce(OTHER, value=b"%d" % number)
        transactions.flush(scaled(30))
        if number % 2:
            transactions.abort_transaction(scaled(30))
        else:
            transactions.commit_transaction(scaled(30))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for future in admin.delete_records([Position(TOPIC, 0, BEGINS_AT)]).values():
        future.result()
    with_group = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": GROUP})
    end = end_of(cluster, TOPIC, 1)
    with_group.commit(offsets=[Position(TOPIC, 0, 77), Position(TOPIC, 1, end)], asynchronous=False)
    with_group.close()


def end_of(cluster: RegentCluster, topic: str, partition: int) -> int:
    """Return the end of a partition."""
    return bounds_of(cluster, topic, partition)[1]


def bounds_of(cluster: RegentCluster, topic: str, partition: int) -> tuple[int, int]:
    """Return the first offset of a partition and the one after the last."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    place = Position(topic, partition)
    first, end = (
        admin.list_offsets({place: spec})[place].result().offset
        for spec in (backup.EARLIEST, backup.LATEST)
    )
    return first, end


def state(cluster: RegentCluster, topic: str, partitions: int) -> State:
    """Return what a consumer of committed records reads."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "check",
            "enable.auto.commit": False,
            "log_level": 0,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([Position(topic, number, 0) for number in range(partitions)])
    records, left, until = [], partitions, time.monotonic() + scaled(30)
    while left:
        assert time.monotonic() < until, "all partitions are read"
        for message in consumer.consume(1_000, 0.1):
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left -= 1
                continue
            place = message.partition(), message.offset(), message.timestamp()
            records.append((*place, message.key(), message.value(), message.headers()))
    consumer.close()
    bounds = [bounds_of(cluster, topic, number) for number in range(partitions)]
    return State(sorted(records), bounds)


def committed(cluster: RegentCluster) -> list[int]:
    """Return the committed offsets of the group."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": GROUP})
    found = consumer.committed([Position(TOPIC, number) for number in range(3)], scaled(30))
    consumer.close()
    return [position.offset for position in found]


def delete(cluster: RegentCluster, *topics: str) -> None:
    """Delete topics, and wait until they can be created again."""
    for topic in topics:
        cluster.delete_topic(topic)
    store = ZkAdminStore(cluster.zookeeper).topics
    eventually(lambda: not store.read_topics(topics), "they are deleted")


def where(cluster: RegentCluster) -> list[str]:
    """Return the options that name the cluster."""
    return ["--bootstrap-server", cluster.bootstrap_servers]


def test_topics_are_as_before_after_their_deletion_and_an_interrupted_restore(
    cluster: RegentCluster, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = str(tmp_path / "backup")
    before = state(cluster, TOPIC, 3), state(cluster, OTHER, 1), committed(cluster)
    assert before[0].bounds[0][0] == BEGINS_AT
    assert backup.main(["--out", out, *where(cluster)], spark) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["topics"], summary["partitions"], summary["groups"]) == (2, 4, 1)
    plans = eventually(lambda: plans_of_writes(spark), "Spark tells how it has written")
    assert "Sort" not in plans[-1], "the tasks do not put their records on a local disk first"

    assert restore.main(["--from", out, *where(cluster)], spark) == 1
    told = f"regent jobs restore: topic {OTHER} exists: delete it, or leave it out with --topics\n"
    assert capsys.readouterr().err == told

    delete(cluster, TOPIC, OTHER)
    interrupt(cluster, spark, out)
    assert restore.main(["--from", out, "--compression", "zstd", *where(cluster)], spark) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["records"] == len(before[0].records) + len(before[1].records)
    assert (state(cluster, TOPIC, 3), state(cluster, OTHER, 1), committed(cluster)) == before
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    configs = backup.topic_configs(admin, [TOPIC, OTHER])
    assert backup.own_configs(configs[TOPIC]) == CONFIGS
    assert backup.own_configs(configs[OTHER]) == {}

    again = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    again.produce(TOPIC, key=b"new", value=b"new", partition=0)
    assert again.flush(scaled(30)) == 0
    assert end_of(cluster, TOPIC, 0) == before[0].bounds[0][1] + 1


def plans_of_writes(spark: SparkSession) -> list[str]:
    """Return how Spark has written tables of records."""
    found = spark._jsparkSession.sharedState().statusStore().executionsList()
    plans = [str(found.apply(n).physicalPlanDescription()) for n in range(found.size())]
    return [plan for plan in plans if "InsertInto" in plan and "timestampType" in plan]


def interrupt(cluster: RegentCluster, spark: SparkSession, out: str) -> None:
    """Restore the first batch of one partition, as a job does that ends then."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    settings: backup.Settings = {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0}
    (topic,) = [
        topic for topic in read_backup(out, JobFiles(lambda: spark)).topics if topic.name == TOPIC
    ]
    restore.create(admin, [topic], None)
    folder = Path(out, "records", f"topic={TOPIC}")
    table = parquet.read_table(folder, filters=[("partition", "=", 1), ("offset", "<=", 150)])
    table = table.append_column("topic", pyarrow.array([TOPIC] * len(table)))
    access = BrokerAccess(settings, None)
    (done,) = restore.write_rows(access, ZSTD, iter(table.sort_by("offset").to_batches()))
    (row,) = done.to_pylist()
    assert (row["partition"], row["records"]) == (1, 151)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--topics", "no.*such"], "no topic of the cluster fits no.*such"),
        (["--topics", "("], "--topics (: no regular expression"),
    ],
)
def test_a_backup_of_nothing_is_refused_in_one_line(
    cluster: RegentCluster,
    spark: SparkSession,
    tmp_path: Path,
    arguments: Sequence[str],
    told: str,
    capsys: pytest.CaptureFixture[str],
):
    out = tmp_path / "backup"
    assert backup.main(["--out", str(out), *arguments, *where(cluster)], spark) == 2
    assert told in capsys.readouterr().err
    assert not out.exists()


def test_a_topic_whose_retention_would_delete_its_records_keeps_them(
    cluster: RegentCluster, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    name, out, hour_ms = "old", str(tmp_path / "backup"), 3_600_000
    cluster.create_topic(name, config={"retention.ms": "-1", "segment.ms": "1000"})
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for age_ms in (3 * hour_ms, 2 * hour_ms):
        producer.produce(name, value=b"v", timestamp=round(time.time() * 1000) - age_ms)
    assert producer.flush(scaled(30)) == 0
    assert backup.main(["--out", out, "--topics", name, *where(cluster)], spark) == 0
    delete(cluster, name)
    document = json.loads(Path(out, "backup.json").read_text())
    document["topics"][0]["configs"]["retention.ms"] = str(hour_ms)
    Path(out, "backup.json").write_text(json.dumps(document))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    capsys.readouterr()
    assert restore.main(["--from", out, *where(cluster)], spark) == 0
    printed = capsys.readouterr()
    assert "it keeps them until" in printed.err
    assert json.loads(printed.out)["without_retention"] == [name]
    kept = backup.own_configs(backup.topic_configs(admin, [name])[name])
    assert kept == {"retention.ms": "-1", "segment.ms": "1000"}
    assert bounds_of(cluster, name, 0) == (0, 2)


def test_retention_of_the_brokers_deletes_nothing_that_was_restored(
    cluster: RegentCluster, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    name, out, hour_ms = "default", str(tmp_path / "backup"), 3_600_000
    cluster.create_topic(name)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    producer.produce(name, value=b"v" * 100, timestamp=round(time.time() * 1000) - 2 * hour_ms)
    assert producer.flush(scaled(30)) == 0
    assert backup.main(["--out", out, "--topics", name, *where(cluster)], spark) == 0
    delete(cluster, name)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    shorter = {"log.retention.ms": str(hour_ms), "log.retention.bytes": "10"}
    for broker_id in ("0", "1"):
        alter(admin, ResourceType.BROKER, broker_id, shorter)
    eventually(lambda: has_settings(admin, shorter), "brokers follow their settings")
    capsys.readouterr()
    try:
        assert restore.main(["--from", out, *where(cluster)], spark) == 0
    finally:
        for broker_id in ("0", "1"):
            alter(admin, ResourceType.BROKER, broker_id, dict.fromkeys(shorter))
    printed = capsys.readouterr()
    kept = backup.own_configs(backup.topic_configs(admin, [name])[name])
    assert kept == {"retention.ms": "-1", "retention.bytes": "-1"}
    assert f"topics config {name} --unset retention.ms --unset retention.bytes`" in printed.err
    assert json.loads(printed.out)["without_retention"] == [name]


def alter(
    admin: AdminClient, kind: ResourceType, name: str, settings: Mapping[str, str | None]
) -> None:
    """Change settings; None deletes one."""
    kinds = {True: AlterConfigOpType.DELETE, False: AlterConfigOpType.SET}
    entries = [
        ConfigEntry(setting, value, incremental_operation=kinds[value is None])
        for setting, value in settings.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()


def has_settings(admin: AdminClient, settings: Mapping[str, str]) -> bool:
    """Whether both brokers follow settings."""
    for number in range(2):
        asked = ConfigResource(ResourceType.BROKER, str(number))
        found = admin.describe_configs([asked])[asked].result()
        if any(found[name].value != value for name, value in settings.items()):
            return False
    return True


def test_a_restore_that_ended_while_topics_got_their_settings_is_repeated(
    cluster: RegentCluster, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    names, config, out = ["first", "second"], {"segment.ms": "2000"}, str(tmp_path / "backup")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for name in names:
        cluster.create_topic(name, config=config)
        producer.produce(name, value=b"v")
    assert producer.flush(scaled(30)) == 0
    assert backup.main(["--out", out, "--topics", "first|second", *where(cluster)], spark) == 0
    delete(cluster, *names)
    assert restore.main(["--from", out, *where(cluster)], spark) == 0
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for marks, count in (("false", "true"), 1), ((None, "false"), 0):
        for name, mark in zip(names, marks, strict=True):
            alter(admin, ResourceType.TOPIC, name, {restore.KEEPS_OFFSETS: mark})
        producer.produce("first", value=b"of a client, meanwhile")
        assert producer.flush(scaled(30)) == 0
        capsys.readouterr()
        assert restore.main(["--from", out, *where(cluster)], spark) == 0
        assert json.loads(capsys.readouterr().out)["records"] == count
        for entries in backup.topic_configs(admin, names).values():
            assert backup.own_configs(entries) == config
    assert [bounds_of(cluster, name, 0) for name in names] == [(0, 3), (0, 1)]
    assert restore.main(["--from", out, *where(cluster)], spark) == 1
    assert "topic first exists" in capsys.readouterr().err


def again(
    cluster: RegentCluster, spark: SparkSession, out: Path, *names: str, options: Sequence[str] = ()
) -> None:
    """Back topics up, delete and restore them."""
    pattern = "|".join(names)
    assert backup.main(["--out", str(out), "--topics", pattern, *where(cluster)], spark) == 0
    delete(cluster, *names)
    assert restore.main(["--from", str(out), *options, *where(cluster)], spark) == 0


def test_times_that_no_table_can_hold_are_kept(
    cluster: RegentCluster, spark: SparkSession, tmp_path: Path
):
    name, last = "times", (2**63 - 1) // 1000
    cluster.create_topic(name, config={"message.timestamp.after.max.ms": str(2**63 - 1)})
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    times = [1, last, last + 1, 2**63 - 1, 2, -(10**13), -(2**62), 3]
    for number, time_ms in enumerate(times):
        producer.produce(name, value=b"%d" % number, timestamp=time_ms)
    assert producer.flush(scaled(30)) == 0
    before = state(cluster, name, 1)
    assert [record[2][1] for record in before.records] == times
    again(cluster, spark, tmp_path / "backup", name)
    assert state(cluster, name, 1) == before


def test_offsets_of_partitions_that_a_backup_does_not_have_are_left_out(cluster: RegentCluster):
    name = "growing"
    cluster.create_topic(name)
    commit(cluster, "early", Position(name, 0, 0))

    class Growing(AdminClient):
        """The topic grows after its partitions were listed."""

        def list_consumer_groups(self, *args: Any, **options: Any) -> Any:
            new = [NewPartitions(name, 2)]
            for future in self.create_partitions(new, operation_timeout=scaled(30)).values():
                future.result()
            commit(cluster, "late", Position(name, 1, 0))
            return super().list_consumer_groups(*args, **options)

    growing = Growing({"bootstrap.servers": cluster.bootstrap_servers})
    assert set(backup.found_topics(growing, name).groups) == {"early"}


def test_offsets_of_groups_come_back_with_what_they_mean(
    cluster: RegentCluster, spark: SparkSession, tmp_path: Path
):
    name, out, ends = "numbered", tmp_path / "backup", {"query-batches": 90, "ahead": 3}
    cluster.create_topic(name)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for _ in range(3):
        producer.produce(name, value=b"v")
    assert producer.flush(scaled(30)) == 0
    for group in ends:
        commit(cluster, group, Position(name, 0, 90, f"of {group}"))
    assert backup.main(["--out", str(out), "--topics", name, *where(cluster)], spark) == 0
    delete(cluster, name)
    document = json.loads((out / "backup.json").read_text())
    document["groups"]["ahead"].append({"topic": name, "partition": 7, "offset": 3})
    (out / "backup.json").write_text(json.dumps(document))
    assert restore.main(["--from", str(out), *where(cluster)], spark) == 0
    for group, end in ends.items():
        with_group = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group})
        (found,) = with_group.committed([Position(name, 0)], scaled(30))
        with_group.close()
        assert (found.offset, found.metadata) == (end, f"of {group}")


def commit(cluster: RegentCluster, group: str, position: Position) -> None:
    """Commit an offset of a group without members."""
    with_group = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group})
    with_group.commit(offsets=[position], asynchronous=False)
    with_group.close()


def test_a_topic_with_fewer_replicas_than_before_is_restored(
    cluster: RegentCluster, spark: SparkSession, tmp_path: Path
):
    name, config = "fewer", {"min.insync.replicas": "2"}
    cluster.create_topic(name, replication_factor=2, config=config)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    producer.produce(name, value=b"v")
    assert producer.flush(scaled(30)) == 0
    again(cluster, spark, tmp_path / "backup", name, options=("--replication-factor", "1"))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    assert backup.own_configs(backup.topic_configs(admin, [name])[name]) == config
    assert bounds_of(cluster, name, 0) == (0, 1)


def test_a_topic_with_segments_smaller_than_batches_of_a_restore_is_restored(
    cluster: RegentCluster, spark: SparkSession, tmp_path: Path
):
    name, config = "small", {"segment.bytes": "100000"}
    cluster.create_topic(name, config=config)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "batch.size": 50_000})
    for _ in range(100):
        producer.produce(name, value=os.urandom(10_000))
    assert producer.flush(scaled(30)) == 0
    before = state(cluster, name, 1)
    again(cluster, spark, tmp_path / "backup", name)
    assert state(cluster, name, 1) == before
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    assert backup.own_configs(backup.topic_configs(admin, [name])[name]) == config


def test_a_restore_is_repeated_with_partitions_whose_first_records_were_deleted(
    cluster: RegentCluster, spark: SparkSession, tmp_path: Path
):
    name, out = "emptied", tmp_path / "backup"
    cluster.create_topic(name, partitions=3)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(30):
        producer.produce(name, value=b"v", partition=number % 3)
    assert producer.flush(scaled(30)) == 0
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    begins = [Position(name, 0, 10), Position(name, 1, 4)]
    for future in admin.delete_records(begins).values():
        future.result()
    before = state(cluster, name, 3)
    assert before.bounds == [(10, 10), (4, 10), (0, 10)]
    again(cluster, spark, out, name)
    folders = cluster.data_dir.glob(f"broker-*/**/{name}-0")
    rolled = [folder / f"{10:020}.log" for folder in folders]
    assert rolled
    eventually(lambda: all(file.exists() for file in rolled), "its files were deleted")
    alter(admin, ResourceType.TOPIC, name, {restore.KEEPS_OFFSETS: "true"})
    assert restore.main(["--from", str(out), *where(cluster)], spark) == 0
    assert state(cluster, name, 3) == before


def test_a_partition_that_was_truncated_while_it_was_read_is_not_backed_up_twice():
    wanted = backup.Range("t", 0, 0, 5)

    def message(offset: int, error: KafkaError | None = None) -> Message:
        return Message(topic="t", partition=0, offset=offset, value=b"v", error=error)

    end = KafkaError(KafkaError._PARTITION_EOF)
    for told, then in ([0, 1], message(0)), ([0, 1], message(1, end)):
        with pytest.raises(backup.UnreadableTopicError, match=r"t-0: .*truncated"):
            backup.in_order([*map(message, told), then], wanted, 0)
    found, at = backup.in_order([message(0), message(3), message(9), message(12, end)], wanted, 0)
    assert ([each.offset() for each in found], at) == ([0, 3], 12)


GOOD = {"version": 1, "topics": [], "groups": {}}


@pytest.mark.parametrize(
    ("document", "told"),
    [
        (None, "is no complete backup: it has no backup.json"),
        (b"{", "backup.json is damaged"),
        (b"[]", "backup.json is damaged"),
        (json.dumps({**GOOD, "version": 2}).encode(), "has version 2: this release reads 1"),
        (json.dumps({**GOOD, "topics": [{"name": "t"}]}).encode(), "backup.json is damaged"),
        (json.dumps(GOOD).encode(), "fits any name"),
    ],
)
def test_what_is_no_backup_is_refused_in_one_line(
    cluster: RegentCluster,
    spark: SparkSession,
    tmp_path: Path,
    document: bytes | None,
    told: str,
    capsys: pytest.CaptureFixture[str],
):
    if document is not None:
        (tmp_path / "backup.json").write_bytes(document)
    assert restore.main(["--from", str(tmp_path), *where(cluster)], spark) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
