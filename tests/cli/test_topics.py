"""``topics create``, ``list``, ``describe`` and ``alter``, from the command line to the znodes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from core.errors import Errors
from core.model import LeaderAndIsr, ReplicaAssignment
from core.protocol import (
    ControllerPartition,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    PlacementStatusRequest,
    PlacementStatusResponse,
    PlaceTopicsRequest,
    PlaceTopicsResponse,
)
from tests.support.fake_cluster import (
    FakeCluster,
    failing,
    warm_placement,
    write_cluster_file,
)
from transport.codec import Request, Response
from zk.admin_znodes import ConfigEntityZNode

RING = {0: (0, 1, 2), 1: (1, 2, 0), 2: (2, 0, 1), 3: (0, 1, 2)}


@pytest.fixture
def local(cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Three brokers and a warm placement service, found by a data directory."""
    monkeypatch.delenv("REGENT_ZOOKEEPER")
    monkeypatch.setenv("REGENT_DATA_DIR", str(tmp_path))
    cluster.with_brokers(3)
    write_cluster_file(tmp_path, placement=cluster.serve(warm_placement))
    return cluster


def replicas(cluster: FakeCluster, topic: str) -> dict[int, tuple[int, ...]]:
    return {p: a.replicas for p, a in cluster.topic(topic).partitions.items()}


def placed(cluster: FakeCluster) -> PlaceTopicsRequest:
    """Return the one request that reached the placement service."""
    (request,) = (r for r in cluster.received if isinstance(r, PlaceTopicsRequest))
    return request


# --- create ---------------------------------------------------------------------------------------


def test_a_topic_is_placed_written_and_waited_for(local: FakeCluster) -> None:
    result = local.run("topics", "create", "t", "--partitions", "4", "--replication-factor", "3")

    assert result.exit_code == 0
    assert result.stdout == "Created topic t (4 partitions, replication factor 3).\n"
    assert result.stderr == ""
    assert replicas(local, "t") == RING
    topic_id = local.topic("t").topic_id
    assert topic_id is not None
    assert len(topic_id) == 22
    assert local.received[-1] == DescribeTopicsRequest(("t",))


def test_the_created_topics_are_printed_as_json(local: FakeCluster) -> None:
    answer = local.json("topics", "create", "t", "--partitions", "1", "--replication-factor", "1")

    assert answer == [
        {
            "topic": "t",
            "topic_id": local.topic("t").topic_id,
            "partitions": 1,
            "replication_factor": 1,
        }
    ]


def test_the_name_may_be_given_as_to_kafkas_tools(local: FakeCluster) -> None:
    options = ("--topic", "t", "--partitions", "1", "--replication-factor", "1")

    assert local.run("topics", "create", *options).exit_code == 0
    assert local.run("topics", "describe", "--topic", "t").exit_code == 0


def test_settings_are_written_with_the_topic(local: FakeCluster) -> None:
    shape = ("--partitions", "1", "--replication-factor", "1")
    settings = ("--config", "retention.ms=5", "--config", "cleanup.policy=compact")

    assert local.run("topics", "create", "t", *shape, *settings).exit_code == 0

    data = local.zookeeper.snapshot()["/config/topics/t"].data
    assert ConfigEntityZNode.decode(data) == {"retention.ms": "5", "cleanup.policy": "compact"}
    assert local.writes.index("/config/topics/t") < local.writes.index("/brokers/topics/t")


def test_an_explicit_assignment_needs_no_placement(local: FakeCluster) -> None:
    result = local.run("topics", "create", "t", "--replica-assignment", "2:0,0:1")

    assert result.stdout == "Created topic t (2 partitions, replication factor 2).\n"
    assert replicas(local, "t") == {0: (2, 0), 1: (0, 1)}
    assert not any(isinstance(request, PlaceTopicsRequest) for request in local.received)


