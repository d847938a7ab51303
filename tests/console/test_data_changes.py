"""Records and topics, as the console reads and changes them: a real broker in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from starlette.testclient import TestClient

from regent.client.cluster_connection import Cluster, ClusterLocation
from regent.config.settings import Settings
from regent.config.tables.groups import GroupsConfig
from regent.console.browser_gate import FORM_TOKEN, BrowserGate
from regent.console.operator_actions import CHANGES_FILE, OPERATIONS, perform
from regent.console.record_browser import RecordQuery, RecordsError, read_records, shown_bytes
from regent.console.web_server import Console
from regent.core.errors import RegentError
from regent.core.model import TopicPartition
from regent.testing.waits import scaled
from tests.support.fake_cluster import ADDRESS, FakeCluster, replicas, write_cluster_file
from tests.support.memory_logs import MemoryLogs
from tests.support.served_endpoint import BROKER, ServedEndpoint

TOPIC = "payments"
AT = TopicPartition(TOPIC, 0)
EVIL = "<script>alert(1)</script>"
BASE = "http://127.0.0.1:8080"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[tuple[ServedEndpoint, Cluster]]:
    """A broker with three records, and the cluster that it is."""
    with ExitStack() as stack:
        fake = stack.enter_context(closing(FakeCluster()))
        settings = replace(Settings(), groups=GroupsConfig(group_initial_rebalance_delay_ms=0))
        served = ServedEndpoint(stack, MemoryLogs(), settings, TOPIC)
        fake.add_broker(BROKER, port=served.port)
        fake.put_topic(TOPIC, {0: (BROKER,)})
        write_cluster_file(tmp_path, zookeeper=ADDRESS)
        producer = Producer({"bootstrap.servers": f"127.0.0.1:{served.port}", "log_level": 0})
        producer.produce(TOPIC, b'{"amount": 1}', b"k", 0, headers=[("trace", b"one")])
        producer.produce(TOPIC, EVIL.encode(), None, 0, timestamp=1)
        producer.produce(TOPIC, None, b"\xff\x00", 0)
        assert producer.flush(scaled(10)) == 0
        yield served, Cluster(lambda: ClusterLocation(ADDRESS, tmp_path), fake.open)


def values(cluster: Cluster, **query: str) -> list[str | None]:
    found = read_records(cluster, RecordQuery(AT, **query))
    return [None if row.value is None else row.value.text for row in found.records]


def test_records_are_read_from_each_start(broker: tuple[ServedEndpoint, Cluster]) -> None:
    _, cluster = broker
    first, second = '{"amount": 1}', EVIL
    assert values(cluster) == [first, second, None]
    assert values(cluster, start="beginning") == [first, second, None]
    assert values(cluster, start="offset", at="1") == [second, None]
    assert values(cluster, start="offset", at="99") == []
    assert values(cluster, start="time", at="10m") == [first, second, None]
    assert values(cluster, search="trace") == [first]
    assert values(cluster, search="alert") == [second]
    assert values(cluster, search="absent") == []


def test_an_offset_that_is_none_is_told(broker: tuple[ServedEndpoint, Cluster]) -> None:
    for start, at in (("offset", "x"), ("offset", "-1"), ("offset", "9" * 30), ("time", "soon")):
        with pytest.raises(RegentError, match=at):
            read_records(broker[1], RecordQuery(AT, start, at))
    with pytest.raises(RecordsError, match="partition absent-3"):
        read_records(broker[1], RecordQuery(TopicPartition("absent", 3)))


def test_a_search_ends_at_its_limit(
    broker: tuple[ServedEndpoint, Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regent.console.record_browser.LOOKED_AT", 2)
    found = read_records(broker[1], RecordQuery(AT, "beginning", search="absent"))
    assert (found.begin, found.next, found.end) == (0, 2, 3)
    assert "2 records at most" in found.why


def test_values_have_three_forms_and_are_cut_with_their_size() -> None:
    assert shown_bytes(b'{"a":1}', "JSON", 100) == ('{\n  "a": 1\n}', 7, False)
    assert shown_bytes(b"{no", "JSON", 100) == ("{no", 3, False)
    assert shown_bytes(b"a\xff\x1b\x00", "text", 100) == ("a\\xff\\x1b\\x00", 4, False)
    assert shown_bytes(b"x" * 10_000, "text", 4) == ("xxxx", 10_000, True)
    assert shown_bytes(None, "hex", 4) is None
    line = shown_bytes(b"A\x00" * 12, "hex", 20)
    assert line is not None
    assert line.text.splitlines()[0].startswith("000000  41 00 41 00")
    assert line.text.splitlines()[0].endswith("A.A.A.A.A.A.A.A.")
    assert line.is_cut


def test_what_records_say_is_escaped_on_the_page(broker: tuple[ServedEndpoint, Cluster]) -> None:
    console = Console(broker[1], BrowserGate("token", 8080), may_write=True)
    console.collector.start()
    try:
        client = TestClient(console.application, base_url=BASE, follow_redirects=False)
        client.get("/", params={"token": "token"})
        page = client.get("/records", params={"topic": TOPIC, "partition": "0", "form": "JSON"})
        assert page.status_code == 200
        assert "<script>alert" not in page.text
        assert "&lt;script&gt;alert" in page.text
        assert "trace" in page.text
        question = client.get("/ask/produce", params={"target": TOPIC, "key": EVIL})
        assert EVIL not in question.text
        fields = {"target": TOPIC, "value": "v", FORM_TOKEN: BrowserGate("token", 8080).form_token}
        done = client.post("/do/produce", data=fields, headers={"origin": BASE})
        assert done.status_code == 303
        assert done.headers["location"] == f"/topic?name={TOPIC}"
    finally:
        console.stop()


def test_a_record_is_written_and_its_content_is_not_in_the_journal(
    broker: tuple[ServedEndpoint, Cluster], tmp_path: Path
) -> None:
    _, cluster = broker
    fields = {"target": TOPIC, "key": "k", "value": "secret\r\nline", "headers": "a=1\r\nb=2"}
    done = perform(cluster, "produce", fields)
    assert done == "a record is at offset 3 of partition payments-0"
    (record,) = read_records(cluster, RecordQuery(AT, "offset", "3")).records
    assert record.value is not None
    assert record.value.text == "secret\nline"
    assert [name for name, _ in record.headers] == ["a", "b"]
    written = (tmp_path / CHANGES_FILE).read_text()
    assert "secret" not in written
    assert json.loads(written)["result"] == done
    with pytest.raises(RecordsError, match="'nothing' is not NAME=VALUE"):
        perform(cluster, "produce", {**fields, "headers": "nothing"})


# --- topics ---------------------------------------------------------------------------------------


@pytest.fixture
def topics() -> Iterator[FakeCluster]:
    """A controller that decides about topics."""
    with closing(FakeCluster()) as fake:
        fake.with_brokers(3)
        yield fake


def done(fake: FakeCluster, operation: str, target: str = "", **fields: str) -> str:
    cluster = Cluster(lambda: ClusterLocation(ADDRESS, None), fake.open)
    return perform(
        cluster, operation, OPERATIONS[operation].fields_of({"target": target, **fields})
    )


def test_a_topic_is_created_grown_configured_protected_and_deleted(topics: FakeCluster) -> None:
    settings = {"name": TOPIC, "partitions": "2", "replicas": "3", "settings": "retention.bytes=9"}
    created = done(topics, "create-topic", **settings)
    assert created == "topic payments is created"
    assert len(replicas(topics, TOPIC)) == 2
    assert done(topics, "grow-topic", TOPIC, partitions="4") == "topic payments has 4 partitions"
    assert len(replicas(topics, TOPIC)) == 4
    set_to = done(topics, "configure-topic", TOPIC, setting="retention.ms", value="1000")
    assert set_to == "topic payments: retention.ms is 1000"
    removed = done(topics, "configure-topic", TOPIC, setting="retention.ms")
    assert removed == "topic payments: retention.ms is the brokers' again"
    done(topics, "protect-topic", TOPIC)
    with pytest.raises(RegentError, match="protect"):
        done(topics, "delete-topic", TOPIC, again=TOPIC)
    done(topics, "unprotect-topic", TOPIC)
    with pytest.raises(RegentError, match="nothing was deleted"):
        done(topics, "delete-topic", TOPIC, again="payment")
    assert done(topics, "delete-topic", TOPIC, again=TOPIC) == (
        "topic payments is marked for deletion"
    )


@pytest.mark.parametrize(
    ("operation", "fields", "problem"),
    [
        ("create-topic", {}, "Give a name"),
        ("create-topic", {"name": "t", "partitions": "0"}, "no number of partitions"),
        ("create-topic", {"name": "t", "settings": "retention"}, "is not NAME=VALUE"),
        ("grow-topic", {"target": TOPIC, "partitions": "many"}, "no number of partitions"),
        ("configure-topic", {"target": TOPIC, "value": "1"}, "which setting"),
        ("delete-topic", {"target": "__consumer_offsets", "again": "__consumer_offsets"}, "intern"),
    ],
)
def test_a_field_that_cannot_be_understood_is_named(
    topics: FakeCluster, operation: str, fields: dict[str, str], problem: str
) -> None:
    with pytest.raises(RegentError, match=problem):
        done(topics, operation, **fields)
    assert not topics.received
