"""``topics create``: waits for the placement service, for a controller, and for leaders."""

from __future__ import annotations

from dataclasses import replace

from regent.core.errors import Errors
from regent.core.protocol.topics import (
    CreateTopicsRequest,
    TopicOutcome,
    TopicsResponse,
)
from regent.transport.control.codec import Request, Response
from tests.support.fake_cluster import FakeCluster, failing, replicas

CREATE = ("topics", "create", "t", "--partitions", "1", "--replication-factor", "1")


def test_the_command_waits_for_a_starting_placement_service(local: FakeCluster) -> None:
    local.placer.starting = iter(["starting", "Spark is warming up"])

    assert local.run(*CREATE).exit_code == 0

    kinds = [r.validate_only for r in local.received if isinstance(r, CreateTopicsRequest)]
    assert kinds == [True, True, True, False], "one more request for every state"


def test_the_wait_for_the_placement_service_is_limited(local: FakeCluster) -> None:
    local.placer.starting = iter(lambda: "Spark is starting", "")
    local.placer.note = "the placement service is starting: placed by the same algorithm"

    result = local.run(*CREATE, "--placement-timeout-ms", "50")

    assert result.exit_code == 0
    assert result.stderr == f"{local.placer.note}\n"
    assert replicas(local, "t") == {0: (0,)}


def test_without_the_placement_service_there_is_no_wait_and_no_message(
    local: FakeCluster,
) -> None:
    local.placer.starting = iter(lambda: "Spark is starting", "")
    local.placer.note = "there is no placement service"

    result = local.run(*CREATE, "--no-placement-service")

    assert (result.exit_code, result.stderr) == (0, "")


def test_the_request_follows_a_new_controller(cluster: FakeCluster) -> None:
    def resign(request: Request) -> Response:
        assert isinstance(request, CreateTopicsRequest)
        cluster.unregister(0)
        cluster.elect(1)
        return TopicsResponse((TopicOutcome("t", Errors.NOT_CONTROLLER),))

    cluster.add_broker(0, control_endpoint=cluster.serve(resign))
    cluster.add_broker(1, control_endpoint=cluster.serve(cluster.lead))
    cluster.elect(0)

    assert cluster.run("topics", "create", "t", "--replica-assignment", "1").exit_code == 0


def test_a_topic_whose_answer_was_lost_is_created_once(cluster: FakeCluster) -> None:
    attempts = []

    def lose_answer(request: Request) -> Response | Errors | None:
        assert isinstance(request, CreateTopicsRequest)
        attempts.extend([] if request.validate_only else [request])
        answer = cluster.lead(request)
        return Errors.BROKER_NOT_AVAILABLE if len(attempts) == 1 else answer

    cluster.with_brokers(1)
    cluster.unregister(0)
    cluster.add_broker(0, control_endpoint=cluster.serve(lose_answer))
    cluster.elect(0)

    assert cluster.run("topics", "create", "t", "--replica-assignment", "0").exit_code == 0

    assert len(attempts) == 2
    assert cluster.writes.count("/brokers/topics/t") == 1


def test_topics_without_leaders_in_time_are_named_with_the_remedy(cluster: FakeCluster) -> None:
    late = "topic t: 2 of 3 partitions have no leader after 50 ms; all partitions are created"

    def answer(request: Request) -> Response | Errors | None:
        response = cluster.lead(request)
        assert isinstance(response, TopicsResponse)
        if isinstance(request, CreateTopicsRequest) and request.validate_only:
            return response
        return replace(response, outcomes=(TopicOutcome("t", Errors.REQUEST_TIMED_OUT, late, 3),))

    cluster.add_broker(0, control_endpoint=cluster.serve(answer))
    cluster.elect(0)

    line = failing(
        cluster.run("topics", "create", "t", "--replica-assignment", "0,0,0", "--timeout-ms", "50")
    )

    assert line == f"{late} (see `regent status`)"
    assert replicas(cluster, "t") == {0: (0,), 1: (0,), 2: (0,)}


def test_without_a_controller_there_is_an_error(cluster: FakeCluster) -> None:
    cluster.add_broker(0)

    line = failing(
        cluster.run("topics", "create", "t", "--replica-assignment", "0", "--timeout-ms", "0")
    )

    assert "there is no controller" in line
