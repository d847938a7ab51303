"""``produce`` and ``consume`` without a cluster; tests/system/test_readme.py has one."""

from __future__ import annotations

import io
import socket

import pytest
from confluent_kafka import KafkaError

from regent.cli.records import RecordsError, _lines, _reason
from tests.support.fake_cluster import FakeCluster, failing


@pytest.mark.parametrize(
    ("separator", "records"),
    [
        (None, [(None, b"a:1"), (None, b""), (None, b"b::2"), (None, b"c")]),
        (":", [(b"a", b"1"), (None, b""), (b"b", b":2"), (None, b"c")]),
        ("::", [(None, b"a:1"), (None, b""), (b"b", b"2"), (None, b"c")]),
    ],
)
def test_a_line_is_a_record_with_its_key_before_the_separator(
    separator: str | None, records: list[tuple[bytes | None, bytes]]
) -> None:
    assert [*_lines(io.BytesIO(b"a:1\n\nb::2\nc"), separator)] == records


@pytest.mark.parametrize("command", ["produce", "consume"])
def test_without_a_broker_there_is_an_error(cluster: FakeCluster, command: str) -> None:
    assert failing(cluster.run(command, "payments")) == "no broker is registered"


def test_a_broker_that_does_not_answer_is_a_failure(cluster: FakeCluster) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        cluster.add_broker(0, port=silent.getsockname()[1])

        line = failing(cluster.run("consume", "payments", "--timeout-ms", "50"))
        assert line.startswith("topic payments: ")
        line = failing(cluster.run("produce", "payments", "--timeout-ms", "50", stdin=b"a\nb\n"))
        assert line.startswith(
            "topic payments: 2 of 2 records not acknowledged: Local: Message timed out: the broker"
            " may have refused it because too few replicas are in sync (see `"
        )
        assert line.endswith(" topics describe payments`)")
        one = ("produce", "payments", "--timeout-ms", "50", "--acks", "1")
        line = failing(cluster.run(*one, stdin=b"a\n"))
        assert line == "topic payments: 1 of 1 record not acknowledged: Local: Message timed out"


def test_a_refused_record_is_told_with_the_brokers_reason() -> None:
    invalid = KafkaError(KafkaError.TOPIC_EXCEPTION)
    assert _reason(invalid, "payments", "all") == "Broker: Invalid topic"


def test_a_record_that_is_too_large_is_named(cluster: FakeCluster) -> None:
    cluster.add_broker(0)
    lines = b"a\n" + 2_000_000 * b"b" + b"\nc\n"

    line = failing(cluster.run("produce", "payments", "--timeout-ms", "50", stdin=lines))

    assert line == "record 2: Unable to produce message: Broker: Message size too large"


def test_a_line_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regent.cli.records._MAX_LINE_BYTES", 10)
    with pytest.raises(RecordsError, match="a line is longer than 10 bytes"):
        list(_lines(io.BytesIO(b"short\n" + 20 * b"x"), None))
