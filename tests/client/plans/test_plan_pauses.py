"""A pause of all moves, and an execution that begins some at that moment."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from regent.client.flight import ExecutionOptions
from regent.client.move_pause import pause_moves
from regent.client.plan_execution import execute_plan
from regent.core.errors import Errors, RegentError
from regent.core.model import ReplicaAssignment
from regent.core.protocol.messages.partitions import ListPartitionReassignmentsRequest
from regent.testing.waits import TIMEOUT_S, eventually, scaled
from regent.transport.control.codec import Request, Response
from regent.zk.codecs.admin_znodes import MovesPause
from regent.zk.stores.admin_store import ZkAdminStore
from regent.zk.znodes import ConfigEntityZNode, MovesPauseZNode
from tests.support.fake_cluster import ADDRESS, FakeCluster
from tests.support.fake_zookeeper import Call, FakeZooKeeper
from tests.support.plan_controller import BEFORE, TARGET, MovingController, opener


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regent.client.flight._MAX_PAUSE_S", 0.01)


def execute(cluster: FakeCluster, plan: Path, throttle: int | None = None) -> None:
    options = ExecutionOptions(9, 99, stall_timeout=30.0, throttle=throttle)
    execute_plan(plan, ADDRESS, options, open_cluster=opener(cluster))


def pause(cluster: FakeCluster) -> int:
    return pause_moves(ZkAdminStore(FakeZooKeeper(cluster.zookeeper)))


def rates(cluster: FakeCluster, broker: int) -> set[str]:
    node = cluster.zookeeper.snapshot().get(ConfigEntityZNode.path("brokers", str(broker)))
    return set() if node is None else set(ConfigEntityZNode.decode(node.data).values())


def test_a_pause_is_seen_until_just_before_a_submission(
    controller: MovingController, cluster: FakeCluster, plan: Path
) -> None:
    """It is written after the step has looked for one, while the controller answers."""
    answer = cluster.answers[ListPartitionReassignmentsRequest]
    questions = 0
    begun: list[list[int]] = []

    def pause_once(request: Request) -> Response | Errors | None:
        nonlocal questions
        questions += 1  # the first one is asked before the execution begins
        if questions == 2:
            cluster.zookeeper.put(MovesPauseZNode.PATH, MovesPauseZNode.encode(MovesPause(1)))
        elif questions == 4:
            begun.extend(controller.submitted)
            cluster.zookeeper.remove(MovesPauseZNode.PATH)
        return answer(request)

    cluster.answers[ListPartitionReassignmentsRequest] = pause_once
    execute(cluster, plan)
    assert (begun, controller.submitted) == ([], [[0, 1, 2]])


def test_a_move_whose_request_crosses_a_pause_is_slowed(
    controller: MovingController, cluster: FakeCluster, plan: Path
) -> None:
    """The pause lists the moves before the controller begins these."""
    controller.lasts = {0, 1, 2}

    def cross(_: int) -> Errors:
        assert pause(cluster) == 0
        return Errors.NONE

    controller.before_answer = cross
    with ThreadPoolExecutor(1) as thread:
        execution = thread.submit(execute, cluster, plan)
        eventually(lambda: rates(cluster, 3) == {"1"}, "the moves are slowed")
        controller.assign(dict.fromkeys(range(3), ReplicaAssignment(TARGET)))
        execution.result(scaled(TIMEOUT_S))


def test_a_throttle_that_crosses_a_pause_does_not_raise_the_rate(
    controller: MovingController, cluster: FakeCluster, plan: Path
) -> None:
    other = {0: ReplicaAssignment(TARGET).reassign_to(BEFORE)}
    cluster.put_topic("u", other)

    def cross(call: Call) -> None:
        is_first = MovesPauseZNode.PATH not in cluster.zookeeper.snapshot()
        if is_first and ConfigEntityZNode.path("topics", "t") in call.paths:
            assert pause(cluster) == 1

    cluster.hook = cross
    with pytest.raises(RegentError, match="moves are paused"):
        execute(cluster, plan, throttle=1000)
    assert controller.submitted == []
    assert [rates(cluster, broker) for broker in range(4)] == [{"1"}] * 4
