"""Executing a plan with a controller that accepts, refuses, dies, or is busy with other moves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from regent.core.errors import Errors, RegentError
from regent.core.model import ReplicaAssignment
from regent.core.protocol.controller import (
    OngoingReassignment,
)
from regent.jobs.command import InputError, run_job
from regent.jobs.execution.plan_execution import (
    PlanIncompleteError,
    execute_command,
    execute_plan,
    inspect_plan,
)
from regent.zk.codecs.znodes import TopicZNode
from tests.support.fake_cluster import ADDRESS, FakeCluster
from tests.support.fake_zookeeper import Call
from tests.support.plan_controller import (
    BEFORE,
    TARGET,
    MovingController,
    opener,
    write_plan,
)


@pytest.fixture
def controller(cluster: FakeCluster) -> MovingController:
    """Four brokers and a topic with three partitions on the first two."""
    controller = MovingController(cluster)
    controller.assign(dict.fromkeys(range(3), ReplicaAssignment(BEFORE)))
    return controller


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """Two waves: partitions 0 and 1, then 2."""
    return write_plan(tmp_path / "plan", [0, 1], [2])


def execute(controller: MovingController, plan: Path, **options: Any) -> dict[str, Any]:
    options = {"wave_timeout_s": 30.0, "open_cluster": opener(controller.cluster), **options}
    return execute_plan(plan, ADDRESS, **options)


def failing(controller: MovingController, plan: Path, **options: Any) -> PlanIncompleteError:
    with pytest.raises(PlanIncompleteError) as caught:
        execute(controller, plan, **options)
    assert len(str(caught.value).splitlines()) == 1
    return caught.value


# --- without problems -----------------------------------------------------------------------------


def test_waves_are_submitted_one_after_the_other(
    controller: MovingController, plan: Path, capsys: pytest.CaptureFixture[str]
):
    summary = execute(controller, plan)

    assert controller.submitted == [[0, 1], [2]]
    assert controller.replicas() == [TARGET] * 3
    assert summary.pop("seconds") >= 0
    assert summary == {
        "job": "plan execute",
        "plan": str(plan),
        "waves": 2,
        "waves_left": [],
        "partitions": 3,
        "reached_before": 0,
        "moved": 3,
        "left": 0,
        "changed_meanwhile": [],
        "refused": [],
    }
    assert capsys.readouterr().err.splitlines() == [
        "3 partitions to move, wave 1 of 2 is the first",
        "wave 1 of 2 is done: 2 partitions in 0 s",
        "wave 2 of 2 is done: 1 partition in 0 s",
    ]


def test_a_dry_run_prints_the_remaining_waves_and_begins_nothing(
    controller: MovingController, plan: Path
):
    controller.assign(
        {
            0: ReplicaAssignment(TARGET),
            1: ReplicaAssignment((1, 0)),
            2: ReplicaAssignment(BEFORE).reassign_to(TARGET),
        }
    )
    found = inspect_plan(plan, ADDRESS, open_cluster=opener(controller.cluster))

    assert (found["waves_left"], found["dry_run"]) == ([2], True)
    assert (found["reached_before"], found["left"], found["moving"]) == (1, 1, 1)
    assert found["changed_meanwhile"] == [{"topic": "t", "partition": 1, "replicas": (1, 0)}]
    assert controller.cluster.received == []


# --- resuming -------------------------------------------------------------------------------------


def test_partitions_at_their_targets_are_skipped(controller: MovingController, plan: Path):
    controller.assign({0: ReplicaAssignment(TARGET), 2: ReplicaAssignment(TARGET)})
    summary = execute(controller, plan)
    assert controller.submitted == [[1]]
    assert (summary["reached_before"], summary["moved"]) == (2, 1)


def test_a_plan_that_is_done_needs_no_controller(
    controller: MovingController, cluster: FakeCluster, plan: Path
):
    controller.assign(dict.fromkeys(range(3), ReplicaAssignment(TARGET)))
    cluster.remove_broker(0)
    assert execute(controller, plan)["reached_before"] == 3


def test_ongoing_moves_of_the_plan_are_awaited_and_not_submitted_again(
    controller: MovingController, plan: Path
):
    controller.assign({0: ReplicaAssignment(BEFORE).reassign_to(TARGET)})
    controller.others = [OngoingReassignment("t", 0, (2, 3, 0, 1), (2, 3), (0, 1))]

    def end(_: int) -> Errors:
        controller.assign({0: ReplicaAssignment(TARGET)})
        return Errors.NONE

    controller.before_answer = end
    execute(controller, plan)
    assert controller.submitted == [[1], [2]]


# --- moves of others ------------------------------------------------------------------------------


def test_partitions_changed_by_others_are_named_and_not_moved(
    controller: MovingController, plan: Path
):
    controller.assign({0: ReplicaAssignment((1, 3))})
    error = failing(controller, plan)

    assert str(error) == "changed meanwhile and left alone: t-0 (now on 1,3)"
    assert error.summary["changed_meanwhile"] == [
        {"topic": "t", "partition": 0, "replicas": (1, 3)}
    ]
    assert controller.replicas() == [(1, 3), TARGET, TARGET]


def test_a_partition_moved_elsewhere_during_its_wave_is_not_moved_back(
    controller: MovingController, plan: Path
):
    controller.lasts = {0}
    elsewhere = ReplicaAssignment(BEFORE).reassign_to((1, 3))

    def change(call: Call) -> None:
        if controller.submitted and controller.lasts:
            controller.lasts = set()
            controller.assign({0: elsewhere})

    controller.cluster.hook = change
    assert "t-0 (now on 1,3)" in str(failing(controller, plan))
    assert controller.submitted == [[0, 1], [2]]


def test_no_wave_begins_while_others_move_partitions(controller: MovingController, plan: Path):
    controller.others = [
        OngoingReassignment("other", 7, (1, 2), (2,), (1,)),
        OngoingReassignment("t", 0, (1, 3, 0), (3,), (0,)),  # of the plan, but to another target
    ]
    with pytest.raises(RegentError, match="others are moving other-7, t-0: wait until"):
        execute(controller, plan)
    assert controller.submitted == []

    execute(controller, plan, additional=True)
    assert controller.submitted == [[0, 1], [2]]


def test_moves_of_others_between_two_waves_are_awaited(controller: MovingController, plan: Path):
    def begin(_: int) -> Errors:
        controller.others = [OngoingReassignment("other", 7, (1, 2), (2,), (1,))]
        return Errors.NONE

    controller.before_answer = begin
    error = failing(controller, plan, wave_timeout_s=0.2)

    assert str(error).startswith("wave 2 of 2 is not over after 0.2 s: others move other-7;")
    assert controller.submitted == [[0, 1]]
    assert (error.summary["waves_left"], error.summary["left"]) == ([2], 1)


# --- refused moves --------------------------------------------------------------------------------


def test_missing_partitions_are_named_and_the_others_are_moved(
    controller: MovingController, tmp_path: Path
):
    controller.refuses[1] = (Errors.UNKNOWN_TOPIC_OR_PARTITION, "t-1 is being deleted")
    error = failing(controller, write_plan(tmp_path / "plan", [0, 1], [2, 9]))

    assert str(error) == "not moved: t-1 (is being deleted), t-9 (it does not exist)"
    assert controller.replicas() == [TARGET, BEFORE, TARGET]


def test_an_unreadable_topic_does_not_stop_other_moves(
    controller: MovingController, cluster: FakeCluster, tmp_path: Path
):
    plan = write_plan(tmp_path / "plan", [0])
    text = (plan / "waves" / "0001.json").read_text()
    (plan / "waves" / "0002.json").write_text(text.replace('"t"', '"u"'))
    rows = json.loads((plan / "rollback.json").read_text())["partitions"]
    rows.append({**rows[0], "topic": "u"})
    (plan / "rollback.json").write_text(json.dumps({"partitions": rows}))
    cluster.zookeeper.put(TopicZNode.path("u"), b"garbage")

    assert "not moved: u-0 (topic u: /brokers/topics/<topic>: not JSON" in str(
        failing(controller, plan)
    )
    assert controller.replicas()[0] == TARGET


def test_temporarily_refused_moves_are_submitted_again(controller: MovingController, plan: Path):
    controller.refuses[0] = (Errors.INVALID_REPLICA_ASSIGNMENT, "t-0: brokers [3] are not alive")

    def relent(count: int) -> Errors:
        if count == 3:
            controller.refuses.clear()
        return Errors.NONE

    controller.before_answer = relent
    execute(controller, plan)
    assert controller.submitted == [[0, 1], [0], [0], [2]]


# --- dead brokers and controllers -----------------------------------------------------------------


def test_a_wave_that_waits_for_a_dead_broker_is_given_up_by_name_and_resumed(
    controller: MovingController, cluster: FakeCluster, plan: Path
):
    cluster.remove_broker(3)
    error = failing(controller, plan, wave_timeout_s=0.2)

    assert str(error) == (
        "wave 1 of 2 is not over after 0.2 s: waiting for broker 3, which is not registered"
        " (t-0, t-1); run the same command again to continue"
    )
    assert controller.submitted == []
    cluster.add_broker(3)
    assert execute(controller, plan)["moved"] == 3


def test_a_broker_that_dies_in_a_wave_is_waited_for(
    controller: MovingController, cluster: FakeCluster, plan: Path
):
    controller.lasts = {0}

    def kill(_: int) -> Errors:
        cluster.remove_broker(3)
        return Errors.NONE

    controller.before_answer = kill
    error = failing(controller, plan, wave_timeout_s=0.2)
    assert "waiting for broker 3, which is not registered (t-0);" in str(error)
    assert error.summary["waves_left"] == [1, 2]


def test_new_replicas_are_awaited_until_they_are_in_sync(controller: MovingController, plan: Path):
    def lag(count: int) -> Errors:
        if count == 1:
            controller.lasts = {0}
        return Errors.NONE

    controller.before_answer = lag
    error = failing(controller, plan, wave_timeout_s=0.2)
    assert "waiting for brokers 2, 3 to catch up (t-0);" in str(error)


def test_a_new_controller_continues(controller: MovingController, cluster: FakeCluster, plan: Path):
    def resign(count: int) -> Errors:
        if count > 1:
            return Errors.NONE
        cluster.elect(1)
        return Errors.NOT_CONTROLLER

    cluster.remove_broker(0)
    cluster.add_broker(0, control_endpoint=cluster.serve(cluster.lead))
    cluster.elect(0)
    controller.before_answer = resign
    execute(controller, plan)
    assert controller.submitted == [[0, 1], [0, 1], [2]]


def test_no_controller_is_an_error(
    controller: MovingController, cluster: FakeCluster, plan: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("regent.jobs.execution.plan_execution._FIRST_ANSWER_S", 0.0)
    cluster.remove_broker(0)
    with pytest.raises(RegentError, match="there is no controller"):
        execute(controller, plan)


def test_a_temporary_outage_of_zookeeper_only_delays(
    controller: MovingController,
    cluster: FakeCluster,
    plan: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("regent.jobs.execution.plan_execution._RECONNECT_PAUSE_S", 0.0)
    failures = [InputError("no ZooKeeper answers"), InputError("no ZooKeeper answers")]

    def fail(call: Call) -> None:
        if controller.submitted and failures:
            raise failures.pop()

    cluster.hook = fail
    assert execute(controller, plan)["moved"] == 3
    assert controller.submitted == [[0, 1], [2]]


def test_a_permanent_outage_of_zookeeper_ends_the_execution(
    controller: MovingController,
    cluster: FakeCluster,
    plan: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("regent.jobs.execution.plan_execution._RECONNECT_PAUSE_S", 0.01)

    def fail(call: Call) -> None:
        if controller.submitted:
            raise InputError("no ZooKeeper answers")

    cluster.hook = fail
    error = failing(controller, plan, wave_timeout_s=0.1)
    assert str(error) == "no ZooKeeper answers"
    assert error.summary["waves_left"] == [1, 2]


# --- the command ----------------------------------------------------------------------------------


def test_an_interrupted_execution_prints_how_to_resume_and_to_roll_back(
    controller: MovingController, plan: Path, capsys: pytest.CaptureFixture[str]
):
    controller.lasts = {0, 1}

    def interrupt(call: Call) -> None:
        if controller.submitted:
            raise KeyboardInterrupt

    controller.cluster.hook = interrupt
    with pytest.raises(KeyboardInterrupt):
        execute(controller, plan)
    assert capsys.readouterr().err.splitlines() == [
        "3 partitions to move, wave 1 of 2 is the first",
        "interrupted; what has begun goes on. To resume: regent jobs plan execute"
        f" {plan} --zookeeper {ADDRESS}",
        f"To roll back: regent reassign --zookeeper {ADDRESS} --execute --additional"
        f" --reassignment-json-file {plan}/rollback.json",
    ]


def run(*arguments: object) -> int:
    return run_job(execute_command, "plan execute", [str(a) for a in arguments], None)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["nowhere", "--zookeeper", ADDRESS], "nowhere is not a plan"),
        (["nowhere", "--data-dir", "no-cluster"], "no cluster in no-cluster"),
        (["nowhere", "--wave-timeout", "0"], "--wave-timeout"),
        ([], "Missing argument"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_2(
    arguments: list[str],
    problem: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
):
    monkeypatch.delenv("REGENT_ZOOKEEPER", raising=False)
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("regent jobs plan execute: ")
    assert problem in line
