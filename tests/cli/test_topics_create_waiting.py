"""``topics create``: waiting for the placement service, and for leaders."""

from __future__ import annotations

import json
import os
from pathlib import Path
from threading import Timer

import pytest

from regent.core.errors import Errors
from regent.core.protocol.controller import (
    ControllerPartition,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
)
from regent.core.protocol.placement import (
    PlacementStatusRequest,
    PlacementStatusResponse,
    PlaceTopicsRequest,
    PlaceTopicsResponse,
)
from regent.transport.codec import Request, Response
from tests.support.fake_cluster import (
    FakeCluster,
    failing,
    replicas,
    warm_placement,
    write_cluster_file,
)

CREATE = ("topics", "create", "t", "--partitions", "1", "--replication-factor", "1")


def test_a_cold_placement_service_is_waited_for(local: FakeCluster, tmp_path: Path) -> None:
    states = iter(["starting", "warming"])

    def answer(request: Request) -> Response | Errors:
        if isinstance(request, PlacementStatusRequest):
            return PlacementStatusResponse(Errors.NONE, next(states))
        return warm_placement(request)

    write_cluster_file(tmp_path, placement=local.serve(answer))

    result = local.run(*CREATE)

    assert result.exit_code == 0
    assert [type(request) for request in local.received[:3]] == [
        PlacementStatusRequest,
        PlacementStatusRequest,
        PlaceTopicsRequest,
    ]


def test_where_the_placement_service_failed_the_same_rule_places_and_says_so(
    local: FakeCluster, tmp_path: Path
) -> None:
    failed = PlacementStatusResponse(Errors.NONE, "failed", "no Java")
    write_cluster_file(tmp_path, placement=local.serve(lambda _: failed))

    result = local.run(*CREATE)

    assert result.exit_code == 0
    assert result.stderr == (
        "the placement service failed (no Java): placed by the same rule, without Spark\n"
    )
    assert replicas(local, "t") == {0: (0,)}


@pytest.mark.parametrize("state", ["starting", "warming"])
def test_a_placement_service_that_takes_too_long_is_not_waited_for(
    local: FakeCluster, tmp_path: Path, state: str
) -> None:
    def answer(request: Request) -> Response | Errors | None:
        if isinstance(request, PlacementStatusRequest):
            return PlacementStatusResponse(Errors.NONE, state, "Spark is starting")
        return None

    write_cluster_file(tmp_path, placement=local.serve(answer))

    result = local.run(*CREATE, "--placement-timeout-ms", "50")

    assert result.exit_code == 0
    what = "Spark is starting" if state == "starting" else "it is placing"
    reason = f"the placement service is not ready after 0.05 s ({what})"
    assert result.stderr == f"{reason}: placed by the same rule, without Spark\n"
    assert replicas(local, "t") == {0: (0,)}


def test_a_placement_service_whose_process_is_gone_is_not_waited_for(
    local: FakeCluster, tmp_path: Path
) -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    write_cluster_file(tmp_path, placement="tcp://127.0.0.1:9", placement_pid=pid)

    result = local.run(*CREATE)

    assert result.exit_code == 0
    assert f"(process {pid}) is not running: placed by the same rule" in result.stderr


def test_a_placement_service_that_is_started_again_is_waited_for(
    local: FakeCluster, tmp_path: Path
) -> None:
    successor = local.serve(warm_placement)
    is_back = Timer(0.3, lambda: write_cluster_file(tmp_path, placement=successor))

    def die(_: Request) -> Response:
        write_cluster_file(tmp_path, placement=None)
        is_back.start()
        return PlacementStatusResponse(Errors.NONE, "starting")

    write_cluster_file(tmp_path, placement=local.serve(die))

    assert local.run(*CREATE).exit_code == 0


def test_a_cluster_that_stops_meanwhile_is_not_waited_for(
    local: FakeCluster, tmp_path: Path
) -> None:
    def stop(_: Request) -> Response:
        (tmp_path / "cluster.json").unlink()
        return PlacementStatusResponse(Errors.NONE, "starting")

    write_cluster_file(tmp_path, placement=local.serve(stop))

    assert "the cluster has stopped" in local.run(*CREATE).stderr


def test_what_the_placement_service_refuses_the_same_rule_places(
    local: FakeCluster, tmp_path: Path
) -> None:
    def answer(request: Request) -> Response | Errors:
        if isinstance(request, PlaceTopicsRequest):
            return PlaceTopicsResponse(Errors.OPERATION_NOT_ATTEMPTED, "100 requests wait already")
        return warm_placement(request)

    write_cluster_file(tmp_path, placement=local.serve(answer))

    assert local.run(*CREATE).stderr == (
        "100 requests wait already: placed by the same rule, without Spark\n"
    )


