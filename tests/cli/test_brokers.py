"""``brokers list`` and ``brokers shutdown``."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from regent.config.addresses import without_key
from regent.core.errors import Errors
from regent.core.model import BrokerInfo, TopicPartition
from regent.core.protocol.broker import ShutdownBrokerRequest, ShutdownBrokerResponse
from regent.core.protocol.controller import (
    BrokerSoftware,
    DescribeControllerRequest,
    DescribeControllerResponse,
)
from regent.testing.waits import scaled
from regent.transport.control.codec import Request, Response
from tests.support.fake_cluster import FakeCluster, failing, write_cluster_file


def test_brokers_are_listed_with_exactly_the_documented_keys(cluster: FakeCluster) -> None:
    cluster.add_broker(10)
    cluster.add_broker(2, rack="r2", control_endpoint="tcp://127.0.0.1:19094")
    cluster.elect(2)

    rows = cluster.json("brokers", "list")

    assert [row["id"] for row in rows] == [2, 10]
    assert rows[0] == {
        "id": 2,
        "broker_epoch": rows[0]["broker_epoch"],
        "host": "127.0.0.1",
        "port": 9094,
        "control_endpoint": "tcp://127.0.0.1:19094",
        "replication_endpoint": "tcp://127.0.0.1:29094",
        "rack": "r2",
        "is_controller": True,
        "software": "regent",
        "no_replicas": False,
        "node_host": None,
        "leads": 0,
        "replicas": 0,
        "catching_up": None,
        "isr_shrinks": 0,
        **dict.fromkeys(("log_bytes", "free_bytes", "log_dirs", "answer_p50_ms", "answer_p99_ms")),
        **dict.fromkeys(("fetch_p50_ms", "fetch_p99_ms", "fetch_age_ms")),
    }
    assert rows[0]["broker_epoch"] > rows[1]["broker_epoch"] > 0
    assert (rows[1]["control_endpoint"], rows[1]["is_controller"]) == (None, False)


def test_brokers_of_different_releases_are_shown_with_them(cluster: FakeCluster) -> None:
    """The registration says which, whatever a controller of an earlier release calls them."""
    for broker_id, release in ((0, None), (1, "0.4.0"), (2, "0.4.0")):
        endpoint = cluster.serve(cluster.lead) if broker_id == 0 else "tcp://127.0.0.1:1"
        info = BrokerInfo(broker_id, (), control_endpoint=endpoint, release=release)
        cluster.register_as(info)
    cluster.elect(0)
    cluster.answers[DescribeControllerRequest] = lambda _: DescribeControllerResponse(
        Errors.NONE, software=tuple(BrokerSoftware(broker_id, "regent") for broker_id in range(3))
    )

    named = [row["software"] for row in cluster.json("brokers", "list")]

    assert named == ["regent", "regent 0.4.0", "regent 0.4.0"]
    listed = "0 (regent), 1 (regent 0.4.0), 2 (regent 0.4.0)"
    assert listed in cluster.run("status").stdout


def test_a_table_of_brokers_can_be_split_into_words(cluster: FakeCluster) -> None:
    cluster.add_broker(0, rack="r")

    header, row = cluster.run("brokers", "list").stdout.splitlines()

    assert header.split() == [
        *("ID", "HOST", "PORT", "CONTROL-PORT", "REPLICATION-PORT"),
        *("RACK", "BROKER-EPOCH", "IS-CONTROLLER", "SOFTWARE"),
    ]
    words = row.split()
    assert words[:6] == ["0", "127.0.0.1", "9092", "-", "29092", "r"]
    assert words[7:] == ["no", "kafka"], "it has no control port"


def test_the_machines_that_brokers_share_are_shown(cluster: FakeCluster) -> None:
    cluster.add_broker(0)
    cluster.add_broker(1, node_host="m1")

    header, first, second = cluster.run("brokers", "list").stdout.splitlines()

    assert header.split()[-1] == "NODE-HOST"
    assert [first.split()[-1], second.split()[-1]] == ["-", "m1"]


def test_an_endpoint_elsewhere_is_shown_with_its_host(cluster: FakeCluster) -> None:
    cluster.add_broker(0, control_endpoint="tcp://10.0.0.1:19092")

    _, row = cluster.run("brokers", "list").stdout.splitlines()

    assert row.split()[3] == "10.0.0.1:19092"


def test_no_brokers_are_an_empty_list(cluster: FakeCluster) -> None:
    assert cluster.json("brokers", "list") == []
    assert cluster.run("brokers", "list").stdout == ""


def test_an_unreadable_registration_does_not_hide_the_others(
    cluster: FakeCluster,
) -> None:
    cluster.add_broker(0)
    cluster.zookeeper.put("/brokers/ids/1", b"garbage")

    result = cluster.run("brokers", "list", "-o", "json")

    assert result.exit_code == 0
    assert '"id":0' in result.stdout
    assert result.stderr.startswith("regent: broker 1: ")


# --- shutdown -------------------------------------------------------------------------------------


def with_stopping_broker(cluster: FakeCluster, response: ShutdownBrokerResponse) -> None:
    """Register broker 1, which answers and then ends its session."""

    def shut_down(request: Request) -> Response:
        assert request == ShutdownBrokerRequest()
        cluster.unregister(1)
        return response

    cluster.add_broker(1, control_endpoint=cluster.serve(shut_down))


def test_the_command_waits_until_the_broker_has_shut_down(cluster: FakeCluster) -> None:
    with_stopping_broker(cluster, ShutdownBrokerResponse(Errors.NONE))

    result = cluster.run("brokers", "shutdown", "1")

    assert result.exit_code == 0
    assert result.stdout == "Broker 1 has shut down.\n"


def test_the_command_waits_for_the_process_of_a_local_broker(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    """Until then the broker cannot be started again."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ending = threading.Thread(target=process.communicate, args=(b"end\n",))

    def shut_down(_: Request) -> Response:
        cluster.unregister(1)
        ending.start()
        return ShutdownBrokerResponse(Errors.NONE)

    endpoint = cluster.serve(shut_down)
    cluster.add_broker(1, control_endpoint=endpoint)
    write_cluster_file(tmp_path, brokers={1: endpoint})
    file = tmp_path / "cluster.json"
    file.write_text(file.read_text().replace(str(4710 + 1), str(process.pid)))

    assert cluster.run("brokers", "shutdown", "1", "--data-dir", str(tmp_path)).exit_code == 0
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    ending.join(scaled(10))
    assert not ending.is_alive()


