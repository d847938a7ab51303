"""The active controller, and nobody else, deletes expired delegation tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regent.core.controller.delegation_token_deletion import (
    TOKENS_AT_ONCE,
    DelegationTokenDeletion,
)
from regent.core.controller.effects import CancelScheduledEvents, Effect, ScheduleEvent
from regent.core.controller.events import DeleteExpiredTokens, Expire
from regent.core.controller.services import ControllerSettings
from regent.core.security.delegation_token_manager import DelegationToken
from regent.zk.znodes import DelegationTokenInfoZNode
from tests.support.controller_parts import Candidate, of_type
from tests.support.fake_zookeeper import Moment, lose_connection, once
from tests.support.token_world import CHANGES, TOKENS, a_token
from tests.support.world import World

NOW_MS = 1_700_000_000_000  # of a candidate
INTERVAL_MS = 60_000
SETTINGS = ControllerSettings(
    delegation_tokens_are_on=True, delegation_token_expiry_check_interval_ms=INTERVAL_MS
)


class TokenController:
    """A controller that deletes tokens, and the tokens in ZooKeeper."""

    def __init__(self, settings: ControllerSettings = SETTINGS) -> None:
        self.world = World((1, 2))
        for path in (TOKENS, CHANGES):
            self.world.zookeeper.put(path)
        self.candidate = Candidate(self.world, 0, settings)

    def put(self, name: str, left_ms: int) -> None:
        """Write a token that is valid for so long."""
        self.write(a_token(name, expiry_ms=NOW_MS + left_ms))

    def write(self, token: DelegationToken) -> None:
        path = DelegationTokenInfoZNode.path(token.token_id)
        self.world.zookeeper.put(path, DelegationTokenInfoZNode.encode(token))

    def timers(self, effects: list[Effect]) -> list[int]:
        """The looks that are scheduled: after how many milliseconds."""
        return [
            scheduled.after_ms
            for scheduled in of_type(effects, ScheduleEvent)
            if isinstance(scheduled.event, DeleteExpiredTokens)
        ]

    def look(self) -> list[int]:
        """Let the timer fire; return the next ones."""
        epoch = self.candidate.controller.context.epoch
        return self.timers(self.candidate.handle(DeleteExpiredTokens(epoch)))

    @property
    def left(self) -> list[str]:
        return self.world.zookeeper.children_of(TOKENS)


@pytest.fixture
def controller() -> TokenController:
    return TokenController()


def test_the_first_look_is_at_the_beginning_of_a_term_and_the_next_after_the_interval(
    controller: TokenController,
):
    assert controller.timers(controller.candidate.start()) == [0]
    assert controller.look() == [INTERVAL_MS]


def test_without_tokens_there_is_no_look():
    controller = TokenController(ControllerSettings())
    assert controller.timers(controller.candidate.start()) == []


def test_only_expired_tokens_are_deleted_and_brokers_are_told(controller: TokenController):
    controller.put("a", -1)
    controller.put("b", 0)
    controller.write(a_token("c", max_ms=NOW_MS - 1))
    controller.world.zookeeper.put(f"{TOKENS}/d", b"garbage")
    controller.candidate.start()
    controller.look()
    assert controller.left == ["b", "d"]
    nodes = controller.world.zookeeper.children_of(CHANGES)
    told = [controller.world.zookeeper.node(f"{CHANGES}/{name}") for name in nodes]
    assert [node.data for node in told if node is not None] == [b"a", b"c"]


def test_a_token_that_is_renewed_between_the_read_and_the_deletion_stays(
    controller: TokenController,
):
    controller.put("a", -1)
    controller.candidate.start()
    controller.candidate.session.hook = once(Moment.BEFORE, lambda: controller.put("a", 5))
    controller.look()
    assert controller.left == ["a"]


def test_a_deposed_controller_deletes_nothing_and_resigns(controller: TokenController):
    controller.put("a", -1)
    controller.candidate.start()
    controller.world.elect_another_controller()
    controller.look()
    assert controller.left == ["a"]
    assert not controller.candidate.controller.is_active


def test_a_look_of_an_earlier_term_does_nothing(controller: TokenController):
    controller.put("a", -1)
    controller.candidate.start()
    epoch = controller.candidate.controller.context.epoch
    assert controller.candidate.handle(DeleteExpiredTokens(epoch - 1)) == []
    assert controller.left == ["a"]


def test_the_looks_end_with_the_term(controller: TokenController):
    controller.put("a", -1)
    controller.candidate.start()
    epoch = controller.candidate.controller.context.epoch
    effects = controller.candidate.handle(Expire())
    assert of_type(effects, CancelScheduledEvents)
    assert controller.candidate.handle(DeleteExpiredTokens(epoch)) == []
    assert controller.left == ["a"]


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_tokens_are_deleted_although_the_answer_is_lost(
    controller: TokenController, moment: Moment
):
    controller.put("a", -1)
    controller.candidate.start()
    controller.candidate.session.hook = once(moment, lose_connection)
    assert controller.look() == [INTERVAL_MS]
    assert controller.left == []
    assert len(controller.world.zookeeper.children_of(CHANGES)) == 1


def test_many_tokens_are_looked_at_in_several_events(controller: TokenController):
    names = [f"t{number:04d}" for number in range(TOKENS_AT_ONCE + 1)]
    for name in names:
        controller.put(name, -1)
    controller.candidate.start()
    assert controller.look() == [0]
    assert controller.left == names[-1:]
    assert controller.look() == [INTERVAL_MS]
    assert controller.left == []
    controller.put("a", -1)
    assert controller.look() == [INTERVAL_MS]
    assert controller.left == []


def test_tokens_that_cannot_be_listed_are_looked_at_later(
    controller: TokenController, caplog: pytest.LogCaptureFixture
):
    controller.put("a", -1)
    controller.candidate.start()
    controller.world.zookeeper.deny(TOKENS)
    assert controller.look() == [INTERVAL_MS]
    assert "expired delegation tokens are not deleted" in caplog.text
    controller.world.zookeeper.allow(TOKENS)
    controller.look()
    assert controller.left == []


def test_looks_that_are_quarantined_go_on_in_the_same_term_when_they_are_tried_again(
    controller: TokenController, monkeypatch: pytest.MonkeyPatch
):
    controller.candidate.start()
    controller.candidate.controller.context.quarantined = {"DeleteExpiredTokens": "failed"}
    monkeypatch.delattr(DelegationTokenDeletion, "delete_expired")
    assert controller.look() == [INTERVAL_MS]


def test_an_expired_token_is_deleted_by_the_wall_clock_of_the_controller(
    controller: TokenController,
):
    controller.write(replace(a_token("a"), expiry_timestamp_ms=NOW_MS + 10))
    controller.candidate.start()
    controller.candidate.now_ms = NOW_MS + 10
    controller.look()
    assert controller.left == ["a"]
    controller.candidate.now_ms += 1
    controller.look()
    assert controller.left == []
