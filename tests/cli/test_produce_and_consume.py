"""``produce`` and ``consume`` without a cluster; tests/system/test_consumer_groups.py has one."""

from __future__ import annotations

import socket

import pytest
from confluent_kafka import KafkaError

from regent.cli.produce import _reason
from regent.cli.waiting import Explained
from tests.support.fake_cluster import FakeCluster, failing


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
        assert line == (
            "topic payments: 2 of 2 records not acknowledged: Local: Message timed out; there is no"
            " controller; topic payments does not exist"
        )


def test_the_error_of_a_refused_record_has_the_brokers_reason() -> None:
    invalid = KafkaError(KafkaError.TOPIC_EXCEPTION)
    obstacles = Explained("nothing happens", lambda: ["there is no controller"])
    assert _reason(invalid, obstacles) == "Broker: Invalid topic"


def test_a_record_that_is_too_large_is_named(cluster: FakeCluster) -> None:
    cluster.add_broker(0)
    lines = b"a\n" + 2_000_000 * b"b" + b"\nc\n"

    line = failing(cluster.run("produce", "payments", "--timeout-ms", "50", stdin=lines))

    assert line == "record 2: Unable to produce message: Broker: Message size too large"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--key", "k", "--key-separator", ":"), "--key and --key-separator do not go together"),
        (("-i", "json", "--key-separator", ":"), "--key-separator goes with -i text only"),
        (("--header", "x"), "'x' is not KEY=VALUE"),
        (("--timestamp", "soon"), "'soon' is not a time such as"),
        (("--timestamp", "0"), "'0' is not after 1970"),
        (("--partition", "-1"), "-1 is not in the range"),
        (("--partition", "3000000000"), "3000000000 is not in the range"),
        (("--file", "no/such/file"), "no/such/file"),
    ],
)
def test_options_of_produce_that_make_no_sense_are_refused(
    cluster: FakeCluster, options: tuple[str, ...], problem: str
) -> None:
    result = cluster.run("produce", "payments", *options)
    assert result.exit_code == 2
    assert problem in result.stderr


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--offset", "soon"), "'soon' is not a number, earliest or latest"),
        (("--from-beginning", "--offset", "3"), "only one of --from-beginning, --offset"),
        (("--offset", "3", "--from-timestamp", "5"), "only one of --from-beginning, --offset"),
        (("--from-timestamp", "soon"), "'soon' is not a time such as"),
        (("--group", "g", "--partition", "0"), "--group goes without --partition"),
        (("--group", "g", "--offset", "-3"), "--group goes without --partition"),
        (("--max-messages", "0"), "0 is not in the range"),
    ],
)
def test_options_of_consume_that_make_no_sense_are_refused(
    cluster: FakeCluster, options: tuple[str, ...], problem: str
) -> None:
    result = cluster.run("consume", "payments", *options)
    assert result.exit_code == 2
    assert problem in result.stderr


def test_produce_says_early_what_it_waits_for(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regent.cli.produce._PATIENCE_S", 0.05)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        cluster.add_broker(0, port=silent.getsockname()[1])
        result = cluster.run("produce", "payments", "--timeout-ms", "700", stdin=b"a\n")
    said, failure = result.stderr.splitlines()
    assert said == (
        "regent: topic payments: no record is acknowledged yet (a record fails after 0.7 s,"
        " --timeout-ms): there is no controller; topic payments does not exist"
    )
    assert "1 of 1 record not acknowledged" in failure