REMAINING = ShutdownBrokerResponse(
    Errors.NONE, (TopicPartition("b", 0), TopicPartition("a", 10), TopicPartition("a", 2))
)


def test_partitions_that_could_not_be_moved_are_printed(cluster: FakeCluster) -> None:
    with_stopping_broker(cluster, REMAINING)

    assert cluster.run("brokers", "shutdown", "1").stdout.splitlines() == [
        "a-2 could not be moved",
        "a-10 could not be moved",
        "b-0 could not be moved",
        "Broker 1 has shut down, 3 partitions not moved.",
    ]


def test_partitions_that_could_not_be_moved_are_in_the_json(cluster: FakeCluster) -> None:
    with_stopping_broker(cluster, REMAINING)

    answer = cluster.json("brokers", "shutdown", "1")

    assert answer["broker_id"] == 1
    assert answer["remaining_partitions"][1] == {"topic": "a", "partition": 10}


def test_a_broker_that_stops_without_handing_over_is_reported(
    cluster: FakeCluster,
) -> None:
    with_stopping_broker(cluster, ShutdownBrokerResponse(Errors.REQUEST_TIMED_OUT))

    result = cluster.run("brokers", "shutdown", "1")

    assert result.exit_code == 0
    assert result.stderr == "broker 1 stops without a controlled shutdown: REQUEST_TIMED_OUT\n"


@pytest.mark.parametrize(("started_ms", "has_shut_down"), [(0, False), (7, True)])
def test_a_broker_has_shut_down_when_another_process_is_registered_not_in_another_session(
    cluster: FakeCluster, started_ms: int, *, has_shut_down: bool
) -> None:
    def bounce(_: Request) -> Response:
        cluster.unregister(1)
        cluster.add_broker(1, started_ms=started_ms)
        return ShutdownBrokerResponse(Errors.NONE)

    cluster.add_broker(1, control_endpoint=cluster.serve(bounce))

    result = cluster.run("brokers", "shutdown", "1", "--timeout-ms", "300")
    assert (result.exit_code == 0) is has_shut_down
    assert ("broker 1 is still registered" in result.stderr) is not has_shut_down


def test_a_broker_that_stays_registered_is_a_failure(cluster: FakeCluster) -> None:
    answer = ShutdownBrokerResponse(Errors.NONE)
    cluster.add_broker(1, control_endpoint=cluster.serve(lambda _: answer))

    line = failing(cluster.run("brokers", "shutdown", "1", "--timeout-ms", "200"))

    assert line == "broker 1 is still registered; it may still be stopping"


def test_a_broker_that_refuses_is_named(cluster: FakeCluster) -> None:
    endpoint = cluster.serve(lambda _: Errors.BROKER_NOT_AVAILABLE)
    cluster.add_broker(1, control_endpoint=endpoint)

    assert failing(cluster.run("brokers", "shutdown", "1")).startswith(
        f"broker 1 did not answer the request: {without_key(endpoint)}: "
    )


def test_only_registered_regent_brokers_can_be_shut_down(cluster: FakeCluster) -> None:
    cluster.add_broker(0)
    cluster.add_broker(2)

    assert failing(cluster.run("brokers", "shutdown", "9")) == (
        "broker 9 is not registered; registered are 0, 2"
    )
    assert "send SIGTERM to its process" in failing(cluster.run("brokers", "shutdown", "0"))
    assert cluster.run("brokers", "shutdown", "two").exit_code == 2
    assert cluster.run("brokers", "shutdown").exit_code == 2
    assert cluster.run("brokers", "shutdown", "--", "-1").exit_code == 2
