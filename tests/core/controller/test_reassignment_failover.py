"""Reassignments with a failover at each write: each ends or never starts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress

import pytest

from regent.core.model import TopicPartition
from tests.support.fake_zookeeper import Call, Moment, lose_connection
from tests.support.moving_cluster import ADMIN, MovingCluster
from tests.support.world import T0, T1, Replicas, SimulatedCrashError, topic_id

U0 = TopicPartition("u", 0)
ORIGIN: dict[TopicPartition, Replicas] = {T0: (1, 2, 3), T1: (2, 1, 3), U0: (1, 2)}
TARGET: dict[TopicPartition, Replicas] = {T0: (4, 2, 5), T1: (3, 2, 1), U0: (5, 6)}
OTHER: dict[TopicPartition, Replicas] = {T0: (6, 2, 5), T1: (2, 1, 6), U0: (4, 3)}


MIN_WRITES = 8  # of each script


def cluster() -> MovingCluster:
    moving = MovingCluster(range(1, 7))
    moving.put_topic("t", {0: ORIGIN[T0], 1: ORIGIN[T1]}, topic_id(1))
    moving.put_topic("u", {0: ORIGIN[U0]}, topic_id(2))
    moving.start_controller()
    return moving


def by_znode(moving: MovingCluster) -> None:
    moving.write_znode(TARGET)
    moving.catch_up_with_everything()


def by_rpc(moving: MovingCluster) -> None:
    moving.submit(dict(TARGET))
    moving.catch_up_with_everything()


def superseded_by_znode(moving: MovingCluster) -> None:
    moving.submit(dict(OTHER))
    moving.write_znode(TARGET)
    moving.catch_up_with_everything()


def superseded_by_rpc(moving: MovingCluster) -> None:
    moving.write_znode(OTHER)
    moving.submit(dict(TARGET))
    moving.catch_up_with_everything()


def cancelled(moving: MovingCluster) -> None:
    """Cancelled by RPC while replica 4, which is being added, leads."""
    moving.submit(dict.fromkeys(ORIGIN, (4, 5)))
    moving.unregister(5)
    moving.settle()
    moving.catch_up()
    moving.unregister(1)
    moving.settle()
    moving.register(1, incarnation=2)
    moving.settle()
    moving.catch_up()
    moving.submit(dict.fromkeys(ORIGIN))
    moving.catch_up_with_everything()


SCRIPTS = [
    by_znode,
    by_rpc,
    superseded_by_znode,
    superseded_by_rpc,
    cancelled,
]
Script = Callable[[MovingCluster], None]


class AtWrite:
    """A hook that acts once, at one moment of write number ``number``."""

    def __init__(self, number: int, moment: Moment, act: Callable[[], None]) -> None:
        self._left = number
        self._moment = moment
        self._act = act

    @property
    def has_acted(self) -> bool:
        """Whether the write has happened."""
        return self._left < 0

    def __call__(self, call: Call) -> None:
        """Count the writes."""
        if call.method in ("multi", "multi_many") and call.moment is self._moment:
            self._left -= 1
            if self._left == -1:
                self._act()


def crash() -> None:
    raise SimulatedCrashError


def heal(moving: MovingCluster) -> None:
    """Start all brokers and wait until nothing changes."""
    for broker_id in sorted({1, 2, 3, 4, 5, 6} - moving.sessions.keys()):
        moving.register(broker_id, incarnation=9)
    moving.settle()
    moving.catch_up_with_everything()


def allowed_ends(moving: MovingCluster, script: Script) -> list[dict[TopicPartition, Replicas]]:
    """Return the possible final assignments; requests are not repeated, but a znode stays."""
    asked_by_znode = any(
        operation.path == ADMIN
        for transaction in moving.zookeeper.transactions
        for operation in transaction.operations
        if transaction.session_id == 0
    )
    if script is cancelled:
        return [ORIGIN, dict.fromkeys(ORIGIN, (4, 5))]
    if script is superseded_by_rpc:
        return [OTHER, TARGET] if asked_by_znode else [ORIGIN]
    return [TARGET] if asked_by_znode else [ORIGIN, TARGET, OTHER]


def assert_ended(moving: MovingCluster, ends: list[dict[TopicPartition, Replicas]]) -> None:
    moving.assert_at_rest()
    for partition in ORIGIN:
        assert moving.replicas(partition)[0] in [end[partition] for end in ends]


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_next_controller_finishes_the_reassignment_after_a_crash(
    script: Script, moment: Moment
) -> None:
    crashes = 0
    while True:
        moving = cluster()
        moving.active.session.hook = AtWrite(crashes, moment, crash)
        try:
            script(moving)
        except SimulatedCrashError:
            crashes += 1
        else:
            break
        moving.succeed()
        heal(moving)
        assert_ended(moving, allowed_ends(moving, script))
    assert crashes >= MIN_WRITES, "a crash at each write"


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_next_controller_may_crash_as_well(script: Script) -> None:
    for first in range(0, 40, 3):
        for second in range(1, 20, 4):
            moving = cluster()
            moving.active.session.hook = AtWrite(first, Moment.AFTER, crash)
            try:
                script(moving)
                return
            except SimulatedCrashError:
                pass
            with suppress(SimulatedCrashError):
                moving.succeed(AtWrite(second, Moment.AFTER, crash))
                heal(moving)
            moving.succeed()
            heal(moving)
            assert_ended(moving, allowed_ends(moving, script))


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_controller_that_does_not_know_that_it_is_deposed_changes_nothing(script: Script) -> None:
    for number in itertools.count():
        moving = cluster()
        deposed = moving.active

        def depose(moving: MovingCluster = moving) -> None:
            moving.depose()
            moving.catch_up_with_everything()

        deposed.session.hook = hook = AtWrite(number, Moment.BEFORE, depose)
        script(moving)
        if not hook.has_acted:
            break
        assert not deposed.controller.is_active
        heal(moving)
        assert_ended(moving, allowed_ends(moving, script))
    assert number >= MIN_WRITES


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_lost_response_does_not_stop_a_reassignment(script: Script) -> None:
    for number in itertools.count():
        moving = cluster()
        moving.active.session.hook = hook = AtWrite(number, Moment.AFTER, lose_connection)
        script(moving)
        heal(moving)
        assert_ended(moving, [ORIGIN] if script is cancelled else [TARGET])
        if not hook.has_acted:
            break
    assert number >= MIN_WRITES
