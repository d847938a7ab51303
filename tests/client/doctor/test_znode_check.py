"""What strangers may do with znodes, by their ACLs; what a server tells strangers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from regent.client.doctor.examined_cluster import ExaminedCluster
from regent.client.doctor.findings import Finding, Severity
from regent.client.doctor.znode_check import check_zookeeper
from regent.testing.waits import scaled
from regent.zk.client.login import Login, log_in
from regent.zk.client.operations import AclEntry, Permission

ADDRESS = "127.0.0.1:1"  # nothing listens there
LOGIN = Login("regent", "secret")
ALL = ~Permission(0)
OURS = AclEntry(ALL, "digest", LOGIN.digest)
TOOLS = AclEntry(ALL, "sasl", LOGIN.user)
READ = AclEntry(Permission.READ, "world", "anyone")
OPEN = AclEntry(ALL, "world", "anyone")
SECURED = {"/": (OURS, READ), "/brokers": (OURS, READ), "/config/users": (OURS,)}


@pytest.fixture(autouse=True)
def login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regent.zk.client.login._logins", {})
    log_in(ADDRESS, LOGIN)


def findings(acls: Mapping[str, tuple[AclEntry, ...]], address: str = ADDRESS) -> list[Finding]:
    return list(check_zookeeper(ExaminedCluster(zookeeper=address, acls=list(acls.items()))))


def test_a_secured_tree_is_all_right_with_consumers_open_and_znodes_of_tools():
    (found,) = findings({**SECURED, "/consumers": (OPEN,), "/config/topics/t": (TOOLS, READ)})
    assert found.severity is Severity.OK
    assert (
        found.message == "only the cluster's login may change 5 znodes of ZooKeeper at " + ADDRESS
    )


def test_znodes_that_everybody_may_change_are_grouped_and_counted():
    opened = {f"/brokers/topics/t{n}": (OURS, OPEN) for n in range(5)}
    more = {"/controller": (OURS, AclEntry(Permission.DELETE, "world", "anyone"))}
    topics, controller = findings({**SECURED, **opened, **more})
    assert (topics.severity, topics.subject) == (Severity.PROBLEM, "/brokers/topics")
    assert "may change 5 znodes in /brokers/topics (/brokers/topics/t0, " in topics.message
    assert " and 2 more)" in topics.message
    assert "`" in topics.remedy
    assert f" zookeeper acl secure --zookeeper {ADDRESS} " in topics.remedy
    assert controller.message.endswith("may change /controller")


@pytest.mark.parametrize("path", ["/config/users/u", "/config/brokers", "/delegation_token/tokens"])
def test_a_secret_that_everybody_may_read_is_a_problem(path: str):
    (*_, found) = findings({**SECURED, path: (OURS, READ)})
    assert found.severity is Severity.PROBLEM
    assert f"may read {path}: passwords" in found.message


def test_an_open_znode_of_an_old_consumer_is_a_warning():
    (found,) = findings({**SECURED, "/consumers": (OPEN,), "/consumers/g": (OPEN,)})
    assert (found.severity, found.subject) == (Severity.WARNING, "/consumers/g")


def test_a_znode_that_another_user_may_change_names_the_user_and_not_its_password():
    other = Login("mallory", "m")
    acl = OURS, AclEntry(Permission.WRITE, "digest", other.digest)
    (found,) = findings({**SECURED, "/brokers/ids/0": acl})
    assert found.severity is Severity.WARNING
    assert found.message.startswith("digest:mallory, which is not the cluster's login, may change")
    assert other.digest not in str(found)


def test_a_tree_without_a_login_is_one_problem_and_one_for_each_kind_of_secret():
    everything = dict.fromkeys(("/", "/brokers", "/config/users/a", "/config/users/b"), (OPEN,))
    tree, users = findings(everything)
    assert "has no login: every client that can connect may change 4 znodes" in tree.message
    assert tree.remedy.startswith("set secret_file for all brokers, then `")
    assert "2 znodes in /config/users" in users.message
    assert {tree.severity, users.severity} == {Severity.PROBLEM}


@contextmanager
def talkative_server(*words: str) -> Iterator[int]:
    """A server that answers these four-letter words, and refuses the others as ZooKeeper does."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    word = connection.recv(4).decode()
                    refusal = f"{word} is not executed because it is not in the whitelist.\n"
                    connection.sendall(b"told" if word in words else refusal.encode())

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(scaled(10.0))


def test_four_letter_words_that_a_server_answers_are_named():
    with talkative_server("conf", "wchp") as port:
        _, words = findings(SECURED, f"127.0.0.1:{port},{ADDRESS}/kafka")
    assert words.message.endswith("tells every client of its sessions and settings (conf, wchp)")
    assert words.remedy == "set 4lw.commands.whitelist=srvr in its zoo.cfg"


def test_a_server_beyond_loopback_shows_its_secret_to_the_network():
    _, found = findings(SECURED, "no-such-host.invalid:2181")
    assert found.severity is Severity.WARNING
    assert found.message.startswith("ZooKeeper at no-such-host.invalid:2181 is not encrypted")
