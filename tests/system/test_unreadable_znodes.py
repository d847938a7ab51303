"""Znodes with an ACL that shows them to nobody: their topics wait, the cluster goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from core.model import ReplicaAssignment
from tests.support.running_cluster import RunningCluster, eventually
from tests.support.zookeeper_sessions import deny_reading
from zk.admin_znodes import ConfigEntityZNode
from zk.operations import Create
from zk.znodes import TopicZNode, encode_topic_id

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

ALL = ((0, 1, 2), (1, 2, 0), (2, 0, 1))


def test_a_poisoned_topic_and_a_poisoned_configuration_stop_nobody_else(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, "--no-placement-service") as cluster:
        address = cluster.description["zookeeper"]
        cluster.create_topic_on("good", list(ALL))
        cluster.create_topic_on("secret", [(0, 1, 2)])
        config = ConfigEntityZNode.path("topics", "secret")
        cluster.zookeeper.multi([Create(config, ConfigEntityZNode.encode({}))])
        deny_reading(address, config)
        tool = KazooClient(address)
        tool.start()
        data = TopicZNode.encode(encode_topic_id(os.urandom(16)), {0: ReplicaAssignment(ALL[0])})
        tool.create(TopicZNode.path("evil"), data, acl=[make_digest_acl("who", "knows", all=True)])
        tool.stop()
        tool.close()
        epoch, controller = cluster.controller_epoch(), cluster.controller()
        killed = next(b for b in (0, 1, 2) if b != controller)
        others = {0, 1, 2} - {killed}
        cluster.signal(killed, signal.SIGKILL)
        cluster.await_isrs("good", others)
        leaders = {s.leader_and_isr.leader for s in cluster.leaderships("good").values()}
        assert leaders <= others
        status = cluster.status()
        reasons = [r for r in status["reasons"] if "evil" in r]
        refused = "topic evil: /brokers/topics/evil: ZooKeeper refuses to show it: NO_AUTH"
        assert reasons == [refused]
        assert any("the defaults hold for topic secret" in w for w in status["warnings"])
        # Who starts reads the configuration for every log, and is told what the others know.
        cluster.start_broker(killed)
        for topic in ("good", "secret"):
            cluster.await_isrs(topic, {0, 1, 2})
        assert (cluster.controller_epoch(), cluster.controller()) == (epoch, controller)
        # A takeover reads everything afresh.
        assert controller is not None
        cluster.signal(controller, signal.SIGKILL)
        for topic in ("good", "secret"):
            cluster.await_isrs(topic, {0, 1, 2} - {controller})
        assert cluster.controller_epoch() == epoch + 1
        eventually(lambda: cluster.controller() not in (None, controller), "another controller")
