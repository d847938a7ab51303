"""Under random failures the execution of a plan keeps to its waves and completes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from regent.core.errors import Errors
from regent.core.model import ReplicaAssignment
from regent.jobs.execution.plan_execution import execute_plan
from tests.support.fake_cluster import ADDRESS, FakeCluster
from tests.support.fake_zookeeper import Call, Moment
from tests.support.plan_controller import (
    BEFORE,
    TARGET,
    MovingController,
    opener,
    write_plan,
)

SEEDS = 12
WAVES = [[0, 1, 2], [3], [4, 5, 6, 7]]
PARTITIONS = [partition for wave in WAVES for partition in wave]


class Misfortune:
    """Brokers die and return, moves are slow, answers fail, and the execution is interrupted."""

    def __init__(self, cluster: FakeCluster, chance: random.Random) -> None:
        self.controller = MovingController(cluster)
        self.controller.assign(dict.fromkeys(PARTITIONS, ReplicaAssignment(BEFORE)))
        self.controller.before_answer = self._answer
        self.out_of_turn: list[set[int]] = []
        """Moves that began, or were requested, before the end of an earlier wave."""
        self._cluster = cluster
        self._chance = chance
        self._dead: int | None = None
        cluster.hook = self._strike

    def _happens(self, odds: float) -> bool:
        return self._chance.random() < odds

    def _answer(self, _: int) -> Errors:
        """Check whether this request is allowed now, and choose its answer."""
        asked = set(self.controller.submitted[-1])
        replicas = dict(zip(PARTITIONS, self.controller.replicas(), strict=True))
        left = [wave for wave in WAVES if any(replicas[p] != TARGET for p in wave)]
        begun = asked | {p for p in PARTITIONS if replicas[p] not in (BEFORE, TARGET)}
        if not begun <= set(left[0]):
            self.out_of_turn.append(begun)
        if self._happens(0.2):
            return self._chance.choice([Errors.NOT_CONTROLLER, Errors.UNKNOWN_SERVER_ERROR])
        self.controller.lasts = {p for p in asked if self._happens(0.5)}
        dead = (Errors.INVALID_REPLICA_ASSIGNMENT, "brokers are not alive")
        is_refused = self._dead in TARGET
        self.controller.refuses = {p: dead for p in asked if is_refused or self._happens(0.1)}
        return Errors.NONE

    def _strike(self, call: Call) -> None:
        if call.moment is not Moment.BEFORE:
            return
        if self._happens(0.1):
            self._kill_or_revive()
        partitions = self._cluster.topic("t").partitions
        for partition, assignment in partitions.items():
            if assignment.is_being_reassigned and self._dead is None and self._happens(0.2):
                self.controller.assign({partition: ReplicaAssignment(assignment.target_replicas)})
        if self._happens(0.02):
            raise KeyboardInterrupt

    def _kill_or_revive(self) -> None:
        if self._dead is None:
            self._dead = self._chance.choice([2, 3])
            self._cluster.remove_broker(self._dead)
        else:
            self._cluster.add_broker(self._dead)
            self._dead = None


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_execution_keeps_to_its_waves_and_completes(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
):
    monkeypatch.setattr("regent.jobs.execution.plan_execution._MAX_PAUSE_S", 0.001)
    monkeypatch.setattr("regent.admin.pauses._FIRST_S", 0.001)
    misfortune = Misfortune(cluster, random.Random(seed))
    plan = write_plan(tmp_path / "plan", *WAVES)

    while True:
        try:
            summary = execute_plan(plan, ADDRESS, open_cluster=opener(cluster))
            break
        except KeyboardInterrupt:
            continue
    assert misfortune.out_of_turn == []
    assert misfortune.controller.replicas() == [TARGET] * len(PARTITIONS)
    assert summary["reached_before"] + summary["moved"] == len(PARTITIONS)
    assert summary["left"] == 0
