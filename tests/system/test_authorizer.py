"""A cluster with an authorizer: genuine clients without and with ACLs, on every broker."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from regent.config.tables.authorizer import ACL_AUTHORIZER
from regent.core.security import acls as ours
from regent.core.security.acl_cache import AclCache
from regent.core.security.authorizer import AclAuthorizer, AuthorizerSettings
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually, scaled
from regent.zk.stores.acl_store import ZkAclStore

pytestmark = [pytest.mark.nightly, pytest.mark.system, pytest.mark.zookeeper]

ANYBODY = "User:ANONYMOUS"
TIMEOUT_S = scaled(60.0)


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegentCluster]:
    place = tmp_path_factory.mktemp("cluster")
    config = place / "settings.toml"
    config.write_text(f'[authorizer]\nauthorizer_class_name = "{ACL_AUTHORIZER}"\n')
    config.chmod(0o600)
    options = ("--no-placement-service", "--config", str(config))
    with RegentCluster(place / "data", *options) as cluster:
        yield cluster


def outcome(cluster: RegentCluster, topic: str) -> int:
    """Return the error code of one record; 0: all replicas have it."""
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0}
    producer = Producer({**settings, "message.timeout.ms": 10_000})
    codes: list[int] = []
    producer.produce(topic, b"x", callback=lambda e, _: codes.append(0 if e is None else e.code()))
    producer.flush(TIMEOUT_S)
    return codes[0]


def regent(cluster: RegentCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "regent", *arguments, "--data-dir", str(cluster.data_dir)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)


def test_clients_need_acls_and_replication_does_not(cluster: RegentCluster) -> None:
    cluster.create_topic("t")
    assert outcome(cluster, "t") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    refused = regent(cluster, "acls", "list")
    assert (refused.returncode, "super_users" in refused.stderr) == (1, True)
    # The first ACL is written as Kafka's AclCommand writes it: to ZooKeeper.
    tool = AclAuthorizer(AuthorizerSettings(), time.monotonic)
    store = ZkAclStore(cluster.zookeeper)
    by_tool = AclCache(store, tool, threading.Lock(), time.monotonic)
    pattern = ours.ResourcePattern(*ours.CLUSTER, ours.PatternType.LITERAL)
    entry = ours.AccessControlEntry(
        ANYBODY, "*", ours.AclOperation.ALL, ours.AclPermissionType.ALLOW
    )
    by_tool.create([ours.AclBinding(pattern, entry)])
    eventually(lambda: regent(cluster, "acls", "list").returncode == 0, "the ACL counts")
    # Then librdkafka writes one, and each broker follows.
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    write = AclBinding(
        ResourceType.TOPIC,
        "t",
        ResourcePatternType.LITERAL,
        ANYBODY,
        "*",
        AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )
    admin.create_acls([write])[write].result(TIMEOUT_S)
    eventually(lambda: outcome(cluster, "t") == 0, "a record is written")
    of_topics = AclBindingFilter(
        ResourceType.TOPIC,
        "t",
        ResourcePatternType.ANY,
        ANYBODY,
        "*",
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert write in admin.describe_acls(of_topics).result(TIMEOUT_S)
    assert regent(cluster, "acls", "remove", "--topic", "t").stdout == "Removed 1 ACL.\n"
    expected = KafkaError.TOPIC_AUTHORIZATION_FAILED
    eventually(lambda: outcome(cluster, "t") == expected, "the topic is closed again")
