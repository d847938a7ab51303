"""Executing a plan with a controller that accepts, refuses, dies, or is busy with other moves."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from regent.client.flight import ExecutionOptions
from regent.client.plan_execution import PlanIncompleteError, execute_plan, plan_status
from regent.core.errors import Errors, RegentError, SessionExpiredError
from regent.core.model import ReplicaAssignment, TopicPartition
from regent.core.protocol.messages.partitions import ElectLeadersRequest
from regent.jobs.command import run_job
from regent.jobs.plan_commands import execute_command
from regent.testing.waits import TIMEOUT_S, eventually, scaled
from regent.transport.control.codec import Request
from regent.zk.client.operations import ConnectionLossError
from regent.zk.codecs.admin_znodes import MovesPause
from regent.zk.znodes import MovesPauseZNode, TopicZNode
from tests.support.fake_cluster import ADDRESS, FakeCluster
from tests.support.fake_zookeeper import Call
from tests.support.log_dir_broker import LogDirBroker
from tests.support.plan_controller import (
    BEFORE,
    TARGET,
    MovingController,
    document,
    opener,
    write_plan,
)

OTHER = TopicPartition("other", 7)
ALL_AT_ONCE: dict[str, Any] = {"max_moves_per_broker": 9, "max_moves": 99}
ONE_BY_ONE: dict[str, Any] = {
    "max_moves_per_broker": 9,
    "max_moves": 2,
}  # each partition moves two replicas


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regent.client.flight._MAX_PAUSE_S", 0.01)
    monkeypatch.setattr("regent.client.flight._FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("regent.client.flight._RETRY_S", 0.0)


def execute(
    controller: MovingController, plan: Path, *, is_rollback: bool = False, **options: Any
) -> dict[str, Any]:
    how = ExecutionOptions(**{"stall_timeout": 30.0, **ALL_AT_ONCE, **options})
    cluster = opener(controller.cluster)
    return execute_plan(plan, ADDRESS, how, is_rollback=is_rollback, open_cluster=cluster)


def failing(controller: MovingController, plan: Path, **options: Any) -> PlanIncompleteError:
    with pytest.raises(PlanIncompleteError) as caught:
        execute(controller, plan, **options)
    assert len(str(caught.value).splitlines()) == 1
    return caught.value


# --- without problems -----------------------------------------------------------------------------


def test_moves_begin_in_the_sequence_of_the_plan(
    controller: MovingController, plan: Path, capsys: pytest.CaptureFixture[str]
):
    summary = execute(controller, plan)

    assert controller.submitted == [[0, 1, 2]]
    assert controller.replicas() == [TARGET] * 3
    assert summary.pop("seconds") >= 0
    assert summary == {
        "job": "plan execute",
        "plan": str(plan),
        "partitions": 3,
        "reached_before": 0,
        "moved": 3,
        "in_flight": 0,
        "left": 0,
        "moves_left": 0,
        "changed_meanwhile": [],
        "refused": [],
        "leaders_elected": 0,
    }
    assert capsys.readouterr().err.splitlines() == ["3 partitions to move"]


@pytest.mark.parametrize("limits", [ONE_BY_ONE, {**ALL_AT_ONCE, "max_moves_per_broker": 2}])
def test_a_move_begins_when_there_is_room_and_not_before(
    controller: MovingController, plan: Path, limits: dict[str, Any]
):
    execute(controller, plan, **limits)
    assert controller.submitted == [[0], [1], [2]]


def test_other_moves_continue_while_one_move_is_slow(controller: MovingController, plan: Path):
    controller.lasts = {0}

    def end(count: int) -> Errors:
        if count == 2:
            assert controller.submitted == [[0, 1], [2]]
            controller.assign({0: ReplicaAssignment(TARGET)})
        return Errors.NONE

    controller.before_answer = end
    execute(controller, plan, max_moves_per_broker=4)
    assert controller.replicas() == [TARGET] * 3


def test_moves_of_others_take_room_too(controller: MovingController, plan: Path):
    controller.others = {OTHER: ReplicaAssignment((2, 9, 8), (2,), (8,))}
    execute(controller, plan, additional=True, max_moves_per_broker=3)
    assert controller.submitted == [[0], [1], [2]]


def test_preferred_leaders_are_elected_at_the_end(controller: MovingController, tmp_path: Path):
    plan = write_plan(tmp_path / "plan", 0, 1, 2)
    controller.assign(dict.fromkeys(range(3), ReplicaAssignment(TARGET)))
    for partition, isr in ((0, (3, 2)), (1, (3,)), (2, (2, 3))):
        controller.out_of_sync(partition, *isr)
    assert execute(controller, plan)["leaders_elected"] == 1
    assert controller.elected == [0]


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_complete_plan_without_an_answer_to_its_elections_has_a_summary(
    controller: MovingController, plan: Path, *, is_changed: bool
) -> None:
    controller.assign({0: ReplicaAssignment((1, 3) if is_changed else BEFORE)})
    controller.assign({1: ReplicaAssignment(TARGET)})
    controller.out_of_sync(1, 3, 2)
    asked: list[Request] = []

    def end(request: Request) -> Errors:
        asked.append(request)
        return Errors.NOT_CONTROLLER if len(asked) == 1 else Errors.UNKNOWN_SERVER_ERROR

    controller.cluster.answers[ElectLeadersRequest] = end
    error = failing(controller, plan)
    assert len(asked) == 2
    assert str(error) == (
        ("changed meanwhile and left alone: t-0 (now on 1,3); " if is_changed else "")
        + "preferred leaders were not elected: the controller answered UNKNOWN_SERVER_ERROR;"
        " the same command does that later"
    )
    assert (error.summary["left"], error.summary["leaders_elected"]) == (0, 0)


# --- pause, status --------------------------------------------------------------------------------


def test_a_paused_execution_begins_nothing_until_it_is_resumed(
    controller: MovingController, plan: Path
):
    def pause(_: int) -> Errors:
        if not calls:
            (plan / "paused").touch()
        return Errors.NONE

    calls = 0

    def resume_later(call: Call) -> None:
        nonlocal calls
        calls += (plan / "paused").exists()
        if calls == 30 and (plan / "paused").exists():
            assert controller.submitted == [[0]]
            (plan / "paused").unlink()

    controller.cluster.hook = resume_later
    controller.before_answer = pause
    execute(controller, plan, **ONE_BY_ONE, stall_timeout=0.05)
    assert controller.submitted == [[0], [1], [2]]


def test_no_move_of_a_plan_begins_while_all_moves_are_paused(
    controller: MovingController, plan: Path
):
    calls = 0

    def pause(_: int) -> Errors:
        if not calls:
            controller.cluster.zookeeper.put(
                MovesPauseZNode.PATH, MovesPauseZNode.encode(MovesPause(1))
            )
        return Errors.NONE

    def resume_later(call: Call) -> None:
        nonlocal calls
        if controller.submitted and MovesPauseZNode.PATH in controller.cluster.zookeeper.snapshot():
            calls += 1
            if calls == 30:
                assert controller.submitted == [[0]]
                controller.cluster.zookeeper.remove(MovesPauseZNode.PATH)

    controller.cluster.hook = resume_later
    controller.before_answer = pause
    execute(controller, plan, **ONE_BY_ONE, stall_timeout=0.05)
    assert controller.submitted == [[0], [1], [2]]


def test_a_plan_does_not_start_while_all_moves_are_paused(controller: MovingController, plan: Path):
    controller.cluster.zookeeper.put(MovesPauseZNode.PATH, MovesPauseZNode.encode(MovesPause(1)))
    with pytest.raises(RegentError, match="moves are paused for"):
        execute(controller, plan)
    assert controller.submitted == []


def test_the_status_of_a_plan_has_the_states_and_begins_nothing(
    controller: MovingController, plan: Path
):
    controller.assign(
        {
            0: ReplicaAssignment(TARGET),
            1: ReplicaAssignment((1, 0)),
            2: ReplicaAssignment(BEFORE).reassign_to(TARGET),
        }
    )
    (plan / "paused").touch()
    note = {"at": time.time(), "per_second": 0.5}
    (plan / "progress.json").write_text(json.dumps(note))
    found = plan_status(plan, ADDRESS, open_cluster=opener(controller.cluster))

    assert found["states"] == {"reached": 1, "changed meanwhile": 1, "moving": 1}
    assert (found["reached_before"], found["left"], found["in_flight"]) == (1, 1, 1)
    assert (found["moves_left"], found["seconds_left"]) == (2, 4)
    assert (found["is_paused"], found["is_rollback"]) == (True, False)
    assert found["changed_meanwhile"] == [{"topic": "t", "partition": 1, "replicas": (1, 0)}]
    assert controller.cluster.received == []


# --- rolling back ---------------------------------------------------------------------------------


def test_a_rollback_cancels_what_is_in_flight_and_moves_the_rest_back(
    controller: MovingController, plan: Path
):
    controller.assign(
        {
            0: ReplicaAssignment(TARGET),
            1: ReplicaAssignment(BEFORE).reassign_to(TARGET),
        }
    )
    summary = execute(controller, plan, is_rollback=True)

    assert controller.turned == [1]
    assert controller.submitted == [[0]]
    assert controller.replicas() == [BEFORE] * 3
    assert (summary["job"], summary["reached_before"], summary["moved"]) == ("plan rollback", 1, 2)


def test_a_rollback_brings_the_order_of_replicas_back(
    controller: MovingController, tmp_path: Path
) -> None:
    """A cancelled move keeps the order of the replicas that it was to keep."""
    plan, before, target = tmp_path / "kept", (3, 1, 2), (0, 1, 2)
    plan.mkdir()
    (plan / "plan.json").write_text(document([0], target))
    (plan / "rollback.json").write_text(document([0], before))
    controller.assign({0: ReplicaAssignment(before).reassign_to(target)})
    assert execute(controller, plan, is_rollback=True)["moved"] == 1
    assert controller.replicas()[0] == before


def test_the_first_execution_after_a_rollback_cancels_what_moves_back(
    controller: MovingController, plan: Path
):
    controller.assign(
        {
            0: ReplicaAssignment(TARGET).reassign_to(BEFORE),
            1: ReplicaAssignment(TARGET),
        }
    )
    (plan / "rolling-back").touch()
    execute(controller, plan)
    assert (controller.turned, controller.submitted) == ([0], [[2]])
    assert controller.replicas() == [TARGET] * 3

    controller.assign({0: ReplicaAssignment(TARGET).reassign_to(BEFORE)})
    assert "left alone: t-0" in str(failing(controller, plan))  # now by another tool


def test_a_move_that_an_ended_execution_still_begins_is_rolled_back(
    controller: MovingController, plan: Path
):
    controller.assign({0: ReplicaAssignment(TARGET)})

    def late(count: int) -> Errors:
        if count == 1:
            controller.assign({2: ReplicaAssignment(BEFORE).reassign_to(TARGET)})
        return Errors.NONE

    controller.before_answer = late
    execute(controller, plan, is_rollback=True)
    assert controller.replicas() == [BEFORE] * 3
    assert controller.turned == [2]


def test_a_rollback_gives_up_a_partition_that_cannot_be_moved(
    controller: MovingController, plan: Path
):
    controller.assign(dict.fromkeys(range(3), ReplicaAssignment(TARGET)))
    controller.refuses[1] = (Errors.UNKNOWN_TOPIC_OR_PARTITION, "t-1 is being deleted")
    error = failing(controller, plan, is_rollback=True)
    assert str(error) == "not moved: t-1 (is being deleted)"
    assert controller.submitted == [[2, 1, 0]]


@pytest.mark.parametrize("is_rollback", [False, True])
def test_an_execution_ends_when_a_command_of_the_other_direction_begins(
    controller: MovingController, plan: Path, *, is_rollback: bool
):
    if is_rollback:
        controller.assign(dict.fromkeys(range(3), ReplicaAssignment(TARGET)))

    def turn(_: int) -> Errors:
        if is_rollback:
            (plan / "rolling-back").unlink()
        else:
            (plan / "rolling-back").touch()
        return Errors.NONE

    controller.before_answer = turn
    error = failing(controller, plan, is_rollback=is_rollback, **ONE_BY_ONE)
    assert "another command: the plan is being " in str(error)
    assert len(controller.submitted) == 1


def test_a_process_that_was_stopped_reads_again_before_it_submits(
    controller: MovingController, plan: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its view is older than it may be: others have changed the partition meanwhile."""
    stopped = [True]
    monkeypatch.setattr("regent.client.flight._FRESH_S", -1.0)

    def wake_up(call: Call) -> None:
        if "/brokers/ids" in str(call) and stopped and plan_is_read():
            stopped.clear()
            monkeypatch.setattr("regent.client.flight._FRESH_S", 5.0)
            controller.assign({0: ReplicaAssignment((1, 3))})

    reads = 0

    def plan_is_read() -> bool:
        nonlocal reads
        reads += 1
        return reads > 8

    controller.cluster.hook = wake_up
    assert "t-0 (now on 1,3)" in str(failing(controller, plan))
    assert controller.submitted == [[1, 2]]


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
    cluster.unregister(0)
    assert execute(controller, plan)["reached_before"] == 3


