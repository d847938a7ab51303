"""``reassign --execute``, ``--cancel`` and ``--list``: the requests to the controller."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from regent.core.errors import ApiError, Errors
from regent.core.model import ReplicaAssignment, TopicPartition
from regent.core.protocol.messages.partitions import (
    NO_ERROR,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from regent.transport.control.codec import Request, Response
from regent.zk.znodes import ConfigEntityZNode, MovesPauseZNode, ReassignPartitionsZNode
from tests.support.fake_cluster import FakeCluster, failing
from tests.support.fake_zookeeper import Call, Moment

ROLLBACK = {
    "version": 1,
    "partitions": [
        {"topic": "t", "partition": 0, "replicas": [0, 1], "log_dirs": ["any", "any"]},
    ],
}
TARGET = {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [2, 3]}]}
MOVING = ReplicaAssignment((2, 3, 0, 1), adding_replicas=(2, 3), removing_replicas=(0, 1))
T0 = TopicPartition("t", 0)


@pytest.fixture
def four(cluster: FakeCluster) -> FakeCluster:
    """Four brokers, a topic on two of them, and a controller that accepts all requests."""
    cluster.with_brokers(4)
    cluster.put_topic("t", {0: (0, 1)})
    refuse(cluster)
    return cluster


def refuse(cluster: FakeCluster, **problems: tuple[Errors, str]) -> None:
    """Let the controller refuse partitions, ``t_0`` and so on, and move the others."""

    def submit(request: Request) -> Response:
        assert isinstance(request, AlterPartitionReassignmentsRequest)
        results = {}
        for (topic, partition), replicas in request.targets.items():
            result = ApiError(*problems.get(f"{topic}_{partition}", NO_ERROR))
            if result == NO_ERROR and replicas is not None:
                old = cluster.topic(topic).partitions
                cluster.put_topic(topic, {**old, partition: old[partition].reassign_to(replicas)})
            results[TopicPartition(topic, partition)] = result
        return AlterPartitionReassignmentsResponse.of(results)

    cluster.answers[AlterPartitionReassignmentsRequest] = submit


def being_moved(cluster: FakeCluster, *partitions: TopicPartition) -> None:
    """Let the controller answer that these partitions are being reassigned."""
    answer = ListPartitionReassignmentsResponse.of(dict.fromkeys(partitions, MOVING))
    cluster.answers[ListPartitionReassignmentsRequest] = lambda _: answer


def submitted(cluster: FakeCluster) -> list[tuple[str, int, tuple[int, ...] | None]]:
    requests = [r for r in cluster.received if isinstance(r, AlterPartitionReassignmentsRequest)]
    return [(*p, replicas) for r in requests for p, replicas in r.targets.items()]


def command(folder: Path, action: str = "--execute", content: object = TARGET) -> tuple[str, ...]:
    path = folder / "moves.json"
    path.write_text(json.dumps(content))
    return ("reassign", action, "--reassignment-json-file", str(path))


# --- execute --------------------------------------------------------------------------------------


def test_the_rollback_is_printed_before_the_move_begins(four: FakeCluster, tmp_path: Path) -> None:
    result = four.run(*command(tmp_path))

    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[:2] == ["Current partition replica assignment", ""]
    assert json.loads(lines[2]) == ROLLBACK
    assert lines[3:] == [
        "",
        "Save this to use as the --reassignment-json-file option during rollback",
        "Successfully started partition reassignment for t-0",
    ]
    assert submitted(four) == [("t", 0, (2, 3))]


def test_in_json_only_the_rollback_is_printed(four: FakeCluster, tmp_path: Path) -> None:
    result = four.run(*command(tmp_path), "-o", "json")

    assert json.loads(result.stdout) == ROLLBACK
    assert result.stderr == "Successfully started partition reassignment for t-0\n"


def test_an_ongoing_move_is_not_replaced(four: FakeCluster, tmp_path: Path) -> None:
    being_moved(four, TopicPartition("other", 0))

    line = failing(four.run(*command(tmp_path)))

    assert line.startswith("Cannot execute because there is an existing partition assignment")
    assert "other-0" in line
    assert "--additional" in line
    assert submitted(four) == []


def test_a_requested_move_of_another_tool_is_not_replaced(
    four: FakeCluster, tmp_path: Path
) -> None:
    four.zookeeper.put(ReassignPartitionsZNode.PATH, json.dumps(TARGET).encode())

    assert "existing partition assignment: of t-0." in failing(four.run(*command(tmp_path)))


def test_a_move_can_be_added_to_ongoing_ones(four: FakeCluster, tmp_path: Path) -> None:
    being_moved(four, T0)
    four.put_topic("t", {0: MOVING})

    result = four.run(*command(tmp_path), "--additional", "-o", "json")

    assert result.exit_code == 0
    assert json.loads(result.stdout) == ROLLBACK  # as it was before both
    assert submitted(four) == [("t", 0, (2, 3))]


def test_refused_partitions_are_named(four: FakeCluster, tmp_path: Path) -> None:
    four.put_topic("t", dict.fromkeys(range(3), (0, 1)))
    refuse(
        four,
        t_0=(Errors.INVALID_REPLICA_ASSIGNMENT, "t-0: broker 2 is stopping"),
        t_2=(Errors.UNKNOWN_TOPIC_OR_PARTITION, ""),
    )
    entries = [{"topic": "t", "partition": n, "replicas": [2]} for n in range(3)]

    result = four.run(*command(tmp_path, content={"partitions": entries}))

    assert result.exit_code == 1
    assert result.stdout.endswith("Successfully started partition reassignment for t-1\n")
    assert result.stderr.splitlines() == [
        "regent: Error reassigning partition(s):",
        "regent: t-0: broker 2 is stopping",
        "regent: t-2: UNKNOWN_TOPIC_OR_PARTITION",
    ]


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"topic": "nope", "partition": 0, "replicas": [1]}, "partition nope-0 does not exist"),
        ({"topic": "t", "partition": 7, "replicas": [1]}, "partition t-7 does not exist"),
        (
            {"topic": "t", "partition": 0, "replicas": [1, 9]},
            "partition t-0: broker 9 is not registered; registered are 0, 1, 2, 3",
        ),
    ],
)
def test_an_impossible_move_is_named_and_no_request_is_sent(
    four: FakeCluster, tmp_path: Path, entry: object, problem: str
) -> None:
    content = {"partitions": [entry]}

    assert failing(four.run(*command(tmp_path, content=content))) == problem
    assert four.received == []


def test_a_replica_on_a_dead_broker_may_stay(four: FakeCluster, tmp_path: Path) -> None:
    four.unregister(1)
    content = {"partitions": [{"topic": "t", "partition": 0, "replicas": [2, 1]}]}

    assert four.run(*command(tmp_path, content=content)).exit_code == 0


# --- a controller that moves ----------------------------------------------------------------------


def test_the_request_is_repeated_after_a_change_of_the_controller(
    four: FakeCluster, tmp_path: Path
) -> None:
    accept = four.answers[AlterPartitionReassignmentsRequest]
    answers = iter([Errors.NOT_CONTROLLER, Errors.BROKER_NOT_AVAILABLE])
    four.answers[AlterPartitionReassignmentsRequest] = lambda request: (
        next(answers, None) or accept(request)
    )

    assert four.run(*command(tmp_path)).exit_code == 0
    assert len(submitted(four)) == 3


def test_a_failed_request_is_not_repeated(four: FakeCluster, tmp_path: Path) -> None:
    four.answers[AlterPartitionReassignmentsRequest] = lambda _: Errors.UNKNOWN_SERVER_ERROR

    result = four.run(*command(tmp_path))

    assert result.exit_code == 1
    assert result.stderr == "regent: the controller answered UNKNOWN_SERVER_ERROR\n"
    assert len(submitted(four)) == 1


def test_no_controller_is_a_failure(cluster: FakeCluster) -> None:
    cluster.add_broker(0)

    line = failing(cluster.run("reassign", "--list", "--timeout-ms", "0"))

    assert line == "there is no controller"


# --- waiting --------------------------------------------------------------------------------------


def finish(cluster: FakeCluster, replicas: tuple[int, ...]) -> None:
    """Assign the partition to ``replicas`` after the command has read it a few times."""
    looks = [0]

    def hook(call: Call) -> None:
        looks[0] += call.moment is Moment.BEFORE and ReassignPartitionsZNode.PATH in call.paths
        if looks[0] == 4:
            looks[0] += 1
            cluster.put_topic("t", {0: replicas})

    cluster.hook = hook


def test_the_command_waits_for_the_end(four: FakeCluster, tmp_path: Path) -> None:
    finish(four, (2, 3))

    result = four.run(*command(tmp_path), "--wait")

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-2:] == [
        "Successfully started partition reassignment for t-0",
        "Successfully completed partition reassignment for t-0",
    ]


def test_the_command_waits_for_the_others_when_one_is_refused(
    four: FakeCluster, tmp_path: Path
) -> None:
    four.put_topic("u", {0: (0, 1)})
    refuse(four, u_0=(Errors.UNKNOWN_TOPIC_OR_PARTITION, "u-0 is being deleted"))
    finish(four, (2, 3))
    entries = [{"topic": topic, "partition": 0, "replicas": [2, 3]} for topic in ("t", "u")]

    result = four.run(*command(tmp_path, content={"partitions": entries}), "--wait")

    assert result.exit_code == 1
    assert result.stdout.endswith("Successfully completed partition reassignment for t-0\n")
    assert result.stderr.splitlines() == [
        "regent: Error reassigning partition(s):",
        "regent: u-0: is being deleted",
    ]


def test_a_partition_moved_elsewhere_is_a_failure(four: FakeCluster, tmp_path: Path) -> None:
    finish(four, (0, 1))

    result = four.run(*command(tmp_path), "--wait")

    assert result.exit_code == 1
    assert result.stderr == (
        "regent: There is no active reassignment of partition t-0, but replica set is 0,1 rather"
        " than 2,3.\n"
    )


def test_a_slow_move_continues_after_the_timeout(four: FakeCluster, tmp_path: Path) -> None:
    result = four.run(*command(tmp_path), "--wait", "--timeout-ms", "500")

    assert result.exit_code == 1
    assert result.stderr == (
        "regent: 1/1 partitions remain to be moved after 500 ms: t-0 (it goes on: --verify shows"
        " how far it has come); t-0 has no leader: the controller has not elected one yet\n"
    )


def test_an_interrupted_wait_prints_that_the_move_continues(
    four: FakeCluster, tmp_path: Path
) -> None:
    def interrupt(call: Call) -> None:
        if submitted(four) and ReassignPartitionsZNode.PATH in call.paths:
            raise KeyboardInterrupt

    four.hook = interrupt

    result = four.run(*command(tmp_path), "--wait")

    assert result.exit_code == 130
    assert "the reassignment goes on; --verify shows how far it has come" in result.stderr


# --- cancel and list ------------------------------------------------------------------------------


def test_ongoing_moves_are_cancelled(four: FakeCluster, tmp_path: Path) -> None:
    being_moved(four, T0)

    result = four.run(*command(tmp_path, "--cancel"))

    assert result.exit_code == 0
    assert result.stdout == "Successfully cancelled partition reassignment for: t-0\n"
    assert submitted(four) == [("t", 0, None)]
    assert four.received[0] == ListPartitionReassignmentsRequest.of((T0,))
    assert four.json(*command(tmp_path, "--cancel")) == [{"topic": "t", "partition": 0}]


def test_cancel_without_a_move_is_a_message(four: FakeCluster, tmp_path: Path) -> None:
    result = four.run(*command(tmp_path, "--cancel"))

    assert result.exit_code == 0
    assert result.stdout == "None of the specified partition reassignments are active.\n"
    assert submitted(four) == []


def test_a_refused_cancellation_is_named(four: FakeCluster, tmp_path: Path) -> None:
    being_moved(four, T0)
    refuse(four, t_0=(Errors.NO_REASSIGNMENT_IN_PROGRESS, ""))

    result = four.run(*command(tmp_path, "--cancel"))

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines() == [
        "regent: Error cancelling partition reassignment for:",
        "regent: t-0: NO_REASSIGNMENT_IN_PROGRESS",
    ]


def test_ongoing_moves_are_listed(four: FakeCluster) -> None:
    assert four.run("reassign", "--list").stdout == "No partition reassignments found.\n"
    assert four.json("reassign", "--list") == []

    removing = ReplicaAssignment((2, 3, 0, 1), removing_replicas=(0, 1))
    listed = ListPartitionReassignmentsResponse.of({TopicPartition("t", 10): removing, T0: MOVING})
    four.answers[ListPartitionReassignmentsRequest] = lambda _: listed

    assert four.run("reassign", "--list").stdout.splitlines() == [
        "Current partition reassignments:",
        "t-0: replicas: 2,3,0,1. adding: 2,3. removing: 0,1.",
        "t-10: replicas: 2,3,0,1. removing: 0,1.",
    ]
    assert four.json("reassign", "--list")[0] == {
        "topic": "t",
        "partition": 0,
        "replicas": [2, 3, 0, 1],
        "adding_replicas": [2, 3],
        "removing_replicas": [0, 1],
    }


# --- throttles ------------------------------------------------------------------------------------

WARNING = (
    "Warning: You must run --verify periodically, until the reassignment completes, to ensure the"
    " throttle is removed."
)
RATE = {
    "leader.replication.throttled.rate": "5000",
    "follower.replication.throttled.rate": "5000",
}
REPLICAS = {
    "leader.replication.throttled.replicas": "0:0,0:1",
    "follower.replication.throttled.replicas": "0:2,0:3",
}


def config_of(cluster: FakeCluster, entity: str) -> dict[str, str]:
    node = cluster.zookeeper.snapshot().get(f"/config/{entity}")
    return {} if node is None else ConfigEntityZNode.decode(node.data)


def test_a_throttle_is_set_before_the_move_begins(four: FakeCluster, tmp_path: Path) -> None:
    submit = four.answers[AlterPartitionReassignmentsRequest]
    seen: list[dict[str, str]] = []

    def look(request: Request) -> Response | Errors | None:
        seen.extend([config_of(four, "topics/t"), config_of(four, "brokers/3")])
        return submit(request)

    four.answers[AlterPartitionReassignmentsRequest] = look

    result = four.run(*command(tmp_path), "--throttle", "5000")

    assert (result.exit_code, result.stderr) == (0, f"{WARNING}\n")
    assert result.stdout.splitlines()[-2:] == [
        "The inter-broker throttle limit was set to 5000 B/s",
        "Successfully started partition reassignment for t-0",
    ]
    assert seen == [REPLICAS, RATE]
    assert [config_of(four, f"brokers/{broker}") for broker in range(4)] == [RATE] * 4


def test_a_throttle_keeps_the_other_settings_of_topics_and_brokers(
    four: FakeCluster, tmp_path: Path
) -> None:
    four.zookeeper.put("/config/topics/t", ConfigEntityZNode.encode({"retention.ms": "5"}))
    assert four.run(*command(tmp_path), "--throttle", "5000").exit_code == 0
    assert config_of(four, "topics/t") == {"retention.ms": "5", **REPLICAS}

    four.put_topic("t", {0: (2, 3)})
    assert four.run(*command(tmp_path, "--verify")).exit_code == 0
    assert config_of(four, "topics/t") == {"retention.ms": "5"}


def test_additional_changes_the_throttle_of_a_move_in_progress(
    four: FakeCluster, tmp_path: Path
) -> None:
    four.put_topic("other", {3: MOVING})
    being_moved(four, TopicPartition("other", 3))

    options = ("--additional", "--throttle", "5000")
    assert four.run(*command(tmp_path), *options).exit_code == 0

    assert config_of(four, "topics/other") == {
        "leader.replication.throttled.replicas": "3:0,3:1",
        "follower.replication.throttled.replicas": "3:2,3:3",
    }


def test_a_move_that_replaces_another_is_throttled_from_the_same_sources(
    four: FakeCluster, tmp_path: Path
) -> None:
    four.put_topic("t", {0: MOVING})
    being_moved(four, T0)
    content = {"partitions": [{"topic": "t", "partition": 0, "replicas": [3]}]}

    options = ("--additional", "--throttle", "5000")
    assert four.run(*command(tmp_path, content=content), *options).exit_code == 0

    assert config_of(four, "topics/t") == {
        "leader.replication.throttled.replicas": "0:0,0:1",
        "follower.replication.throttled.replicas": "0:3",
    }
    assert config_of(four, "brokers/2") == {}


@pytest.mark.parametrize("action", ["--verify", "--cancel"])
def test_throttles_are_removed_after_the_reassignment(
    four: FakeCluster, tmp_path: Path, action: str
) -> None:
    assert four.run(*command(tmp_path), "--throttle", "5000").exit_code == 0
    four.put_topic("t", {0: (2, 3)})

    preserved = four.run(*command(tmp_path, action), "--preserve-throttles")
    assert preserved.stderr == ""
    assert config_of(four, "brokers/0") == RATE

    assert four.run(*command(tmp_path, action)).stderr == (
        "Clearing broker-level throttles on brokers 0,1,2,3\n"
        "Clearing topic-level throttles on topics t\n"
    )
    assert config_of(four, "brokers/0") == config_of(four, "topics/t") == {}
    assert four.run(*command(tmp_path, action)).stderr == ""


def test_throttles_stay_while_another_reassignment_is_in_progress(
    four: FakeCluster, tmp_path: Path
) -> None:
    assert four.run(*command(tmp_path), "--throttle", "5000").exit_code == 0
    four.put_topic("t", {0: (2, 3)})
    being_moved(four, TopicPartition("other", 0))

    assert "another reassignment is in progress" in four.run(*command(tmp_path, "--verify")).stderr
    assert config_of(four, "topics/t") == REPLICAS


@pytest.mark.parametrize("rate", ["0", "-1", "fast"])
def test_a_throttle_must_be_a_number_of_bytes(four: FakeCluster, rate: str) -> None:
    result = four.run("reassign", "--execute", "--throttle", rate)
    assert result.exit_code == 2
    assert "Invalid value for '--throttle'" in result.stderr


# --- pause ----------------------------------------------------------------------------------------

PAUSED = dict.fromkeys(RATE, "1")


def test_paused_moves_go_on_at_a_trickle_until_they_get_their_former_rates(
    four: FakeCluster,
) -> None:
    four.put_topic("t", {0: MOVING, 1: (0, 1)})
    for broker, config in ((0, RATE), (1, {"log.retention.ms": "5"})):
        four.zookeeper.put(f"/config/brokers/{broker}", ConfigEntityZNode.encode(config))

    paused = four.run("reassign", "--pause")
    assert paused.stdout == "1 move paused; `regent reassign --resume` ends that.\n"
    assert config_of(four, "topics/t") == REPLICAS
    for broker in range(4):
        assert PAUSED.items() <= config_of(four, f"brokers/{broker}").items()
    assert "moves are paused for" in four.run("reassign", "--list").stderr

    assert four.run("reassign", "--resume").stdout == "The moves go on.\n"
    assert config_of(four, "topics/t") == config_of(four, "brokers/2") == {}
    assert config_of(four, "brokers/0") == RATE
    assert config_of(four, "brokers/1") == {"log.retention.ms": "5"}
    assert four.run("reassign", "--resume").stdout == "Moves are not paused.\n"


def test_a_second_pause_slows_what_has_begun_since_and_keeps_the_rates_from_before(
    four: FakeCluster,
) -> None:
    four.put_topic("t", {0: MOVING})
    four.zookeeper.put("/config/brokers/0", ConfigEntityZNode.encode(RATE))
    assert four.json("reassign", "--pause") == {"paused": 1}
    four.put_topic("u", {3: MOVING})
    assert four.json("reassign", "--pause") == {"paused": 2}
    assert config_of(four, "topics/u")["leader.replication.throttled.replicas"] == "3:0,3:1"
    assert four.json("reassign", "--resume") == {"was_paused": True}
    assert config_of(four, "topics/u") == config_of(four, "topics/t") == {}
    assert config_of(four, "brokers/0") == RATE


def test_a_pause_that_was_interrupted_is_completed_by_the_next_one(four: FakeCluster) -> None:
    four.put_topic("t", {0: MOVING})

    def interrupt(call: Call) -> None:
        if four.zookeeper.snapshot().get(MovesPauseZNode.PATH) is not None:
            four.hook = None
            raise KeyboardInterrupt

    four.hook = interrupt
    paused = four.run("reassign", "--pause")
    assert paused.exit_code == 130
    assert "--resume` ends it" in paused.stderr
    assert config_of(four, "brokers/0") == {}
    assert four.json("reassign", "--pause") == {"paused": 1}
    assert config_of(four, "brokers/0") == PAUSED
    four.run("reassign", "--resume")
    assert config_of(four, "brokers/0") == config_of(four, "topics/t") == {}


@pytest.mark.parametrize("other", ["--pause", "--resume"])
def test_whatever_another_command_does_during_a_pause_the_former_rates_come_back(
    four: FakeCluster, other: str
) -> None:
    """The other one runs as a whole before each call of the first, in turn."""
    four.put_topic("t", {0: MOVING})
    four.zookeeper.put("/config/brokers/0", ConfigEntityZNode.encode(RATE))
    for step in count(1):
        calls = count(1)

        def interfere(call: Call, calls: Iterator[int] = calls, step: int = step) -> None:
            if next(calls) == step:
                four.hook = None
                four.run("reassign", other)

        four.hook = interfere
        four.run("reassign", "--pause")
        if next(calls) <= step:  # there were fewer calls
            break
        if MovesPauseZNode.PATH in four.zookeeper.snapshot():
            assert config_of(four, "brokers/0") == PAUSED
            four.run("reassign", "--resume")
        assert config_of(four, "brokers/0") == RATE
        assert config_of(four, "brokers/1") == config_of(four, "topics/t") == {}
    assert step > 10


def test_a_pause_slows_what_begins_while_it_is_written(four: FakeCluster) -> None:
    four.put_topic("t", {0: MOVING})

    def begin(call: Call) -> None:
        if "/config/brokers/3" in call.paths and config_of(four, "topics/t"):
            four.put_topic("u", {3: MOVING})

    four.hook = begin
    assert four.json("reassign", "--pause") == {"paused": 2}
    assert config_of(four, "topics/u")["leader.replication.throttled.replicas"] == "3:0,3:1"


def test_a_pause_that_fails_by_half_says_how_to_complete_and_to_end_it(four: FakeCluster) -> None:
    four.put_topic("t", {0: MOVING})
    four.zookeeper.put("/config/brokers/0", b"garbage")
    message = failing(four.run("reassign", "--pause"))
    assert message.startswith("/config/brokers/0: not JSON")
    assert "`regent reassign --pause` again completes it" in message
    assert four.run("reassign", "--resume").stdout == "The moves go on.\n"


def test_what_a_pause_has_slowed_gets_its_rate_back_if_later_moves_do_not_fit(
    four: FakeCluster,
) -> None:
    four.put_topic("t", {0: MOVING})

    def begin(call: Call) -> None:
        if "/config/brokers/3" in call.paths and config_of(four, "topics/t"):
            four.put_topic("u", dict.fromkeys(range(3_000), MOVING))
            four.zookeeper.max_request_bytes = 3_000

    four.hook = begin
    assert "too many moves to pause" in failing(four.run("reassign", "--pause"))
    assert config_of(four, "topics/t") == config_of(four, "brokers/0") == {}
    assert four.run("reassign", "--resume").stdout == "Moves are not paused.\n"


def test_a_move_whose_request_crosses_a_pause_is_slowed(four: FakeCluster, tmp_path: Path) -> None:
    begin = four.answers[AlterPartitionReassignmentsRequest]

    def cross(request: Request) -> Response | Errors | None:
        assert four.json("reassign", "--pause") == {"paused": 0}
        return begin(request)

    four.answers[AlterPartitionReassignmentsRequest] = cross
    assert four.run(*command(tmp_path), "--throttle", "5000").exit_code == 0
    assert config_of(four, "brokers/3") == PAUSED
    four.run("reassign", "--resume")
    assert config_of(four, "brokers/3") == RATE


def test_moves_that_have_begun_are_named_before_the_reason_why_a_pause_does_not_slow_them(
    four: FakeCluster, tmp_path: Path
) -> None:
    begin = four.answers[AlterPartitionReassignmentsRequest]

    def cross(request: Request) -> Response | Errors | None:
        four.run("reassign", "--pause")
        four.zookeeper.put("/config/brokers/3", b"garbage")
        return begin(request)

    four.answers[AlterPartitionReassignmentsRequest] = cross
    result = four.run(*command(tmp_path), "--wait")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "Successfully started partition reassignment for t-0"
    assert result.stderr.startswith("regent: /config/brokers/3: not JSON")
    assert "`regent reassign --pause` again completes it" in result.stderr


def test_a_throttle_that_crosses_a_pause_does_not_raise_the_rate(
    four: FakeCluster, tmp_path: Path
) -> None:
    four.put_topic("u", {3: MOVING})
    being_moved(four, TopicPartition("u", 3))

    def cross(call: Call) -> None:
        is_first = MovesPauseZNode.PATH not in four.zookeeper.snapshot()
        if is_first and "/config/brokers/3" in call.paths:
            assert four.json("reassign", "--pause") == {"paused": 1}

    four.hook = cross
    result = four.run(*command(tmp_path), "--additional", "--throttle", "5000")
    assert "moves are paused" in result.stderr
    assert (result.exit_code, submitted(four)) == (1, [])
    assert config_of(four, "brokers/3") == PAUSED


def test_forty_thousand_moves_can_be_paused_and_more_than_fit_are_not_paused_by_half(
    four: FakeCluster,
) -> None:
    for number in range(20):
        four.put_topic(f"t-{number}", dict.fromkeys(range(2_000), MOVING))
    assert four.json("reassign", "--pause") == {"paused": 40_000}
    assert four.json("reassign", "--resume") == {"was_paused": True}
    assert config_of(four, "topics/t-19") == {}
    four.zookeeper.max_request_bytes = 10_000
    assert "too many moves to pause" in failing(four.run("reassign", "--pause"))
    assert config_of(four, "topics/t-19") == config_of(four, "brokers/0") == {}
    assert four.run("reassign", "--resume").stdout == "Moves are not paused.\n"


def test_nothing_begins_and_no_throttle_changes_while_moves_are_paused(
    four: FakeCluster, tmp_path: Path
) -> None:
    four.run("reassign", "--pause")
    assert "--resume" in failing(four.run(*command(tmp_path)))
    assert submitted(four) == []
    for action in ("--verify", "--cancel"):
        four.zookeeper.put("/config/brokers/0", ConfigEntityZNode.encode(RATE))
        shown = four.run(*command(tmp_path, action))
        assert "the throttles stay: moves are paused" in shown.stderr
        assert config_of(four, "brokers/0") == RATE


def test_a_pause_that_cannot_be_read_ends_as_every_other_one(four: FakeCluster) -> None:
    four.zookeeper.put(MovesPauseZNode.PATH, b"garbage")
    assert "moves are paused: " in four.run("reassign", "--list").stderr
    assert four.json("reassign", "--resume") == {"was_paused": True}
    assert four.run("reassign", "--list").stderr == ""
