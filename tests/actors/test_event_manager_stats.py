"""Measurements of the controller's thread and their metrics."""

from __future__ import annotations

import pytest

from regent.actors.event_manager_stats import EventManagerStats
from regent.broker.metrics.controller_metrics import controller_metrics
from regent.broker.metrics.recent import Recent
from regent.core.controller.events import BrokerChange, TopicChange
from regent.core.controller.gauges import ControllerState
from regent.core.protocol.control import ControlResponse
from regent.core.protocol.controller import UnansweredRequest
from tests.support.stage import Sent, Stage, actor_of, ask


def test_an_event_is_timed_under_its_state():
    stats = EventManagerStats()
    states: list[ControllerState] = []
    with stats.handling(TopicChange(), queue_ms=3.0):
        states.append(stats.state)
    states.append(stats.state)
    assert states == [ControllerState.TOPIC_CHANGE, ControllerState.IDLE]
    assert stats.timers["TopicChangeRateAndTimeMs"].count == 1
    assert stats.event_queue_time.maximum_ms == 3.0


def test_a_failed_event_is_timed_too():
    stats = EventManagerStats()
    with pytest.raises(LookupError), stats.handling(BrokerChange(), queue_ms=0.0):
        raise LookupError
    assert stats.state is ControllerState.IDLE
    assert stats.timers["LeaderElectionRateAndTimeMs"].count == 1


def test_queue_times_are_reset_after_a_quiet_period():
    stats = EventManagerStats(idle_reset_ms=0)
    with stats.handling(TopicChange(), queue_ms=5.0):
        pass
    assert stats.event_queue_time.count == 0


def test_the_active_controller_has_kafkas_metrics(stage: Stage):
    controller = stage.controller(0)
    payments = {0: (0,), 1: (9,)}
    stage.put_topic("payments", payments)
    ask(controller, TopicChange())
    actor = actor_of(controller)
    families = controller_metrics(actor.view, Recent())
    metrics = {name: value for family in families for name, value in family.values().items()}
    kafka = "kafka_controller_kafkacontroller_"
    assert metrics[kafka + "activecontrollercount"] == 1
    assert metrics[kafka + "globaltopiccount"] == 1
    assert metrics[kafka + "offlinepartitionscount"] == 1
    timer = "kafka_controller_controllerstats_topicchangerateandtimems"
    assert metrics[timer + "_count"] >= 1
    assert metrics[timer + '{quantile="0.99"}'] > 0
    assert metrics['kafka_controller_controllerchannelmanager_queuesize{broker_id="0"}'] >= 0


def test_a_broker_with_an_unanswered_request_is_named(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("regent.actors.controller_channel_manager.UNANSWERED_WARNING_S", 0.0)
    actor = actor_of(stage.controller(0))
    channels, answers = actor.channels, stage.answer
    seen: list[UnansweredRequest] = []

    def look_before_answering(sent: Sent) -> ControlResponse:
        seen.extend(channels.unanswered())
        return answers(sent)

    stage.answer = look_before_answering
    payments = {0: (0,)}
    stage.put_topic("payments", payments)
    expected = {(0, "LeaderAndIsr"), (0, "UpdateMetadata")}
    stage.wait_for(lambda: expected <= {(u.broker_id, u.request) for u in seen})
