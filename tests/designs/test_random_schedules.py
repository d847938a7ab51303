"""Random schedules, the same for every design: v1 and v2 break the guarantees, v3 does not.

A seed gives one schedule: what happens does not depend on what the brokers do with it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

import pytest

from regent.core.model import BrokerId, TopicPartition
from tests.designs.controller_world import KEEP_IN_SYNC_MS, World, world_of

P = TopicPartition("payments", 0)
EARLIER: Final = ("v1-name", "v1-sequential", "v2")
BROKERS: Final = (0, 1, 2)
SEEDS: Final = range(60)
FORMER_COMMIT_THREADS: Final = (283, 1528, 3113)
STEPS: Final = 25
WAITS_MS: Final = (1, 20, 300, 1_500, KEEP_IN_SYNC_MS + 500)


class Violations(NamedTuple):
    """What must not happen, and how often it did."""

    lost: int
    """Acknowledged records that the leader lacks when everything works again."""
    doubly_led: int
    """Times that two leaders acknowledged different records that were sent at one moment."""


class RandomHistory:
    """Random faults, then an end to all faults, then the check."""

    def __init__(self, design: str, seed: int) -> None:
        self._dice = random.Random(seed)
        self._world: World = world_of(design, seed)
        self._paused: set[BrokerId] = set()
        self._dead: set[BrokerId] = set()
        self._sent: list[dict[str, list[bool]]] = []  # at one moment: records, outcomes

    def run(self) -> Violations:
        """Run it, and count."""
        self._world.create(P, BROKERS)
        actions: dict[Callable[[], None], int] = {
            self._produce: 10,
            self._cut: 3,
            self._world.mend: 1,
            self._pause: 3,
            self._resume: 3,
            self._end_session: 3,
            self._crash: 2,
            self._start: 3,
        }
        for _ in range(STEPS):
            self._dice.choices([*actions], [*actions.values()])[0]()
            self._world.run_for(self._dice.choice(WAITS_MS))
        self._end_all_faults()
        return self._violations()

    # --- what happens ---

    def _produce(self) -> None:
        """Send a record to every broker that leads, as it thinks, and is awake."""
        moment = len(self._sent)
        self._sent.append(
            {
                f"{moment}-to-{leader}": self._world.produce(leader, P, f"{moment}-to-{leader}")
                for leader in self._world.believers(P)
                if leader not in self._paused
            }
        )

    def _cut(self) -> None:
        sender, receiver = self._dice.sample(BROKERS, 2)
        self._world.cut(sender, receiver)

    def _pause(self) -> None:
        broker_id = self._one_of(set(BROKERS) - self._dead - self._paused)
        if broker_id is not None:
            self._world.pause(broker_id)
            self._paused.add(broker_id)

    def _resume(self) -> None:
        """Let a broker go on; it hears from ZooKeeper a little later."""
        broker_id = self._one_of(self._paused)
        if broker_id is not None:
            self._paused.remove(broker_id)
            self._world.resume(broker_id)
            self._produce()
            self._world.run_for(self._dice.choice(WAITS_MS))
            self._world.hear(broker_id)

    def _end_session(self) -> None:
        broker_id = self._one_of(set(BROKERS) - self._dead)
        if broker_id is not None:
            self._world.end_session(broker_id)

    def _crash(self) -> None:
        broker_id = self._one_of(set(BROKERS) - self._dead - self._paused)
        if broker_id is not None:
            self._world.crash(broker_id)
            self._dead.add(broker_id)

    def _start(self) -> None:
        broker_id = self._one_of(self._dead)
        if broker_id is not None:
            self._world.start(broker_id)
            self._dead.remove(broker_id)

    def _one_of(self, broker_ids: set[BrokerId]) -> BrokerId | None:
        return self._dice.choice(sorted(broker_ids)) if broker_ids else None

    # --- the end ---

    def _end_all_faults(self) -> None:
        self._world.mend()
        while self._paused:
            self._resume()
        while self._dead:
            self._start()
        for broker_id in BROKERS:
            self._world.hear(broker_id)
        self._world.run_for(5 * KEEP_IN_SYNC_MS)

    def acknowledged(self) -> list[list[str]]:
        """Return the acknowledged records, those of each moment together."""
        return [
            [record for record, outcome in sent.items() if outcome == [True]] for sent in self._sent
        ]

    def _violations(self) -> Violations:
        (leader,) = self._world.believers(P)
        kept = self._world.records(leader, P)
        lost = [r for records in self.acknowledged() for r in records if r not in kept]
        return Violations(len(lost), sum(len(records) > 1 for records in self.acknowledged()))


@cache
def violations(design: str) -> dict[int, Violations]:
    """Return what went wrong, by seed."""
    return {seed: RandomHistory(design, seed).run() for seed in SEEDS}


@pytest.mark.parametrize("design", ["v1-name", "v1-sequential"])
def test_in_v1_some_random_histories_lose_acknowledged_records(design: str):
    lost = [seed for seed, found in violations(design).items() if found.lost]
    assert lost[:3] == [1, 4, 5]


@pytest.mark.parametrize("design", ["v1-name", "v1-sequential"])
def test_in_v1_some_random_histories_have_two_leaders_that_acknowledge(design: str):
    doubly_led = [seed for seed, found in violations(design).items() if found.doubly_led]
    assert doubly_led[:3] == [1, 4, 5]


def test_in_v2_random_histories_lose_acknowledged_records_less_often():
    """Two leaders cannot both change the ISR. Truncation to the high watermark is as in v1."""
    lost = {
        design: sum(found.lost > 0 for found in violations(design).values()) for design in EARLIER
    }
    assert violations("v2")[4].lost
    assert lost["v2"] < min(lost["v1-name"], lost["v1-sequential"])


@pytest.mark.parametrize("seed", FORMER_COMMIT_THREADS)
def test_in_v2_the_commit_thread_of_a_former_leadership_writes_nothing(seed: int):
    """Its replica has read the newest version of ``leaderAndISR`` since, to stand for election.

    With that version it would put itself into the ISR: two leaders acknowledge, or nobody leads.
    """
    assert not RandomHistory("v2", seed).run().doubly_led


def test_in_v3_the_histories_that_broke_v1_or_v2_break_nothing():
    broken = {s for design in EARLIER for s, found in violations(design).items() if any(found)}
    acknowledged = 0
    for seed in sorted(broken | {*FORMER_COMMIT_THREADS}):
        history = RandomHistory("v3", seed)
        assert history.run() == Violations(lost=0, doubly_led=0), f"seed {seed}"
        acknowledged += sum(map(len, history.acknowledged()))
    assert acknowledged > len(broken)
