"""A registered broker that does not answer: the output of ``status``, the controller's reaction."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually, scaled
from tests.support.breakable_cluster import BreakableCluster

pytestmark = [pytest.mark.system, pytest.mark.slow]


@pytest.mark.nightly
def test_a_paused_broker_that_is_still_registered_makes_the_cluster_unhealthy(
    tmp_path: Path,
) -> None:
    options = ("--brokers", "2", "--no-placement-service", "--session-timeout-ms", "60000")
    with RegentCluster(tmp_path, *options) as cluster:
        cluster.create_topic("before", 2, 2)
        assert eventually(lambda: cluster.status()["healthy"], "the cluster is healthy")
        paused = 1 - cluster.await_controller()
        cluster.signal(paused, signal.SIGSTOP)
        try:
            cluster.create_topic("meanwhile", 2, 2)
            reasons = eventually(lambda: cluster.status()["reasons"], "status reports it")
        finally:
            cluster.signal(paused, signal.SIGCONT)
        assert reasons[0].startswith(f"broker {paused} has left LeaderAndIsr unanswered for ")
        eventually(lambda: cluster.status()["healthy"], "the cluster is healthy again")


def test_a_registered_broker_that_answers_nothing_loses_its_leaderships_until_it_answers(
    tmp_path: Path,
) -> None:
    config = tmp_path / "cluster.toml"
    config.write_text("[controller]\nbroker_answer_timeout_ms = 2000\n")
    options = ("--no-placement-service", "--session-timeout-ms", "60000", "--config", str(config))
    with RegentCluster(tmp_path, *options) as cluster:
        cluster.create_topic("t", 3)
        cluster.await_isr("t", {0, 1, 2})
        controller, epoch = cluster.controller(), cluster.controller_epoch()
        paused = next(b for b in (0, 1, 2) if b != controller)
        others = {0, 1, 2} - {paused}
        registration = cluster.broker_epoch(paused)
        cluster.signal(paused, signal.SIGSTOP)
        try:
            cluster.await_isr("t", others)
            assert {
                s.leader_and_isr.leader for s in cluster.partition_states("t").values()
            } <= others
            assert cluster.broker_epoch(paused) == registration, "its session is valid"
        finally:
            cluster.signal(paused, signal.SIGCONT)
        cluster.await_isr("t", {0, 1, 2})
        assert cluster.broker_epoch(paused) == registration
        assert (cluster.controller(), cluster.controller_epoch()) == (controller, epoch)


def test_a_broker_that_runs_for_a_seventh_of_the_time_is_named_as_slow(
    tmp_path: Path,
) -> None:
    with BreakableCluster(tmp_path) as cluster:
        cluster.create_topic("t", 3, 3)
        cluster.await_isr("t", {0, 1, 2})
        assert cluster.status()["slow_brokers"] == [], "all are sound"
        stopped = next(b for b in (0, 1, 2) if b != cluster.controller())
        done = threading.Event()

        def stop_again_and_again() -> None:
            while not done.is_set():
                cluster.signal(stopped, signal.SIGSTOP)
                done.wait(1.3)
                cluster.signal(stopped, signal.SIGCONT)
                done.wait(0.2)

        turns = threading.Thread(target=stop_again_and_again)
        turns.start()
        try:
            named = f"broker {stopped} answers slowly ("
            warning = eventually(
                lambda: [w for w in cluster.status()["warnings"] if w.startswith(named)],
                "it is named",
            )[0]
        finally:
            done.set()
            turns.join(scaled(10))
            cluster.signal(stopped, signal.SIGCONT)
        assert "brokers list -o wide" in warning
