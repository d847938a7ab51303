"""Znodes whose ACL denies reads: only what depends on them waits."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from regent.core.model import ReplicaAssignment
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually
from regent.zk.client.operations import ANY_VERSION, Create, Delete
from regent.zk.codecs.topic_znodes import encode_topic_id
from regent.zk.znodes import (
    BrokerIdsZNode,
    ConfigEntityZNode,
    ControllerZNode,
    TopicsZNode,
    TopicZNode,
)
from tests.support.zookeeper_sessions import deny_reading

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

ALL = ((0, 1, 2), (1, 2, 0), (2, 0, 1))


def refusal(path: str) -> str:
    """Return the message of ``status`` for a znode that cannot be read."""
    return (
        f"{path}: ZooKeeper refuses to show it: NO_AUTH;"
        f" to allow it: setAcl {path} world:anyone:cdrwa"
    )


@contextmanager
def denied(cluster: RegentCluster, path: str) -> Iterator[None]:
    """Let only clients with a password use a znode, for the block; no watch fires."""
    client = KazooClient(cluster.description["zookeeper"])
    client.start()
    try:
        client.add_auth("digest", "user:secret")
        client.set_acls(path, [make_digest_acl("user", "secret", all=True)])
        yield
        if client.exists(path):
            client.set_acls(path, OPEN_ACL_UNSAFE)
    finally:
        client.stop()
        client.close()


def test_an_unreadable_topic_and_an_unreadable_configuration_stop_no_other_topic(
    tmp_path: Path,
) -> None:
    with RegentCluster(tmp_path, "--no-placement-service", "--no-zookeeper-login") as cluster:
        address = cluster.description["zookeeper"]
        cluster.create_topic_on("good", list(ALL))
        cluster.create_topic_on("secret", [(0, 1, 2)])
        config = ConfigEntityZNode.path("topics", "secret")
        cluster.zookeeper.multi([Create(config, ConfigEntityZNode.encode({}))])
        deny_reading(address, config)
        tool = KazooClient(address)
        tool.start()
        data = TopicZNode.encode(encode_topic_id(os.urandom(16)), {0: ReplicaAssignment(ALL[0])})
        tool.create(
            TopicZNode.path("evil"), data, acl=[make_digest_acl("user", "secret", all=True)]
        )
        tool.stop()
        tool.close()
        epoch, controller = cluster.controller_epoch(), cluster.controller()
        killed = next(b for b in (0, 1, 2) if b != controller)
        others = {0, 1, 2} - {killed}
        cluster.signal(killed, signal.SIGKILL)
        cluster.await_isr("good", others)
        leaders = {s.leader_and_isr.leader for s in cluster.partition_states("good").values()}
        assert leaders <= others
        status = cluster.status()
        reasons = [r for r in status["reasons"] if "evil" in r]
        assert reasons == [f"topic evil: {refusal(TopicZNode.path('evil'))}"]
        assert any("settings of topic secret cannot be read" in w for w in status["warnings"])
        # A broker reads the configuration of every log when it starts; the others send their state.
        cluster.start_broker(killed)
        for topic in ("good", "secret"):
            cluster.await_isr(topic, {0, 1, 2})
        assert (cluster.controller_epoch(), cluster.controller()) == (epoch, controller)
        # A new controller reads everything again.
        assert controller is not None
        cluster.signal(controller, signal.SIGKILL)
        for topic in ("good", "secret"):
            cluster.await_isr(topic, {0, 1, 2} - {controller})
        assert cluster.controller_epoch() == epoch + 1
        eventually(lambda: cluster.controller() not in (None, controller), "another controller")


@pytest.mark.nightly
def test_unreadable_lists_and_an_unreadable_controller_znode_cause_no_elections(
    tmp_path: Path,
) -> None:
    with RegentCluster(tmp_path, "--no-placement-service", "--no-zookeeper-login") as cluster:
        cluster.create_topic_on("good", list(ALL))
        cluster.await_isr("good", {0, 1, 2})
        epoch, controller = cluster.controller_epoch(), cluster.controller()
        # The active controller still notices dead brokers: registrations can be read, not listed.
        killed = next(b for b in (0, 1, 2) if b != controller)
        with denied(cluster, BrokerIdsZNode.PATH):
            cluster.signal(killed, signal.SIGKILL)
            cluster.await_isr("good", {0, 1, 2} - {killed})
        cluster.start_broker(killed)
        cluster.await_isr("good", {0, 1, 2})
        # No broker is elected that could not load the state.
        with denied(cluster, TopicsZNode.PATH):
            cluster.zookeeper.multi([Delete(ControllerZNode.PATH, ANY_VERSION)])
            said = f"cannot stand for election: {refusal(TopicsZNode.PATH)}"
            log = tmp_path / f"broker-{controller}" / "broker.log"
            eventually(lambda: said in log.read_text(), "it logs the reason")
            assert cluster.status()["reasons"] == [
                refusal(TopicsZNode.PATH),
                "there is no controller",
            ]
            assert (cluster.controller_epoch(), cluster.controller()) == (epoch, None)
            assert log.read_text().count(said) == 1
        eventually(
            lambda: cluster.controller() is not None, "a controller is elected", timeout_s=10
        )
        assert cluster.controller_epoch() == epoch + 1
        # ZooKeeper fires no watch for a deleted node that the session may not read.
        controller = cluster.controller()
        assert controller is not None
        with denied(cluster, ControllerZNode.PATH):
            cluster.signal(controller, signal.SIGKILL)
            cluster.await_isr("good", {0, 1, 2} - {controller})
        assert cluster.controller_epoch() == epoch + 2
