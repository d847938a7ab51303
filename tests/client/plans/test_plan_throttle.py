"""A throttle is set before the first move, and only what belongs to the plan is removed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from regent.client.flight import ExecutionOptions
from regent.client.plan_directory import PlanLock
from regent.client.plan_execution import PlanIncompleteError, execute_plan
from regent.core.errors import Errors
from regent.core.model import ReplicaAssignment
from regent.testing.waits import TIMEOUT_S, eventually, scaled
from regent.zk.client.operations import ConnectionLossError
from regent.zk.znodes import ConfigEntityZNode
from tests.support.fake_cluster import ADDRESS, FakeCluster
from tests.support.fake_zookeeper import Call
from tests.support.plan_controller import (
    BEFORE,
    TARGET,
    MovingController,
    opener,
    write_plan,
)

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LEADERS = "leader.replication.throttled.replicas"
FOLLOWERS = "follower.replication.throttled.replicas"


@pytest.fixture
def controller(cluster: FakeCluster) -> MovingController:
    controller = MovingController(cluster)
    controller.assign(dict.fromkeys(range(2), ReplicaAssignment(BEFORE)))
    return controller


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return write_plan(tmp_path / "plan", 0, 1)


def config(cluster: FakeCluster, kind: str, name: str) -> dict[str, str]:
    path = ConfigEntityZNode.path(kind, name)
    node = cluster.zookeeper.snapshot().get(path)
    return {} if node is None else ConfigEntityZNode.decode(node.data, path)


def put(cluster: FakeCluster, kind: str, name: str, values: dict[str, str]) -> None:
    cluster.zookeeper.put(ConfigEntityZNode.path(kind, name), ConfigEntityZNode.encode(values))


def execute(
    cluster: FakeCluster, plan: Path, throttle: int | None = 1000, stall_timeout: float = 60.0
) -> None:
    options = ExecutionOptions(9, 99, throttle=throttle, stall_timeout=stall_timeout)
    execute_plan(plan, ADDRESS, options, open_cluster=opener(cluster))


def test_a_throttle_applies_to_the_moves_from_their_beginning_to_their_end(
    controller: MovingController, cluster: FakeCluster, plan: Path
):
    def look(_: int) -> Errors:
        for broker in range(4):
            assert config(cluster, "brokers", str(broker)) == dict.fromkeys(RATES, "1000")
        assert config(cluster, "topics", "t") == {
            LEADERS: "0:0,0:1,1:0,1:1",
            FOLLOWERS: "0:2,0:3,1:2,1:3",
        }
        return Errors.NONE

    controller.before_answer = look
    execute(cluster, plan)
    assert controller.submitted == [[0, 1]]
    assert [config(cluster, "brokers", str(b)) for b in range(4)] == [{}] * 4
    assert config(cluster, "topics", "t") == {}
    assert not (plan / "throttle.json").exists()


def test_throttles_and_settings_of_others_stay(
    controller: MovingController, cluster: FakeCluster, plan: Path
):
    others = {"retention.ms": "5", LEADERS: "0:0,7:1", FOLLOWERS: "*"}
    put(cluster, "topics", "t", others)
    put(cluster, "brokers", "2", {RATES[0]: "77", "log.cleaner.threads": "2"})

    def look(_: int) -> Errors:
        assert config(cluster, "topics", "t") == others | {LEADERS: "0:0,0:1,1:0,1:1,7:1"}
        put(cluster, "brokers", "3", dict.fromkeys(RATES, "5"))  # by an operator, meanwhile
        return Errors.NONE

    controller.before_answer = look
    execute(cluster, plan)
    assert config(cluster, "topics", "t") == others
    assert config(cluster, "brokers", "2") == {RATES[0]: "77", "log.cleaner.threads": "2"}
    assert config(cluster, "brokers", "3") == dict.fromkeys(RATES, "5")


@pytest.mark.parametrize("later", [None, 500])
def test_a_killed_execution_is_resumed_with_another_rate_or_without_a_throttle(
    controller: MovingController, cluster: FakeCluster, plan: Path, later: int | None
):
    put(cluster, "brokers", "1", {RATES[0]: "77"})
    kept: dict[str, Any] = {}

    def keep(_: int) -> Errors:
        kept["note"] = (plan / "throttle.json").read_bytes()
        kept["brokers"] = [config(cluster, "brokers", str(b)) for b in range(4)]
        kept["topic"] = config(cluster, "topics", "t")
        return Errors.NONE

    controller.before_answer = keep
    execute(cluster, plan)
    (plan / "throttle.json").write_bytes(kept["note"])  # as after kill -9
    for broker, values in enumerate(kept["brokers"]):
        put(cluster, "brokers", str(broker), values)
    put(cluster, "topics", "t", kept["topic"])
    controller.assign(dict.fromkeys(range(2), ReplicaAssignment(BEFORE)))

    def look(_: int) -> Errors:
        rates = dict.fromkeys(RATES, str(later)) if later else {}
        assert config(cluster, "brokers", "0") == rates
        return Errors.NONE

    controller.before_answer = look
    execute(cluster, plan, later)
    assert len(controller.submitted) == 2
    assert config(cluster, "brokers", "1") == {RATES[0]: "77"}
    assert config(cluster, "brokers", "0") == config(cluster, "topics", "t") == {}


@pytest.mark.parametrize("later", [None, 500])
def test_the_throttle_of_a_running_execution_outlives_another_one(
    controller: MovingController, cluster: FakeCluster, plan: Path, later: int | None
):
    put(cluster, "brokers", "1", {RATES[0]: "77"})
    controller.lasts = {0, 1}
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(execute, cluster, plan)
        eventually(lambda: controller.submitted, "the first one has begun")
        with pytest.raises(PlanIncompleteError):
            execute(cluster, plan, later, stall_timeout=0.1)
        assert config(cluster, "brokers", "1") == dict.fromkeys(RATES, str(later or 1000))
        assert FOLLOWERS in config(cluster, "topics", "t")
        controller.assign(dict.fromkeys(range(2), ReplicaAssignment(TARGET)))
        first.result(scaled(TIMEOUT_S))
    assert config(cluster, "brokers", "1") == {RATES[0]: "77"}
    assert config(cluster, "brokers", "0") == config(cluster, "topics", "t") == {}


def test_an_execution_that_ends_leaves_the_throttle_that_another_is_setting(
    controller: MovingController, cluster: FakeCluster, plan: Path
) -> None:
    controller.lasts = {0, 1}
    alone: list[bool] = []
    with PlanLock(plan) as ending:
        ending.share()

        def end(call: Call) -> None:
            if any(ConfigEntityZNode.path("topics", "t") in path for path in call.paths):
                alone.append(ending.is_alone())

        cluster.hook = end
        with pytest.raises(PlanIncompleteError):
            execute(cluster, plan, stall_timeout=0.1)
    assert alone
    assert not any(alone)


def test_an_interrupted_execution_removes_its_throttle_or_says_how_to(
    controller: MovingController,
    cluster: FakeCluster,
    plan: Path,
    capsys: pytest.CaptureFixture[str],
):
    def interrupt(call: Call) -> None:
        if controller.submitted:
            cluster.hook = None
            raise KeyboardInterrupt

    def fail(call: Call) -> None:
        raise ConnectionLossError("lost")

    controller.lasts = {0, 1}
    cluster.hook = interrupt
    with pytest.raises(KeyboardInterrupt):
        execute(cluster, plan)
    assert config(cluster, "brokers", "0") == {}

    controller.submitted.clear()

    def interrupt_and_fail(call: Call) -> None:
        if (plan / "throttle.json").exists() and config(cluster, "topics", "t"):
            cluster.hook = fail
            raise KeyboardInterrupt

    cluster.hook = interrupt_and_fail
    with pytest.raises(KeyboardInterrupt):
        execute(cluster, plan)
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"The throttle remains! Remove it: regent jobs plan unthrottle {plan} --zookeeper {ADDRESS}"
    )