def test_ongoing_moves_of_the_plan_are_awaited_and_not_submitted_again(
    controller: MovingController, plan: Path
):
    controller.assign({0: ReplicaAssignment(BEFORE).reassign_to(TARGET)})

    def end(_: int) -> Errors:
        controller.assign({0: ReplicaAssignment(TARGET)})
        return Errors.NONE

    controller.before_answer = end
    execute(controller, plan)
    assert controller.submitted == [[1, 2]]


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


def test_a_partition_moved_elsewhere_while_in_flight_is_not_moved_back(
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
    assert controller.submitted == [[0, 1, 2]]


def test_nothing_begins_while_others_move_partitions(controller: MovingController, plan: Path):
    controller.others = {
        OTHER: ReplicaAssignment((1, 2), (2,), (1,)),
        # of the plan, but to another target
        TopicPartition("t", 0): ReplicaAssignment((1, 3, 0), (3,), (0,)),
    }
    with pytest.raises(RegentError, match="others are moving other-7, t-0: wait until"):
        execute(controller, plan)
    assert controller.submitted == []

    execute(controller, plan, additional=True)
    assert controller.submitted == [[0, 1, 2]]


def test_no_new_moves_begin_while_other_tools_move_partitions(
    controller: MovingController, plan: Path
):
    def begin(_: int) -> Errors:
        controller.others = {OTHER: ReplicaAssignment((1, 2), (2,), (1,))}
        return Errors.NONE

    controller.before_answer = begin
    error = failing(controller, plan, stall_timeout=0.1, **ONE_BY_ONE)

    assert str(error).startswith("no move has begun or ended for 0.1 s: others move other-7;")
    assert controller.submitted == [[0]]
    assert (error.summary["moved"], error.summary["left"]) == (1, 2)


# --- refused moves --------------------------------------------------------------------------------


def test_missing_partitions_are_named_and_the_others_are_moved(
    controller: MovingController, tmp_path: Path
):
    controller.refuses[1] = (Errors.UNKNOWN_TOPIC_OR_PARTITION, "t-1 is being deleted")
    error = failing(controller, write_plan(tmp_path / "plan", 0, 1, 2, 9))

    assert str(error) == "not moved: t-1 (is being deleted), t-9 (it does not exist)"
    assert controller.replicas() == [TARGET, BEFORE, TARGET]


def test_an_unreadable_topic_does_not_stop_other_moves(
    controller: MovingController, cluster: FakeCluster, tmp_path: Path
):
    plan = write_plan(tmp_path / "plan", 0)
    for path in (plan / "plan.json", plan / "rollback.json"):
        document = json.loads(path.read_text())
        document["partitions"].append({**document["partitions"][0], "topic": "u"})
        path.write_text(json.dumps(document))
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
    assert controller.submitted == [[0, 1, 2], [0], [0]]


# --- dead brokers and controllers -----------------------------------------------------------------


def test_moves_to_a_dead_broker_wait_by_name_and_do_not_block_others(
    controller: MovingController, cluster: FakeCluster, plan: Path
):
    cluster.unregister(3)
    document = json.loads((plan / "plan.json").read_text())
    document["partitions"][2]["replicas"] = [2, 1]
    (plan / "plan.json").write_text(json.dumps(document))
    error = failing(controller, plan, stall_timeout=0.1, **ONE_BY_ONE)

    assert str(error) == (
        "no move has begun or ended for 0.1 s: waiting for broker 3, which is not registered"
        " (t-0, t-1); run the same command again to continue"
    )
    assert controller.submitted == [[2]]
    cluster.add_broker(3)
    assert execute(controller, plan)["moved"] == 2


def test_a_broker_that_dies_during_its_moves_is_waited_for(
    controller: MovingController, cluster: FakeCluster, plan: Path
):
    controller.lasts = {0}

    def kill(_: int) -> Errors:
        cluster.unregister(3)
        return Errors.NONE

    controller.before_answer = kill
    error = failing(controller, plan, stall_timeout=0.1)
    assert "waiting for broker 3, which is not registered (t-0);" in str(error)
    assert (error.summary["moved"], error.summary["in_flight"]) == (2, 1)


def test_new_replicas_are_awaited_until_they_are_in_sync(controller: MovingController, plan: Path):
    def lag(count: int) -> Errors:
        if count == 1:
            controller.lasts = {0}
        return Errors.NONE

    controller.before_answer = lag
    error = failing(controller, plan, stall_timeout=0.1)
    assert "waiting for brokers 2, 3 to catch up (t-0);" in str(error)


def test_a_move_whose_new_replica_grows_may_take_longer_than_the_limit(
    controller: MovingController, cluster: FakeCluster, plan: Path
):
    controller.lasts = {2}
    with closing(LogDirBroker("/d")) as receiver:
        receiver.create(TopicPartition("t", 2))
        receiver.growth = 7
        cluster.unregister(3)
        cluster.add_broker(3, port=receiver.port)
        with ThreadPoolExecutor(1) as thread:
            began = time.monotonic()
            execution = thread.submit(execute, controller, plan, stall_timeout=0.4)
            eventually(lambda: time.monotonic() - began > 1.5, "the limit is over")
            assert not execution.done()
            receiver.growth = 0
            with pytest.raises(PlanIncompleteError, match="no move has begun or ended"):
                execution.result(scaled(TIMEOUT_S))


def test_a_new_controller_continues(controller: MovingController, cluster: FakeCluster, plan: Path):
    def resign(count: int) -> Errors:
        if count > 1:
            return Errors.NONE
        cluster.elect(1)
        return Errors.NOT_CONTROLLER

    cluster.unregister(0)
    cluster.add_broker(0, control_endpoint=cluster.serve(cluster.lead))
    cluster.elect(0)
    controller.before_answer = resign
    execute(controller, plan)
    assert controller.submitted == [[0, 1, 2], [0, 1, 2]]


def test_no_controller_is_an_error(
    controller: MovingController, cluster: FakeCluster, plan: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("regent.client.plan_execution._FIRST_ANSWER_S", 0.0)
    cluster.unregister(0)
    with pytest.raises(RegentError, match="there is no controller"):
        execute(controller, plan)


def test_a_temporary_outage_of_zookeeper_only_delays(
    controller: MovingController,
    cluster: FakeCluster,
    plan: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("regent.client.plan_execution._RECONNECT_PAUSE_S", 0.0)
    failures = [ConnectionLossError("lost"), SessionExpiredError("expired")]

    def fail(call: Call) -> None:
        if controller.submitted and failures:
            raise failures.pop()

    cluster.hook = fail
    assert execute(controller, plan)["moved"] == 3
    assert controller.submitted == [[0, 1, 2]]


def test_a_permanent_outage_of_zookeeper_ends_the_execution(
    controller: MovingController,
    cluster: FakeCluster,
    plan: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("regent.client.plan_execution._RECONNECT_PAUSE_S", 0.01)

    def fail(call: Call) -> None:
        if controller.submitted:
            raise ConnectionLossError("lost")

    cluster.hook = fail
    error = failing(controller, plan, stall_timeout=0.1)
    assert str(error).startswith("no move has begun or ended for 0.1 s: no ZooKeeper answers at")
    assert error.summary["left"] == 3


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
        "3 partitions to move",
        "interrupted; what has begun goes on.",
        f"To resume: regent jobs plan execute {plan} --zookeeper {ADDRESS}",
        f"To move everything back: regent jobs plan rollback {plan} --zookeeper {ADDRESS}",
    ]


def run(*arguments: object) -> int:
    return run_job(execute_command, "plan execute", [str(a) for a in arguments], None)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["nowhere", "--zookeeper", ADDRESS], "nowhere is not a plan"),
        (["nowhere", "--data-dir", "no-cluster"], "nowhere is not a plan"),
        (["a-plan", "--data-dir", "no-cluster"], "no cluster in no-cluster"),
        (["nowhere", "--stall-timeout", "0"], "--stall-timeout"),
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
    write_plan(tmp_path / "a-plan", 0)
    assert run(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("regent jobs plan execute: ")
    assert problem in line