def test_too_many_partitions_for_the_service_are_told_the_other_way(
    local: FakeCluster, tmp_path: Path
) -> None:
    def answer(request: Request) -> Response | Errors:
        if isinstance(request, PlaceTopicsRequest):
            return PlaceTopicsResponse(Errors.INVALID_PARTITIONS, "more than 200000 partitions")
        return warm_placement(request)

    write_cluster_file(tmp_path, placement=local.serve(answer))

    assert failing(local.run(*CREATE)) == (
        "more than 200000 partitions; --no-placement-service has no such limit"
    )


def test_a_placement_other_than_the_one_asked_for_is_never_written(
    local: FakeCluster, tmp_path: Path
) -> None:
    def answer(request: Request) -> Response | Errors:
        if isinstance(request, PlaceTopicsRequest):
            return PlaceTopicsResponse(Errors.NONE, "", ())
        return warm_placement(request)

    write_cluster_file(tmp_path, placement=local.serve(answer))

    assert "not the one asked for" in failing(local.run(*CREATE))
    assert "/brokers/topics/t" not in local.writes


# --- leaders --------------------------------------------------------------------------------------


def test_the_command_returns_when_the_last_partition_has_a_leader(cluster: FakeCluster) -> None:
    leaders = iter([(), (-1, -1), (0, -1), (0, 1)])

    def answer(_: Request) -> Response:
        rows = [ControllerPartition("t", n, b, 0, (), ()) for n, b in enumerate(next(leaders))]
        return DescribeTopicsResponse(Errors.NONE, 1, tuple(rows))

    endpoint = cluster.serve(answer)
    cluster.add_broker(0, control_endpoint=endpoint)
    cluster.add_broker(1)
    cluster.elect(0)

    assert cluster.run("topics", "create", "t", "--replica-assignment", "0:1,1:0").exit_code == 0

    assert len(cluster.received) == 4


def test_only_topics_that_lack_leaders_are_asked_about_again(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    endpoint = cluster.serve(
        lambda request: (
            DescribeTopicsResponse(Errors.NONE, 1, (ControllerPartition("a", 0, 0, 0, (), ()),))
            if request == DescribeTopicsRequest(("a", "b"))
            else cluster.lead(request)
        )
    )
    cluster.add_broker(0, control_endpoint=endpoint)
    cluster.elect(0)
    write_cluster_file(tmp_path, placement=cluster.serve(warm_placement))
    entries = [{"topic": t, "partitions": 1, "replication_factor": 1} for t in ("a", "b")]

    result = cluster.run(
        *("topics", "create", "--from-file", "-", "--data-dir", str(tmp_path)),
        stdin=json.dumps(entries).encode(),
    )

    assert result.exit_code == 0
    assert cluster.received[-2:] == [
        DescribeTopicsRequest(("a", "b")),
        DescribeTopicsRequest(("b",)),
    ]


def test_a_controller_that_moves_is_followed(cluster: FakeCluster) -> None:
    def resign(_: Request) -> Response:
        cluster.remove_broker(0)
        cluster.elect(1)
        return DescribeTopicsResponse(Errors.NOT_CONTROLLER)

    cluster.add_broker(0, control_endpoint=cluster.serve(resign))
    cluster.add_broker(1, control_endpoint=cluster.serve(cluster.lead))
    cluster.elect(0)

    assert cluster.run("topics", "create", "t", "--replica-assignment", "0:1").exit_code == 0


def test_partitions_without_a_leader_in_time_are_counted(cluster: FakeCluster) -> None:
    row = ControllerPartition("t", 0, 0, 0, (), ())
    cluster.add_broker(
        0, control_endpoint=cluster.serve(lambda _: DescribeTopicsResponse(Errors.NONE, 1, (row,)))
    )
    cluster.elect(0)

    line = failing(
        cluster.run("topics", "create", "t", "--replica-assignment", "0,0,0", "--timeout-ms", "50")
    )

    assert line.startswith("2 of 3 partitions have no leader after 50 ms (everything is written")
    assert replicas(cluster, "t") == {0: (0,), 1: (0,), 2: (0,)}


def test_without_a_controller_the_command_says_so(cluster: FakeCluster) -> None:
    cluster.add_broker(0)

    line = failing(
        cluster.run("topics", "create", "t", "--replica-assignment", "0", "--timeout-ms", "0")
    )

    assert "there is no controller" in line
