"""Records and topics, as the console reads and changes them: a real broker in this process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as Position
from starlette.testclient import TestClient

from regent.client import broker_request
from regent.client.answered_tree import read_from_brokers
from regent.client.cluster_connection import Cluster, ClusterLocation, open_session
from regent.config.addresses import listening_socket
from regent.config.settings import Settings
from regent.config.tables.groups import GroupsConfig
from regent.console import inquiries
from regent.console.browser_gate import FORM_TOKEN, BrowserGate
from regent.console.inquiries import BrokerQuestions
from regent.console.operator_actions import CHANGES_FILE, OPERATIONS, perform
from regent.console.record_browser import RecordQuery, RecordsError, read_records, shown_bytes
from regent.console.web_server import Console
from regent.core.errors import Errors, RegentError
from regent.core.model import EndPoint, TopicPartition
from regent.core.protocol.messages.configs import DescribeConfigsResponse
from regent.core.protocol.messages.groups import (
    DescribeGroupsResponse,
    ListGroupsResponse,
    OffsetFetchResponse,
)
from regent.core.protocol.messages.log_dirs import DescribeLogDirsResponse
from regent.core.protocol.messages.offsets import ListOffsetsResponse
from regent.core.protocol.messages.transactions import (
    DescribeTransactionsResponse,
    ListTransactionsResponse,
)
from regent.testing.waits import eventually, scaled
from tests.support.fake_cluster import ADDRESS, FakeCluster, write_cluster_file
from tests.support.memory_logs import MemoryLogs
from tests.support.served_endpoint import BROKER, ServedEndpoint

TOPIC = "payments"
GROUP = "billing"
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
        fake.put_state(AT, BROKER, (BROKER,))
        write_cluster_file(tmp_path, zookeeper=ADDRESS)
        producer = Producer({"bootstrap.servers": f"127.0.0.1:{served.port}", "log_level": 0})
        producer.produce(TOPIC, b'{"amount": 1}', b"k", 0, headers=[("trace", b"one")])
        producer.produce(TOPIC, EVIL.encode(), None, 0, timestamp=1)
        producer.produce(TOPIC, None, b"\xff\x00", 0)
        assert producer.flush(scaled(10)) == 0
        yield served, Cluster(lambda: ClusterLocation(ADDRESS, tmp_path), fake.open)


def member_of(served: ServedEndpoint) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{served.port}",
            "group.id": GROUP,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )


def values(cluster: Cluster, **query: Any) -> list[str | None]:
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


@pytest.mark.parametrize(
    "value",
    [
        "[" * 300 + "]" * 300,
        "[" * 5_000 + "]" * 5_000,
        '{"a": 1, "a": 2}',
        '{"price": 0.10000000000000000000001}',
        '{"far": 1e999}',
        '{"half": "\\ud800"}',
        "NaN",
    ],
)
def test_json_that_would_change_is_shown_as_it_is(value: str) -> None:
    shown = shown_bytes(value.encode(), "JSON", 20_000)
    assert shown is not None
    assert re.sub(r"\s", "", shown.text) == re.sub(r"\s", "", value)


def test_large_whole_numbers_stay_what_they_are() -> None:
    shown = shown_bytes(b'{"id": 18446744073709551616123}', "JSON", 400)
    assert shown is not None
    assert shown.text == '{\n  "id": 18446744073709551616123\n}'


def test_the_next_records_are_chosen_in_the_same_way(
    broker: tuple[ServedEndpoint, Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regent.console.record_browser.SHOWN", 1)
    asked = {"topic": TOPIC, "partition": "0", "start": "offset", "at": "1", "open": "yes"}
    links = re.findall(
        r'href="(/records[^"]*start=offset[^"]*)"', shown(broker[1], "/records", **asked)
    )
    assert len(links) == 2
    assert all("open=yes" in link for link in links)


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


# --- groups and transactions ----------------------------------------------------------------------


def spoiled(answer: Any) -> Any:
    """Return an answer all of whose parts are errors, without what they would tell."""
    if isinstance(answer, tuple):
        return tuple(map(spoiled, answer))
    if not is_dataclass(answer):
        return answer
    changed = {f.name: spoiled(getattr(answer, f.name)) for f in fields(answer)}
    if "error_code" in changed:
        changed["error_code"] = Errors.COORDINATOR_LOAD_IN_PROGRESS
    return replace(answer, **changed)  # type: ignore[type-var]


def shown(cluster: Cluster, page: str, **arguments: str) -> str:
    gate = BrowserGate("token", 8080)
    console = Console(cluster, gate, may_write=False)
    console.collector.start()
    try:
        client = TestClient(console.application, base_url=BASE, follow_redirects=False)
        client.get("/", params={"token": "token"})
        return client.get(page, params=arguments).text
    finally:
        console.stop()


@pytest.mark.parametrize(
    ("kind", "page", "said"),
    [
        (ListGroupsResponse, "/groups", "groups of broker 0: unknown"),
        (DescribeGroupsResponse, "/groups", "group billing: unknown"),
        (OffsetFetchResponse, "/groups", "offsets of billing: unknown"),
        (ListOffsetsResponse, "/groups", "offsets in topic payments: unknown"),
        (ListTransactionsResponse, "/groups", "transactions of broker 0: unknown"),
        (DescribeTransactionsResponse, "/groups", "orders: unknown"),
        (DescribeConfigsResponse, "/topic", "settings by broker 0: unknown"),
        (DescribeLogDirsResponse, "/topic", "sizes on broker 0: unknown"),
    ],
)
def test_an_error_is_not_taken_for_emptiness(
    broker: tuple[ServedEndpoint, Cluster],
    monkeypatch: pytest.MonkeyPatch,
    kind: type[object],
    page: str,
    said: str,
) -> None:
    served, cluster = broker
    with closing(member_of(served)) as member:
        member.commit(offsets=[Position(TOPIC, 0, 1)], asynchronous=False)
    transactional(served)
    ask = broker_request.ask_broker

    def spoil(*arguments: Any) -> Any:
        answer = ask(*arguments)
        return spoiled(answer) if isinstance(answer, kind) else answer

    monkeypatch.setattr(inquiries, "ask_broker", spoil)
    text = shown(cluster, page, name=TOPIC)
    assert f"{said}, COORDINATOR_LOAD_IN_PROGRESS" in text
    assert "lag 0" not in text
    assert "There is no group" not in text
    assert "There is no transactional" not in text


def test_a_group_whose_offsets_are_not_told_is_not_reset(
    broker: tuple[ServedEndpoint, Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    served, cluster = broker
    with closing(member_of(served)) as member:
        member.commit(offsets=[Position(TOPIC, 0, 1)], asynchronous=False)
    ask = broker_request.ask_broker

    def spoil(*arguments: Any) -> Any:
        answer = ask(*arguments)
        return spoiled(answer) if isinstance(answer, OffsetFetchResponse) else answer

    monkeypatch.setattr(inquiries, "ask_broker", spoil)
    with pytest.raises(RegentError, match="the offsets of group billing are not known now"):
        reset(cluster, to="latest", topic=TOPIC)


def test_offsets_of_a_partition_that_no_broker_leads_are_unknown(
    broker: tuple[ServedEndpoint, Cluster],
) -> None:
    _, cluster = broker
    found = BrokerQuestions(cluster).offsets({TopicPartition("gone", 3)})
    assert (found.found, found.problems) == (
        {},
        ["offsets of gone-3: unknown, no broker leads them"],
    )


def reset(cluster: Cluster, **fields: str) -> tuple[str, int]:
    """Preview and reset the offsets of a group; return the preview and the position afterwards."""
    operation = OPERATIONS["reset-offsets"]
    form = operation.fields_of({"target": GROUP, **fields})
    assert operation.preview is not None
    (line,) = operation.preview(cluster, form)
    perform(cluster, "reset-offsets", form)
    (group,) = BrokerQuestions(cluster).groups().found
    (row,) = group.rows
    assert row.committed is not None
    return line, row.committed


def test_a_group_is_reset_as_the_preview_says(broker: tuple[ServedEndpoint, Cluster]) -> None:
    served, cluster = broker
    with closing(member_of(served)) as member:
        member.commit(offsets=[Position(TOPIC, 0, 1)], asynchronous=False)
    assert reset(cluster, to="latest") == ("payments-0: 1 -> 3", 3)
    assert reset(cluster, to="shift", value="-2") == ("payments-0: 3 -> 1", 1)
    assert reset(cluster, to="offset", value="99") == ("payments-0: 1 -> 3", 3)
    assert reset(cluster, to="time", value="10m") == ("payments-0: 3 -> 0", 0)
    assert reset(cluster, to="offset", value="2", topic=TOPIC) == ("payments-0: 0 -> 2", 2)
    assert reset(cluster) == ("payments-0: 2 -> 0", 0)


def test_a_reset_is_shown_before_it_is_confirmed(broker: tuple[ServedEndpoint, Cluster]) -> None:
    served, cluster = broker
    with closing(member_of(served)) as member:
        member.commit(offsets=[Position(TOPIC, 0, 1)], asynchronous=False)
    token = BrowserGate("token", 8080).form_token
    console = Console(cluster, BrowserGate("token", 8080), may_write=True)
    client = TestClient(console.application, base_url=BASE, follow_redirects=False)
    client.get("/", params={"token": "token"})
    asked = {"target": GROUP, "to": "latest", "value": EVIL}
    form = client.get("/ask/reset-offsets", params=asked).text
    assert "Show what would be done" in form
    assert token not in form  # it would be in an address
    shown = client.get("/ask/reset-offsets", params={**asked, "preview": "yes"}).text
    assert "payments-0: 1 -&gt; 3" in shown
    assert '<input type="hidden" name="to" value="latest">' in shown
    assert token in shown
    assert EVIL not in form + shown
    absent = client.get("/ask/reset-offsets", params={"target": "absent", "preview": "yes"})
    assert absent.status_code == 409
    console.stop()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"target": "absent"}, "there is no group absent"),
        ({"to": "offset", "value": "x"}, "'x' is no number of offsets"),
        ({"to": "time", "value": "soon"}, "soon"),
        ({"to": "nowhere"}, "'nowhere'"),
        ({"topic": "absent"}, "there is no topic absent"),
    ],
)
def test_a_reset_that_cannot_be_done_is_told(
    broker: tuple[ServedEndpoint, Cluster], fields: dict[str, str], problem: str
) -> None:
    served, cluster = broker
    with closing(member_of(served)) as member:
        member.commit(offsets=[Position(TOPIC, 0, 1)], asynchronous=False)
    form = OPERATIONS["reset-offsets"].fields_of({"target": GROUP, **fields})
    with pytest.raises(RegentError, match=problem):
        perform(cluster, "reset-offsets", form)


def test_a_partition_whose_leader_does_not_tell_an_offset_of_a_time_is_not_skipped(
    broker: tuple[ServedEndpoint, Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    served, cluster = broker
    with closing(member_of(served)) as member:
        member.commit(offsets=[Position(TOPIC, 0, 1)], asynchronous=False)
    offsets = BrokerQuestions.offsets

    def untold(self: BrokerQuestions, of: Any, timestamp: int = -1) -> Any:
        found = offsets(self, of, timestamp)
        return found if timestamp < 0 else replace(found, found={})

    monkeypatch.setattr(BrokerQuestions, "offsets", untold)
    with pytest.raises(RegentError, match="the offsets of payments-0 are not known now"):
        reset(cluster, to="time", value="10m")


def test_a_group_with_members_is_not_reset(broker: tuple[ServedEndpoint, Cluster]) -> None:
    served, cluster = broker
    with closing(member_of(served)) as member:
        member.subscribe([TOPIC])

        def is_member() -> bool:
            member.poll(0.1)
            return bool(member.assignment())

        eventually(is_member, "the member has its assignment", scaled(20))
        with pytest.raises(RegentError, match="has 1 member and is Stable: stop them first"):
            perform(cluster, "reset-offsets", {"target": GROUP, "to": "latest"})


def transactional(served: ServedEndpoint) -> Producer:
    """A producer with an open transaction that has a record in the partition."""
    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{served.port}",
            "transactional.id": "orders",
            "log_level": 0,
        }
    )
    producer.init_transactions(scaled(20))
    producer.begin_transaction()
    producer.produce(TOPIC, b"open", partition=0)
    producer.flush(scaled(20))
    return producer


def ends_of_transactions(cluster: Cluster) -> bool:
    return BrokerQuestions(cluster).open_transactions(AT)[1] == []


def test_an_open_transaction_is_aborted_and_its_producer_fenced(
    broker: tuple[ServedEndpoint, Cluster],
) -> None:
    served, cluster = broker
    producer = transactional(served)
    assert values(cluster, is_committed=False)[-1] == "open"
    assert "is aborted" in perform(cluster, "abort-transaction", {"target": "orders"})
    eventually(lambda: ends_of_transactions(cluster), "the marker is written", scaled(20))
    assert "open" not in values(cluster)
    with pytest.raises(KafkaException) as fenced:
        producer.commit_transaction(scaled(20))
    assert fenced.value.args[0].fatal()
    with pytest.raises(RegentError, match="'orders' has no open transaction"):
        perform(cluster, "abort-transaction", {"target": "orders"})


def test_a_transaction_is_aborted_in_one_partition(broker: tuple[ServedEndpoint, Cluster]) -> None:
    served, cluster = broker
    producer = transactional(served)
    with pytest.raises(RegentError, match="no transaction is open since offset 1"):
        perform(cluster, "abort-hanging", {"target": "payments-0", "start": "1"})
    done = perform(cluster, "abort-hanging", {"target": "payments-0", "start": "3"})
    assert done.startswith("payments-0: the transaction of producer")
    assert ends_of_transactions(cluster)
    del producer


# --- without ZooKeeper ----------------------------------------------------------------------------


def known_by(brokers: Sequence[EndPoint]) -> Cluster:
    """Return a cluster as ``--bootstrap-server`` names it."""
    cluster = Cluster(lambda: ClusterLocation("", None), open_session, brokers)
    return read_from_brokers(cluster)


def test_brokers_alone_tell_of_a_cluster_whose_zookeeper_is_not_known(
    broker: tuple[ServedEndpoint, Cluster],
) -> None:
    served, _ = broker
    address = EndPoint("", "127.0.0.1", served.port)
    cluster = known_by([address])
    console = Console(cluster, BrowserGate("token", 8080), may_write=True)
    console.collector.start()
    try:
        client = TestClient(console.application, base_url=BASE, follow_redirects=False)
        client.get("/", params={"token": "token"})
        grid = client.get("/partitions").text
        assert f"\n{TOPIC} 0</div>" in grid
        assert "All is well: 1 broker" in grid
        assert "Controller: broker 0" in grid
        assert "epoch" not in grid
        for page in ("", "topics", f"topic?name={TOPIC}", "groups", "journal"):
            assert client.get(f"/{page}").status_code == 200, page
        record = client.get("/records", params={"topic": TOPIC, "partition": "0"}).text
        assert "&#34;amount&#34;: 1" in record
        assert "This page needs ZooKeeper" in client.get("/moves").text
        doctor = client.get("/doctor").text
        assert "not examined: why brokers ended" in doctor
        assert "there is no controller" in doctor, "the broker says so itself"
        with pytest.raises(RegentError, match="there is no controller at the moment"):
            perform(cluster, "move-controller", {})
    finally:
        console.stop()


def test_brokers_that_do_not_answer_are_a_problem_on_the_page() -> None:
    with listening_socket("127.0.0.1", 0) as closed:
        port = closed.getsockname()[1]
    nobody = [EndPoint("", "127.0.0.1", port)]
    cluster = known_by(nobody)
    console = Console(cluster, BrowserGate("token", 8080))
    console.collector.start()
    try:
        client = TestClient(console.application, base_url=BASE, follow_redirects=False)
        client.get("/", params={"token": "token"})
        assert f"answers: 127.0.0.1:{port}" in client.get("/").text
    finally:
        console.stop()