def test_how_to_place_is_handed_to_the_placement_service(local: FakeCluster) -> None:
    options = ("--strategy", "kafka", "--start-index", "2", "--index", "per-topic")
    shape = ("--partitions", "2", "--replication-factor", "2")

    assert local.run("topics", "create", "t", *shape, *options).exit_code == 0

    request = placed(local)
    assert (request.strategy, request.start_index, request.index) == ("kafka", "2", "per-topic")
    assert [broker.broker_id for broker in request.brokers] == [0, 1, 2]
    assert replicas(local, "t")[0][0] == 2


def test_the_least_loaded_start_counts_what_brokers_hold(local: FakeCluster) -> None:
    local.add_topic("old", {0: ReplicaAssignment((0, 1)), 1: ReplicaAssignment((0, 1))})
    shape = ("--partitions", "1", "--replication-factor", "1")

    assert (
        local.run("topics", "create", "t", *shape, "--start-index", "least-loaded").exit_code == 0
    )

    assert [broker.replica_count for broker in placed(local).brokers] == [2, 2, 0]
    assert replicas(local, "t") == {0: (2,)}


def test_all_topics_of_a_file_are_placed_in_one_request(local: FakeCluster, tmp_path: Path) -> None:
    file = tmp_path / "topics.json"
    entries = [
        {"topic": "b", "partitions": 1, "replication_factor": 2},
        {
            "topic": "a",
            "partitions": 2,
            "replication_factor": 1,
            "config": {"min.insync.replicas": 1},
        },
    ]
    file.write_text(json.dumps(entries))

    result = local.run("topics", "create", "--from-file", str(file))

    assert result.stdout.splitlines() == [
        "Created topic a (2 partitions, replication factor 1).",
        "Created topic b (1 partition, replication factor 2).",
    ]
    assert replicas(local, "a") == {0: (0,), 1: (1,)}
    assert replicas(local, "b") == {0: (2, 0)}
    assert len(placed(local).topics) == 2


def test_a_file_may_come_through_a_pipe(local: FakeCluster) -> None:
    entries = [{"topic": "a", "partitions": 1, "replication_factor": 1}]

    result = local.run("topics", "create", "--from-file", "-", stdin=json.dumps(entries).encode())

    assert result.exit_code == 0
    assert replicas(local, "a") == {0: (0,)}


def test_one_bad_topic_of_a_file_keeps_all_from_being_written(
    local: FakeCluster, tmp_path: Path
) -> None:
    file = tmp_path / "topics.json"
    good = {"topic": "good", "partitions": 1, "replication_factor": 1}
    file.write_text(json.dumps([good, good | {"topic": "b@d"}, good | {"replication_factor": 7}]))
    before = list(local.writes)

    result = local.run("topics", "create", "--from-file", str(file))

    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        'regent: topic \'b@d\' has other characters than ASCII letters, digits, ".", "_" and "-"',
        "regent: topic good is named more than once",
    ]
    assert local.writes == before


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("t", "--partitions", "0", "--replication-factor", "1"), "at least one partition"),
        (("t", "--partitions", "1", "--replication-factor", "4"), "there are 3 live brokers"),
        (("t", "--replica-assignment", "0:1,0"), "partition 1 has 1 replicas"),
        (("t", "--replica-assignment", "0:7"), "broker 7 is not registered"),
        (("a b", "--partitions", "1", "--replication-factor", "1"), "other characters"),
        (
            ("t", "--partitions", "1", "--replication-factor", "1", "--start-index", "middle"),
            "start index must be a number",
        ),
        (
            ("t", "--partitions", "1", "--replication-factor", "1", "--config", "colour=red"),
            "config colour is not a setting of topics",
        ),
    ],
)
def test_a_topic_that_cannot_be_is_refused_in_one_line_and_nothing_is_written(
    local: FakeCluster, arguments: tuple[str, ...], problem: str
) -> None:
    before = list(local.writes)

    assert problem in failing(local.run("topics", "create", *arguments))

    assert local.writes == before


