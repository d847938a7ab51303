"""The controlled shutdown on the broker's side: attempts, retries and when it gives up."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from regent.broker.controlled_shutdown import (
    ControlledShutdownSettings,
    ask_for_controlled_shutdown,
)
from regent.core.errors import Errors, RegentError
from regent.core.model import TopicPartition
from regent.core.protocol.controller import ControlledShutdownRequest, ControlledShutdownResponse
from regent.core.replication.metadata_cache import MetadataSnapshot
from tests.support.world import live_broker

SETTINGS = ControlledShutdownSettings(
    max_retries=3, retry_backoff_s=0.0, timeout_s=1.0, reconnect_s=0.0
)
LEFT = (TopicPartition("payments", 0),)
DONE = ControlledShutdownResponse(Errors.NONE)
STUCK = ControlledShutdownResponse(Errors.NONE, LEFT)
MOVED = ControlledShutdownResponse(Errors.STALE_CONTROLLER_EPOCH)


class ScriptedController:
    """Gives scripted answers in sequence."""

    def __init__(self, *answers: ControlledShutdownResponse | Exception) -> None:
        self._answers = iter(answers)
        self.asked: list[ControlledShutdownRequest] = []

    def ask(self, message: Any, *, timeout: float) -> Any:
        """Return the next answer."""
        self.asked.append(message)
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def cluster_of(*broker_ids: int) -> MetadataSnapshot:
    brokers = {b: live_broker(b, 1) for b in broker_ids}
    return MetadataSnapshot(controller_id=0, controller_epoch=1, brokers=brokers)


def leave(
    controller: ScriptedController | None,
    cluster: MetadataSnapshot,
    abort: threading.Event | None = None,
    connections: Iterator[bool] | None = None,
    find_controller: Callable[[MetadataSnapshot], ScriptedController] | None = None,
) -> tuple[TopicPartition, ...] | None:
    return ask_for_controlled_shutdown(
        lambda: ControlledShutdownRequest(1, 7),
        lambda: cluster,
        find_controller or (lambda _: controller),
        SETTINGS,
        abort or threading.Event(),
        lambda: connections is None or next(connections),
    )


def test_one_response_without_remaining_partitions_is_enough():
    controller = ScriptedController(DONE)
    assert leave(controller, cluster_of(0, 1)) == ()
    assert controller.asked == [ControlledShutdownRequest(1, 7)]


def test_the_request_is_repeated_after_a_refusal_or_a_timeout():
    controller = ScriptedController(MOVED, RegentError("no answer"), DONE)
    assert leave(controller, cluster_of(0, 1)) == ()
    assert len(controller.asked) == 3


def test_an_unexpected_error_of_the_own_controller_counts_as_no_answer():
    """The logs are closed after it."""
    controller = ScriptedController(KeyError("payments"), OSError(24, "none left"), DONE)
    assert leave(controller, cluster_of(0, 1)) == ()
    assert leave(ScriptedController(*[ZeroDivisionError()] * 3), cluster_of(0, 1)) is None


def test_a_controller_that_cannot_be_connected_to_counts_as_one_without_an_answer():
    def fail(_: MetadataSnapshot) -> ScriptedController:
        raise OSError(24, "no descriptor is left")

    cluster = cluster_of(0, 1)
    assert leave(None, cluster, find_controller=fail) is None


def test_after_the_last_attempt_the_remaining_partitions_are_returned():
    controller = ScriptedController(STUCK, STUCK, STUCK)
    assert leave(controller, cluster_of(0, 1)) == LEFT


def test_the_last_broker_asks_once_because_no_other_can_lead():
    controller = ScriptedController(STUCK)
    assert leave(controller, cluster_of(1)) == LEFT


def test_without_zookeeper_no_request_is_sent():
    assert (
        leave(ScriptedController(), cluster_of(0, 1), connections=itertools.repeat(False)) is None
    )


def test_a_short_disconnection_is_waited_for():
    controller = ScriptedController(DONE)
    leave(controller, cluster_of(0, 1), connections=iter([False, True]))
    assert len(controller.asked) == 1


def test_a_lost_connection_ends_the_attempts():
    controller = ScriptedController(MOVED)
    leave(controller, cluster_of(0, 1), connections=iter([True, False, False]))
    assert len(controller.asked) == 1


def test_a_broker_that_never_received_a_control_request_sends_none():
    controller = ScriptedController()
    assert leave(controller, MetadataSnapshot()) == ()
    assert controller.asked == []


def test_an_unknown_controller_uses_up_attempts():
    assert leave(None, cluster_of(0, 1)) is None


def test_an_abort_ends_the_attempts():
    abort = threading.Event()
    abort.set()
    controller = ScriptedController(MOVED)
    assert leave(controller, cluster_of(0, 1), abort) is None
    assert len(controller.asked) == 1
