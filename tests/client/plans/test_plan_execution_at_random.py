"""Under random failures executions and rollbacks of a plan keep their limits and complete."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest

from regent.client.flight import ExecutionOptions
from regent.client.move_pause import pause_moves, resume_moves
from regent.client.plan_execution import execute_plan
from regent.core.errors import Errors, RegentError
from regent.core.model import ReplicaAssignment
from regent.zk.stores.admin_store import ZkAdminStore
from tests.support.fake_cluster import ADDRESS, FakeCluster
from tests.support.fake_zookeeper import Call, FakeZooKeeper, Moment
from tests.support.plan_controller import (
    BEFORE,
    TARGET,
    MovingController,
    opener,
    write_plan,
)

SEEDS = 12
PARTITIONS = list(range(8))
LIMITS = (6, 6)  # a partition moves two replicas: three at a time
ELSEWHERE = (1, 3)


class Misfortune:
    """Brokers die and return, moves are slow, answers fail, others move partitions.

    The execution is paused, resumed and interrupted; others pause all moves, and cancel moves.
    """

    def __init__(self, cluster: FakeCluster, chance: random.Random, plan: Path) -> None:
        self.controller = MovingController(cluster)
        self.controller.assign(dict.fromkeys(PARTITIONS, ReplicaAssignment(BEFORE)))
        self.controller.before_answer = self._answer
        self.violations: list[str] = []
        self.taken: set[int] = set()
        """Partitions that others have moved."""
        self.is_over = False
        self._plan = plan
        self._cluster = cluster
        self._chance = chance
        self._others = random.Random(chance.getstate()[1][0])  # the other draws stay as they were
        self._admin = ZkAdminStore(FakeZooKeeper(cluster.zookeeper))
        self._dead: int | None = None
        cluster.hook = self._strike

    def _happens(self, odds: float) -> bool:
        return self._chance.random() < odds

    def _answer(self, _: int) -> Errors:
        """Check whether this request is allowed now, and choose its answer."""
        asked = set(self.controller.submitted[-1])
        partitions = self._cluster.topic("t").partitions
        moving = {p for p, a in partitions.items() if a.is_being_reassigned}
        if len(moving | asked) > 3:
            self.violations.append(f"{asked} begin beside {moving}")
        if asked & self.taken:
            self.violations.append(f"{asked & self.taken} belong to others")
        if self._happens(0.2):
            return self._chance.choice([Errors.NOT_CONTROLLER, Errors.UNKNOWN_SERVER_ERROR])
        self.controller.lasts = {p for p in asked if self._happens(0.5)}
        dead = (Errors.INVALID_REPLICA_ASSIGNMENT, "brokers are not alive")
        is_refused = self._dead is not None
        self.controller.refuses = {p: dead for p in asked if is_refused or self._happens(0.1)}
        return Errors.NONE

    def _strike(self, call: Call) -> None:
        if call.moment is not Moment.BEFORE:
            return
        if self._happens(0.1):
            self._kill_or_revive()
        for partition, assignment in self._cluster.topic("t").partitions.items():
            if assignment.is_being_reassigned and self._dead is None and self._happens(0.2):
                self.controller.assign({partition: ReplicaAssignment(assignment.target_replicas)})
        if (self._plan / "paused").exists():
            if self._happens(0.3):
                (self._plan / "paused").unlink()
        elif self._happens(0.02):
            (self._plan / "paused").touch()
        if not self.is_over and self._happens(0.004):
            self.taken.add(partition := self._chance.choice(PARTITIONS))
            self.controller.assign({partition: ReplicaAssignment(ELSEWHERE)})
        self._pause_or_cancel()
        if not self.is_over and self._happens(0.03):
            raise KeyboardInterrupt

    def _pause_or_cancel(self) -> None:
        if self.is_over:
            return
        partitions = self._cluster.topic("t").partitions
        moving = {p: a for p, a in partitions.items() if a.is_being_reassigned}
        if moving and self._others.random() < 0.02:
            partition = self._others.choice(sorted(moving))
            origin = ReplicaAssignment(moving[partition].origin_replicas)
            self.controller.assign({partition: origin})
        if self._admin.read_moves_pause() is not None:
            if self._others.random() < 0.1:
                resume_moves(self._admin)
        elif self._others.random() < 0.01:
            pause_moves(self._admin)

    def end(self) -> None:
        """Let all succeed from now on, but for dead brokers and slow moves."""
        self.is_over = True
        resume_moves(self._admin)

    def _kill_or_revive(self) -> None:
        if self._dead is None:
            self._dead = self._chance.choice([1, 2, 3])  # 0 is the controller
            self._cluster.unregister(self._dead)
        else:
            self._cluster.add_broker(self._dead)
            self._dead = None


@pytest.mark.parametrize("seed", range(SEEDS))
def test_executions_and_rollbacks_keep_their_limits_and_the_last_command_decides(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
):
    for name in ("_MAX_PAUSE_S", "_FIRST_PAUSE_S"):
        monkeypatch.setattr(f"regent.client.flight.{name}", 0.0)
    monkeypatch.setattr("regent.client.flight._RETRY_S", 0.0)
    chance = random.Random(seed)
    plan = write_plan(tmp_path / "plan", *PARTITIONS)
    misfortune = Misfortune(cluster, chance, plan)

    def run(*, is_rollback: bool) -> None:
        throttle = chance.choice([None, 1000, 2000])
        options = ExecutionOptions(*LIMITS, stall_timeout=20.0, throttle=throttle)
        with suppress(KeyboardInterrupt, RegentError):
            execute_plan(
                plan, ADDRESS, options, is_rollback=is_rollback, open_cluster=opener(cluster)
            )

    for _ in range(6):
        run(is_rollback=chance.random() < 0.3)
    misfortune.end()
    last = chance.random() < 0.5
    for _ in range(5):  # moves in the other direction may still be in flight
        run(is_rollback=last)
    end = BEFORE if last else TARGET
    wanted = [ELSEWHERE if p in misfortune.taken else end for p in PARTITIONS]
    assert misfortune.violations == []
    assert misfortune.controller.replicas() == wanted
    throttles = [
        node.data
        for path, node in cluster.zookeeper.snapshot().items()
        if path.startswith("/config/") and b"throttled" in node.data
    ]
    assert throttles == []
