"""What ``status`` says of a broker that is registered and answers nothing."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.running_cluster import RunningCluster, eventually

pytestmark = [pytest.mark.system, pytest.mark.slow]


def test_a_paused_broker_that_is_still_registered_makes_the_cluster_unhealthy(
    tmp_path: Path,
) -> None:
    options = ("--brokers", "2", "--no-placement-service", "--session-timeout-ms", "60000")
    with RunningCluster(tmp_path, *options) as cluster:
        cluster.create_topic("before", 2, brokers=2)
        assert eventually(lambda: cluster.status()["healthy"], "the cluster is healthy")
        paused = 1 - int(eventually(lambda: str(cluster.controller()), "somebody rules"))
        cluster.signal(paused, signal.SIGSTOP)
        try:
            cluster.create_topic("meanwhile", 2, brokers=2)
            reasons = eventually(lambda: cluster.status()["reasons"], "it is told")
        finally:
            cluster.signal(paused, signal.SIGCONT)
        assert reasons[0].startswith(f"broker {paused} has left LeaderAndIsr unanswered for ")
        eventually(lambda: cluster.status()["healthy"], "the cluster is healthy again")
