"""``acls`` and a broker in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from regent.config.settings import Settings
from regent.core.security.authorizer import Authorizer
from tests.support.fake_cluster import FakeCluster, failing
from tests.support.memory_logs import MemoryLogs
from tests.support.served_endpoint import BROKER, ServedEndpoint

NOBODY_IS_REFUSED = Authorizer()


@pytest.fixture
def cluster_with_acls(cluster: FakeCluster) -> Iterator[FakeCluster]:
    with ExitStack() as stack:
        served = ServedEndpoint(
            stack, MemoryLogs(), Settings(), "payments", authorizer=NOBODY_IS_REFUSED
        )
        cluster.add_broker(BROKER, port=served.port)
        yield cluster


def listed(cluster: FakeCluster, *options: str) -> list[tuple[str, ...]]:
    rows = json.loads(cluster.run("acls", "list", "-o", "json", *options).stdout)
    return [tuple(row.values()) for row in rows]


def test_acls_are_added_listed_and_removed(cluster_with_acls: FakeCluster):
    run = cluster_with_acls.run
    of_alice = ("--allow-principal", "User:alice", "--operation", "read", "--topic", "payments")
    assert run("acls", "add", *of_alice).stdout == "Added 1 ACL.\n"
    run("acls", "add", "--deny-principal", "User:*", "--deny-host", "10.0.0.9", "--cluster")
    read = ("TOPIC", "payments", "LITERAL", "User:alice", "*", "READ", "ALLOW")
    denial = ("CLUSTER", "kafka-cluster", "LITERAL", "User:*", "10.0.0.9", "ALL", "DENY")
    assert listed(cluster_with_acls) == [read, denial]
    assert listed(cluster_with_acls, "--principal", "User:alice") == [read]
    assert listed(cluster_with_acls, "--topic", "other") == []
    assert "payments" in run("acls", "list").stdout
    removed = json.loads(run("acls", "remove", "-o", "json", *of_alice).stdout)
    assert [tuple(row.values()) for row in removed] == [read]
    assert run("acls", "remove", "--cluster").stdout == "Removed 1 ACL.\n"
    assert listed(cluster_with_acls) == []


def test_a_producer_and_a_consumer_get_what_they_need(cluster_with_acls: FakeCluster):
    who = ("--allow-principal", "User:app", "--topic", "pay", "--resource-pattern-type", "prefixed")
    cluster_with_acls.run(
        "acls", "add", "--producer", "--idempotent", "--transactional-id", "x", *who
    )
    cluster_with_acls.run("acls", "add", "--consumer", "--group", "g", *who)
    found = {(row[0], row[1], row[2], row[5]) for row in listed(cluster_with_acls)}
    topic, literal = ("TOPIC", "pay", "PREFIXED"), ("CLUSTER", "kafka-cluster", "LITERAL")
    of_id = "TRANSACTIONAL_ID", "x", "PREFIXED"
    assert found == {
        *((*topic, operation) for operation in ("READ", "WRITE", "DESCRIBE", "CREATE")),
        *((*of_id, operation) for operation in ("WRITE", "DESCRIBE")),
        ("GROUP", "g", "PREFIXED", "READ"),
        (*literal, "IDEMPOTENT_WRITE"),
    }
    assert {row[1] for row in listed(cluster_with_acls, "--topic", "payments")} == set()
    matching = ("--topic", "payments", "--resource-pattern-type", "match")
    assert {row[1] for row in listed(cluster_with_acls, *matching)} == {"pay"}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("add", "--topic", "t"), "who?"),
        (("add", "--allow-principal", "User:a"), "of what?"),
        (("add", "--allow-principal", "a", "--topic", "t"), "Type:name"),
        (("add", "--allow-principal", "User:a", "--group", "g", "--operation", "write"), "Group"),
        (("add", "--allow-principal", "User:a", "--consumer", "--topic", "t"), "--group"),
        (("add", "--allow-principal", "User:a", "--producer", "--group", "g"), "--topic"),
        (("add", "--allow-principal", "User:a", "--topic", "t", "--idempotent"), "--producer"),
        (("add", "--deny-principal", "User:a", "--allow-host", "1.1.1.1", "--topic", "t"), "host"),
        (("remove", "--topic", "t", "--operation", "read"), "of whom?"),
    ],
)
def test_wrong_options_are_refused(cluster: FakeCluster, options: tuple[str, ...], problem: str):
    result = cluster.run("acls", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert problem in result.stderr


def test_without_an_authorizer_the_setting_is_named(cluster: FakeCluster):
    with ExitStack() as stack:
        served = ServedEndpoint(stack, MemoryLogs(), Settings(), "payments")
        cluster.add_broker(BROKER, port=served.port)
        line = failing(cluster.run("acls", "list"))
    assert "set authorizer_class_name" in line
