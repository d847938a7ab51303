"""``topics create``: waits for the placement service, for a controller, and for leaders."""

from __future__ import annotations

from pathlib import Path

from regent.core.admin.admin_requests import refuse
from regent.core.errors import Errors
from regent.core.protocol.messages.topics import CreateTopicsRequest
from regent.core.protocol.topics import TopicsRequest, TopicsResponse
from tests.support.fake_cluster import FakeCluster, failing, replicas, write_cluster_file

CREATE = ("topics", "create", "t", "--partitions", "1", "--replication-factor", "1")


def test_the_command_waits_for_a_starting_placement_service(local: FakeCluster) -> None:
    local.placer.starting = iter(["starting", "Spark is warming up"])

    assert local.run(*CREATE).exit_code == 0

    requests = [r for r in local.received if isinstance(r, CreateTopicsRequest)]
    assert len(requests) == 3, "one more request for every state"
    assert local.writes.count("/brokers/topics/t") == 1


def test_one_request_creates_a_topic_without_a_session_with_zookeeper(
    local: FakeCluster, tmp_path: Path
) -> None:
    local.is_reachable = False
    port = local.listen()
    server = f"127.0.0.1:{port}"

    assert local.run(*CREATE, "--bootstrap-server", server).exit_code == 0
    write_cluster_file(tmp_path, brokers={0: "tcp://127.0.0.1:1"}, kafka_port=port)
    assert local.run("topics", "create", "u", "--replica-assignment", "0").exit_code == 0

    assert [type(request) for request in local.received] == [CreateTopicsRequest] * 2


def test_the_wait_for_the_placement_service_is_limited(local: FakeCluster) -> None:
    local.placer.starting = iter(lambda: "the placement service starts: Spark is starting", "")

    line = failing(local.run(*CREATE, "--placement-timeout-ms", "50"))

    assert line == (
        "the placement service starts: Spark is starting; --placement-timeout-ms waits longer,"
        " --no-placement-service does without"
    )
    assert "/brokers/topics/t" not in local.writes


def test_without_the_placement_service_there_is_no_wait_and_no_message(
    local: FakeCluster,
) -> None:
    local.placer.starting = iter(lambda: "Spark is starting", "")

    result = local.run(*CREATE, "--no-placement-service")

    assert (result.exit_code, result.stderr) == (0, "")


def test_the_request_is_repeated_until_a_broker_finds_the_controller(
    cluster: FakeCluster,
) -> None:
    asked: list[TopicsRequest] = []

    def answer(request: TopicsRequest) -> TopicsResponse | Errors:
        asked.append(request)
        return Errors.NOT_CONTROLLER if len(asked) < 3 else cluster.decide(request)

    cluster.add_broker(1, port=cluster.listen(answer))

    assert cluster.run("topics", "create", "t", "--replica-assignment", "1").exit_code == 0


def test_a_topic_whose_answer_was_lost_is_created_once(cluster: FakeCluster) -> None:
    attempts = []

    def lose_answer(request: TopicsRequest) -> TopicsResponse | None:
        attempts.append(request)
        response = cluster.decide(request)
        return None if len(attempts) == 1 else response

    cluster.add_broker(0, port=cluster.listen(lose_answer))

    assert cluster.run("topics", "create", "t", "--replica-assignment", "0").exit_code == 0

    assert len(attempts) == 2
    assert cluster.writes.count("/brokers/topics/t") == 1


def test_topics_without_leaders_in_time_are_named_with_the_remedy(cluster: FakeCluster) -> None:
    late = "topic t: 2 of 3 partitions have no leader after 50 ms; all partitions are created"

    def answer(request: TopicsRequest) -> TopicsResponse:
        cluster.decide(request)
        return refuse(request, Errors.REQUEST_TIMED_OUT, late)

    cluster.add_broker(0, port=cluster.listen(answer))

    line = failing(
        cluster.run("topics", "create", "t", "--replica-assignment", "0,0,0", "--timeout-ms", "50")
    )

    assert line == f"{late} (see `regent status`)"
    assert replicas(cluster, "t") == {0: (0,), 1: (0,), 2: (0,)}


def test_without_a_controller_there_is_an_error(cluster: FakeCluster) -> None:
    cluster.add_broker(0, port=cluster.listen(lambda _: Errors.NOT_CONTROLLER))

    line = failing(
        cluster.run("topics", "create", "t", "--replica-assignment", "0", "--timeout-ms", "0")
    )

    assert line == "the answer is NOT_CONTROLLER"


def test_without_a_broker_there_is_an_error(cluster: FakeCluster) -> None:
    create = ("topics", "create", "t", "--replica-assignment", "0", "--timeout-ms", "0")
    assert failing(cluster.run(*create)) == "no broker is registered: is the cluster running?"
    cluster.add_broker(0)
    assert failing(cluster.run(*create)).startswith("broker 127.0.0.1:9092 does not answer: ")
