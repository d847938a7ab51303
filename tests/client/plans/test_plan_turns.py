"""What a plan's commands leave for each other: the direction, and that one of them runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from regent.client.flight import ExecutionOptions
from regent.client.plan_directory import PlanLock
from regent.client.plan_execution import PlanIncompleteError, execute_plan, plan_status
from regent.core.errors import Errors, RegentError
from regent.core.model import ReplicaAssignment, TopicPartition
from regent.core.protocol.messages.partitions import ListPartitionReassignmentsRequest
from regent.transport.control.codec import Request, Response
from regent.zk.codecs.admin_znodes import MovesPause
from regent.zk.znodes import MovesPauseZNode
from tests.support.fake_cluster import ADDRESS, FakeCluster
from tests.support.fake_zookeeper import Call
from tests.support.plan_controller import BEFORE, TARGET, MovingController, opener


def execute(cluster: FakeCluster, plan: Path, *, is_rollback: bool = False) -> None:
    options = ExecutionOptions(9, 99, stall_timeout=30.0)
    execute_plan(plan, ADDRESS, options, is_rollback=is_rollback, open_cluster=opener(cluster))


def hide(cluster: FakeCluster, controller: MovingController) -> None:
    cluster.is_reachable = not cluster.is_reachable


def pause(cluster: FakeCluster, controller: MovingController) -> None:
    if MovesPauseZNode.PATH in cluster.zookeeper.snapshot():
        cluster.zookeeper.remove(MovesPauseZNode.PATH)
    else:
        cluster.zookeeper.put(MovesPauseZNode.PATH, MovesPauseZNode.encode(MovesPause(1)))


def move_others(cluster: FakeCluster, controller: MovingController) -> None:
    other = {TopicPartition("other", 7): ReplicaAssignment((2, 9, 8), (2,), (8,))}
    controller.others = {} if controller.others else other


def after_a_look_at_the_first(controller: MovingController, then: Callable[[], None]) -> None:
    """Do something when the controller is asked again after it listed partition 0 as moving."""
    answer = controller.cluster.answers[ListPartitionReassignmentsRequest]
    is_listed = False

    def look(request: Request) -> Response | Errors | None:
        nonlocal is_listed
        if is_listed:
            then()
        is_listed = controller.cluster.topic("t").partitions[0].is_being_reassigned
        return answer(request)

    controller.cluster.answers[ListPartitionReassignmentsRequest] = look


HINDRANCES = pytest.mark.parametrize("hinder", [hide, pause, move_others])
Hinder = Callable[[FakeCluster, MovingController], None]


def test_a_dry_run_after_a_rollback_has_what_execute_will_move(
    controller: MovingController, cluster: FakeCluster, plan: Path
) -> None:
    controller.assign({0: ReplicaAssignment(TARGET).reassign_to(BEFORE)})
    (plan / "rolling-back").touch()
    found = plan_status(plan, ADDRESS, is_rollback=False, open_cluster=opener(cluster))
    assert (found["left"], found["is_rollback"], found["changed_meanwhile"]) == (3, False, [])
    assert plan_status(plan, ADDRESS, open_cluster=opener(cluster))["is_rollback"]


@HINDRANCES
def test_an_execution_that_cannot_begin_leaves_the_direction_to_the_next(
    controller: MovingController, cluster: FakeCluster, plan: Path, hinder: Hinder
) -> None:
    controller.assign({0: ReplicaAssignment(TARGET).reassign_to(BEFORE)})
    (plan / "rolling-back").touch()
    hinder(cluster, controller)
    with pytest.raises(RegentError):
        execute(cluster, plan)
    hinder(cluster, controller)
    execute(cluster, plan)
    assert (controller.turned, controller.replicas()) == ([0], [TARGET] * 3)


@HINDRANCES
def test_a_rollback_that_cannot_begin_stops_no_execution(
    controller: MovingController, cluster: FakeCluster, plan: Path, hinder: Hinder
) -> None:
    controller.assign({0: ReplicaAssignment(TARGET)})
    (plan / "paused").touch()
    hinder(cluster, controller)
    with pytest.raises(RegentError):
        execute(cluster, plan, is_rollback=True)
    assert not (plan / "rolling-back").exists()
    assert (plan / "paused").exists()


def test_a_rollback_at_another_cluster_stops_no_execution(cluster: FakeCluster, plan: Path) -> None:
    with pytest.raises(RegentError, match="not moved: t-0"):
        execute(cluster, plan, is_rollback=True)
    assert not (plan / "rolling-back").exists()


def test_an_execution_after_a_killed_one_that_followed_a_rollback_cancels_what_moves_back(
    controller: MovingController, cluster: FakeCluster, plan: Path
) -> None:
    controller.assign({0: ReplicaAssignment(TARGET).reassign_to(BEFORE)})
    (plan / "rolling-back").touch()

    def interrupt(call: Call) -> None:
        if not (plan / "rolling-back").exists():
            cluster.hook = None
            raise KeyboardInterrupt

    cluster.hook = interrupt
    with pytest.raises(KeyboardInterrupt):
        execute(cluster, plan)
    assert controller.turned == []
    execute(cluster, plan)
    assert (controller.turned, controller.replicas()) == ([0], [TARGET] * 3)
    assert not (plan / "turned").exists()


@pytest.mark.parametrize("is_rollback", [False, True])
def test_a_move_that_another_command_cancels_is_named_and_not_begun_again(
    controller: MovingController, cluster: FakeCluster, plan: Path, *, is_rollback: bool
) -> None:
    before = TARGET if is_rollback else BEFORE
    controller.assign(dict.fromkeys(range(3), ReplicaAssignment(before)))
    controller.lasts = {0}

    def cancel() -> None:
        controller.assign({0: ReplicaAssignment(before)})

    after_a_look_at_the_first(controller, cancel)
    with pytest.raises(PlanIncompleteError) as caught:
        execute(cluster, plan, is_rollback=is_rollback)
    assert str(caught.value) == "not moved: t-0 (another command has turned it back)"
    assert controller.submitted == [[2, 1, 0] if is_rollback else [0, 1, 2]]
    assert controller.replicas()[0] == before


def test_a_server_that_lags_behind_does_not_make_a_move_seem_cancelled(
    controller: MovingController, cluster: FakeCluster, plan: Path
) -> None:
    follower = cluster.zookeeper.add_follower(lag=50)
    cluster.zookeeper.connect_to = lambda: follower
    controller.lasts = {0}

    def end() -> None:
        controller.assign({0: ReplicaAssignment(TARGET)})

    after_a_look_at_the_first(controller, end)
    execute(cluster, plan)
    assert controller.submitted == [[0, 1, 2]]


def test_of_the_executions_that_run_the_last_one_finds_itself_alone(plan: Path) -> None:
    with PlanLock(plan) as first, PlanLock(plan) as second:
        assert first.is_alone()
        assert not second.is_alone()
        first.share()
        second.share()
        assert not first.is_alone()
        assert second.is_alone()