def test_an_existing_topic_is_refused_unless_it_may_exist(local: FakeCluster) -> None:
    create = ("topics", "create", "t", "--partitions", "1", "--replication-factor", "1")
    local.run(*create)
    before = list(local.writes)

    assert failing(local.run(*create)) == "topic t already exists"

    result = local.run(*create, "--if-not-exists")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "topic t already exists\n"
    assert local.json(*create, "--if-not-exists") == []
    assert local.writes == before


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("t",),
        ("t", "--partitions", "1"),
        ("t", "--replication-factor", "1"),
        ("t", "--partitions", "one", "--replication-factor", "1"),
        ("t", "--replica-assignment", "0", "--partitions", "1"),
        ("t", "--replica-assignment", "0", "--replication-factor", "1"),
        ("t", "--replica-assignment", "a:b"),
        ("t", "--partitions", "1", "--replication-factor", "1", "--config", "x"),
        ("t", "--partitions", "1", "--replication-factor", "1", "--strategy", "best"),
        ("t", "--topic", "t", "--partitions", "1", "--replication-factor", "1"),
        ("t", "--partitions", "1", "--replication-factor", "1", "--timeout-ms", "-1"),
        ("t", "--partition", "1"),
        ("--from-file", "/nowhere/topics.json"),
        ("t", "--from-file", os.devnull),
        ("--from-file", os.devnull, "--partitions", "1"),
        ("--from-file", os.devnull, "--config", "a=b"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_a_usage_error(
    cluster: FakeCluster, arguments: tuple[str, ...]
) -> None:
    cluster.is_reachable = False

    result = cluster.run("topics", "create", *arguments)

    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("regent: ")
    assert line.endswith("(regent topics create --help)")


# --- create: the placement service ----------------------------------------------------------------

CREATE = ("topics", "create", "t", "--partitions", "1", "--replication-factor", "1")


def test_a_cold_placement_service_is_waited_for(local: FakeCluster, tmp_path: Path) -> None:
    states = iter(["starting", "warming", "ready"])

    def answer(request: Request) -> Response | Errors:
        if isinstance(request, PlacementStatusRequest):
            return PlacementStatusResponse(Errors.NONE, next(states))
        return warm_placement(request)

    write_cluster_file(tmp_path, placement=local.serve(answer))

    result = local.run(*CREATE)

    assert result.exit_code == 0
    assert result.stderr == "placement service is warming up…\n"


def test_a_placement_service_that_failed_says_why(local: FakeCluster, tmp_path: Path) -> None:
    failed = PlacementStatusResponse(Errors.NONE, "failed", "no Java")
    write_cluster_file(tmp_path, placement=local.serve(lambda _: failed))

    assert failing(local.run(*CREATE)) == "the placement service failed: no Java"


def test_a_placement_service_whose_process_is_gone_is_not_waited_for(
    local: FakeCluster, tmp_path: Path
) -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    write_cluster_file(tmp_path, placement="tcp://127.0.0.1:9", placement_pid=pid)

    result = local.run(*CREATE)

    assert result.exit_code == 1
    assert f"(process {pid}) is not running" in result.stderr
    assert "--no-placement-service" in result.stderr


def test_a_refusal_of_the_placement_service_is_passed_on(
    local: FakeCluster, tmp_path: Path
) -> None:
    def answer(request: Request) -> Response | Errors:
        if isinstance(request, PlaceTopicsRequest):
            return PlaceTopicsResponse(Errors.OPERATION_NOT_ATTEMPTED, "100 requests wait already")
        return warm_placement(request)

    write_cluster_file(tmp_path, placement=local.serve(answer))

    assert failing(local.run(*CREATE)) == "100 requests wait already"


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


# --- create: the leaders --------------------------------------------------------------------------


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

    assert "the controller does not answer: there is none" in line


# --- list -----------------------------------------------------------------------------------------


def test_topics_are_listed_by_name(cluster: FakeCluster) -> None:
    assert cluster.run("topics", "list").stdout == ""
    cluster.add_topic("b", {})
    cluster.add_topic("a", {})
    cluster.zookeeper.put("/admin/delete_topics/b")

    assert cluster.run("topics", "list").stdout == "a\nb - marked for deletion\n"
    assert cluster.json("topics", "list") == ["a", "b"]


# --- describe -------------------------------------------------------------------------------------


@pytest.fixture
def described(cluster: FakeCluster) -> FakeCluster:
    """Two topics: b healthy, and a with every kind of trouble."""
    cluster.add_broker(0)
    cluster.add_broker(1)
    cluster.add_topic(
        "a",
        {
            0: ReplicaAssignment((0, 1)),
            1: ReplicaAssignment((1, 0)),
            2: ReplicaAssignment((2, 0)),
            3: ReplicaAssignment((0, 1, 2), adding_replicas=(2,)),
            10: ReplicaAssignment((0, 1)),
        },
        {
            0: LeaderAndIsr(0, (0, 1), 5),
            1: LeaderAndIsr(-1, (1,), 3),
            2: LeaderAndIsr(2, (2,), 0),
            3: LeaderAndIsr(0, (1, 0), 7),
        },
    )
    cluster.add_topic("b", {0: ReplicaAssignment((1,))}, {0: LeaderAndIsr(1, (1,))}, topic_id=None)
    cluster.zookeeper.put("/config/topics/a", ConfigEntityZNode.encode({"retention.ms": "5"}))
    return cluster


def test_a_description_has_exactly_the_promised_keys_in_order(described: FakeCluster) -> None:
    rows = described.json("topics", "describe")

    assert [(row["topic"], row["partition"]) for row in rows] == [
        ("a", 0),
        ("a", 1),
        ("a", 2),
        ("a", 3),
        ("a", 10),
        ("b", 0),
    ]
    assert rows[3] == {
        "topic": "a",
        "topic_id": "AAAAAAAAAAAAAAAAAAAAAA",
        "partition": 3,
        "leader": 0,
        "leader_epoch": 7,
        "controller_epoch": 1,
        "isr": [1, 0],
        "replicas": [0, 1, 2],
        "adding_replicas": [2],
        "removing_replicas": [],
        "partition_epoch": 0,
    }
    assert (rows[4]["leader"], rows[4]["isr"], rows[4]["partition_epoch"]) == (-1, [], -1)
    assert rows[5]["topic_id"] is None
    assert described.json("topics", "describe", "b") == rows[5:]


def test_a_description_reads_like_kafkas(described: FakeCluster) -> None:
    assert described.run("topics", "describe").stdout.splitlines() == [
        "Topic: a\tTopicId: AAAAAAAAAAAAAAAAAAAAAA\tPartitionCount: 5\tReplicationFactor: 2"
        "\tConfigs: retention.ms=5",
        "\tTopic: a\tPartition: 0\tLeader: 0\tReplicas: 0,1\tIsr: 0,1",
        "\tTopic: a\tPartition: 1\tLeader: none\tReplicas: 1,0\tIsr: 1",
        "\tTopic: a\tPartition: 2\tLeader: 2\tReplicas: 2,0\tIsr: 2",
        "\tTopic: a\tPartition: 3\tLeader: 0\tReplicas: 0,1,2\tIsr: 1,0"
        "\tAdding Replicas: 2\tRemoving Replicas: ",
        "\tTopic: a\tPartition: 10\tLeader: none\tReplicas: 0,1\tIsr: ",
        "Topic: b\tPartitionCount: 1\tReplicationFactor: 1\tConfigs: ",
        "\tTopic: b\tPartition: 0\tLeader: 1\tReplicas: 1\tIsr: 1",
    ]


def partitions_shown(cluster: FakeCluster, *flags: str) -> list[int]:
    rows = cluster.json("topics", "describe", *flags)
    assert {row["topic"] for row in rows} <= {"a"}
    return [row["partition"] for row in rows]


def test_replicas_being_added_do_not_make_a_partition_under_replicated(
    described: FakeCluster,
) -> None:
    assert partitions_shown(described, "--under-replicated-partitions") == [1, 2, 10]


def test_a_leader_that_is_not_registered_makes_a_partition_unavailable(
    described: FakeCluster,
) -> None:
    assert partitions_shown(described, "--unavailable-partitions") == [1, 2, 10]
    described.remove_broker(0)
    assert partitions_shown(described, "--unavailable-partitions") == [0, 1, 2, 3, 10]


def test_selected_partitions_have_no_headers(described: FakeCluster) -> None:
    lines = described.run("topics", "describe", "--unavailable-partitions").stdout.splitlines()

    assert len(lines) == 3
    assert all(line.startswith("\tTopic: a") for line in lines)


@pytest.mark.parametrize("name", ["nope", "..", "", "a/partitions"])
def test_a_topic_that_does_not_exist_is_said_not_to(described: FakeCluster, name: str) -> None:
    assert failing(described.run("topics", "describe", name)) == f"topic {name} does not exist"


def test_a_topic_that_cannot_be_understood_does_not_hide_the_others(
    described: FakeCluster,
) -> None:
    described.zookeeper.put("/brokers/topics/bad", b"garbage")

    result = described.run("topics", "describe")

    assert result.exit_code == 0
    assert "Topic: b" in result.stdout
    assert result.stderr.startswith("regent: topic bad: ")
    assert failing(described.run("topics", "describe", "bad")).startswith("topic bad: ")


# --- alter ----------------------------------------------------------------------------------------


def test_new_partitions_go_on_where_the_old_ones_ended(local: FakeCluster) -> None:
    local.run("topics", "create", "t", "--partitions", "2", "--replication-factor", "3")
    topic_id = local.topic("t").topic_id
    local.received.clear()

    result = local.run("topics", "alter", "t", "--partitions", "4")

    assert result.stdout == "Topic t has 4 partitions now (2 before).\n"
    assert replicas(local, "t") == RING
    assert local.topic("t").topic_id == topic_id
    assert placed(local).topics == (("t", 2, 3, 2),)
    assert local.json("topics", "alter", "t", "--partitions", "5") == {
        "topic": "t",
        "partitions": 5,
        "added_partitions": [4],
    }


@pytest.mark.parametrize(
    ("partitions", "problem"),
    [
        ("2", "topic t already has 2 partitions"),
        ("1", "topic t cannot shrink: it has 2 partitions"),
        ("0", "topic t cannot shrink: it has 2 partitions"),
        ("-3", "topic t cannot shrink: it has 2 partitions"),
    ],
)
def test_a_topic_can_only_grow(local: FakeCluster, partitions: str, problem: str) -> None:
    local.add_topic("t", {0: ReplicaAssignment((0,)), 1: ReplicaAssignment((1,))})

    assert failing(local.run("topics", "alter", "t", "--partitions", partitions)) == problem


def test_a_topic_that_is_unknown_deleted_or_being_moved_does_not_grow(local: FakeCluster) -> None:
    alter = ("--partitions", "5")
    local.add_topic("moving", {0: ReplicaAssignment((0, 1), adding_replicas=(1,))})
    local.add_topic("gone", {0: ReplicaAssignment((0,))})
    local.zookeeper.put("/admin/delete_topics/gone")

    assert failing(local.run("topics", "alter", "t", *alter)) == "topic t does not exist"
    assert failing(local.run("topics", "alter", "..", *alter)) == "topic .. does not exist"
    assert failing(local.run("topics", "alter", "gone", *alter)) == "topic gone is being deleted"
    assert failing(local.run("topics", "alter", "moving", *alter)) == (
        "topic moving is being reassigned"
    )
    assert local.run("topics", "alter", "t").exit_code == 2
    assert local.run("topics", "alter", *alter).exit_code == 2


def test_a_topic_with_more_replicas_than_live_brokers_does_not_grow(local: FakeCluster) -> None:
    local.add_topic("t", {0: ReplicaAssignment((0, 1, 2, 3))})

    assert "replication factor 4 is larger than the 3 available brokers" in failing(
        local.run("topics", "alter", "t", "--partitions", "2")
    )
