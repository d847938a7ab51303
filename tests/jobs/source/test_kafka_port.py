"""Ranges are read through the Kafka protocol; deleted records are an error."""

import time
from collections.abc import Mapping
from types import MappingProxyType

import pytest
from confluent_kafka import TopicPartition as KafkaPosition
from confluent_kafka.admin import AdminClient

from regent.core.model import TopicPartition
from regent.jobs.source.columns import columns_schema
from regent.jobs.source.kafka_port import BrokersError, KafkaPort
from regent.jobs.source.offsets import NO_OFFSET, OffsetRange
from regent.jobs.source.options import (
    EARLIEST,
    LATEST,
    DataLossError,
    OptionError,
    ReadOptions,
    Subscription,
)
from tests.genuine_clients.librdkafka import TIMEOUT_S, produce, producer
from tests.support.breakable_cluster import BROKERS, BreakableCluster

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

FIRST, OTHER = TopicPartition("journal", 0), TopicPartition("journal", 1)
TIME_MS = int(time.time() * 1000) - 60_000  # old records would be deleted


@pytest.fixture(scope="module")
def journal(cluster: BreakableCluster) -> BreakableCluster:
    """A topic of twenty records, a second apart; the first five are deleted."""
    cluster.create_safe_topic("journal", 2)
    client = producer(cluster.bootstrap_servers)
    for number in range(20):
        produce(client, "journal", [b"%d" % number], timestamp=TIME_MS + 1000 * number)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    position = KafkaPosition("journal", 0, 5)
    admin.delete_records([position])[position].result(TIMEOUT_S)
    return cluster


def port(cluster: BreakableCluster, *, strict: bool = True) -> KafkaPort:
    return port_of(cluster.bootstrap_servers, strict=strict)


def port_of(
    servers: str, settings: Mapping[str, str] = MappingProxyType({}), *, strict: bool = True
) -> KafkaPort:
    kafka = {"bootstrap.servers": servers, **settings}
    return KafkaPort(ReadOptions(kafka, Subscription(), fail_on_data_loss=strict))


def offsets(store: KafkaPort, start: int, end: int) -> list[int]:
    wanted = OffsetRange(FIRST, start, end)
    return [o for b in store.read(wanted, columns_schema("offset")) for o in b[0].to_pylist()]


def test_logs_begin_end_and_are_searched_by_time(journal: BreakableCluster):
    store = port(journal)
    assert store.list_offsets([FIRST, OTHER], EARLIEST) == {FIRST: 5, OTHER: 0}
    assert store.list_offsets([FIRST, OTHER], LATEST) == {FIRST: 20, OTHER: 0}
    found = store.list_offsets([FIRST, OTHER], TIME_MS + 11_500)
    assert found == {FIRST: 12, OTHER: NO_OFFSET}
    assert store.list_offsets([FIRST], TIME_MS + 20_000) == {FIRST: NO_OFFSET}


def test_partitions_are_found_and_missing_ones_named(journal: BreakableCluster):
    store = port(journal)
    assert store.partitions(Subscription(topics=("journal",))) == [FIRST, OTHER]
    assert store.partitions(Subscription(pattern="jour.*")) == [FIRST, OTHER]
    assert store.partitions(Subscription(pattern="jour")) == []
    assert store.partitions(Subscription(assigned=(OTHER,))) == [OTHER]
    with pytest.raises(OptionError, match="there is no topic nothing"):
        store.partitions(Subscription(topics=("journal", "nothing")))
    with pytest.raises(OptionError, match="there is no partition journal-2 in the cluster at 127"):
        store.partitions(Subscription(assigned=(TopicPartition("journal", 2),)))


def test_exactly_the_range_is_read(journal: BreakableCluster):
    assert offsets(port(journal), 7, 15) == list(range(7, 15))
    assert offsets(port(journal), 19, 20) == [19]


def test_deleted_records_are_an_error_or_skipped(journal: BreakableCluster):
    with pytest.raises(DataLossError, match="journal-0: records from offset 0 on are gone"):
        offsets(port(journal), 0, 20)
    assert offsets(port(journal, strict=False), 0, 20) == list(range(5, 20))
    assert offsets(port(journal, strict=False), 0, 3) == []


def test_records_beyond_the_end_are_awaited_and_then_an_error(
    journal: BreakableCluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("regent.jobs.source.kafka_port._PATIENCE_S", 1.0)
    with pytest.raises(DataLossError, match="offsets 20 to 24 are gone, the log ends at 20"):
        offsets(port(journal), 18, 25)
    assert offsets(port(journal, strict=False), 18, 25) == [18, 19]


@pytest.mark.nightly
def test_after_the_death_of_leader_and_controller_the_next_leader_is_used(
    journal: BreakableCluster,
):
    store = port(journal)
    ends = store.list_offsets([FIRST, OTHER], LATEST)
    victim = journal.leader_of(*FIRST)
    journal.kill(victim)
    try:
        assert store.partitions(Subscription(topics=("journal",))) == [FIRST, OTHER]
        assert store.list_offsets([FIRST, OTHER], LATEST) == ends
        assert offsets(store, 5, 20) == list(range(5, 20))
    finally:
        journal.revive(victim)
        journal.await_isr("journal", set(BROKERS))


def test_brokers_that_do_not_answer_are_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("regent.jobs.source.kafka_port._PATIENCE_S", 0.0)
    monkeypatch.setattr("regent.jobs.source.kafka_port._REQUEST_S", 0.5)
    store = port_of("127.0.0.1:9")
    with pytest.raises(BrokersError, match=r"the brokers at 127\.0\.0\.1:9 did not answer"):
        store.partitions(Subscription(pattern=".*"))


def test_settings_that_librdkafka_does_not_know_are_named():
    with pytest.raises(OptionError, match=r"kafka\.\*: No such .*fetch\.min\.byte"):
        port_of("127.0.0.1:9", {"fetch.min.byte": "5"})
